//! `reshard ls`.

use crate::{
    args::Ls,
    error::{OK, Result},
    program::{Io, Program},
    table::shown,
};

pub(crate) fn run(program: &Program, args: &Ls, io: &mut Io<'_>) -> Result<u8> {
    let checkpoint = program.open(&args.dir)?;
    let keys = args.select.keys();
    let entries = checkpoint.metadata().entries().map(|e| e.key());
    let mut found: Vec<&str> = entries.filter(|k| keys.has(k)).collect();
    found.sort_unstable();
    if args.json {
        serde_json::to_writer(&mut *io.out, &serde_json::json!({ "schema": 1, "keys": found }))?;
        writeln!(io.out)?;
    } else {
        found.iter().try_for_each(|k| writeln!(io.out, "{}", shown(k)))?;
    }
    io.out.flush()?;
    io.note_idle(keys, &args.dir, checkpoint.metadata().entries().map(|e| e.key()));
    Ok(OK)
}
