//! `reshard demo`.

mod acts;
mod interrupt;
mod model;
mod processes;

use crate::{
    args,
    error::{CliError, OK, Result},
    io::Io,
    program::Program,
    table::{self, BOLD, DIM, GOOD, styled},
    trace::on_threads,
    units, waiting,
};
use acts::{Loaded, Saved, timed};
use interrupt::{Listener, Place};
use model::{Cut, Model};
use reshard::{
    LocalGroup, OpenOptions, ValueTree,
    storage::{Depth, is_attempt, wait},
    strategy::StrategyError,
};
use std::{collections::BTreeSet, io, path::Path, thread, time::Duration};

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

    fn build(&mut self, bytes: u64, time: Duration, ranks: u32) {
        let what = format!("state of {}", units::some(ranks.into(), "rank"));
        self.done("build", bytes, time, what);
    }

    fn save(&mut self, ranks: &[Saved]) {
        // All ranks report the same totals, so the first one speaks for all.
        let Some(first) = ranks.first() else { return };
        let slowest = ranks.iter().map(|rank| rank.time).max().unwrap_or_default();
        let what = format!(
            "{}, fsynced, committed in one step",
            units::some(first.files, "file")
        );
        self.done("save", first.bytes, slowest, what);
        self.done(
            "  plan",
            0,
            first.plan,
            "who writes what; replicated tensors once",
        );
        let what = "from the buffers to the disk, each item with a CRC-32";
        self.done("  write", first.bytes, first.write, what);
        self.done(
            "  commit",
            0,
            first.commit,
            "all have written; one atomic step",
        );
    }

    fn prepare(&mut self, bytes: u64, time: Duration, ranks: u32) {
        let ranks = units::some(ranks.into(), "rank");
        self.done(
            "prepare",
            bytes,
            time,
            format!("memory of {ranks}, filled with something else"),
        );
    }

    fn load(&mut self, bytes: u64, ranks: &[Loaded]) {
        let Some(first) = ranks.first() else { return };
        let slowest = ranks.iter().map(|rank| rank.time).max().unwrap_or_default();
        let files: BTreeSet<&String> = ranks.iter().flat_map(|rank| &rank.opened).collect();
        let sum = |of: fn(&Loaded) -> u64| ranks.iter().map(of).sum::<u64>();
        let per_byte = sum(|rank| rank.read) as f64 / sum(|rank| rank.needed).max(1) as f64;
        // Rows of a small model are short, and so are the gaps between parts of them.
        let gaps = if per_byte >= 1.005 {
            ", with short gaps"
        } else {
            ""
        };
        let onto = units::some(ranks.len() as u64, "rank");
        let what = format!("onto {onto}; {per_byte:.2} bytes read per byte needed{gaps}");
        self.done("load", bytes, slowest, what);
        self.done("  plan", 0, first.plan, "open, and who needs what");
        let what = format!(
            "from {}; the busiest rank reads {:.2} times the mean",
            units::some(files.len() as u64, "file"),
            first.imbalance
        );
        self.done("  read", first.bytes, first.reading, what);
        self.done("  finish", 0, first.finish, "all have read");
    }

    fn check(&mut self, bytes: u64, time: Duration) {
        self.done("check", bytes, time, "every byte against what it must be");
    }
}

/// Who saves and who loads what, and where.
struct Demo<'a> {
    program: &'a Program,
    model: Model,
    size: u64,
    savers: u32,
    loaders: u32,
    url: String,
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
        Some(dir) => (dir.clone(), Place::Chosen(dir.clone())),
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
    let demo = Demo {
        program,
        model: Model::of_size(size),
        size,
        savers: n,
        loaders: m,
        url,
    };
    if let Some(act) = args.act {
        return demo.rank(act, io);
    }
    if args.dir.is_some() {
        demo.require_free()?;
    }
    // Without it, Ctrl-C ends the demo and says nothing.
    let _listener = Listener::start(place).ok();
    writeln!(io.out, "{BOLD}{}{BOLD:#}", demo.model.describe())?;
    let of = if args.processes { " in processes" } else { "" };
    let plan = format!(
        "bf16 weights and fp32 moments, split over {n} ranks{of}; loaded on {m}, cut along the other axis"
    );
    writeln!(io.out, "{DIM}{plan}{DIM:#}\n")?;
    io.out.flush()?;

    let mut phases = Phases::default();
    let bytes = if args.processes {
        demo.in_processes(io, &mut phases)?
    } else {
        demo.on_threads(io, &mut phases)?
    };
    table::rows(io.out, ["PHASE", ">BYTES", ">TIME", ">RATE", ""], || {
        phases.0.clone()
    })?;
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

