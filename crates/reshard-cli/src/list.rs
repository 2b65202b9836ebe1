//! `reshard ls`.

use crate::{
    args::Ls,
    error::{DAMAGED, NO_CHECKPOINT, OK, Result},
    findings::Doubts,
    io::Io,
    json,
    program::Program,
    steps,
    table::shown,
};
use reshard::strategy::CheckedItems;

pub(crate) fn run(program: &Program, args: &Ls, io: &mut Io<'_>) -> Result<u8> {
    // A pattern says that it is a folder of checkpoints.
    if args.steps.is_some() {
        return steps::list(program, args, io)?
            .ok_or_else(|| steps::none(&args.dir, args.steps.as_ref()));
    }
    let checkpoint = match program.open(&args.dir, args.reading.options(), io) {
        // Beside the steps of a run there may be a file that looks like one of a checkpoint.
        Err(e) => {
            let listed = steps::list(program, args, io)?;
            if listed.is_some() && e.exit_code() != NO_CHECKPOINT {
                io.note(format!("as a checkpoint it can't be opened: {}", e.text()));
            }
            return listed.ok_or(e);
        }
        Ok(opened) => opened,
    };
    let is_empty = checkpoint.metadata().entries().next().is_none();
    if is_empty && let Some(code) = steps::list(program, args, io)? {
        return Ok(code);
    }
    let keys = args.select.keys();
    let producer = checkpoint.producer();
    let (unknown, damaged) = (producer.unknown, producer.damaged);
    let known = checkpoint.metadata().entries().map(|e| e.key());
    io.require_some(
        keys,
        &args.dir,
        known
            .chain(unknown.keys().map(String::as_str))
            .chain(damaged.keys().map(String::as_str)),
    )?;
    let entries = checkpoint.metadata().entries().map(|e| e.key());
    let mut found: Vec<&str> = entries.filter(|k| keys.has(k)).collect();
    found.sort_unstable();
    if args.reading.json {
        json::write_about(
            io.out,
            &[&checkpoint],
            &serde_json::json!({ "schema": 1, "keys": found }),
        )?;
    } else {
        found
            .iter()
            .try_for_each(|k| writeln!(io.out, "{}", shown(k)))?;
    }
    io.out.flush()?;
    // Where requests are dear, nobody pays for what was not asked for.
    if !checkpoint.store().hints().requests_are_dear()
        && let Some(step) = steps::newest(program, &args.dir)
    {
        io.note(format!(
            "{} also holds the checkpoints of a run, such as {}; `reshard ls {} --steps PATTERN` lists them",
            args.dir,
            shown(&step.name),
            args.dir
        ));
    }
    let doubts = Doubts::of(&checkpoint, Some(&CheckedItems::None), keys, io)?;
    let metadata = checkpoint.metadata();
    let is_listed = |key: &str| metadata.tensor(key).is_some() || metadata.object(key).is_some();
    // A key that is not understood is no damage.
    Ok(match doubts.note(&args.dir, is_listed, io) {
        DAMAGED => DAMAGED,
        _ => OK,
    })
}
