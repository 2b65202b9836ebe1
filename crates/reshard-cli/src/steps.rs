//! The checkpoints of a run, for `ls` and `inspect` of the folder that holds them.

use crate::{
    args::{Latest, Ls},
    error::{CliError, DAMAGED, NO_CHECKPOINT, OK, Result},
    findings::Doubts,
    glob::Keys,
    io::Io,
    json,
    program::Program,
    table::rows,
    units,
};
use reshard::{
    blocking::{Checkpoint, run},
    strategy::CheckedItems,
};
use reshard_manager::{Step, StepPattern, Steps};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// How folders of steps are called if nobody says it: as reshard and Megatron call them.
const USUAL: [&str; 2] = ["step-{n}", "iter_{n:07}"];

/// So many folders are named that don't open.
pub(crate) const NAMED: usize = 20;

/// The given pattern, or the usual ones.
fn patterns(given: Option<&StepPattern>) -> Result<Vec<StepPattern>> {
    if let Some(pattern) = given {
        return Ok(vec![pattern.clone()]);
    }
    let usual = USUAL.into_iter().map(str::parse);
    Ok(usual.collect::<Result<_, reshard::Error>>()?)
}

/// Where the checkpoint with a name lies in the folder of a run.
fn place(dir: &str, name: &str) -> String {
    format!("{}/{name}", dir.trim_end_matches('/'))
}

fn steps(program: &Program, dir: &str, pattern: StepPattern) -> Steps {
    reshard_manager::steps(dir)
        .pattern(pattern)
        .registry(program.registry.clone())
        .stores(program.stores.clone())
}

/// One of the list.
#[derive(Serialize)]
struct Row {
    step: u64,
    name: String,
    url: String,
    backend: String,
    version: u32,
    dialect: &'static str,
    tensors: u64,
    tensor_bytes: u64,
    /// The program that saved it, if `reshard.json` says it.
    saved_by: Option<String>,
    /// The first line of its damage, if there is any.
    damage: Option<String>,
}

impl Row {
    fn of(step: Step, checkpoint: &Checkpoint, io: &Io<'_>) -> Result<Self> {
        let (format, metadata) = (checkpoint.backend(), checkpoint.metadata());
        let (sidecar, _) = checkpoint.sidecar();
        let doubts = Doubts::of(checkpoint, Some(&CheckedItems::None), Keys::ALL, io)?;
        Ok(Self {
            step: step.number,
            name: step.name,
            url: step.url,
            backend: format.backend.to_string(),
            version: format.version,
            dialect: checkpoint.dialect().name(),
            tensors: metadata.tensor_count() as u64,
            tensor_bytes: metadata.total_bytes(),
            saved_by: sidecar.map(|sidecar| sidecar.writer),
            damage: doubts.damage(),
        })
    }

    fn cells(&self) -> [String; 6] {
        [
            units::count(self.step),
            match self.damage {
                None => self.name.clone(),
                Some(_) => format!("{} (damaged)", self.name),
            },
            format!("{}/{}", self.backend, self.version),
            units::count(self.tensors),
            units::bytes(self.tensor_bytes),
            self.saved_by.clone().unwrap_or_default(),
        ]
    }
}

/// A checkpoint that does not open, or can't be pruned.
#[derive(Serialize)]
pub(crate) struct LeftOut {
    pub(crate) name: String,
    pub(crate) why: String,
}

