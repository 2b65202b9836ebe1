//! `reshard demo`.

mod model;

use crate::{
    args::Demo,
    error::{CliError, OK, Result},
    program::{Io, Program},
    table::{self, BOLD, DIM, GOOD, styled},
    units,
};
use indicatif::ProgressBar;
use model::{Cut, Model};
use reshard::{Act, LocalGroup, Plain, SaveReport, StateDict};
use std::{
    thread,
    time::{Duration, Instant},
};

/// A row of the table.
struct Done {
    act: &'static str,
    what: String,
    bytes: u64,
    time: Duration,
}

pub(crate) fn run(program: &Program, args: &Demo, io: &mut Io<'_>) -> Result<u8> {
    let model = Model::of_size(args.size);
    let temporary;
    let url = match &args.dir {
        Some(dir) => dir.clone(),
        None => {
            let made = tempfile::Builder::new().prefix("reshard-demo-").tempdir();
            temporary = made.map_err(|source| CliError::Io { what: "no temporary directory", source })?;
            temporary.path().join("step-1000").display().to_string()
        }
    };
    let (n, m) = (args.ranks, args.to);
    writeln!(io.out, "{BOLD}{}{BOLD:#}", model.describe())?;
    writeln!(
        io.out,
        "{DIM}bf16 weights and fp32 moments, split over {n} ranks; loaded on {m}, cut along the other axis{DIM:#}"
    )?;
    writeln!(io.out)?;
    io.out.flush()?;

    let mut acts = Vec::new();
    let mut act = |act, what: String, bytes, time| acts.push(Done { act, what, bytes, time });

    let (states, time) = timed(|| each(0..n, |r| model.state(Cut::SAVED, r, n)));
    let states = states?;
    act("build", format!("state of {}", units::some(n.into(), "rank")), model.bytes(), time);

    let bar = io.bar("saving", model.bytes());
    let (saved, time) = timed(|| save(program, &states, &url, &bar));
    let saved = saved?;
    drop(states);
    let Some(report) = saved.first() else {
        return Err(CliError::told("nobody saved", "please report this"));
    };
    act(
        "save",
        format!("{}, fsynced and published in one step", units::some(report.files(), "file")),
        report.bytes(),
        time,
    );
    for (name, which, bytes) in
        [("  decide", Act::Decide, 0), ("  move", Act::Move, report.bytes()), ("  agree", Act::Agree, 0)]
    {
        act(name, String::new(), bytes, report.time(which));
    }

    let checkpoint = program.open(&url)?;
    let bar = io.bar("verifying", report.bytes());
    let told = bar.clone();
    let (verified, time) = timed(|| checkpoint.verify(true, reshard::Progress::new(move |b| told.inc(b))));
    bar.finish_and_clear();
    let verified = verified?;
    if !verified.damage.is_empty() || !verified.unchecked.is_empty() {
        return Err(CliError::damaged(
            "what was just saved is damaged",
            "check the disk and the memory of this machine",
        ));
    }
    act("verify", format!("every CRC-32 of {}", units::some(verified.items, "item")), verified.bytes, time);

    let (templates, time) = timed(|| each(0..m, |r| model.template(Cut::LOADED, r, m)));
    let templates = templates?;
    act(
        "prepare",
        format!("memory of {}, filled with something else", units::some(m.into(), "rank")),
        model.bytes_on(m),
        time,
    );

    let bar = io.bar("loading", model.bytes_on(m));
    let (loaded, time) = timed(|| load(program, templates, &url, &bar));
    let loaded = loaded?;
    act(
        "load",
        format!("onto {}, checksums checked", units::some(m.into(), "rank")),
        model.bytes_on(m),
        time,
    );

    let bar = io.bar("checking", model.bytes_on(m));
    let (checked, time) =
        timed(|| each((0..m).zip(&loaded), |(r, plain)| model.check(Cut::LOADED, r, m, n, plain, &bar)));
    bar.finish_and_clear();
    let bytes: u64 = checked?.iter().sum();
    act("check", "every byte against what it must be".into(), bytes, time);

    let row = |d: &Done| {
        let bytes = if d.bytes == 0 { String::new() } else { units::bytes(d.bytes) };
        [d.act.into(), bytes, units::seconds(d.time), units::rate(d.bytes, d.time), d.what.clone()]
    };
    table::rows(io.out, ["ACT", ">BYTES", ">TIME", ">RATE", ""], acts.iter().map(row))?;
    writeln!(io.out)?;
    writeln!(io.out, "{}  all {} bytes are right", styled(GOOD, "ok"), units::count(bytes))?;
    match &args.dir {
        Some(dir) => writeln!(io.out, "Look at it:  reshard inspect {dir}")?,
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

/// Does `f` for each rank, on a thread each.
fn each<T: Send, R: Send>(
    ranks: impl IntoIterator<Item = T>,
    f: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    thread::scope(|scope| {
        let f = &f;
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || f(rank))).collect();
        let outcomes: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        let panicked = |_| Err(CliError::told("a rank's thread panicked", "please report this"));
        outcomes.into_iter().map(|o| o.unwrap_or_else(panicked)).collect()
    })
}

fn save(program: &Program, states: &[StateDict], url: &str, bar: &ProgressBar) -> Result<Vec<SaveReport>> {
    let groups = LocalGroup::new(states.len() as u32);
    let saved = each(groups.iter().zip(states), |(group, state)| {
        let told = bar.clone();
        let save = reshard::save(state, url).group(group).progress(move |n| told.inc(n));
        let save = save.registry(program.registry.clone()).stores(program.stores.clone());
        Ok(reshard::blocking::run(save)?)
    });
    bar.finish_and_clear();
    saved
}

fn load(program: &Program, templates: Vec<StateDict>, url: &str, bar: &ProgressBar) -> Result<Vec<Plain>> {
    let groups = LocalGroup::new(templates.len() as u32);
    let loaded = each(groups.iter().zip(templates), |(group, template)| {
        let told = bar.clone();
        let load = reshard::load(template, url).group(group).progress(move |n| told.inc(n));
        let load = load.registry(program.registry.clone()).stores(program.stores.clone());
        Ok(reshard::blocking::run(load)?)
    });
    bar.finish_and_clear();
    loaded
}
