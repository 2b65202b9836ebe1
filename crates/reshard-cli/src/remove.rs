//! `reshard remove`.

use crate::{
    args::{Remove, given},
    error::{CliError, OK, Result},
    io::Io,
    json,
    program::Program,
    table::{self, BOLD, GOOD, styled},
    units,
};
use reshard::{blocking, storage::Entry};
use reshard_manager::Removed;
use serde_json::json;
use std::io::Write;

pub(crate) fn run(program: &Program, args: &Remove, io: &mut Io<'_>) -> Result<u8> {
    let removal = reshard_manager::remove_sharded_tensors(&args.dir, &args.prefix)
        .dry_run(args.dry_run)
        .registry(program.registry.clone())
        .stores(program.stores.clone())
        .limits(args.reading.limits());
    let format = args.reading.format().cloned();
    let removal = given(
        removal,
        format,
        reshard_manager::RemoveShardedTensors::format,
    );
    let removed = blocking::run(removal).map_err(CliError::from)?;
    if removed.keys.is_empty() {
        return Err(CliError::told(
            format!("no key in {} starts with {}", args.dir, args.prefix),
            "`reshard ls` lists the keys; nothing was removed",
        ));
    }
    if args.reading.json {
        let report = json!({
            "schema": 1,
            "dry_run": args.dry_run,
            "keys": removed.keys,
            "removed": removed.files,
            "kept": removed.kept,
            "bytes": freed(&removed),
        });
        json::write(io.out, &report)?;
    } else {
        print(args.dry_run, &removed, io.out)?;
    }
    Ok(OK)
}

fn freed(removed: &Removed) -> u64 {
    units::sum(removed.files.iter().map(|f| f.bytes))
}

fn print(dry_run: bool, removed: &Removed, out: &mut dyn Write) -> Result<()> {
    let [keys, gone] = match dry_run {
        true => ["KEYS TO BE REMOVED", "FILES TO BE REMOVED"],
        false => ["REMOVED KEYS", "REMOVED FILES"],
    };
    table::rows(out, [keys], || removed.keys.iter().map(|key| [key.clone()]))?;
    for (title, files) in [(gone, &removed.files), ("FILES THAT STAY", &removed.kept)] {
        if !files.is_empty() {
            let row = |f: &Entry| [f.name.to_string(), units::bytes(f.bytes)];
            writeln!(out)?;
            table::rows(out, [title, ">SIZE"], || files.iter().map(row))?;
        }
    }
    let keys = units::some(removed.keys.len() as u64, "key");
    let files = units::some(removed.files.len() as u64, "file");
    let (size, what) = (units::bytes(freed(removed)), format!("{keys} and {files}"));
    writeln!(out)?;
    match dry_run {
        true => writeln!(
            out,
            "{}  {what}, {size} would be freed",
            styled(BOLD, "dry run")
        )?,
        false => writeln!(out, "{}  {what}, {size} freed", styled(GOOD, "removed"))?,
    }
    Ok(())
}
