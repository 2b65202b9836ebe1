//! `reshard convert`.

use crate::{
    args::{Convert, Target, given},
    cost::{self, Checks, ReadCost, Reads},
    error::{CliError, OK, RAISE, Result},
    findings::{line, stored_bytes},
    glob::Keys,
    interrupt::{Destination, Listener, Place},
    io::Io,
    json, mapping,
    program::Program,
    table::{GOOD, fact, shown, styled},
    tracker, units,
};
use reshard::{
    BackendVersion, ErrorKind, Registry, SaveReport,
    blocking::Checkpoint,
    plan::similar,
    policy::{ByteSize, PolicyMetrics},
    storage::wait,
    strategy::{Damage, Foreign, SaveShardedStrategy},
};
use reshard_convert::{
    Asked, CastReport, Convert as Setup, ConvertError, ConvertReport, Finding, LedgerEntry,
    NotHeld, Resumed, check_files, convert,
};
use reshard_optim::BucketLayout;
use serde::Serialize;
use serde_json::json;
use std::{
    collections::BTreeMap,
    io::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// The JSON, schema 1.
#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
    /// What the conversion would read.
    #[serde(skip_serializing_if = "Option::is_none")]
    reads: Option<[&'a ReadCost<'a>; 1]>,
    src: &'a str,
    dst: &'a str,
    ranks: u32,
    tensors: u64,
    objects: u64,
    files: u64,
    /// Stored parts of tensors, and objects.
    pieces: u64,
    bytes: u64,
    /// With what was checked before.
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<&'a PolicyMetrics>,
    format: String,
    #[serde(skip_serializing_if = "<[_]>::is_empty", serialize_with = "texts")]
    dropped: &'a [NotHeld],
    /// Items that can't be read, with the reasons.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    unread: &'a BTreeMap<String, Arc<str>>,
    /// Every item of the source.
    #[serde(serialize_with = "entries")]
    ledger: &'a [LedgerEntry],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    casts: &'a [CastReport],
    #[serde(skip_serializing_if = "Option::is_none")]
    resumed: Option<Resumed>,
    /// What of `seconds` came before anything was written.
    checking_seconds: f64,
    /// The checks that a dry run does not make.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    unmade_checks: &'a [&'static str],
    /// The tracker file of Megatron-LM that names the checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    tracker: Option<String>,
}

impl<'a> Report<'a> {
    fn of(done: &'a ConvertReport, reads: Option<&'a ReadCost<'a>>, args: &'a Convert) -> Self {
        let saved = &done.saved;
        Self {
            schema: 1,
            dry_run: args.dry_run,
            reads: reads.map(|cost| [cost]),
            src: &args.src,
            dst: &args.dst,
            ranks: args.ranks,
            tensors: done.tensors,
            objects: done.objects,
            files: saved.files(),
            pieces: saved.totals.all.items,
            bytes: saved.bytes(),
            seconds: done.took.as_secs_f64(),
            policy: saved.policy.as_ref(),
            format: done.format.to_string(),
            dropped: &done.dropped,
            unread: &done.unread,
            ledger: done.ledger.entries(),
            casts: &done.casts,
            resumed: resumes(args).then_some(done.resumed),
            checking_seconds: done.checking.as_secs_f64(),
            unmade_checks: &done.unmade_checks,
            tracker: None,
        }
    }
}

fn texts<S: serde::Serializer>(what: &[NotHeld], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(what.iter().map(NotHeld::to_string))
}

fn resumes(args: &Convert) -> bool {
    args.resume && !args.dry_run
}

/// Items of the source, and what became of them.
fn entries<S: serde::Serializer>(all: &[LedgerEntry], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(all.iter().map(|e| {
        let (kind, outcome) = (e.kind.name(), e.outcome.name());
        let mut entry = json!({ "kind": kind, "name": e.name, "outcome": outcome });
        if let Some(why) = e.outcome.why() {
            entry["why"] = why.into();
        }
        entry
    }))
}

