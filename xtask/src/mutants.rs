//! Small changes of the code that must not be wrong, by cargo-mutants: does a test notice each?
//!
//! Sources are changed in copies below `target/mutants`, one for each job. What survives is an error, unless `docs/mutants.md`
//! lists it with the reason why no test can notice.

mod cores;
mod dice;
mod known;
mod tree;

use std::collections::{BTreeMap, VecDeque, btree_map::Entry};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::mutants::cores::{CORES, Core, Judge};
use crate::shell::{Program, cargo, say, target_dir, tool};

/// Known by its list of mutants: another version may have others.
const VERSION: &str = "27.1.0";

/// It stops at the first test that fails.
const NEXTEST: (&str, &str) = ("cargo-nextest", "0.9.143");

/// Mutants that one call of cargo-mutants tries. Calls are dealt out to the jobs.
const BATCH: usize = 40;

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

/// One change of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mutant {
    /// As cargo-mutants calls it, with the number of the line.
    name: String,
    file: String,
    /// What is changed, without the place.
    what: String,
    /// The line of the source where it begins.
    line: String,
}

/// What became of the mutants of one core.
#[derive(Debug, Default)]
struct Tally {
    caught: usize,
    timeout: usize,
    unviable: usize,
    known: usize,
    missed: Vec<Mutant>,
    /// All time that was spent, of all jobs.
    spent: Duration,
}

/// The programs that change and judge.
struct Tools {
    mutants: PathBuf,
    nextest: PathBuf,
}

/// Some mutants of one core.
struct Batch {
    core: &'static Core,
    mutants: Vec<Mutant>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let cores = chosen(&options.cores)?;
    let tools = Tools { mutants: tool("cargo-mutants", VERSION)?, nextest: tool(NEXTEST.0, NEXTEST.1)? };
    let home = target_dir().join("mutants");
    let trees: Vec<PathBuf> = (0..options.jobs.max(1)).map(|job| home.join(job.to_string())).collect();
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
    if options.cores.is_empty()
        && let Some(stale) = known.iter().find(|known| !all.iter().any(|(_, mutant)| known.is(mutant)))
    {
        bail!("{} lists what is no mutant any more: {}", known::PAGE, stale.says());
    }
    if options.list {
        return Ok(());
    }
    if let Some(sample) = options.sample {
        say(format!("{} of {} mutants, by --seed {}", sample.min(all.len()), all.len(), options.seed));
        dice::shuffle(&mut all, options.seed);
        all.truncate(sample);
    }
    let begin = Instant::now();
    let tallies = try_all(&tools, &trees, batches(all), &known)?;
    report(&tallies, begin.elapsed())
}

/// As many jobs as there are CPUs.
pub(crate) fn all_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Core>> {
    let all = || CORES.iter().map(|core| core.name).collect::<Vec<_>>().join(", ");
    if let Some(odd) = names.iter().find(|name| !CORES.iter().any(|core| core.name == **name)) {
        bail!("there is no core `{odd}`; there are {}", all());
    }
    Ok(CORES.iter().filter(|core| names.is_empty() || names.iter().any(|name| name == core.name)).collect())
}

