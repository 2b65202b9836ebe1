//! `reshard demo`.

mod model;

use crate::{
    args::Demo,
    error::{CliError, OK, Result},
    io::Io,
    program::Program,
    table::{self, BOLD, DIM, GOOD, styled},
    units,
};
use model::{Cut, Model};
use reshard::{LoadReport, LocalGroup, OpenOptions, Phase, SaveReport, StateDict, ValueTree};
use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

/// More is surely a mistake: all of it lies in memory.
const LARGEST: u64 = 1 << 40;

/// What was done, as rows of the table.
#[derive(Default)]
struct Phases(Vec<[String; 5]>);

impl Phases {
    fn done(&mut self, phase: &str, bytes: u64, time: Duration, what: impl Into<String>) {
        let size = if bytes == 0 {
            String::new()
        } else {
            units::bytes(bytes)
        };
        self.0.push([
            phase.into(),
            size,
            units::seconds(time),
            units::rate(bytes, time),
            what.into(),
        ]);
    }
}

pub(crate) fn run(program: &Program, args: &Demo, io: &mut Io<'_>) -> Result<u8> {
    let (n, m, size) = (args.ranks, args.to, args.size.0);
    if size > LARGEST {
        let what = format!(
            "{} of state is more than one machine can hold",
            units::bytes(size)
        );
        return Err(CliError::told(
            what,
            "give a --size that fits this machine's memory, such as 2GB",
        ));
    }
    let model = Model::of_size(size);

    // The variable keeps the temporary directory until the end of the function.
    let temporary;
    let url = match &args.dir {
        Some(dir) => dir.clone(),
        None => {
            let made = tempfile::Builder::new().prefix("reshard-demo-").tempdir();
            temporary = made.map_err(|source| CliError::Io {
                what: "a temporary directory can't be made",
                source,
            })?;
            temporary.path().join("step-1000").display().to_string()
        }
    };
    writeln!(io.out, "{BOLD}{}{BOLD:#}", model.describe())?;
    let plan = format!(
        "bf16 weights and fp32 moments, split over {n} ranks; loaded on {m}, cut along the other axis"
    );
    writeln!(io.out, "{DIM}{plan}{DIM:#}\n")?;
    io.out.flush()?;

    // Making and checking the state are timed apart, so they don't count as saving and loading.
    let mut phases = Phases::default();
    let (states, time) = timed(|| each(0..n, |r| model.state(Cut::SAVED, r, n)));
    phases.done(
        "build",
        model.bytes(),
        time,
        format!("state of {}", units::some(n.into(), "rank")),
    );
    save(program, &states?, &url, io, &mut phases)?;
    verify(program, &url, io, &mut phases)?;

    let (templates, time) = timed(|| each(0..m, |r| model.template(Cut::LOADED, r, m)));
    let what = format!(
        "memory of {}, filled with something else",
        units::some(m.into(), "rank")
    );
    phases.done("prepare", model.bytes_on(m), time, what);
    let loaded = load(
        program,
        templates?,
        &url,
        model.bytes_on(m),
        io,
        &mut phases,
    )?;

    let bar = io.bar("checking", model.bytes_on(m));
    let check = |(r, plain)| model.check(Cut::LOADED, r, m, n, plain, &bar);
    let (checked, time) = timed(|| each((0..m).zip(&loaded), check));
    bar.finish_and_clear();
    let bytes: u64 = checked?.iter().sum();
    phases.done("check", bytes, time, "every byte against what it must be");

    table::rows(io.out, ["PHASE", ">BYTES", ">TIME", ">RATE", ""], phases.0)?;
    writeln!(
        io.out,
        "\n{}  all {} bytes are right",
        styled(GOOD, "ok"),
        units::count(bytes)
    )?;
    match &args.dir {
        Some(dir) => writeln!(io.out, "Look at it:  reshard inspect {}", table::shown(dir))?,
        None => writeln!(
            io.out,
            "Keep the checkpoint with --dir DIR; `reshard inspect DIR` shows what is in it."
        )?,
    }
    Ok(OK)
}

fn timed<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let out = f();
    (out, start.elapsed())
}