pub(crate) fn run(program: &Program, args: &Convert, io: &mut Io<'_>) -> Result<u8> {
    let keys = args.select.keys();
    let told = |e| explained(e, args, keys);
    // Before the source is opened: nothing about it can help.
    check_files(args.ranks, args.files_per_rank.unwrap_or(1)).map_err(told)?;
    misspelt(args)?;
    let source = program.open(&args.src, args.reading.options(), io)?;
    let is_writing = Arc::new(AtomicBool::new(false));
    let _listener = listener(args, &is_writing, io);
    if let Some(what) = source.unrecorded() {
        io.note(format!("{}: {what}", args.src));
    }
    let setup = set_up(program, args, &source, io)?;
    let checks = checks(args);
    // A rule may need tensors that were not chosen.
    let maps = args.mapping.map.is_some() || args.optimizer.is_some();
    let read = if maps { Keys::ALL } else { keys };
    let cost = |reads: &Reads<'_>| reads.conversion(read, checks);
    let reads = match args.dry_run {
        true => Some(ReadCost::of(&source, &cost)),
        false => {
            cost::note(&source, &cost, io);
            None
        }
    };

    if args.mapping.map.is_none() {
        io.note_idle(
            keys,
            &args.src,
            source.metadata().entries().map(|e| e.key()),
        );
    }

    // What is checked before anything is written is shown as a step of its own.
    let bytes = match args.no_verify || args.dry_run {
        true => 0,
        false => stored_bytes(&source),
    };
    let (bar, checked) = io.progress("checking", bytes);
    let prepared = wait(setup.checked(move |n| checked.add(n)).prepare());
    bar.finish_and_clear();
    let conversion = prepared.map_err(told)?;

    is_writing.store(!args.dry_run, Ordering::Relaxed);
    let bytes = if args.dry_run { 0 } else { conversion.bytes() };
    let (bar, written) = io.progress("writing", bytes);
    let done = wait(conversion.progress(move |n| written.add(n)).run());
    bar.finish_and_clear();
    let done = done.map_err(told)?;
    let tracker = tracker::write(args, io);
    let named = tracker.as_ref().ok().and_then(Option::as_deref);
    let named = named.map(|path| path.to_string_lossy().into_owned());
    if args.reading.json {
        let mut report = Report::of(&done, reads.as_ref(), args);
        report.tracker = named;
        json::write_about(io.out, &[&source], &report)?;
    } else {
        if let Some(reads) = reads {
            reads.print(io)?;
        }
        print(&done, args, io.out)?;
        if let Some(named) = named {
            fact(io.out, "tracker", shown(&named))?;
        }
    }
    note_lost(&done, args.dry_run, io);
    io.note_unverified(args.no_verify && !args.dry_run);
    note_stays(&done.saved, &args.dst, io);
    tracker.map(|_| OK)
}

/// Listens for Ctrl-C, if this is the program of a process. If that fails, the key ends the process as usual.
fn listener(args: &Convert, is_writing: &Arc<AtomicBool>, io: &Io<'_>) -> Option<Listener> {
    let place = Place::Conversion(Destination {
        dst: args.dst.clone(),
        overwrite: args.overwrite,
        resume: args.resume,
        is_writing: Arc::clone(is_writing),
    });
    io.bars.then(|| Listener::start(place).ok()).flatten()
}

/// When the source is checked.
fn checks(args: &Convert) -> Checks {
    match args.no_verify {
        true => Checks::Not,
        // What an interrupted conversion has checked on the way is not known.
        false if args.resume || args.skip_unread || args.optimizer.is_some() => Checks::Before,
        false => Checks::OnTheWay,
    }
}

/// Notes files of the replaced checkpoint that stay.
fn note_stays(saved: &SaveReport, dst: &str, io: &mut Io<'_>) {
    for name in &saved.stays {
        io.note(format!(
            "{name} stays in {dst}: the replaced checkpoint names it as its own, but no program of the format gives such a name"
        ));
    }
}

/// The endings of files that hold a checkpoint.
const ENDINGS: [&str; 5] = ["safetensors", "pt", "pth", "bin", "ckpt"];

/// Endings that say another format than the default one, and what to do instead.
const OTHER_ENDINGS: [(&str, &str); 2] = [
    ("zarr", "--to zarr3 writes a group of Zarr arrays"),
    (
        "index",
        "--to tensor_bundle writes a checkpoint of TensorFlow",
    ),
];
const QUANTIZED: &str = "--dequantize reads the numbers that quantised tensors stand for, if it knows their form; leave out --dtype, or the `cast` of \
    the map, to carry them over as they are stored";
const CELLS: &str = "choose all cells of the array, or another dialect: --dialect pytorch";
const UNKNOWN_ENDING: &str = "reshard does not write that format; `reshard plugins` lists those that it writes, and --to chooses one";