impl Demo<'_> {
    /// Refuses a place that holds something, before memory is filled for it.
    fn require_free(&self) -> Result<()> {
        let place = self.program.stores.open(&self.url);
        let place = place.map_err(StrategyError::from)?;
        let is_taken = match wait(place.list(None, Depth::One)) {
            // In a store, what a killed save left is in nobody's way.
            Ok(top) => {
                let mut folders = top.folders.iter();
                !top.files.is_empty() || folders.any(|name| !is_attempt(name.as_str()))
            }
            // The save says what it can't write to.
            Err(_) => Path::new(&self.url).is_file(),
        };
        match is_taken {
            true => Err(CliError::told(
                format!(
                    "{} exists already and is not empty",
                    table::shown(&self.url)
                ),
                "choose another --dir, or remove it",
            )),
            false => Ok(()),
        }
    }

    /// Each rank is a thread of this process with a group of its own. Returns how many bytes were compared.
    fn on_threads(&self, io: &mut Io<'_>, phases: &mut Phases) -> Result<u64> {
        let (n, m, model) = (self.savers, self.loaders, &self.model);
        // Making and checking the state are timed apart, so they don't count as saving and loading.
        let bar = io.bar("building", model.bytes_on(n));
        let (states, time) = timed(|| each(0..n, |r| model.state(Cut::SAVED, r, n, &bar)));
        bar.finish_and_clear();
        phases.build(model.bytes(), time, n);
        let states = states?;
        let (groups, bar) = (LocalGroup::new(n), io.bar("saving", acts::held_by(&states)));
        let save = |(group, state): (&LocalGroup, _)| {
            acts::save(self.program, group, state, &self.url, &bar)
        };
        let saved = waiting::told(&bar, || each(groups.iter().zip(&states), save));
        bar.finish_and_clear();
        phases.save(&saved?);
        drop((states, groups));
        self.verify(io, phases)?;

        let bar = io.bar("preparing", model.bytes_on(m));
        let (templates, time) = timed(|| each(0..m, |r| model.template(Cut::LOADED, r, m, &bar)));
        bar.finish_and_clear();
        phases.prepare(model.bytes_on(m), time, m);
        let (groups, bar) = (LocalGroup::new(m), io.bar("loading", model.bytes_on(m)));
        let load = |(group, template): (&LocalGroup, _)| {
            acts::load(self.program, group, template, &self.url, &bar)
        };
        let templates = templates?;
        let loaded = waiting::told(&bar, || each(groups.iter().zip(templates), load));
        bar.finish_and_clear();
        let (loaded, told): (Vec<ValueTree>, Vec<Loaded>) = loaded?.into_iter().unzip();
        phases.load(model.bytes_on(m), &told);

        let bar = io.bar("checking", model.bytes_on(m));
        let check = |(r, plain)| model.check(Cut::LOADED, r, m, n, plain, &bar);
        let (checked, time) = timed(|| each((0..m).zip(&loaded), check));
        bar.finish_and_clear();
        let bytes: u64 = checked?.iter().sum();
        phases.check(bytes, time);
        Ok(bytes)
    }

    fn verify(&self, io: &Io<'_>, phases: &mut Phases) -> Result<()> {
        let checkpoint = self.program.open_quietly(&self.url, OpenOptions::new())?;
        let (found, time) = timed(|| crate::findings::check_all(&checkpoint, io));
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
}

/// Does `f` for each rank, on a thread each.
fn each<T: Send, R: Send>(
    ranks: impl IntoIterator<Item = T>,
    f: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let f = on_threads(f);
    thread::scope(|scope| {
        let f = &f;
        let begin = |rank| thread::Builder::new().spawn_scoped(scope, move || f(rank));
        // All are started before the first is waited for.
        let threads: Vec<_> = ranks.into_iter().map(begin).collect();
        let end = |thread: io::Result<thread::ScopedJoinHandle<'_, Result<R>>>| {
            let thread = thread.map_err(|source| CliError::Io {
                what: "the thread of a rank can't be started",
                source,
            })?;
            let panicked = |_| CliError::told("a rank's thread panicked", "please report this");
            thread.join().map_err(panicked)?
        };
        let outcomes: Vec<Result<R>> = threads.into_iter().map(end).collect();
        outcomes.into_iter().collect()
    })
}
