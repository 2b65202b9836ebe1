//! Mutants that are built all at once, and chosen when the tests run: a build takes much longer than most tests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::cores::Core;
use super::programs::{Tests, messages, messages_of};
use super::weave::{Body, CHOOSER, Woven, weave};
use super::{Outcome, Tools, mutant::Mutant, next, run_jobs, tree};
use crate::shell::say;

/// Builds without those that did not compile, until all that is left does.
const BUILDS: usize = 20;

/// What became of each mutant, in their order. `None`: it can't be built with the others, because it lies in no function that
/// can ask which one is meant.
pub(crate) fn judge(
    tools: &Tools,
    home: &Path,
    jobs: usize,
    core: &Core,
    mutants: &[&Mutant],
) -> Result<Vec<Option<Outcome>>> {
    let mut outcomes: Vec<Option<Outcome>> = vec![None; mutants.len()];
    let built = build(tools, home, core, mutants)?;
    for id in &built.unviable {
        outcomes[id - 1] = Some(Outcome::Unviable);
    }
    let (woven, unviable) = (built.woven.len(), built.unviable.len());
    say(format!(
        "{:<10} {woven} of {} mutants are in one build, {unviable} do not compile",
        core.name,
        mutants.len()
    ));
    let tests = Tests::build(tools, home, core, jobs)?;
    let (queue, done) = (
        Mutex::new(VecDeque::from(built.woven)),
        Mutex::new(Vec::new()),
    );
    run_jobs((0..jobs.max(1)).map(|_| {
        || {
            while let Some((id, function)) = next(&queue) {
                let (outcome, enter) = tests.outcome(id, function)?;
                if outcome == Outcome::Missed {
                    // At once, so that work on it can begin.
                    say(format!(
                        "not noticed by {enter} tests: {}",
                        mutants[id - 1].name
                    ));
                }
                done.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push((id, outcome));
            }
            Ok(())
        }
    }))?;
    for (id, outcome) in done.into_inner().unwrap_or_else(PoisonError::into_inner) {
        outcomes[id - 1] = Some(outcome);
    }
    // Others find the sources as they are.
    tree::copy(&home.join("tree"))?;
    Ok(outcomes)
}

/// Numbers of mutants, from 1.
struct Built {
    /// Those that are in the build, each with its function.
    woven: Vec<(usize, usize)>,
    /// Those that do not compile: a function says its type, so what is wrong with one body is wrong with it alone.
    unviable: Vec<usize>,
}

fn build(tools: &Tools, home: &Path, core: &Core, mutants: &[&Mutant]) -> Result<Built> {
    // The chooser goes into each package once, and stays while the files with mutants are woven anew.
    let tree = home.join("tree");
    let packages: BTreeSet<&str> = mutants.iter().map(|mutant| &*mutant.package).collect();
    for package in &packages {
        let lib = tree.join("crates").join(package).join("src/lib.rs");
        let mut text = read(&lib)?;
        text.push_str(CHOOSER);
        std::fs::write(&lib, text)?;
    }
    let mut of_file: BTreeMap<&str, Vec<(usize, &Mutant)>> = BTreeMap::new();
    for (id, mutant) in (1..).zip(mutants) {
        of_file.entry(&mutant.file).or_default().push((id, mutant));
    }
    let sources: BTreeMap<&str, String> = of_file
        .keys()
        .map(|file| Ok((*file, read(&tree.join(file))?)))
        .collect::<Result<_>>()?;

    // Mutants that don't compile are taken out and the rest is built again, a few times at most.
    let mut unviable = Vec::new();
    for _ in 0..BUILDS {
        let mut woven: BTreeMap<&str, Woven> = BTreeMap::new();
        for (file, mutants) in &of_file {
            let one = weave(&sources[file], mutants).with_context(|| (*file).to_owned())?;
            std::fs::write(tree.join(file), &one.text)?;
            woven.insert(file, one);
        }
        // The code itself first: what the tests are built of takes longer.
        let mut errors = errors_of(&messages_of(
            &["check"],
            packages.iter().copied(),
            tools,
            home,
        )?);
        for judge in core.judges {
            if errors.is_empty() {
                errors = errors_of(&messages(tools, home, judge)?);
            }
        }
        let bodies = || {
            woven
                .iter()
                .flat_map(|(file, one)| one.bodies.iter().map(move |body| (*file, body)))
        };
        if errors.is_empty() {
            let woven = bodies().map(|(_, body)| (body.id, body.function)).collect();
            return Ok(Built { woven, unviable });
        }

        // An error belongs to the mutant whose body has its line.
        let wrong = |file: &str, body: &Body| {
            errors
                .iter()
                .any(|(name, line)| name == file && body.lines.contains(line))
        };
        let wrong: BTreeSet<usize> = bodies()
            .filter(|(file, body)| wrong(file, body))
            .map(|(_, body)| body.id)
            .collect();
        if wrong.is_empty() {
            bail!(
                "the mutants of {} can't be built together: {errors:?}",
                core.name
            );
        }

        of_file
            .values_mut()
            .for_each(|mutants| mutants.retain(|(id, _)| !wrong.contains(id)));
        unviable.extend(wrong);
    }
    bail!(
        "some mutants of {} still don't compile after {BUILDS} builds",
        core.name
    )
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Files and lines of the errors that the compiler found.
fn errors_of(messages: &str) -> BTreeSet<(String, usize)> {
    let mut out = BTreeSet::new();
    for message in messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
    {
        let message = &message["message"];
        if message["level"] == "error" {
            let mut spans: Vec<&Value> =
                message["spans"].as_array().into_iter().flatten().collect();
            while let Some(span) = spans.pop() {
                // What a macro made is where it was called.
                spans.extend(span["expansion"].get("span"));
                let line = span["line_start"]
                    .as_u64()
                    .and_then(|line| usize::try_from(line).ok());
                if let (true, Some(file), Some(line)) =
                    (span["is_primary"] == true, span["file_name"].as_str(), line)
                {
                    out.insert((file.to_owned(), line));
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_lines_in_files_also_in_macros() {
        let macros = r#"{"is_primary":true,"file_name":"/std/macros.rs","line_start":9,"expansion":{"span":{"is_primary":true,"file_name":"a.rs","line_start":7,"expansion":null}}}"#;
        let second = r#"{"is_primary":false,"file_name":"a.rs","line_start":1}"#;
        let message = |level: &str| {
            format!(
                r#"{{"reason":"compiler-message","message":{{"level":"{level}","spans":[{macros},{second}]}}}}"#
            )
        };
        assert!(errors_of(&format!("{}\nnoise\n", message("warning"))).is_empty());
        let found = errors_of(&message("error"));
        assert_eq!(
            found,
            BTreeSet::from([("/std/macros.rs".into(), 9), ("a.rs".into(), 7)])
        );
    }
}