/// Refuses a destination that nearly has the ending of a file: it would become a folder of that name. Whoever names the format means the folder.
fn misspelt(args: &Convert) -> Result<()> {
    let dst = args.dst.trim_end_matches('/');
    let name = dst.rsplit('/').next().unwrap_or(dst);
    let Some((front, ending)) = name.rsplit_once('.') else {
        return Ok(());
    };
    // A folder that is there is meant, and so is one that is written as such. Numbers are versions.
    let is_meant = args.to.is_some() || args.dst.ends_with('/') || Path::new(dst).is_dir();
    if front.is_empty() || is_meant || ENDINGS.contains(&ending) {
        return Ok(());
    }
    let same = |known: &&str| ending.eq_ignore_ascii_case(known);
    let known = ENDINGS.into_iter().find(same);
    // A short ending is near to many others.
    let near = || similar(ending, ENDINGS.into_iter().filter(|known| known.len() > 4)).pop();
    if let Some(known) = known.or_else(near) {
        let meant = format!("{}{known}", &dst[..dst.len() - ending.len()]);
        return Err(CliError::told(
            format!(
                "{} would become a folder, because no file of a checkpoint ends with .{ending}; did you mean {meant}?",
                args.dst
            ),
            "correct the name, or say which format the folder is to have: --to torch_dist",
        ));
    }
    let of_others = |(other, _): &&(&str, &str)| ending.eq_ignore_ascii_case(other);
    let known = OTHER_ENDINGS.iter().find(of_others).map(|(_, hint)| *hint);
    match known.or_else(|| Foreign::of_name(name).map(|_| UNKNOWN_ENDING)) {
        None => Ok(()),
        Some(hint) => Err(CliError::told(
            format!("{} would become a folder of torch_dist", args.dst),
            hint,
        )),
    }
}

/// The conversion that the command line asks for.
fn set_up<'a>(
    program: &Program,
    args: &'a Convert,
    source: &'a Checkpoint,
    io: &mut Io<'_>,
) -> Result<Setup<'a>> {
    let keys = args.select.keys();
    let mut setup = convert(source, &args.dst)
        .ranks(args.ranks)
        .max_pieces(args.max_pieces)
        .unflatten(args.unflatten)
        .canonical_optimizer(args.optimizer.is_some())
        .max_files(args.max_files)
        .drop_objects(args.drop_objects)
        .lossless(args.lossless)
        .skip_unread(args.skip_unread)
        .keep_objects(args.keep_objects)
        .overwrite(args.overwrite)
        .verify(!args.no_verify)
        .dry_run(args.dry_run)
        .journal(options_that_count(args)?)
        .resume(args.resume)
        .registry(program.registry.clone())
        .stores(program.stores.clone());

    setup = match &args.to {
        None => setup,
        Some(Target::Name(name)) => setup.to(program.registry.named_save(name)?),
        Some(Target::Json(json)) => setup.strategy(strategy(json, &program.registry)?),
    };
    let layout = args.optimizer_layout.as_deref().map(layout).transpose()?;
    let max_shard_size = args.max_shard_size.map(|max| max.0);
    let flavour = args.flavour.as_deref();
    setup = given(setup, args.files_per_rank, Setup::files_per_rank);
    setup = given(setup, flavour, |s, to| s.setting("flavour", to));
    setup = given(setup, mapping::map(&args.mapping, source, io)?, Setup::map);
    setup = given(setup, args.dtype, Setup::dtype);
    setup = given(setup, args.dialect, Setup::dialect);
    setup = given(setup, args.common, Setup::common_form);
    setup = given(setup, layout, Setup::bucket_layout);
    setup = given(setup, max_shard_size, Setup::max_shard_size);
    setup = given(setup, args.max_slices, Setup::max_slices);
    setup = given(setup, args.policy.clone(), Setup::policy);
    Ok(match keys.all() {
        true => setup,
        false => setup.keys(move |key| keys.has(key)),
    })
}

/// Everything of the command line that changes what is written, as a text.
fn options_that_count(args: &Convert) -> Result<String> {
    let Convert {
        src: _,
        dst: _,
        to,
        dtype,
        drop_objects,
        lossless: _,
        skip_unread,
        keep_objects,
        mapping,
        ranks,
        max_pieces: _,
        unflatten,
        dialect,
        common,
        optimizer,
        optimizer_layout,
        files_per_rank,
        max_shard_size,
        policy,
        max_slices: _,
        max_files: _,
        select,
        overwrite: _,
        resume: _,
        flavour,
        trace: _,
        no_verify,
        dry_run: _,
        reading,
    } = args;
    // What these files say counts, not what they are called.
    let layout = optimizer_layout.as_deref().map(layout).transpose()?;
    let map = mapping.map.as_deref().map(mapping::text).transpose()?;
    Ok(format!(
        "{:?}",
        (
            (
                env!("CARGO_PKG_VERSION"),
                to,
                dtype,
                drop_objects,
                skip_unread,
                keep_objects
            ),
            (mapping, map, ranks, unflatten),
            (dialect, common, optimizer, layout),
            (files_per_rank, max_shard_size, policy, select, flavour),
            // What was not checked is not taken over by a conversion that checks.
            no_verify,
            reading.what_is_read(),
        )
    ))
}

