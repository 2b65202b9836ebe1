//! `reshard convert`.

mod planner;
mod state;
mod target;

use crate::{
    args::Convert,
    error::{CliError, OK, RAISE, Result},
    json,
    program::{Io, Program},
    table::{GOOD, fact, shown, styled},
    units, verify,
};
use futures::{executor::block_on, future::join_all};
use planner::Rewrite;
use reshard::{ErrorKind, LocalGroup, SaveReport, blocking::Checkpoint, policy::PolicyMetrics, torch_dist};
use serde::Serialize;
use state::Source;
use std::{
    future::IntoFuture,
    time::{Duration, Instant},
};

/// Ranks of one process are not silent, only busy: one of them may write for hours while the others have nothing to do.
const PATIENCE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Files of one conversion.
const MAX_FILES: u64 = 65_536;

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    src: &'a str,
    dst: &'a str,
    ranks: u32,
    tensors: u64,
    objects: u64,
    files: u64,
    bytes: u64,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<&'a PolicyMetrics>,
}

pub(crate) fn run(program: &Program, args: &Convert, io: &mut Io<'_>) -> Result<u8> {
    let each_rank = u64::from(args.files_per_rank);
    few_enough(u64::from(args.ranks) * each_rank, "name fewer --ranks or --files-per-rank")?;
    let checkpoint = program.open(&args.src, args.reading.options())?;
    can_be_carried(&checkpoint, &args.src)?;
    target::check(program, args)?;
    let keys = args.select.keys();
    if !args.no_verify {
        sound(&checkpoint, args, io)?;
    }
    understood(&checkpoint, args)?;
    let source = Source::read(&checkpoint, keys)?;
    source.has_places()?;
    io.note_idle(keys, &args.src, checkpoint.metadata().entries().map(|e| e.key()));
    if let Some(max) = args.max_shard_size {
        few_enough(source.bytes() / max.0.max(1), "name a larger --max-shard-size")?;
    }
    if source.is_empty() && !keys.all() {
        let hint = format!("`reshard ls {}` lists the keys", args.src);
        return Err(CliError::told(format!("nothing in {} matches {}", args.src, keys.text()), hint));
    }
    let start = Instant::now();
    let dealt = source.dealt(args.ranks);
    let states =
        (0..args.ranks).map(|r| source.of_rank(r, args.ranks, &dealt)).collect::<Result<Vec<_>>>()?;
    let strategy = torch_dist::TorchDistConfig::new()
        .with_files_per_rank(args.files_per_rank)
        .with_flavour(args.flavour.into());
    let planner = Rewrite::of(&checkpoint, keys);
    let groups = LocalGroup::new(args.ranks);
    let bar = io.bar("writing", source.bytes());
    let saves = groups.iter().zip(&states).map(|(group, state)| {
        let bar = bar.clone();
        let mut save = source.save(state, &args.dst);
        if let Some(policy) = args.sharding() {
            save = save.boxed_policy(policy);
        }
        save.group(group)
            .deadline(PATIENCE)
            .strategy(strategy.clone())
            .planner(planner.clone())
            .overwrite(args.overwrite)
            .registry(program.registry.clone())
            .stores(program.stores.clone())
            .progress(move |n| bar.inc(n))
            .into_future()
    });
    // The bytes are read and written by I/O threads; one thread is enough to drive all ranks.
    let saved: Result<Vec<SaveReport>, _> = block_on(join_all(saves)).into_iter().collect();
    bar.finish_and_clear();
    let saved = saved.map_err(|e| match e.kind() {
        // Of the target, since the source is open: so nothing is said of a checkpoint.
        ErrorKind::NotFound => {
            CliError::told(CliError::from(e).text(), "check the path of DST and what lies above it")
        }
        _ => e.into(),
    });
    let Some(saved) = saved?.into_iter().next() else {
        return Err(CliError::told("no rank saved anything", "please report this"));
    };
    let report = Report {
        schema: 1,
        src: &args.src,
        dst: &args.dst,
        ranks: args.ranks,
        tensors: source.tensors(),
        objects: source.objects(),
        files: saved.files(),
        bytes: saved.bytes(),
        seconds: start.elapsed().as_secs_f64(),
        policy: saved.policy.as_ref(),
    };
    print(&report, &saved, args.json, io)?;
    for name in &saved.stays {
        io.note(format!(
            "{name} stays in {}: the checkpoint that was there names it, but no program names its own files so",
            args.dst
        ));
    }
    Ok(OK)
}

