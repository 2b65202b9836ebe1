//! Small changes of the code that must not be wrong, by cargo-mutants: does a test notice each?
//!
//! Sources are changed in copies below `target/mutants`, one for each job. All mutants of a core are in one build, as far as
//! they can be; the rest is built one by one. What survives is an error, unless `docs/mutants.md` lists it with the reason why
//! no test can notice.

mod alone;
mod cores;
mod dice;
mod known;
mod mutant;
mod programs;
mod together;
mod tree;
mod weave;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::mutants::cores::{CORES, Core};
use crate::mutants::mutant::Mutant;
use crate::shell::{Program, say, target_dir, tool};

/// Known by its list of mutants: another version may have others.
const VERSION: &str = "27.1.0";

/// It stops at the first test that fails.
const NEXTEST: (&str, &str) = ("cargo-nextest", "0.9.143");

/// How sources are built that are broken.
const PROFILE: &str = "mutants";

#[derive(Debug)]
pub(crate) struct Options {
    /// Only these cores; all, if there are none.
    pub(crate) cores: Vec<String>,
    /// Only so many mutants, chosen by the seed.
    pub(crate) sample: Option<usize>,
    pub(crate) seed: u64,
    /// How many are tried at a time.
    pub(crate) jobs: usize,
    /// Only say how many there are.
    pub(crate) list: bool,
}

/// For tests: the same cases for all, so that a survivor is one tomorrow too; and a failure need not be made small.
const QUIET: [(&str, &str); 4] = [
    ("PROPTEST_RNG_SEED", "1"),
    ("PROPTEST_CASES", "64"),
    ("PROPTEST_MAX_SHRINK_ITERS", "0"),
    ("INSTA_UPDATE", "no"),
];

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A test failed.
    Caught,
    /// A test took too long, which counts as noticed.
    Timeout,
    /// It does not compile.
    Unviable,
    /// No test noticed.
    Missed,
}

/// What became of the mutants of one core.
#[derive(Debug, Default)]
struct Tally {
    core: &'static str,
    caught: usize,
    timeout: usize,
    unviable: usize,
    known: usize,
    missed: Vec<Mutant>,
    took: Duration,
}

/// The programs that change and judge.
#[derive(Debug)]
pub(crate) struct Tools {
    mutants: PathBuf,
    nextest: PathBuf,
}