/// Prints the complete checkpoints in a folder. `None` if it has none.
pub(crate) fn list(program: &Program, args: &Ls, io: &mut Io<'_>) -> Result<Option<u8>> {
    let mut found = None;
    for pattern in patterns(args.steps.as_ref())? {
        let complete = match run(steps(program, &args.dir, pattern.clone())) {
            // Whoever gave no pattern gets the error of what was named.
            Err(_) if args.steps.is_none() => return Ok(None),
            Err(e) => return Err(e.into()),
            Ok(complete) => complete,
        };
        if !complete.is_empty() {
            found = Some((pattern, complete));
            break;
        }
    }
    let Some((pattern, complete)) = found else {
        return Ok(None);
    };

    let folders = run(steps(program, &args.dir, pattern.clone()).folders())?;
    let mut complete: BTreeMap<u64, Step> = complete.into_iter().map(|s| (s.number, s)).collect();
    let (mut all, mut closed) = (Vec::new(), Vec::new());
    for number in folders {
        let name = pattern.name(number);
        let url = place(&args.dir, &name);
        let step = complete.remove(&number);
        // To say why each of very many folders holds none takes long.
        if step.is_none() && closed.len() >= NAMED {
            let why = "it holds no complete checkpoint".to_owned();
            closed.push(LeftOut { name, why });
            continue;
        }
        match (program.open_quietly(&url, args.reading.options()), step) {
            (Ok(checkpoint), Some(step)) => all.push(Row::of(step, &checkpoint, io)?),
            // Its save has just ended, or its removal has begun.
            (Ok(_), None) => {}
            (Err(e), _) => closed.push(LeftOut {
                name,
                why: e.message(),
            }),
        }
    }
    if args.reading.json {
        let listed = serde_json::json!({ "schema": 1, "steps": all, "left_out": closed });
        json::write(io.out, &listed)?;
    } else {
        let titles = [">STEP", "NAME", "FORMAT", ">TENSORS", ">SIZE", "SAVED BY"];
        rows(io.out, titles, || all.iter().map(Row::cells))?;
    }
    io.out.flush()?;
    let damaged = all
        .iter()
        .filter_map(|row| Some((row, row.damage.as_ref()?)));
    let told = damaged.clone().map(|(Row { name, url, .. }, what)| {
        format!("listed: {name} is damaged ({what}); `reshard verify {url}` lists all damage")
    });
    io.notes(NAMED, told, |more| {
        let steps = units::some(more, "checkpoint");
        format!("listed: {steps} more that are damaged; --json names all")
    });
    let told = closed.iter();
    let told = told.map(|l| format!("left out: {} does not open: {}", l.name, l.why));
    io.notes(NAMED, told, |more| {
        let folders = units::some(more, "folder");
        format!("left out: {folders} more; --json names all")
    });
    Ok(Some(match damaged.count() {
        0 => OK,
        _ => DAMAGED,
    }))
}

/// Runs `reshard latest`. A folder that holds no complete checkpoint, or a damaged one, is passed over with a note.
pub(crate) fn latest(program: &Program, args: &Latest, io: &mut Io<'_>) -> Result<u8> {
    let mut passed = Vec::new();
    let mut newest = None;
    for pattern in patterns(args.steps.as_ref())? {
        newest = newest_of(program, args, &pattern, &mut passed)?;
        if newest.is_some() {
            break;
        }
    }
    let told = passed.iter();
    let told = told.map(|l| format!("passed over: {} does not open: {}", l.name, l.why));
    io.notes(NAMED, told, |more| {
        let folders = units::some(more, "newer folder");
        format!("passed over: {folders} more; --json names all")
    });
    let Some((step, url, checkpoint)) = newest else {
        return Err(none(&args.dir, args.steps.as_ref()));
    };
    let doubts = Doubts::of(&checkpoint, Some(&CheckedItems::None), Keys::ALL, io)?;
    let damage = doubts.damage();
    if args.reading.json {
        let backend = checkpoint.backend();
        let report = serde_json::json!({
            "schema": 1,
            "step": step,
            "url": url,
            "backend": backend.backend,
            "version": backend.version,
            "damage": damage,
            "left_out": passed,
        });
        json::write_about(io.out, &[&checkpoint], &report)?;
    } else {
        writeln!(io.out, "{url}")?;
    }
    io.out.flush()?;
    let Some(what) = damage else {
        return Ok(OK);
    };
    io.note(format!(
        "it is damaged ({what}); `reshard verify {url}` lists all damage"
    ));
    Ok(DAMAGED)
}

