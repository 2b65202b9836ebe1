//! `reshard prune`.

use crate::{
    args::{Prune, given},
    error::{NO_CHECKPOINT, OK, Result, worse},
    io::Io,
    json,
    program::Program,
    steps::{self, LeftOut, Places},
    table::{self, BOLD, GOOD, shown, styled},
    units,
};
use reshard::{
    blocking,
    storage::{Entry, Name},
    strategy::first,
};
use reshard_manager::{Kept, PruneReport, Remains, RemainsKind};
use serde_json::{Value as Json, json};
use std::path::Path;

/// Files of others that are listed; the rest is counted.
const FEW: usize = 5;

/// The JSON. `failed` are the steps of a run that can't be pruned.
fn report(dry_run: bool, p: &PruneReport, failed: &[LeftOut]) -> Json {
    let removed = |r: &Remains| {
        let age = r.age.map(|a| a.as_secs());
        json!({ "path": r.path, "kind": r.kind, "bytes": r.bytes, "age_seconds": age })
    };
    let kept = |(r, why): &(Remains, Kept)| {
        let mut row = removed(r);
        row["why"] = json!(match why {
            Kept::Recent => "recent",
            Kept::Disputed => "disputed",
            Kept::Last => "last",
            Kept::Stuck(_) => "stuck",
            _ => "other",
        });
        row
    };
    json!({
        "schema": 1,
        "dry_run": dry_run,
        "removed": p.removed.iter().map(removed).collect::<Vec<_>>(),
        "kept": p.kept.iter().map(kept).collect::<Vec<_>>(),
        "foreign": p.foreign.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(),
        "failed": failed,
        "bytes": freed(p),
    })
}

fn freed(p: &PruneReport) -> u64 {
    units::sum(p.removed.iter().map(|r| r.bytes))
}

pub(crate) fn run(program: &Program, args: &Prune, io: &mut Io<'_>) -> Result<u8> {
    // A pattern says that it is a folder of checkpoints.
    let one = match &args.steps {
        None => Some(prune(program, args, &args.dir)),
        Some(_) => None,
    };
    let mut failed = Vec::new();
    let (report, outcome) = match one {
        // Beside the steps of a run there may be a file that looks like one of a checkpoint.
        Some((report, Err(e))) if report == PruneReport::default() => {
            let is_one = e.exit_code() != NO_CHECKPOINT;
            match steps::places(program, &args.dir, None) {
                Ok(places) if !places.of_saves.is_empty() => {
                    if is_one {
                        io.note(format!("not pruned as a checkpoint: {}", e.text()));
                    }
                    prune_all(program, args, places, (&mut failed, io))
                }
                _ => return Err(e),
            }
        }
        Some(one) => one,
        None => {
            let places = steps::places(program, &args.dir, args.steps.as_ref())?;
            if places.of_saves.is_empty() {
                return Err(steps::none(&args.dir, args.steps.as_ref()));
            }
            prune_all(program, args, places, (&mut failed, io))
        }
    };
    // A failure comes after what was done before it.
    match (&outcome, args.reading.json) {
        (Err(_), _) if report.removed.is_empty() => {}
        (_, true) => json::write(io.out, &self::report(args.dry_run, &report, &failed))?,
        (_, false) => print(args.dry_run, &report, failed.is_empty(), io)?,
    }
    outcome
}

/// Prunes one place.
fn prune(program: &Program, args: &Prune, place: &str) -> (PruneReport, Result<u8>) {
    let prune = reshard_manager::prune(place)
        .dry_run(args.dry_run)
        .older_than(args.older_than)
        .registry(program.registry.clone())
        .stores(program.stores.clone())
        .limits(args.reading.limits());
    let format = args.reading.format().cloned();
    match blocking::run(given(prune, format, reshard_manager::Prune::format)) {
        Ok(report) => (report, Ok(OK)),
        Err(e) => {
            let (e, report) = e.into_parts();
            (report, Err(e.into()))
        }
    }
}