fn print(report: &Report<'_>, saved: &SaveReport, as_json: bool, io: &mut Io<'_>) -> Result<()> {
    if as_json {
        json::write(io.out, report)?;
        return Ok(());
    }
    let (out, time) = (&mut *io.out, Duration::from_secs_f64(report.seconds));
    writeln!(out, "{}  {}", styled(GOOD, "converted"), report.dst)?;
    let what =
        format!("{}, {}", units::some(report.tensors, "tensor"), units::some(report.objects, "object"));
    fact(out, "holds", what)?;
    let (ranks, files) = (units::some(report.ranks.into(), "rank"), units::some(report.files, "file"));
    fact(out, "written as", format!("{ranks}, {files}, {}", units::bytes(report.bytes)))?;
    if let Some(p) = report.policy {
        let sizes = format!("{} to {}", units::bytes(p.smallest), units::bytes(p.largest));
        let cut = units::some(p.split_tensors, "tensor");
        fact(out, "policy", format!("{}: {sizes} a file, {cut} cut", p.description))?;
    }
    fact(out, "balance", format!("the fullest rank has {:.2} of the mean", saved.imbalance()))?;
    fact(out, "took", format!("{}  {}", units::seconds(time), units::rate(report.bytes, time)))?;
    Ok(())
}

/// Refuses what no directory should hold.
fn few_enough(files: u64, hint: &str) -> Result<()> {
    if files <= MAX_FILES {
        return Ok(());
    }
    let (files, max) = (units::count(files), units::count(MAX_FILES));
    Err(CliError::told(format!("that would be {files} files, and a conversion writes at most {max}"), hint))
}

/// Only what is understood as a whole is rewritten.
fn can_be_carried(checkpoint: &Checkpoint, src: &str) -> Result<()> {
    let name = checkpoint.backend();
    if &*name.backend != torch_dist::NAME {
        let what = format!("{src} is of {name}; only {} checkpoints can be converted yet", torch_dist::NAME);
        return Err(CliError::told(
            what,
            "load it with the program that wrote it, and save it as torch_dist",
        ));
    }
    if checkpoint.producer().flattened > 0 {
        let what = format!("{src} holds flattened tensors, which can't be converted yet");
        return Err(CliError::told(what, "load it with Megatron Core 0.8 to 0.15 and save it unflattened"));
    }
    Ok(())
}

/// What is described in an unknown way would be missing in the copy, and nothing in it would say so.
fn understood(checkpoint: &Checkpoint, args: &Convert) -> Result<()> {
    let keys = args.select.keys();
    match checkpoint.producer().unknown.into_iter().find(|(key, _)| keys.has(key)) {
        None => Ok(()),
        Some((key, why)) => Err(CliError::told(
            format!("{} can't be carried over: {why}", shown(&key)),
            format!("`reshard inspect {}` lists all such; --key chooses the others", args.src),
        )),
    }
}

/// Tensors are read in blocks, of which none is a whole item with a checksum: damage would be carried over, and get a new
/// checksum that is right. So the source is checked first.
fn sound(checkpoint: &Checkpoint, args: &Convert, io: &Io<'_>) -> Result<()> {
    let found = verify::check(checkpoint, true, io)?;
    let keys = args.select.keys();
    let hint = format!("`reshard verify {}` lists all of it; --key chooses what is sound", args.src);
    if let Some(d) = verify::concerning(&found.damage, keys).next() {
        return Err(CliError::damaged(format!("{} is damaged: {}", args.src, verify::line(d)), hint));
    }
    if let Some(d) = verify::concerning(&found.unchecked, keys).next() {
        return Err(CliError::told(format!("{} could not be checked: {}", args.src, verify::line(d)), hint));
    }
    if let Some(d) = verify::concerning(&found.not_understood, keys).next() {
        let hint = format!("`reshard verify {}` lists all such; --key chooses the others", args.src);
        return Err(CliError::told(format!("{} is not understood: {}", args.src, verify::line(d)), hint));
    }
    if let Some(d) = verify::concerning(&found.not_read, keys).next() {
        return Err(CliError::told(format!("{} is not read: {}", args.src, verify::line(d)), RAISE));
    }
    Ok(())
}