/// The strategy of `--to`.
fn strategy(json: &serde_json::Value, registry: &Registry) -> Result<SaveShardedStrategy> {
    SaveShardedStrategy::from_json(json.clone(), registry).map_err(|e| {
        CliError::told(
            format!("--to can't be read: {e}"),
            "`reshard plugins` lists the formats",
        )
    })
}

/// So many tensors and objects are named; the JSON has all of them.
const NAMED: usize = 20;

/// Tells what is not in the new checkpoint as it was in the old one.
fn note_lost(report: &ConvertReport, dry_run: bool, io: &mut Io<'_>) {
    let is = if dry_run { "would be" } else { "was" };
    let dropped = report.dropped.iter();
    let dropped = dropped.map(|what| format!("{what} {is} left out"));
    io.notes(NAMED, dropped, |more| {
        format!("{} more left out", units::some(more, "item"))
    });
    let unread = report.unread.iter();
    let unread =
        unread.map(|(key, why)| format!("{key} {is} left out, because it can't be read: {why}"));
    io.notes(NAMED, unread, |more| {
        format!("{} more can't be read", units::some(more, "item"))
    });
    let far = |c: &&CastReport| c.overflowed + c.underflowed > 0;
    let casts = report.casts.iter().filter(far).map(|c| {
        format!(
            "{}: of {} {} were too large, and {} became zero",
            c.key,
            units::some(c.elements, "element"),
            units::count(c.overflowed),
            units::count(c.underflowed)
        )
    });
    io.notes(NAMED, casts, |more| {
        format!("{} more lost range", units::some(more, "tensor"))
    });
}

/// A layout of more bytes than this is not read. One parameter takes some 300.
const MAX_LAYOUT: u64 = 256 << 20;

fn layout(file: &Path) -> Result<BucketLayout> {
    let hint = "`docs/optimizer.md` says what a layout is, and how a training program writes it";
    serde_json::from_str(&mapping::read(file, MAX_LAYOUT, hint)?).map_err(|e| {
        let what = format!("{} is not a layout of buckets: {e}", file.display());
        CliError::told(what, hint)
    })
}

/// The line about casts: how much they have lost.
fn print_casts(report: &ConvertReport, out: &mut dyn Write) -> Result<()> {
    if !report.casts.is_empty() {
        let sum =
            |of: fn(&CastReport) -> u64| units::count(units::sum(report.casts.iter().map(of)));
        fact(
            out,
            "cast",
            format!(
                "{}: of {} elements {} are inexact, {} overflowed, {} became zero",
                units::some(report.casts.len() as u64, "tensor"),
                sum(|c| c.elements),
                sum(|c| c.inexact),
                sum(|c| c.overflowed),
                sum(|c| c.underflowed)
            ),
        )?;
    }
    Ok(())
}

