//! `reshard demo`.

mod model;

use crate::{
    args,
    error::{CliError, OK, Result},
    interrupt::{Listener, Place},
    io::Io,
    program::Program,
    table::{self, BOLD, DIM, GOOD, styled},
    trace::on_threads,
    units,
};
use indicatif::ProgressBar;
use model::{Model, Share};
use reshard::{
    LocalGroup, OpenOptions, Phase, blocking,
    storage::{Depth, wait},
    strategy::StrategyError,
};
use std::{
    collections::BTreeSet,
    io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// The largest `--size`. All of the state is in memory, so a larger one is surely a mistake.
const LARGEST: u64 = 1 << 40;

/// A run of the demo, with the table of what it has done.
struct Demo<'a> {
    program: &'a Program,
    model: Model,
    url: String,
    rows: Vec<[String; 5]>,
}

pub(crate) fn run(program: &Program, args: &args::Demo, io: &mut Io<'_>) -> Result<u8> {
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

    // The variable keeps the temporary directory until the end of the function.
    let temporary;
    let (url, place) = match &args.dir {
        Some(dir) => {
            require_free(program, dir)?;
            (dir.clone(), Place::Chosen(dir.clone()))
        }
        None => {
            let made = tempfile::Builder::new().prefix("reshard-demo-").tempdir();
            temporary = made.map_err(|source| CliError::Io {
                what: "a temporary directory can't be made",
                source,
            })?;
            let dir = temporary.path();
            let url = dir.join("step-1000").display().to_string();
            (url, Place::Temporary(dir.into()))
        }
    };
    // Without it, Ctrl-C ends the demo and says nothing.
    let _listener = Listener::start(place).ok();
    let mut demo = Demo {
        program,
        model: Model::of_size(size),
        url,
        rows: Vec::new(),
    };
    writeln!(io.out, "{BOLD}{}{BOLD:#}", demo.model.describe())?;
    let plan = format!(
        "bf16 weights and fp32 moments, split over {n} ranks; loaded on {m}, cut along the other axis"
    );
    writeln!(io.out, "{DIM}{plan}{DIM:#}\n")?;
    io.out.flush()?;

    demo.save(n, io)?;
    demo.verify(io)?;
    let bytes = demo.load(m, io)?;
    let titles = ["PHASE", ">BYTES", ">TIME", ">RATE", ""];
    table::rows(io.out, titles, || demo.rows.clone())?;
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

/// Refuses a place that holds something, before memory is filled for it.
fn require_free(program: &Program, url: &str) -> Result<()> {
    let place = program.stores.open(url).map_err(StrategyError::from)?;
    let is_taken = match wait(place.list(None, Depth::One)) {
        Ok(top) => !top.is_free(),
        // The save says what it can't write to.
        Err(_) => Path::new(url).is_file(),
    };
    match is_taken {
        true => Err(CliError::told(
            format!("{url} exists already and is not empty"),
            "choose another --dir, or remove it",
        )),
        false => Ok(()),
    }
}

impl Demo<'_> {
    /// Builds the state of all ranks, and saves it.
    fn save(&mut self, n: u32, io: &Io<'_>) -> Result<()> {
        let (model, ranks) = (&self.model, units::some(n.into(), "rank"));
        // Making and checking the state are timed apart, so they don't count as saving and loading.
        let bar = io.bar("building", model.bytes_on(n));
        let build = |share, bar: &_| model.state(share, bar);
        let (states, build_time) = on_each_rank(bar, Share::all(n, false), build)?;

        let bar = io.bar("saving", model.bytes());
        let save = |(group, state): (&LocalGroup, _), bar: &ProgressBar| {
            let bar = bar.clone();
            let save = reshard::save(state, &self.url)
                .group(group)
                .progress(move |n| bar.inc(n))
                .registry(self.program.registry.clone())
                .stores(self.program.stores.clone());
            Ok(blocking::run(save)?)
        };
        let groups = LocalGroup::new(n);
        let (reports, time) = on_each_rank(bar, groups.iter().zip(&states), save)?;

        let (bytes, what) = (model.bytes(), format!("state of {ranks}"));
        self.row("build", bytes, build_time, what);
        // All ranks report the same totals.
        let report = &reports[0];
        let files = units::some(report.files(), "file");
        let what = format!("{files}, fsynced, committed in one step");
        self.row("save", report.bytes(), time, what);
        let what = "who writes what; replicated tensors once";
        self.row("  plan", 0, report.time(Phase::Plan), what);
        let what = "from the buffers to the disk, each item with a CRC-32";
        self.row("  write", report.bytes(), report.time(Phase::Write), what);
        let what = "all have written; one atomic step";
        self.row("  commit", 0, report.time(Phase::Commit), what);
        Ok(())
    }

    fn verify(&mut self, io: &Io<'_>) -> Result<()> {
        let checkpoint = self.program.open_quietly(&self.url, OpenOptions::new())?;
        let start = Instant::now();
        let found = crate::findings::check_all(&checkpoint, io)?;
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
        let what = format!("every CRC-32 of {}", units::some(found.items, "item"));
        self.row("verify", found.bytes, start.elapsed(), what);
        Ok(())
    }

    /// Loads the checkpoint with another split, and compares it. Returns the number of compared
    /// bytes.
    fn load(&mut self, m: u32, io: &Io<'_>) -> Result<u64> {
        let (model, ranks) = (&self.model, units::some(m.into(), "rank"));
        let bytes = model.bytes_on(m);
        let prepare = |share, bar: &_| model.template(share, bar);
        let bar = io.bar("preparing", bytes);
        let (templates, prepare_time) = on_each_rank(bar, Share::all(m, true), prepare)?;

        let load = |(group, template): (&LocalGroup, _), bar: &ProgressBar| {
            let bar = bar.clone();
            let load = reshard::load(template, &self.url)
                .group(group)
                .progress(move |moved| bar.inc(moved.new))
                .registry(self.program.registry.clone())
                .stores(self.program.stores.clone());
            Ok(wait(load.with_report())?)
        };
        let (groups, bar) = (LocalGroup::new(m), io.bar("loading", bytes));
        let (loaded, load_time) = on_each_rank(bar, groups.iter().zip(templates), load)?;

        let check = |(share, (tree, _)): (_, &_), bar: &_| model.check(share, tree, bar);
        let shares = Share::all(m, true).zip(&loaded);
        let (checked, check_time) = on_each_rank(io.bar("checking", bytes), shares, check)?;
        let checked = checked.iter().sum();

        let what = format!("memory of {ranks}, filled with something else");
        self.row("prepare", bytes, prepare_time, what);
        let reports = || loaded.iter().map(|(_, report)| report);
        let read: u64 = reports().map(|report| report.totals.bytes).sum();
        let needed: u64 = reports().map(|report| report.totals.needed).sum();
        let per_byte = read as f64 / needed.max(1) as f64;
        // Rows of a small model are short, and so are the gaps between parts of them.
        let gaps = if per_byte >= 1.005 {
            ", with short gaps"
        } else {
            ""
        };
        let what = format!("onto {ranks}; {per_byte:.2} bytes read per byte needed{gaps}");
        self.row("load", bytes, load_time, what);
        let files: BTreeSet<&String> = reports().flat_map(|report| &report.opened).collect();
        let report = &loaded[0].1;
        let what = "open, and who needs what";
        self.row("  plan", 0, report.time(Phase::Plan), what);
        let what = format!(
            "from {}; the busiest rank reads {:.2} times the mean",
            units::some(files.len() as u64, "file"),
            report.imbalance()
        );
        self.row("  read", report.bytes(), report.time(Phase::Read), what);
        self.row("  finish", 0, report.time(Phase::Finish), "all have read");
        let what = "every byte against what it must be";
        self.row("check", checked, check_time, what);
        Ok(checked)
    }

    fn row(&mut self, phase: &str, bytes: u64, time: Duration, what: impl Into<String>) {
        let size = match bytes {
            0 => String::new(),
            bytes => units::bytes(bytes),
        };
        self.rows.push([
            phase.into(),
            size,
            units::seconds(time),
            units::rate(bytes, time),
            what.into(),
        ]);
    }
}

