//! `reshard diff`.

use crate::{
    args::Diff,
    cost::{self, Reads},
    error::{CliError, DAMAGED, DIFFERENT, FAILED, OK, Result},
    findings::{Doubts, items_before},
    glob::Keys,
    io::Io,
    json::{self, Float},
    mapping,
    program::Program,
    stats::number,
    table::{BAD, GOOD, few, rows, shown, styled},
    units,
};
use reshard::{
    DType,
    blocking::{Checkpoint, TensorHandle},
    model::Dims,
    storage::wait,
};
use reshard_convert::{
    ANALYSIS_BLOCK, CheckpointDiff, Snapshot, TensorDiff, Tolerance, diff, diff_mapped,
};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

pub(crate) fn run(program: &Program, args: &Diff, io: &mut Io<'_>) -> Result<u8> {
    // 1 says that two checkpoints differ, so damage, which keeps them from being compared, has another code.
    compare(program, args, io).map_err(|e| match e.exit_code() {
        DAMAGED => CliError::Told {
            what: e.message(),
            hint: e.hint().to_owned(),
            code: FAILED,
        },
        _ => e,
    })
}

/// Refuses `--dequantize` if both checkpoints are of other formats, or are read as they are stored.
fn has_effect(
    program: &Program,
    args: &Diff,
    backend: &str,
    opened: [&Checkpoint; 2],
) -> Result<()> {
    if opened.iter().all(|c| *c.backend().backend != *backend) {
        let what = format!(
            "neither {} nor {} is a checkpoint of {backend}",
            args.first, args.second
        );
        return Err(CliError::told(what, "leave out --dequantize"));
    }
    let types = |c: &Checkpoint| -> Vec<_> {
        let tensors = c.metadata().tensors();
        tensors.map(|t| (t.key().to_owned(), t.dtype())).collect()
    };
    let urls = [&args.first, &args.second];
    for (side, (url, opened)) in urls.into_iter().zip(opened).enumerate() {
        let options = args.reading.as_stored_of(side).verify(false);
        let stored = program.open_quietly(url, options)?;
        if types(&stored) != types(opened) {
            return Ok(());
        }
    }
    Err(CliError::told(
        format!(
            "--dequantize has no effect: neither {} nor {} has a tensor that is quantised in a form that it knows",
            args.first, args.second
        ),
        "leave out --dequantize to compare what is stored",
    ))
}