/// The newest checkpoint of a pattern that opens. `passed` gets the newer folders.
fn newest_of(
    program: &Program,
    args: &Latest,
    pattern: &StepPattern,
    passed: &mut Vec<LeftOut>,
) -> Result<Option<(u64, String, Checkpoint)>> {
    let folders = run(steps(program, &args.dir, pattern.clone()).folders())?;
    for step in folders.into_iter().rev() {
        let name = pattern.name(step);
        let url = place(&args.dir, &name);
        match program.open_quietly(&url, args.reading.options()) {
            Ok(checkpoint) => return Ok(Some((step, url, checkpoint))),
            Err(e) if [DAMAGED, NO_CHECKPOINT].contains(&e.exit_code()) => {
                let why = e.message();
                passed.push(LeftOut { name, why });
            }
            // An older one is no answer if the newest may be sound.
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

/// The steps in a folder, in the order of their numbers.
#[derive(Default)]
pub(crate) struct Places {
    /// The places and names of complete checkpoints, and of those beside which a save or a removal has left something.
    pub(crate) of_saves: Vec<(String, String)>,
    /// The names of the other folders.
    pub(crate) others: Vec<String>,
}

/// Finds the steps in a folder.
pub(crate) fn places(
    program: &Program,
    dir: &str,
    pattern: Option<&StepPattern>,
) -> Result<Places> {
    let mut places = Places::default();
    for pattern in patterns(pattern)? {
        let look = || steps(program, dir, pattern.clone());
        let complete = run(look())?.into_iter().map(|step| step.number);
        let left = reshard::storage::wait(look().unfinished_saves())?;
        let numbers: BTreeSet<u64> = complete.chain(left).collect();
        let others = run(look().folders())?.into_iter();
        let others = others.filter(|number| !numbers.contains(number));
        places
            .others
            .extend(others.map(|number| pattern.name(number)));
        places.of_saves.extend(numbers.into_iter().map(|number| {
            let name = pattern.name(number);
            (place(dir, &name), name)
        }));
    }
    Ok(places)
}

/// The error for a folder without checkpoints of a pattern.
pub(crate) fn none(dir: &str, pattern: Option<&StepPattern>) -> CliError {
    let pattern = pattern.cloned().unwrap_or_default();
    CliError::Told {
        what: format!("{dir} has no complete checkpoint that is called {pattern}"),
        hint: "check the path and the pattern; what a save has not finished is not listed".into(),
        code: NO_CHECKPOINT,
    }
}

/// The newest checkpoint in a folder that opens, if it can be looked for and there is one.
pub(crate) fn newest(program: &Program, dir: &str) -> Option<Step> {
    patterns(None).into_iter().flatten().find_map(|pattern| {
        let steps = steps(program, dir, pattern);
        reshard::storage::wait(steps.latest()).ok().flatten()
    })
}

/// The error for a place that is no checkpoint, and also the newest complete one in it, if it holds some.
pub(crate) fn with_newest(program: &Program, dir: &str, e: CliError) -> CliError {
    if e.exit_code() != NO_CHECKPOINT {
        return e;
    }
    // Whatever hinders the search, the error is about what was named.
    let Some(Step { name, url, .. }) = newest(program, dir) else {
        return e;
    };
    let inspect_it = || format!("inspect it, as in  reshard inspect {url}");
    let (what, hint) = match e {
        CliError::Elsewhere { found, hint } if found.holds_some() => {
            // Megatron's file names the one with which Megatron goes on.
            let hint = if found.is_latest() {
                hint
            } else {
                inspect_it()
            };
            (found.what().to_owned(), hint)
        }
        _ => {
            let what = format!("{dir} is not a checkpoint, but holds some");
            (what, inspect_it())
        }
    };
    CliError::Told {
        what: format!("{what}; the newest complete one is {name}"),
        hint: format!("{hint}; `reshard ls {dir}` lists them"),
        code: NO_CHECKPOINT,
    }
}