/// Runs `f` for each rank on a thread of its own, under a progress bar. Returns the results, and
/// the time until the last rank has finished.
fn on_each_rank<T: Send, R: Send>(
    bar: ProgressBar,
    ranks: impl IntoIterator<Item = T>,
    f: impl Fn(T, &ProgressBar) -> Result<R> + Sync,
) -> Result<(Vec<R>, Duration)> {
    let start = Instant::now();
    let on_rank = on_threads(|rank| f(rank, &bar));
    let outcomes: Vec<Result<R>> = thread::scope(|scope| {
        let f = &on_rank;
        let begin = |rank| thread::Builder::new().spawn_scoped(scope, move || f(rank));
        // All are started before the first is waited for.
        let threads: Vec<_> = ranks.into_iter().map(begin).collect();
        threads.into_iter().map(ended).collect()
    });
    bar.finish_and_clear();
    let results = outcomes.into_iter().collect::<Result<_>>()?;
    Ok((results, start.elapsed()))
}

/// What a rank's thread returns.
fn ended<R>(thread: io::Result<thread::ScopedJoinHandle<'_, Result<R>>>) -> Result<R> {
    let thread = thread.map_err(|source| CliError::Io {
        what: "the thread of a rank can't be started",
        source,
    })?;
    let panicked = |_| CliError::told("a rank's thread panicked", "please report this");
    thread.join().map_err(panicked)?
}