fn compare(program: &Program, args: &Diff, io: &mut Io<'_>) -> Result<u8> {
    let verify = !args.no_verify;
    let mut open = |url: &str, side| {
        let options = args.reading.options_of(side).verify(verify);
        program.open(url, options, io)
    };
    let (first, second) = (open(&args.first, 0)?, open(&args.second, 1)?);
    if let Some(backend) = args.reading.dequantizes() {
        has_effect(program, args, backend, [&first, &second])?;
    }
    let keys = args.select.keys();
    let map = mapping::map(&args.mapping, &first, io)?;
    let mapped = map.map(|map| first.mapped(&map)).transpose();
    let mapped = mapped.map_err(|e| mapping::explained(&args.mapping, e))?;
    if mapped.is_none() {
        require_keys(keys, &args.first, [&first, &second], io)?;
    }

    // A map reads parts of stored tensors, which have other keys.
    let read = if mapped.is_some() { Keys::ALL } else { keys };
    let sides = [(&first, &*args.first, read), (&second, &args.second, keys)];
    let before = sides.map(|(checkpoint, _, keys)| {
        let is_cut = |t: &TensorHandle| mapped.is_some() || elements(t) > ANALYSIS_BLOCK;
        verify.then(|| items_before(checkpoint, keys, is_cut))
    });
    let costs = sides.iter().zip(&before).map(|((_, _, keys), before)| {
        move |reads: &Reads<'_>| {
            let tensors = reads.blocks_after(before.as_ref(), *keys, |_| ANALYSIS_BLOCK);
            tensors.and(reads.objects(*keys))
        }
    });
    let costs: Vec<_> = costs.collect();
    let costs = sides
        .iter()
        .zip(&costs)
        .map(|((c, ..), cost)| (*c, cost as _));
    if let Some(code) = cost::tell(
        &costs.collect::<Vec<_>>(),
        (args.dry_run, &args.reading),
        io,
    )? {
        return Ok(code);
    }
    let snapshots = [&first, &second].map(|c| wait(Snapshot::of(c)));
    let mut unread: [BTreeMap<String, String>; 2] = Default::default();
    for ((side, before), unread) in sides.iter().zip(&before).zip(&mut unread) {
        let (checkpoint, url, keys) = side;
        let doubts = Doubts::of(checkpoint, before.as_ref(), *keys, io)?;
        *unread = left_out(doubts, url, args.skip_unread, io)?;
    }
    let tolerance = Tolerance {
        absolute: args.tolerance,
        relative: args.relative,
        any_dtype: args.any_dtype,
    };
    let chosen = [&first, &second].into_iter().flat_map(|c| keys.tensors(c));
    let (bar, progress) = io.progress("comparing", units::sum(chosen.map(|t| t.nbytes())));
    let mut tensors = Vec::new();
    let is_read = |key: &str| unread.iter().all(|unread| !unread.contains_key(key));
    let chosen = |key: &str| keys.has(key) && is_read(key);
    let each = |t: TensorDiff| {
        // The text has only those that differ.
        if args.reading.json || !t.equal {
            tensors.push(t);
        }
    };
    let compared = match &mapped {
        Some(mapped) => wait(diff_mapped(
            mapped, &second, chosen, tolerance, progress, each,
        )),
        None => wait(diff(&first, &second, chosen, tolerance, progress, each)),
    };
    bar.finish_and_clear();
    let found = compared.map_err(CliError::from_analysis)?;
    holds(&found, &snapshots, &unread)?;
    if args.reading.json {
        let mut report = report(&found, &tensors, args.lossless);
        if args.no_verify {
            report["no_verify"] = true.into();
        }
        if args.skip_unread {
            let [first, second] = &unread;
            report["unread"] = json!({ "first": first, "second": second });
        }
        json::write_about(io.out, &[&first, &second], &report)?;
    } else {
        print(&found, &tensors, args, io)?;
    }
    io.out.flush()?;
    io.note_unverified(args.no_verify);
    Ok(match is_equal(&found, args.lossless) {
        true => OK,
        false => DIFFERENT,
    })
}

/// Fails if one of the two was replaced meanwhile, or if there are items, and none that both have, or could have.
fn holds(
    found: &CheckpointDiff,
    snapshots: &[Snapshot; 2],
    unread: &[BTreeMap<String, String>; 2],
) -> Result<()> {
    for snapshot in snapshots {
        wait(snapshot.check())?;
    }
    let compared = [
        found.tensors,
        found.compared_objects,
        found.compared_common,
        found.compared_annotations,
    ];
    if !found.is_equal() || compared.iter().any(|count| *count > 0) {
        return Ok(());
    }
    if let Some((key, why)) = unread.iter().flatten().next() {
        return Err(CliError::told(
            format!("nothing was compared: {key} can't be read: {why}"),
            "`reshard verify` lists all items that can't be read",
        ));
    }
    let [first, second] = &found.unrepresented;
    let Some(item) = first.iter().chain(second).next() else {
        return Ok(());
    };
    Err(CliError::told(
        format!("nothing was compared: only one of the two has a place for {item}"),
        "compare it with a checkpoint of a format that has a place for it",
    ))
}

fn is_equal(found: &CheckpointDiff, lossless: bool) -> bool {
    match lossless {
        true => found.is_lossless(),
        false => found.is_equal(),
    }
}

/// The size of a tensor whose elements take the most bytes that elements take. Blocks have elements of two tensors.
fn elements(tensor: &TensorHandle) -> u64 {
    let most = DType::Complex128.size();
    let count = tensor.shape().volume().unwrap_or(u64::MAX);
    count.saturating_mul(most)
}

/// Fails if no key of either checkpoint is chosen. Keys of items that can't be read count, too.
fn require_keys(
    keys: Keys<'_>,
    url: &str,
    opened: [&Checkpoint; 2],
    io: &mut Io<'_>,
) -> Result<()> {
    let mut all = Vec::new();
    for checkpoint in opened {
        let producer = checkpoint.producer();
        all.extend(checkpoint.metadata().entries().map(|e| e.key().to_owned()));
        all.extend(
            producer
                .unknown
                .into_keys()
                .chain(producer.damaged.into_keys()),
        );
    }
    io.require_some(keys, url, all.iter().map(String::as_str))
}