impl Tools {
    /// What a program needs to know that builds or runs the tests of a copy.
    fn surround(&self, program: Program, home: &Path) -> Result<Program> {
        let quiet = QUIET
            .iter()
            .fold(program, |program, (name, value)| program.env(name, value));
        let quiet = quiet.env("CARGO_INCREMENTAL", "1");
        // Cargo finds nextest where all programs are found.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let dirs = self
            .nextest
            .parent()
            .map(Path::to_owned)
            .into_iter()
            .chain(std::env::split_paths(&path));
        let path = std::env::join_paths(dirs.filter(|dir| !dir.as_os_str().is_empty()))?;
        Ok(quiet
            .env("PATH", path)
            .env("CARGO_TARGET_DIR", home.join("target")))
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let cores = chosen(&options.cores)?;
    let tools = Tools {
        mutants: tool("cargo-mutants", VERSION)?,
        nextest: tool(NEXTEST.0, NEXTEST.1)?,
    };

    // Each job changes sources in a copy of its own, and the working tree stays as it is.
    let home = target_dir().join("mutants");
    let trees: Vec<PathBuf> = (0..options.jobs.max(1))
        .map(|job| home.join(job.to_string()))
        .collect();
    for tree in &trees {
        tree::copy(&tree.join("tree"))?;
    }
    let known = known::read()?;
    let mut all: Vec<(&'static Core, Mutant)> = Vec::new();
    for core in cores {
        let mutants = list(&tools.mutants, &trees[0].join("tree"), core)?;
        say(format!("{:<10} {:>5} mutants", core.name, mutants.len()));
        all.extend(mutants.into_iter().map(|mutant| (core, mutant)));
    }

    // Only with all cores listed is a known mutant that is not among them surely gone.
    if options.cores.is_empty()
        && let Some(stale) = known
            .iter()
            .find(|known| !all.iter().any(|(_, mutant)| known.is(mutant)))
    {
        bail!(
            "{} lists what is no mutant any more: {}",
            known::PAGE,
            stale.says()
        );
    }
    if options.list {
        return Ok(());
    }

    if let Some(sample) = options.sample {
        say(format!(
            "{} of {} mutants, by --seed {}",
            sample.min(all.len()),
            all.len(),
            options.seed
        ));
        dice::shuffle(&mut all, options.seed);
        all.truncate(sample);
    }

    // Mutants are judged by core, since those of one core share their builds.
    let begin = Instant::now();
    let mut tallies = Vec::new();
    for core in CORES {
        let own = all.iter().filter(|(of, _)| std::ptr::eq(*of, core));
        let mutants: Vec<&Mutant> = own.map(|(_, mutant)| mutant).collect();
        if !mutants.is_empty() {
            tallies.push(judge(&tools, &trees, core, &mutants, &known)?);
        }
    }
    report(&tallies, begin.elapsed())
}

/// Judges mutants of one core: together, and then those alone for which that doesn't do.
fn judge(
    tools: &Tools,
    trees: &[PathBuf],
    core: &'static Core,
    mutants: &[&Mutant],
    known: &[known::Known],
) -> Result<Tally> {
    let begin = Instant::now();
    let mut outcomes = together::judge(tools, &trees[0], trees.len(), core, mutants)?;
    let left = mutants
        .iter()
        .zip(&outcomes)
        .filter(|(_, outcome)| outcome.is_none());
    let left: Vec<&Mutant> = left.map(|(mutant, _)| *mutant).collect();
    let alone = alone::judge(tools, trees, core, &left)?;
    outcomes
        .iter_mut()
        .filter(|outcome| outcome.is_none())
        .zip(alone)
        .for_each(|(o, new)| *o = Some(new));
    let mut tally = Tally {
        core: core.name,
        took: begin.elapsed(),
        ..Tally::default()
    };
    for (mutant, outcome) in mutants.iter().zip(outcomes) {
        match outcome {
            Some(Outcome::Caught) => tally.caught += 1,
            Some(Outcome::Timeout) => tally.timeout += 1,
            Some(Outcome::Unviable) => tally.unviable += 1,
            _ if known.iter().any(|known| known.is(mutant)) => tally.known += 1,
            _ => {
                // At once, so that work on it can begin.
                say(format!(
                    "SURVIVES  {}\n- ``{}`` at ``{}``: WHY",
                    mutant.name, mutant.what, mutant.line
                ));
                tally.missed.push((*mutant).clone());
            }
        }
    }
    Ok(tally)
}

/// Runs jobs beside each other, until all have ended.
fn run_jobs<J: FnOnce() -> Result<()> + Send>(jobs: impl Iterator<Item = J>) -> Result<()> {
    std::thread::scope(|scope| {
        let jobs: Vec<_> = jobs.map(|job| scope.spawn(job)).collect();
        jobs.into_iter().try_for_each(|job| {
            job.join()
                .unwrap_or_else(|_| bail!("a job of `mutants` panicked"))
        })
    })
}

/// What a job does next.
fn next<T>(queue: &Mutex<VecDeque<T>>) -> Option<T> {
    queue
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .pop_front()
}

/// As many jobs as there are CPUs.
pub(crate) fn all_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Core>> {
    let all = || {
        CORES
            .iter()
            .map(|core| core.name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    if let Some(odd) = names
        .iter()
        .find(|name| !CORES.iter().any(|core| core.name == **name))
    {
        bail!("there is no core `{odd}`; there are {}", all());
    }
    Ok(CORES
        .iter()
        .filter(|core| names.is_empty() || names.iter().any(|name| name == core.name))
        .collect())
}

/// All mutants of a core.
fn list(program: &Path, tree: &Path, core: &Core) -> Result<Vec<Mutant>> {
    let files = core.files.iter().flat_map(|file| ["--file", file]);
    let listed = Program::new(program)
        .args(["mutants", "--list", "--json", "--no-config", "--dir"])
        .args([tree])
        .args(files)
        .read()?;
    let listed: Vec<Value> =
        serde_json::from_str(&listed).context("cargo-mutants listed no JSON")?;
    let mut mutants = listed
        .iter()
        .map(|mutant| parse(tree, mutant))
        .collect::<Result<Vec<_>>>()?;
    // Two of one name are tried together.
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    mutants.dedup();
    Ok(mutants)
}

fn parse(tree: &Path, mutant: &Value) -> Result<Mutant> {
    let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
    let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
    let place = |value: &Value| Some((number(&value["line"])?, number(&value["column"])?));
    let read = || {
        let (name, file) = (text(&mutant["name"])?, text(&mutant["file"])?);
        let (from, to) = (
            place(&mutant["span"]["start"])?,
            place(&mutant["span"]["end"])?,
        );
        // "FILE:LINE:COLUMN: WHAT"
        let what = name.strip_prefix(&file)?.split_once(": ")?.1.to_owned();
        let source = std::fs::read_to_string(tree.join(&file)).ok()?;
        let line = source
            .lines()
            .nth(from.0.checked_sub(1)?)?
            .trim()
            .to_owned();
        let (package, replacement) = (text(&mutant["package"])?, text(&mutant["replacement"])?);
        Some(Mutant {
            name,
            file,
            what,
            line,
            package,
            from,
            to,
            replacement,
        })
    };
    read()
        .with_context(|| format!("cargo-mutants listed what this program does not know: {mutant}"))
}

fn report(tallies: &[Tally], took: Duration) -> Result<()> {
    say(
        "\n| core | mutants | noticed | of these by a timeout | do not compile | equivalent | survive | seconds each |",
    );
    say("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for t in tallies {
        let (noticed, survive) = (t.caught + t.timeout, t.missed.len());
        let all = noticed + t.unviable + t.known + survive;
        #[expect(clippy::cast_precision_loss, reason = "a count of mutants")]
        let each = t.took.as_secs_f64() / all.max(1) as f64;
        say(format!(
            "| {} | {all} | {noticed} | {} | {} | {} | {survive} | {each:.1} |",
            t.core, t.timeout, t.unviable, t.known
        ));
    }
    say(format!("{:.0} s in all", took.as_secs_f64()));
    let missed: Vec<&Mutant> = tallies.iter().flat_map(|tally| &tally.missed).collect();
    for mutant in &missed {
        say(format!("SURVIVES  {}", mutant.name));
    }
    if !missed.is_empty() {
        bail!(
            "{} mutants survive: write a test that notices, or list them in {} with the reason why none can",
            missed.len(),
            known::PAGE
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_is_what_stands_in_the_source() -> Result<()> {
        let file = "xtask/src/mutants/cores.rs";
        let name = format!("{file}:3:1: replace f -> bool with true");
        let span =
            serde_json::json!({"start": {"line": 1, "column": 1}, "end": {"line": 1, "column": 3}});
        let listed = serde_json::json!({
            "name": name, "file": file, "span": span, "package": "xtask", "replacement": "true",
        });
        let mutant = parse(&crate::shell::root(), &listed)?;
        assert_eq!(mutant.what, "replace f -> bool with true");
        assert_eq!(
            (mutant.from, mutant.to, &*mutant.replacement),
            ((1, 1), (1, 3), "true")
        );
        assert_eq!(
            mutant.line,
            "//! Which code is mutated, and which tests have to notice."
        );
        assert!(parse(&crate::shell::root(), &serde_json::json!({"name": "f"})).is_err());
        Ok(())
    }
}
