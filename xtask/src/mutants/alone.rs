//! Mutants that are built one by one, by cargo-mutants.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::cores::{Core, Judge};
use super::{Outcome, PROFILE, Tools, mutant::Mutant, next, run_jobs};
use crate::shell::{Program, cargo, say};

/// Mutants that one call of cargo-mutants tries. Calls are dealt out to the jobs.
const BATCH: usize = 40;

/// What became of each mutant, in their order.
pub(crate) fn judge(
    tools: &Tools,
    trees: &[PathBuf],
    core: &Core,
    mutants: &[&Mutant],
) -> Result<Vec<Outcome>> {
    let batches: VecDeque<_> = (0..).step_by(BATCH).zip(mutants.chunks(BATCH)).collect();
    let (queue, done) = (
        Mutex::new(batches),
        Mutex::new(vec![Outcome::Missed; mutants.len()]),
    );
    let job = |home: &PathBuf| -> Result<()> {
        let mut limits = None;
        while let Some((at, batch)) = next(&queue) {
            let limits = match &limits {
                Some(limits) => limits,
                None => limits.insert(baseline(tools, home, core)?),
            };
            let outcomes = judge_batch(tools, home, core, batch, limits)?;
            done.lock().unwrap_or_else(PoisonError::into_inner)[at..at + batch.len()]
                .copy_from_slice(&outcomes);
        }
        Ok(())
    };
    run_jobs(trees.iter().map(|tree| || job(tree)))?;
    Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The judges are green where nothing is broken; how long each may take where something is, is several times what it took.
fn baseline(tools: &Tools, home: &Path, core: &Core) -> Result<Vec<Duration>> {
    let judge = |judge: &Judge, how: &[&str]| {
        let packages = judge
            .packages
            .iter()
            .flat_map(|package| ["--package", package]);
        // Batches that were stopped may have left a broken source; then cargo must see it mended.
        tools
            .surround(
                cargo(&["nextest", "run", "--locked", "--cargo-profile", PROFILE]),
                home,
            )?
            .args([
                "--manifest-path".as_ref(),
                home.join("tree/Cargo.toml").as_os_str(),
            ])
            .args(packages)
            .args(how)
            .args(judge.tests)
            .read()
            .with_context(|| {
                format!(
                    "the judges of {} are red before anything is broken",
                    core.name
                )
            })
    };
    let mut limits = Vec::new();
    for one in core.judges {
        judge(one, &["--no-run"])?;
        let begin = Instant::now();
        judge(one, &[])?;
        // Beside other work tests take longer, and a timeout counts as noticed.
        limits.push(begin.elapsed() * 8 + Duration::from_secs(10));
    }
    Ok(limits)
}

/// What became of each mutant of a batch. Each judge is asked about what those before it have not noticed.
fn judge_batch(
    tools: &Tools,
    home: &Path,
    core: &Core,
    mutants: &[&Mutant],
    limits: &[Duration],
) -> Result<Vec<Outcome>> {
    let mut outcomes = vec![Outcome::Missed; mutants.len()];
    for (judge, limit) in core.judges.iter().zip(limits) {
        let left = mutants
            .iter()
            .zip(&outcomes)
            .filter(|(_, outcome)| **outcome == Outcome::Missed);
        let left: Vec<&Mutant> = left.map(|(mutant, _)| *mutant).collect();
        if !left.is_empty() {
            let judged = try_mutants(tools, home, core, judge, &left, *limit)?;
            let missed = outcomes
                .iter_mut()
                .filter(|outcome| **outcome == Outcome::Missed);
            missed.zip(judged).for_each(|(old, new)| *old = new);
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
    mutants: &[&Mutant],
    limit: Duration,
) -> Result<Vec<Outcome>> {
    // The names are given as patterns, so every special character is escaped.
    let names = mutants
        .iter()
        .flat_map(|m| ["--re".to_owned(), format!("^{}$", escape(&m.name))]);
    let ended = tools
        .surround(Program::new(&tools.mutants), home)?
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
        .args([
            "--timeout",
            &limit.as_secs().to_string(),
            "--build-timeout",
            "900",
        ])
        .args(["--profile", PROFILE, "--cargo-arg=--locked"])
        .args(
            judge
                .tests
                .iter()
                .map(|arg| format!("--cargo-test-arg={arg}")),
        )
        .args(["--test-package", &judge.packages.join(",")])
        .args(core.files.iter().flat_map(|file| ["--file", file]))
        .args(names)
        .read_unless(&[2, 3])?; // Missed mutants and timeouts are no failures of the program.
    say(format!(
        "{:<10} one by one: {}",
        core.name,
        ended.lines().last().unwrap_or_default()
    ));

    // The program's exit code covers all mutants. Its report says what became of each.
    let path = home.join("mutants.out/outcomes.json");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let outcomes: Value = serde_json::from_str(&text).context("outcomes.json is no JSON")?;
    let mut summaries = BTreeMap::new();
    for outcome in outcomes["outcomes"].as_array().into_iter().flatten() {
        let name = outcome["scenario"]["Mutant"]["name"].as_str();
        let summary = match outcome["summary"].as_str() {
            Some("CaughtMutant") => Outcome::Caught,
            Some("Timeout") => Outcome::Timeout,
            Some("Unviable") => Outcome::Unviable,
            _ => Outcome::Missed,
        };
        if let Some(name) = name {
            // Two may have one name: what survives counts.
            let known = summaries.entry(name).or_insert(summary);
            if summary == Outcome::Missed {
                *known = summary;
            }
        }
    }
    let of = |mutant: &&Mutant| {
        summaries
            .get(&*mutant.name)
            .copied()
            .with_context(|| format!("{} was not tried", mutant.name))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_escaped() {
        assert_eq!(
            escape("a.rs:1:2: replace f -> Option<u8>"),
            r"a\.rs:1:2: replace f \-> Option<u8>"
        );
    }
}