/// The items of a checkpoint that are not compared because they can't be read, with the reasons. They are told.
///
/// # Errors
/// There are some, and they are not to be skipped, or the whole checkpoint is damaged.
fn left_out(
    mut doubts: Doubts,
    url: &str,
    skip: bool,
    io: &mut Io<'_>,
) -> Result<BTreeMap<String, String>> {
    let mut unread = BTreeMap::new();
    if skip {
        let found = std::mem::take(&mut doubts.keys).into_iter();
        unread.extend(found.map(|(key, (why, _))| (key, why)));
    }
    can_be_compared(&doubts, url)?;
    let told = unread.iter();
    let told = told.map(|(key, why)| format!("{key} of {url} is not compared: {why}"));
    io.notes(NAMED, told, |more| {
        format!("{} more of {url} not compared", units::some(more, "item"))
    });
    Ok(unread)
}

/// So many items that are not compared are named; the JSON has all of them.
const NAMED: usize = 20;

/// What is damaged or not understood can't be compared, and nobody should take the rest for the whole.
fn can_be_compared(doubts: &Doubts, url: &str) -> Result<()> {
    let key = doubts.keys.first_key_value();
    let what = match (key, doubts.whole.first()) {
        (Some((key, (why, _))), _) => format!("{key} of {url} can't be compared: {why}"),
        (None, Some(what)) => format!("{url} can't be compared: damaged: {what}"),
        (None, None) => return Ok(()),
    };
    let hint = format!(
        "`reshard verify {url}` lists all such items; --exclude or --skip-unread leaves them out, and --no-verify compares damaged elements"
    );
    Err(CliError::told(what, hint))
}

fn report(found: &CheckpointDiff, tensors: &[TensorDiff], lossless: bool) -> Json {
    let tensors: Vec<Json> = tensors.iter().map(tensor).collect();
    json!({
        "schema": 1,
        "equal": is_equal(found, lossless),
        "tensors": tensors,
        "only_first": found.only_first,
        "only_second": found.only_second,
        "kinds": found.kinds,
        "objects": found.objects,
        "common": found.common,
        "metadata": found.annotations,
        "structure": found.structure,
        "unrepresented": { "first": found.unrepresented[0], "second": found.unrepresented[1] },
        "compared": {
            "tensors": found.tensors,
            "objects": found.compared_objects,
            "common": found.compared_common,
            "metadata": found.compared_annotations,
        },
    })
}

fn tensor(t: &TensorDiff) -> Json {
    let diff = t.diff.as_ref().map(|d| {
        json!({
            "numbers": d.numbers,
            "differ": d.differ,
            "not_finite": d.not_finite,
            "max_abs": Float(d.max_abs),
            "relative_norm": Float(d.relative_norm),
            "cosine": Float(d.cosine),
            "first": d.first.as_ref().map(|at| at.to_vec()),
        })
    });
    json!({
        "key": t.key,
        "dtypes": [t.dtypes[0].name(), t.dtypes[1].name()],
        "shapes": [t.shapes[0].to_vec(), t.shapes[1].to_vec()],
        "equal": t.equal,
        "diff": diff,
    })
}

/// So many keys of a kind are listed; the JSON has all of them.
const LISTED: usize = 1_000;

