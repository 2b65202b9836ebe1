//! `reshard stats`.

use crate::{
    args::Stats,
    cost::{self, Reads},
    error::{CliError, DAMAGED, Result},
    findings::{Doubts, items_before},
    io::Io,
    json::{self, Float},
    program::Program,
    table::rows,
    units,
};
use reshard::storage::wait;
use reshard_convert::{ANALYSIS_BLOCK, Flag, Snapshot, TensorStats, stats};
use serde_json::{Value as Json, json};

/// A float as text, such as `0`, `0.0123`, `1.23e-7`: four digits are enough to see what a weight is like.
pub(crate) fn number(x: f64) -> String {
    let size = x.abs();
    if x == 0.0 {
        return "0".into();
    }
    if !(1e-3..1e5).contains(&size) {
        return format!("{x:.3e}");
    }
    let digits = (3 - size.log10().floor() as i32).clamp(0, 6);
    format!("{x:.*}", digits.unsigned_abs() as usize)
}

pub(crate) fn run(program: &Program, args: &Stats, io: &mut Io<'_>) -> Result<u8> {
    let options = args.reading.options().verify(!args.no_verify);
    let checkpoint = program.open(&args.dir, options, io)?;
    let keys = args.select.keys();
    io.require_tensors(keys, (&args.dir, "statistics"), &checkpoint)?;
    // A block of a larger tensor is not a whole item with a checksum.
    let before = || items_before(&checkpoint, keys, |t| t.nbytes() > ANALYSIS_BLOCK);
    let before = (!args.no_verify).then(before);
    let cost = |reads: &Reads<'_>| reads.blocks_after(before.as_ref(), keys, |_| ANALYSIS_BLOCK);
    if let Some(code) = cost::tell(&[(&checkpoint, &cost)], (args.dry_run, &args.reading), io)? {
        return Ok(code);
    }
    let snapshot = wait(Snapshot::of(&checkpoint));
    let doubts = Doubts::of(&checkpoint, before.as_ref(), keys, io)?;
    let mut doubts = doubts.of_tensors(&checkpoint);
    let is_read = |key: &str| keys.has(key) && !doubts.keys.contains_key(key);
    let chosen = checkpoint.tensors().filter(|t| is_read(t.key()));
    let (bar, progress) = io.progress("reading", units::sum(chosen.map(|t| t.nbytes())));
    let mut found = Vec::new();
    let looked = wait(stats(&checkpoint, is_read, progress, |t| found.push(t)));
    bar.finish_and_clear();
    wait(snapshot.check())?;
    let unread = looked.map_err(CliError::from_analysis)?;
    doubts.keys.extend(
        unread
            .into_iter()
            .map(|t| (t.key, (CliError::from(t.error).text(), DAMAGED))),
    );
    if args.suspicious {
        found.retain(|t| !flags(t).is_empty());
    }
    if args.reading.json {
        let tensors: Vec<Json> = found.iter().map(tensor).collect();
        let mut report = json!({ "schema": 1, "tensors": tensors });
        if args.no_verify {
            report["no_verify"] = true.into();
        }
        json::write_about(io.out, &[&checkpoint], &report)?;
        return noted(&doubts, args, io);
    }
    let titles = [
        "TENSOR",
        "TYPE",
        "SHAPE",
        ">MIN",
        ">MAX",
        ">MEAN",
        ">NORM",
        ">ZEROS",
        ">NAN",
        ">INF",
        ">DENORMAL",
        "FLAGS",
    ];
    if !found.is_empty() || !args.suspicious {
        rows(io.out, titles, || found.iter().map(row))?;
    }
    let flagged = found.iter().filter(|t| !flags(t).is_empty()).count() as u64;
    if flagged > 0 {
        io.out.flush()?;
        io.note(format!(
            "{} suspicious; docs/cli.md says what the flags mean",
            units::some(flagged, "tensor")
        ));
    }
    noted(&doubts, args, io)
}

/// Notes what is not in the result. Returns the exit code.
fn noted(doubts: &Doubts, args: &Stats, io: &mut Io<'_>) -> Result<u8> {
    io.out.flush()?;
    io.note_unverified(args.no_verify);
    Ok(doubts.note(&args.dir, |_| false, io))
}

fn flags(t: &TensorStats) -> Vec<Flag> {
    t.stats.map_or_else(Vec::new, |s| s.flags())
}

fn tensor(t: &TensorStats) -> Json {
    let stats = t.stats.map(|s| {
        let flags: Vec<&str> = s.flags().into_iter().map(Flag::name).collect();
        json!({
            "numbers": s.numbers,
            "min": s.min.map(Float),
            "max": s.max.map(Float),
            "mean": s.mean.map(Float),
            "norm": Float(s.norm),
            "zeros": s.zeros,
            "nan": s.nans,
            "inf": s.infinite,
            "denormal": s.denormals,
            "dead_rows": s.dead_rows,
            "flags": flags,
        })
    });
    json!({
        "key": t.key,
        "dtype": t.dtype.name(),
        "shape": t.shape.to_vec(),
        "stats": stats,
    })
}

fn row(t: &TensorStats) -> [String; 12] {
    let mut row = [const { String::new() }; 12];
    row[0].clone_from(&t.key);
    row[1] = t.dtype.name().into();
    row[2] = t.shape.to_string();
    let Some(s) = t.stats else { return row };
    row[3] = s.min.map_or_else(String::new, number);
    row[4] = s.max.map_or_else(String::new, number);
    row[5] = s.mean.map_or_else(String::new, number);
    row[6] = number(s.norm);
    for (cell, n) in row[7..11]
        .iter_mut()
        .zip([s.zeros, s.nans, s.infinite, s.denormals])
    {
        *cell = units::count(n);
    }
    let flags = s.flags();
    let names = flags.iter().map(|flag| match flag {
        Flag::DeadRows => format!("{flag} ({})", units::count(s.dead_rows)),
        flag => flag.to_string(),
    });
    let names: Vec<String> = names.collect();
    row[11] = names.join(", ");
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_tell_their_size() {
        for (x, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1.000"),
            (-12.3456, "-12.35"),
            (0.012_345, "0.01235"),
            (98765.4, "98765"),
            (123_456.0, "1.235e5"),
            (-1.5e-7, "-1.500e-7"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(number(x), text);
        }
    }
}