fn print(report: &ConvertReport, args: &Convert, out: &mut dyn Write) -> Result<()> {
    let (saved, time) = (&report.saved, report.took);
    let (did, as_what) = match args.dry_run {
        true => ("would convert to", "would write"),
        false => ("converted", "written as"),
    };
    writeln!(out, "{}  {}", styled(GOOD, did), shown(&args.dst))?;
    let what = format!(
        "{}, {}",
        units::some(report.tensors, "tensor"),
        units::some(report.objects, "object")
    );
    fact(out, "holds", what)?;
    let [ranks, files, pieces] = [
        (args.ranks.into(), "rank"),
        (saved.files(), "file"),
        (saved.totals.all.items, "piece"),
    ]
    .map(|(n, of)| units::some(n, of));
    let bytes = units::bytes(saved.bytes());
    let written = format!("{}, {ranks}, {files}, {pieces}, {bytes}", report.format);
    fact(out, as_what, written)?;
    for check in &report.unmade_checks {
        fact(out, "not checked", check)?;
    }
    if resumes(args) {
        let kept = &report.resumed;
        let (files, bytes) = (units::some(kept.files, "file"), units::bytes(kept.bytes));
        let what = match kept.files {
            0 if Path::new(&args.dst).is_file() => "nothing: a single file is written anew".into(),
            0 => "nothing, because no interrupted conversion had finished a file".into(),
            _ => format!("{files}, {bytes}, not written again"),
        };
        fact(out, "resumed", what)?;
    }
    for (kind, line) in report.ledger.lines() {
        fact(out, kind.title(), shown(&line))?;
    }
    print_casts(report, out)?;
    if let Some(p) = &saved.policy {
        let sizes = format!(
            "{} to {}",
            units::bytes(p.smallest),
            units::bytes(p.largest)
        );
        let cut = units::some(p.split_tensors, "tensor");
        let beyond = match args.max_shard_size {
            Some(ByteSize(max)) if p.largest > max => {
                "; a file with one item that is not cut may be larger"
            }
            _ => "",
        };
        fact(
            out,
            "policy",
            format!("{}: {sizes} per file, {cut} cut{beyond}", p.description),
        )?;
    }
    // One rank has all.
    if args.ranks > 1 {
        fact(
            out,
            "balance",
            format!(
                "the fullest rank has {:.2} times the mean",
                saved.imbalance()
            ),
        )?;
    }
    // Looking at names and sizes takes a moment, and nobody asks about it.
    let checking = match report.checking >= time / 10 {
        true => format!(
            ", {} of it for checks of the source",
            units::seconds(report.checking)
        ),
        false => String::new(),
    };
    let rate = match args.dry_run {
        true => String::new(),
        false => format!("  {}", units::rate(saved.bytes(), time)),
    };
    let time = units::seconds(time);
    fact(out, "took", format!("{time}{rate}{checking}"))?;
    Ok(())
}

/// What to do about an error whose message says all that is wrong.
fn hint(e: &ConvertError, args: &Convert) -> Option<String> {
    let src = &args.src;
    let hint = match e {
        ConvertError::NoOptimizer { .. } => {
            return Some(format!(
                "leave out --optimizer; `reshard inspect {src}` names the form of an optimizer"
            ));
        }
        ConvertError::NoSingleFile { format, .. } => {
            return Some(format!("name a folder, and give --to {}", format.backend));
        }
        ConvertError::NothingLeft { .. } => {
            return Some(format!(
                "`reshard ls {src}` lists the keys; give another --to, such as torch_dist"
            ));
        }
        ConvertError::IntoCommon { .. } => {
            return Some(format!(
                "`reshard ls {src}` lists the objects; --key chooses what is carried over"
            ));
        }
        ConvertError::NotHeld { format, what, .. } => {
            return Some(without_place(format, what, args));
        }
        ConvertError::MissingGroups { .. } => {
            "their parameters can't be made up; without --optimizer the rest is carried over as it is"
        }
        ConvertError::KeysOfOptimizer => "leave out --key, or --optimizer",
        ConvertError::MapOfOptimizer => "leave out --map, or --optimizer",
        ConvertError::Over { .. } | ConvertError::Linked { .. } => {
            "convert to a new place beside the source, verify it, then rename it to where you want it"
        }
        ConvertError::Target(_) => "`reshard plugins` lists the formats that this program can save",
        ConvertError::Setting { .. } => "leave the option out, or give another --to",
        ConvertError::CommonForm { .. } => "leave --common out",
        ConvertError::Dialect { .. } => {
            "leave --dialect out, or give another --to; torch_dist, zarr and zarr3 have both dialects"
        }
        ConvertError::Flattened { .. } => "--unflatten writes them as plain chunks",
        ConvertError::Layout { .. } => {
            "the layout must come from the program and the parallelism that saved the checkpoint"
        }
        ConvertError::Optimizer { .. } => "without --optimizer it is carried over as it is",
        ConvertError::Lossy { .. } => {
            "leave out the option that changes it, give another --to, or leave out --lossless; then the report says what was lost"
        }
        ConvertError::Common { .. } => {
            "--drop-objects does not help here; give another --to, such as torch_dist"
        }
        ConvertError::Quantized { .. } => QUANTIZED,
        ConvertError::TorchAo { .. } => {
            "safetensors and files of torch.save hold torchao's tensors as a whole; --drop-objects carries the inner tensors over without the metadata"
        }
        ConvertError::Cells { .. } => CELLS,
        _ => return None,
    };
    Some(hint.into())
}