fn print(
    found: &CheckpointDiff,
    tensors: &[TensorDiff],
    args: &Diff,
    io: &mut Io<'_>,
) -> Result<()> {
    let out = &mut *io.out;
    for (what, keys) in [
        (format!("only in {}", args.first), &found.only_first),
        (format!("only in {}", args.second), &found.only_second),
        (
            "a tensor in one, an object in the other".into(),
            &found.kinds,
        ),
        ("other objects".into(), &found.objects),
        ("other common state".into(), &found.common),
        ("other metadata".into(), &found.annotations),
        ("other ties or paths".into(), &found.structure),
        (beyond(&args.first, &args.second), &found.unrepresented[0]),
        (beyond(&args.second, &args.first), &found.unrepresented[1]),
    ] {
        if keys.is_empty() {
            continue;
        }
        writeln!(out, "{}:", shown(&what))?;
        let (listed, more) = few(keys, LISTED);
        for key in listed {
            writeln!(out, "  {}", shown(key))?;
        }
        if let Some(more) = more {
            writeln!(out, "  and {more} more")?;
        }
    }
    let titles = [
        "TENSOR",
        "TYPE",
        "SHAPE",
        ">DIFFER",
        ">MAX |A-B|",
        ">RELATIVE",
        ">COSINE",
        "FIRST",
    ];
    if !tensors.is_empty() {
        rows(out, titles, || tensors.iter().take(LISTED).map(row))?;
    }
    if tensors.len() > LISTED {
        let more = units::some((tensors.len() - LISTED) as u64, "tensor");
        writeln!(out, "and {more} more")?;
    }
    if !found.is_equal() {
        writeln!(out, "{}  {}", styled(BAD, "different"), differing(found))?;
        return Ok(());
    }
    let word = match is_equal(found, args.lossless) {
        true => styled(GOOD, "equal"),
        false => styled(BAD, "different"),
    };
    writeln!(out, "{word}  {} compared{}", all(found), beside(found))?;
    Ok(())
}

/// What differs in two checkpoints that are equal, and counts only with `--lossless`.
fn beside(found: &CheckpointDiff) -> String {
    let [first, second] = &found.unrepresented;
    let mut out = String::new();
    for (count, what) in [
        (found.structure.len(), "at another path or tied otherwise"),
        (
            first.len() + second.len(),
            "that only one of them can represent",
        ),
    ] {
        if count > 0 {
            out += &format!("; {} {what}", units::some(count as u64, "item"));
        }
    }
    out
}

/// The title of items that a checkpoint has, and that the other one can't represent.
fn beyond(has: &str, lacks: &str) -> String {
    format!("only in {has} ({lacks} has no place for it)")
}

/// What was compared, if it is equal.
fn all(found: &CheckpointDiff) -> String {
    let mut parts = vec![units::some(found.tensors, "tensor")];
    if found.compared_objects > 0 {
        parts.push(units::some(found.compared_objects, "object"));
    }
    if found.compared_common > 0 {
        parts.push("common state".into());
    }
    if found.compared_annotations > 0 {
        parts.push("metadata".into());
    }
    parts.join(", ")
}

/// How much of what was compared differs.
fn differing(found: &CheckpointDiff) -> String {
    let some = |keys: &[String], what| units::some(keys.len() as u64, what);
    let tensors = units::some(found.tensors, "tensor");
    let mut parts = vec![format!("{} of {tensors}", units::count(found.differ))];
    if found.compared_objects > 0 {
        let objects = units::some(found.compared_objects, "object");
        let differ = units::count(found.objects.len() as u64);
        parts.push(format!("{differ} of {objects}"));
    }
    if found.compared_common > 0 || !found.common.is_empty() {
        parts.push(format!("{} of common state", some(&found.common, "path")));
    }
    if !found.annotations.is_empty() {
        parts.push(
            format!("{} of metadata", some(&found.annotations, "entry"))
                .replace("entrys", "entries"),
        );
    }
    let mut what = format!("{} differ", parts.join(", "));
    for (keys, how) in [
        (&found.only_first, "only in the first"),
        (&found.only_second, "only in the second"),
        (&found.kinds, "a tensor in one and an object in the other"),
    ] {
        if !keys.is_empty() {
            what.push_str(&format!("; {} {how}", some(keys, "key")));
        }
    }
    what
}

fn row(t: &TensorDiff) -> [String; 8] {
    let both = |a: String, b: String| if a == b { a } else { format!("{a} | {b}") };
    let [type_a, type_b] = t.dtypes.map(|d| d.name().to_owned());
    let [a, b] = &t.shapes;
    let mut row = [const { String::new() }; 8];
    row[0].clone_from(&t.key);
    row[1] = both(type_a, type_b);
    row[2] = both(a.to_string(), b.to_string());
    if let Some(d) = &t.diff {
        row[3] = units::count(d.differ);
        row[4] = match d.not_finite {
            0 => number(d.max_abs),
            _ => "not finite".into(),
        };
        row[5] = number(d.relative_norm);
        row[6] = format!("{:.6}", d.cosine);
        row[7] = d.first.as_ref().map_or_else(String::new, Dims::to_string);
    }
    row
}