fn save(
    program: &Program,
    states: &[StateDict],
    url: &str,
    io: &Io<'_>,
    phases: &mut Phases,
) -> Result<()> {
    let groups = LocalGroup::new(states.len() as u32);
    let bar = io.bar("saving", states.iter().map(model::held_by).sum());

    // Each rank is a thread of this process with a group of its own, as it would be a process elsewhere.
    let one = |(group, state): (&LocalGroup, _)| {
        let told = bar.clone();
        let save = reshard::save(state, url)
            .group(group)
            .progress(move |n| told.inc(n));
        let save = save
            .registry(program.registry.clone())
            .stores(program.stores.clone());
        Ok(reshard::blocking::run(save)?)
    };
    let (saved, time) = timed(|| each(groups.iter().zip(states), one));
    bar.finish_and_clear();
    let saved: Vec<SaveReport> = saved?;

    // All ranks report the same totals, so the first one speaks for all.
    let Some(report) = saved.first() else {
        return Ok(());
    };
    let what = format!(
        "{}, fsynced, committed in one step",
        units::some(report.files(), "file")
    );
    phases.done("save", report.bytes(), time, what);
    phases.done(
        "  plan",
        0,
        report.time(Phase::Plan),
        "who writes what; replicated tensors once",
    );
    phases.done(
        "  write",
        report.bytes(),
        report.time(Phase::Write),
        "from the buffers to the disk, each item with a CRC-32",
    );
    phases.done(
        "  commit",
        0,
        report.time(Phase::Commit),
        "all have written; one atomic step",
    );
    Ok(())
}

fn verify(program: &Program, url: &str, io: &Io<'_>, phases: &mut Phases) -> Result<()> {
    let checkpoint = program.open(url, OpenOptions::new())?;
    let (found, time) = timed(|| crate::findings::check(&checkpoint, true, io));
    let found = found?;
    if let Some(d) = found.damage.iter().chain(&found.unchecked).next() {
        let what = format!(
            "what was just saved is damaged: {}",
            crate::findings::line(d)
        );
        return Err(CliError::damaged(
            what,
            "check the disk and the memory of this machine",
        ));
    }
    phases.done(
        "verify",
        found.bytes,
        time,
        format!("every CRC-32 of {}", units::some(found.items, "item")),
    );
    Ok(())
}

fn load(
    program: &Program,
    templates: Vec<StateDict>,
    url: &str,
    bytes: u64,
    io: &Io<'_>,
    phases: &mut Phases,
) -> Result<Vec<ValueTree>> {
    let ranks = templates.len() as u32;
    let groups = LocalGroup::new(ranks);
    let bar = io.bar("loading", bytes);
    let one = |(group, template): (&LocalGroup, _)| {
        let told = bar.clone();
        let load = reshard::load(template, url)
            .group(group)
            .progress(move |n| told.inc(n));
        let load = load
            .registry(program.registry.clone())
            .stores(program.stores.clone());
        Ok(futures::executor::block_on(load.with_report())?)
    };
    let (loaded, time) = timed(|| each(groups.iter().zip(templates), one));
    bar.finish_and_clear();
    let (loaded, reports): (Vec<ValueTree>, Vec<LoadReport>) = loaded?.into_iter().unzip();
    let files: BTreeSet<&String> = reports.iter().flat_map(|r| &r.opened).collect();
    let sum = |of: fn(&LoadReport) -> u64| reports.iter().map(of).sum::<u64>();
    let per_byte = sum(|r| r.totals.bytes) as f64 / sum(|r| r.totals.needed).max(1) as f64;
    // Rows of a small model are short, and so are the gaps between parts of them.
    let gaps = if per_byte >= 1.005 {
        ", with short gaps"
    } else {
        ""
    };
    let onto = units::some(ranks.into(), "rank");
    phases.done(
        "load",
        bytes,
        time,
        format!("onto {onto}; {per_byte:.2} bytes read per byte needed{gaps}"),
    );
    if let Some(report) = reports.first() {
        phases.done(
            "  plan",
            0,
            report.time(Phase::Plan),
            "open, and who needs what",
        );
        let what = format!(
            "from {}; the busiest rank reads {:.2} times the mean",
            units::some(files.len() as u64, "file"),
            report.imbalance()
        );
        phases.done("  read", report.bytes(), report.time(Phase::Read), what);
        phases.done("  finish", 0, report.time(Phase::Finish), "all have read");
    }
    Ok(loaded)
}

/// Does `f` for each rank, on a thread each.
fn each<T: Send, R: Send>(
    ranks: impl IntoIterator<Item = T>,
    f: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    thread::scope(|scope| {
        let f = &f;
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|rank| scope.spawn(move || f(rank)))
            .collect();
        let outcomes: Vec<_> = threads
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        let panicked = |_| {
            Err(CliError::told(
                "a rank's thread panicked",
                "please report this",
            ))
        };
        outcomes
            .into_iter()
            .map(|o| o.unwrap_or_else(panicked))
            .collect()
    })
}