fn batches(all: Vec<(&'static Core, Mutant)>) -> VecDeque<Batch> {
    let mut of_core: BTreeMap<usize, Vec<Mutant>> = BTreeMap::new();
    for (core, mutant) in all {
        let index = CORES.iter().position(|other| std::ptr::eq(other, core)).unwrap_or_default();
        of_core.entry(index).or_default().push(mutant);
    }
    let mut batches = VecDeque::new();
    for (index, mut mutants) in of_core {
        // In the order of the files, so that neighbours rebuild little.
        mutants.sort_by(|a, b| (&a.file, &a.name).cmp(&(&b.file, &b.name)));
        batches
            .extend(mutants.chunks(BATCH).map(|some| Batch { core: &CORES[index], mutants: some.to_vec() }));
    }
    batches
}

/// All mutants of a core.
fn list(program: &Path, tree: &Path, core: &Core) -> Result<Vec<Mutant>> {
    let files = core.files.iter().flat_map(|file| ["--file", file]);
    let listed = Program::new(program)
        .args(["mutants", "--list", "--json", "--no-config", "--dir"])
        .args([tree])
        .args(files)
        .read()?;
    let listed: Vec<Value> = serde_json::from_str(&listed).context("cargo-mutants listed no JSON")?;
    let mut mutants = listed.iter().map(|mutant| parse(tree, mutant)).collect::<Result<Vec<_>>>()?;
    // Two of one name are tried together.
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    mutants.dedup();
    Ok(mutants)
}

fn parse(tree: &Path, mutant: &Value) -> Result<Mutant> {
    let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
    let read = || {
        let (name, file) = (text(&mutant["name"])?, text(&mutant["file"])?);
        let at = usize::try_from(mutant["span"]["start"]["line"].as_u64()?).ok()?;
        // "FILE:LINE:COLUMN: WHAT"
        let what = name.strip_prefix(&file)?.split_once(": ")?.1.to_owned();
        let source = std::fs::read_to_string(tree.join(&file)).ok()?;
        let line = source.lines().nth(at.checked_sub(1)?)?.trim().to_owned();
        Some(Mutant { name, file, what, line })
    };
    read().with_context(|| format!("cargo-mutants listed what this program does not know: {mutant}"))
}

/// Deals the batches out to the jobs.
fn try_all(
    tools: &Tools,
    trees: &[PathBuf],
    batches: VecDeque<Batch>,
    known: &[known::Known],
) -> Result<BTreeMap<&'static str, Tally>> {
    let (queue, tallies) = (Mutex::new(batches), Mutex::new(BTreeMap::<&'static str, Tally>::new()));
    let job = |home: &PathBuf| -> Result<()> {
        let mut limits: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
        loop {
            let Some(batch) = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front() else {
                return Ok(());
            };
            let limits = match limits.entry(batch.core.name) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(baseline(tools, home, batch.core)?),
            };
            let begin = Instant::now();
            let outcomes = judge(tools, home, &batch, limits)?;
            let mut tallies = tallies.lock().unwrap_or_else(PoisonError::into_inner);
            let tally = tallies.entry(batch.core.name).or_default();
            tally.spent += begin.elapsed();
            for (mutant, outcome) in batch.mutants.into_iter().zip(outcomes) {
                match outcome.as_str() {
                    "CaughtMutant" => tally.caught += 1,
                    "Timeout" => tally.timeout += 1,
                    "Unviable" => tally.unviable += 1,
                    _ if known.iter().any(|known| known.is(&mutant)) => tally.known += 1,
                    _ => {
                        // At once, so that work on it can begin.
                        say(format!(
                            "SURVIVES  {}\n- ``{}`` at ``{}``: WHY",
                            mutant.name, mutant.what, mutant.line
                        ));
                        tally.missed.push(mutant);
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let jobs: Vec<_> = trees.iter().map(|tree| scope.spawn(|| job(tree))).collect();
        jobs.into_iter().try_for_each(|job| {
            job.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a job of `mutants` panicked")))
        })
    })?;
    Ok(tallies.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The judges are green where nothing is broken; how long each may take where something is, is several times what it took.
fn baseline(tools: &Tools, home: &Path, core: &Core) -> Result<Vec<Duration>> {
    let judge = |judge: &Judge, how: &[&str]| {
        let packages = judge.packages.iter().flat_map(|package| ["--package", package]);
        // Batches that were stopped may have left a broken source; then cargo must see it mended.
        surroundings(tools, cargo(&["nextest", "run", "--locked", "--cargo-profile", PROFILE]), home)?
            .args(["--manifest-path".as_ref(), home.join("tree/Cargo.toml").as_os_str()])
            .args(packages)
            .args(how)
            .args(judge.tests)
            .read()
            .with_context(|| format!("the judges of {} are red before anything is broken", core.name))
    };
    let mut limits = Vec::new();
    for one in core.judges {
        judge(one, &["--no-run"])?;
        let begin = Instant::now();
        judge(one, &[])?;
        let took = begin.elapsed();
        say(format!("{:<10} {} take {:.1} s", core.name, one.tests.join(" "), took.as_secs_f64()));
        // Beside other work tests take longer, and a timeout counts as noticed.
        limits.push(took * 8 + Duration::from_secs(10));
    }
    Ok(limits)
}

const PROFILE: &str = "mutants";

/// What cargo-mutants calls one that no test noticed.
const MISSED: &str = "MissedMutant";

fn surroundings(tools: &Tools, program: Program, home: &Path) -> Result<Program> {
    // The same cases for all, so that a survivor is one tomorrow too; and a failure need not be made small.
    let proptest = program.env("PROPTEST_RNG_SEED", "1").env("PROPTEST_MAX_SHRINK_ITERS", "0");
    let quiet = proptest.env("INSTA_UPDATE", "no").env("CARGO_INCREMENTAL", "1");
    // Cargo finds nextest where all programs are found.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = tools.nextest.parent().map(Path::to_owned).into_iter().chain(std::env::split_paths(&path));
    let path = std::env::join_paths(dirs.filter(|dir| !dir.as_os_str().is_empty()))?;
    Ok(quiet.env("PATH", path).env("CARGO_TARGET_DIR", home.join("target")))
}

/// What became of each mutant of a batch, in their order. Each judge is asked about what those before it have not noticed.
fn judge(tools: &Tools, home: &Path, batch: &Batch, limits: &[Duration]) -> Result<Vec<String>> {
    let Batch { core, mutants } = batch;
    let mut outcomes = vec![MISSED.to_owned(); mutants.len()];
    for (judge, limit) in core.judges.iter().zip(limits) {
        let left = mutants.iter().zip(&outcomes).filter(|(_, outcome)| *outcome == MISSED);
        let left: Vec<Mutant> = left.map(|(mutant, _)| mutant.clone()).collect();
        if !left.is_empty() {
            let judged = try_mutants(tools, home, core, judge, &left, *limit)?;
            outcomes.iter_mut().filter(|old| *old == MISSED).zip(judged).for_each(|(old, new)| *old = new);
        }
    }
    Ok(outcomes)
}

/// Tries each of these, and says what became of them, in their order.
fn try_mutants(
    tools: &Tools,
    home: &Path,
    core: &Core,
    judge: &Judge,
    mutants: &[Mutant],
    limit: Duration,
) -> Result<Vec<String>> {
    let names = mutants.iter().flat_map(|m| ["--re".to_owned(), format!("^{}$", escape(&m.name))]);
    let ended = surroundings(tools, Program::new(&tools.mutants), home)?
        .args([
            "mutants",
            "--in-place",
            "--no-config",
            "--baseline=skip",
            "--colors=never",
            "--test-tool=nextest",
            "--dir",
        ])
        .args([home.join("tree")])
        .args(["--output".as_ref(), home.as_os_str()])
        .args(["--timeout", &limit.as_secs().to_string(), "--build-timeout", "900"])
        .args(["--profile", PROFILE, "--cargo-arg=--locked"])
        .args(judge.tests.iter().map(|arg| format!("--cargo-test-arg={arg}")))
        .args(["--test-package", &judge.packages.join(",")])
        .args(core.files.iter().flat_map(|file| ["--file", file]))
        .args(names)
        .read_unless(&[2, 3])?; // Missed mutants and timeouts are no failures of the program.
    say(format!("{:<10} {}", core.name, ended.lines().last().unwrap_or_default()));
    let path = home.join("mutants.out/outcomes.json");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let outcomes: Value = serde_json::from_str(&text).context("outcomes.json is no JSON")?;
    let mut summaries = BTreeMap::new();
    for outcome in outcomes["outcomes"].as_array().into_iter().flatten() {
        let name = outcome["scenario"]["Mutant"]["name"].as_str();
        if let (Some(name), Some(summary)) = (name, outcome["summary"].as_str()) {
            // Two may have one name: what survives counts.
            let known = summaries.entry(name.to_owned()).or_insert_with(|| summary.to_owned());
            if summary == MISSED {
                summary.clone_into(known);
            }
        }
    }
    let of = |mutant: &Mutant| {
        summaries.get(&mutant.name).cloned().with_context(|| format!("{} was not tried", mutant.name))
    };
    mutants.iter().map(of).collect()
}

/// A regular expression that means the text itself.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

fn report(tallies: &BTreeMap<&'static str, Tally>, took: Duration) -> Result<()> {
    say(
        "\n| core | mutants | noticed | of these by a timeout | do not compile | equivalent | survive | seconds each |",
    );
    say("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for core in CORES {
        let Some(t) = tallies.get(core.name) else { continue };
        let (noticed, survive) = (t.caught + t.timeout, t.missed.len());
        let all = noticed + t.unviable + t.known + survive;
        #[expect(clippy::cast_precision_loss, reason = "a count of mutants")]
        let each = t.spent.as_secs_f64() / all.max(1) as f64;
        say(format!(
            "| {} | {all} | {noticed} | {} | {} | {} | {survive} | {each:.1} |",
            core.name, t.timeout, t.unviable, t.known
        ));
    }
    say(format!("{:.0} s in all", took.as_secs_f64()));
    let missed: Vec<&Mutant> = tallies.values().flat_map(|tally| &tally.missed).collect();
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
        let listed =
            serde_json::json!({"name": name, "file": file, "span": {"start": {"line": 1, "column": 1}}});
        let mutant = parse(&crate::shell::root(), &listed)?;
        assert_eq!(mutant.what, "replace f -> bool with true");
        assert_eq!(mutant.line, "//! Which code is mutated, and which tests have to notice.");
        assert!(parse(&crate::shell::root(), &serde_json::json!({"name": "f"})).is_err());
        Ok(())
    }

    #[test]
    fn a_name_is_escaped() {
        assert_eq!(escape("a.rs:1:2: replace f -> Option<u8>"), r"a\.rs:1:2: replace f \-> Option<u8>");
    }
}