/// What to do about items for which a format has no place: only what would help with these.
fn without_place(format: &BackendVersion, lost: &[NotHeld], args: &Convert) -> String {
    let mut ways = vec!["--drop-objects leaves them out"];
    let has_others = lost.iter().any(|w| !matches!(w, NotHeld::Tensor(..)));
    if has_others && !args.keep_objects && *format.backend == *"safetensors" {
        ways.push("--keep-objects keeps objects beside the tensors in a folder of safetensors");
    }
    ways.push("--key chooses what is carried over");
    if *format.backend != *"torch_dist" {
        ways.push("torch_dist has a place for all");
    }
    ways.join("; ")
}

fn unsound(src: &str, finding: Finding, what: &Damage) -> CliError {
    let found = format!("{src} {finding}: {}", line(what));
    // What has no key concerns all items.
    let way_out = match what.key {
        Some(_) => "--exclude or --skip-unread leaves damaged items out",
        None => "restore that file from a copy; `reshard show` prints what can still be read",
    };
    let hint = format!("`reshard verify {src}` lists all that it finds; {way_out}");
    match finding {
        Finding::Damaged => CliError::damaged(found, hint),
        Finding::NotUnderstood => CliError::told(
            found,
            format!(
                "`reshard verify {src}` lists all such items; --exclude or --skip-unread leaves them out"
            ),
        ),
        Finding::NotRead => CliError::told(found, RAISE),
        _ => CliError::told(found, hint),
    }
}

/// The library's error in the words of the command line, with what to do.
fn explained(e: ConvertError, args: &Convert, keys: Keys<'_>) -> CliError {
    let (src, what) = (&args.src, e.to_string());
    if let Some(hint) = hint(&e, args) {
        return CliError::told(what, hint);
    }
    match e {
        ConvertError::NoLayout { form, .. } => CliError::told(
            format!(
                "{src} has its optimizer in the form {form}, which does not say which elements of a bucket belong to which parameter"
            ),
            "give --optimizer-layout FILE; `docs/optimizer.md` says how a training program writes it",
        ),
        ConvertError::NothingChosen { .. } if args.mapping.map.is_some() => CliError::told(
            format!("no key that the map makes of {src} matches {}", keys.text()),
            "with --map, --key chooses among the keys of the copy; `--dry-run --json` without it lists them",
        ),
        ConvertError::NothingChosen { .. } => CliError::told(
            format!("nothing in {src} matches {}", keys.text()),
            format!("`reshard ls {src}` lists the keys"),
        ),
        ConvertError::TooManyFiles { files, max, asked } => {
            let (files, max, why) = (units::count(files), units::count(max), asked.why());
            let what =
                format!("that would be {files} files, and a conversion writes at most {max}{why}");
            let hint = match asked {
                Asked::BySize => {
                    "give a larger --max-shard-size, or raise the limit with --max-files N"
                }
                Asked::ByPolicy => "give fewer --ranks, or fewer files in --policy",
                _ => "give fewer --ranks or --files-per-rank",
            };
            CliError::told(what, hint)
        }
        ConvertError::TooManyPieces { pieces, max, ranks } => {
            let (pieces, max) = (units::count(pieces), units::count(max));
            let ranks = units::some(ranks.into(), "rank");
            CliError::told(
                format!(
                    "{ranks} would cut the tensors into {pieces} pieces, and a conversion cuts into at most {max}"
                ),
                "give fewer --ranks, or raise the limit with --max-pieces N; a million pieces take about 2 GB of memory",
            )
        }
        ConvertError::Destination(e) => e.into(),
        ConvertError::Unknown { key, why } => CliError::told(
            format!("{key} can't be carried over: {why}"),
            format!(
                "`reshard inspect {src}` lists all such items; --exclude or --skip-unread leaves them out"
            ),
        ),
        ConvertError::Unsound { finding, what, .. } => unsound(src, finding, &what),
        ConvertError::NoPlace { .. } => CliError::damaged(
            what,
            format!(
                "`reshard verify {src}` lists all that it finds; --exclude or --skip-unread leaves damaged items out"
            ),
        ),
        ConvertError::Map(e) => mapping::explained(&args.mapping, e),
        // Of the target, since the source is open: so nothing is said of a checkpoint.
        ConvertError::Write(e) if e.kind() == ErrorKind::NotFound => CliError::told(
            CliError::from(e).text(),
            "check the path of DST and what lies above it; if what was written is gone, as after `reshard prune --older-than 0s`, convert again",
        ),
        ConvertError::Read(e) | ConvertError::Write(e) => e.into(),
        _ => CliError::told(what, "`reshard convert --help` lists the options"),
    }
}