/// Prunes the places of all steps of a run. What can't be pruned is told, and keeps no other step from it.
fn prune_all(
    program: &Program,
    args: &Prune,
    places: Places,
    (failed, io): (&mut Vec<LeftOut>, &mut Io<'_>),
) -> (PruneReport, Result<u8>) {
    if !places.others.is_empty() {
        let names = places.others.iter().map(|name| shown(name));
        let names = first(steps::NAMED, names);
        io.note(format!("no complete checkpoint, so it stays: {names}"));
    }
    let (mut all, mut code) = (PruneReport::default(), OK);
    for (place, name) in places.of_saves {
        let (report, outcome) = prune(program, args, &place);
        // Names of files are those within the folder of the run.
        let within = |mut r: Remains| {
            if !r.path.contains("://")
                && !Path::new(&r.path).is_absolute()
                && r.kind == RemainsKind::File
            {
                r.path = format!("{name}/{}", r.path);
            }
            r
        };
        all.removed.extend(report.removed.into_iter().map(within));
        let kept = report.kept.into_iter();
        all.kept.extend(kept.map(|(r, why)| (within(r), why)));
        all.foreign.extend(report.foreign.into_iter().map(|file| {
            let joined = Name::new(format!("{name}/{}", file.name));
            let name = joined.unwrap_or_else(|_| file.name.clone());
            Entry { name, ..file }
        }));
        if let Err(e) = outcome {
            code = worse(code, e.exit_code());
            let why = e.text();
            io.note(format!("{}: {why}", shown(&name)));
            failed.push(LeftOut { name, why });
        }
    }
    (all, Ok(code))
}

fn print(dry_run: bool, p: &PruneReport, is_all: bool, io: &mut Io<'_>) -> Result<()> {
    let out = &mut *io.out;
    if !p.removed.is_empty() {
        let row = |r: &Remains| [r.path.clone(), size(r), from(r)];
        let title = if dry_run {
            "WOULD BE REMOVED"
        } else {
            "REMOVED"
        };
        table::rows(out, [title, ">SIZE", ""], || p.removed.iter().map(row))?;
        writeln!(out)?;
    }
    if !p.kept.is_empty() {
        let row = |(r, why): &(Remains, Kept)| [r.path.clone(), size(r), reason(r, why)];
        table::rows(out, ["KEPT", ">SIZE", "WHY"], || p.kept.iter().map(row))?;
        writeln!(out)?;
    }
    if !p.foreign.is_empty() {
        let row = |f: &Entry| [f.name.to_string(), units::bytes(f.bytes)];
        let (listed, more) = table::few(&p.foreign, FEW);
        let titles = ["OF OTHER PROGRAMS, KEPT", ">SIZE"];
        table::rows(out, titles, || listed.iter().map(row))?;
        if let Some(more) = more {
            writeln!(out, "and {more} more")?;
        }
        writeln!(out)?;
    }
    let size = units::bytes(freed(p));
    match (p.removed.is_empty(), dry_run) {
        (true, _) if p.kept.is_empty() && is_all => {
            writeln!(out, "{}  there is nothing to remove", styled(GOOD, "clean"))?
        }
        (true, _) => writeln!(out, "{}  nothing was removed", styled(BOLD, "kept"))?,
        (false, true) => writeln!(out, "{}  {size} would be freed", styled(BOLD, "dry run"))?,
        (false, false) => writeln!(out, "{}  {size} freed", styled(GOOD, "pruned"))?,
    }
    Ok(())
}

/// No service says how much of an upload has arrived.
fn size(r: &Remains) -> String {
    match r.kind {
        RemainsKind::Upload => "unknown".into(),
        _ => units::bytes(r.bytes),
    }
}

/// How long ago, as far as it is known.
fn ago(r: &Remains) -> String {
    r.age.map_or_else(
        || "at an unknown time".into(),
        |a| format!("{} ago", units::age(a)),
    )
}

fn from(r: &Remains) -> String {
    let what = match r.kind {
        RemainsKind::File => "no item lies in it",
        RemainsKind::Unfinished => "left by a save that was never finished",
        RemainsKind::Replaced => {
            "left by a replaced checkpoint; files of other programs in it are moved back"
        }
        RemainsKind::Removed => "its removal was begun and not finished",
        RemainsKind::Version => "a version that was replaced, or never finished",
        RemainsKind::Upload => {
            return format!("an upload that was begun {} and never finished", ago(r));
        }
        _ => "",
    };
    what.into()
}

fn reason(r: &Remains, why: &Kept) -> String {
    match why {
        Kept::Recent => {
            let did = match r.kind {
                RemainsKind::Upload => "begun",
                _ => "changed",
            };
            format!("{did} {}, so a save may be running; if none is, use --older-than 0s", ago(r))
        }
        Kept::Disputed => {
            "a rank-local save later than .metadata is here too; remove the metadata of the save that you don't \
                           need (.metadata or all __*.metadata), and prune again"
                .into()
        }
        Kept::Last => "nothing lies at the place: this is what lay there last".into(),
        Kept::Stuck(why) => why.clone(),
        _ => String::new(),
    }
}
