//! The nightly run: everything too slow or too random for each change, in slices.

use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::clouds::{self, Extent};
use crate::shell::{Program, nextest, say, tests};
use crate::venv::TORCH_215;
use crate::{fuzz, interop, lint, mutants, processes, python, strangers};

/// The longest slice, in minutes on two cores.
const LONGEST: u32 = 60;

#[derive(Debug)]
pub(crate) struct Options {
    /// Seconds for each fuzz target.
    pub(crate) fuzz: u64,
    /// Seed of property tests, and of the choice of mutants.
    pub(crate) seed: u64,
    /// The slice `(k, n)`, with `k` from 1 to `n`; all parts if `None`.
    pub(crate) slice: Option<(u32, u32)>,
    /// Only print the parts of each slice.
    pub(crate) list: bool,
}

/// A part of the nightly run.
struct Part {
    name: String,
    /// The most that it took on two cores, with its builds.
    minutes: u32,
    run: Box<dyn Fn() -> Result<()>>,
}

impl Part {
    fn new(name: impl Into<String>, minutes: u32, run: impl Fn() -> Result<()> + 'static) -> Self {
        Self {
            name: name.into(),
            minutes,
            run: Box::new(run),
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let all = parts(options)?;
    let (name, parts) = match options.slice {
        None => ("nightly".to_owned(), all),
        Some((k, n)) => (format!("nightly slice {k}/{n}"), slice(all, k, n)?),
    };
    say(format!("{name}, with --seed {}:", options.seed));
    for part in &parts {
        say(format!("{:>4} min  {}", part.minutes, part.name));
    }
    if options.list {
        return Ok(());
    }

    let describe = [
        "describe",
        "--always",
        "--exclude=*",
        "--abbrev=40",
        "--dirty",
    ];
    let commit = Program::new("git").args(describe).read()?;
    let begin = Instant::now();
    let mut failed = Vec::new();
    for part in &parts {
        say(format!("\n{}", part.name));
        let begin = Instant::now();
        let outcome = (part.run)();
        let seconds = begin.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => say(format!("{}: passed in {seconds:.0} s", part.name)),
            Err(error) => {
                say(format!(
                    "{}: failed in {seconds:.0} s: {error:#}",
                    part.name
                ));
                failed.push(&*part.name);
            }
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let (commit, count) = (commit.trim(), parts.len());
    if failed.is_empty() {
        say(format!(
            "{name} of {commit}: {count} parts passed in {seconds:.0} s"
        ));
        return Ok(());
    }
    bail!(
        "{name} of {commit}: {} of {count} parts failed in {seconds:.0} s: {}",
        failed.len(),
        failed.join(", ")
    )
}

/// All parts. Their minutes were measured on two cores that also did other work, and include one build of what they run.
fn parts(options: &Options) -> Result<Vec<Part>> {
    let Options { fuzz, seed, .. } = *options;
    let mut parts = Vec::new();
    for share in shares(TESTS) {
        let name = format!("tests {share}: more cases, more damage, ignored tests");
        parts.push(Part::new(name, 17, move || long(&share, seed)));
    }
    for share in shares(BOMBS) {
        let name = format!("bombs {share}: all commands, in a release build");
        parts.push(Part::new(name, 20, move || bombs(&share)));
    }
    for targets in fuzz::targets()?.chunks(TARGETS) {
        let (name, targets) = (targets.join(", "), targets.to_vec());
        let part = move || {
            fuzz::run(&fuzz::Options {
                seconds: fuzz,
                targets: targets.clone(),
            })
        };
        parts.push(Part::new(format!("fuzz {name}"), 34, part));
    }
    let mutants = move || mutants::run(&mutants::Options { seed, list: false });
    let interop = |every_torch| {
        interop::run(&interop::Options {
            keep: false,
            only_drivers: false,
            every_torch,
            frugal: true,
            short: false,
        })
    };
    parts.push(Part::new("mutants", 55, mutants));
    parts.push(Part::new("clouds", 38, || clouds::run(Extent::Thorough)));
    parts.push(Part::new("interop", 40, move || interop(false)));
    parts.push(Part::new("torch.load of each version", 23, move || {
        interop(true)
    }));
    parts.push(Part::new("strangers", 10, || {
        strangers::run(&strangers::Options {
            keep: false,
            frugal: true,
        })
    }));
    parts.push(Part::new("python", 20, || {
        python::run(&python::Options { thorough: true })
    }));
    parts.push(Part::new("processes", 52, || {
        // Without torch it would leave out what PyTorch takes part in.
        TORCH_215.python()?;
        processes::run()
    }));
    parts.push(Part::new("examples", 9, lint::frameworks));
    Ok(parts)
}

/// Parts that the tests of the workspace are divided into.
const TESTS: u32 = 3;
/// Parts that the hostile checkpoints are divided into.
const BOMBS: u32 = 2;
/// Fuzz targets of one part. Two run at a time.
const TARGETS: usize = 8;

/// The shares of something that is divided into `n` parts, as nextest writes them.
fn shares(n: u32) -> impl Iterator<Item = String> {
    (1..=n).map(move |k| format!("{k}/{n}"))
}

/// The parts of slice `k` of `n`: each part, the longest first, goes to the slice that has the least to do so far.
fn slice(mut parts: Vec<Part>, k: u32, n: u32) -> Result<Vec<Part>> {
    parts.sort_by_key(|part| std::cmp::Reverse(part.minutes));
    let mut slices: Vec<(u32, Vec<Part>)> = Vec::new();
    slices.resize_with(n as usize, Default::default);
    for part in parts {
        let (minutes, least) = slices
            .iter_mut()
            .min_by_key(|(minutes, _)| *minutes)
            .context("there is no slice of 0")?;
        *minutes += part.minutes;
        least.push(part);
    }
    if let Some((minutes, _)) = slices.iter().find(|(minutes, _)| *minutes > LONGEST) {
        bail!(
            "one of {n} slices would take {minutes} minutes, more than {LONGEST}; use more slices"
        );
    }
    let chosen = slices.into_iter().nth((k as usize).wrapping_sub(1));
    Ok(chosen
        .with_context(|| format!("there is no slice {k} of {n}"))?
        .1)
}

/// The tests of the workspace, ignored ones too, with more cases and more damage. Bombs and the tests of other programs are
/// parts of their own.
fn long(share: &str, seed: u64) -> Result<()> {
    let chosen = "not (package(reshard-bombs) | test(needs_python) | test(needs_clouds))";
    tests()?
        .args(["--run-ignored", "all", "--no-fail-fast", "-E", chosen])
        .args([format!("--partition=slice:{share}")])
        .env("PROPTEST_RNG_SEED", seed.to_string())
        .env("RESHARD_THOROUGH", "1")
        .run()
}

/// Hostile checkpoints, with the time limits that hold for a release build.
fn bombs(share: &str) -> Result<()> {
    nextest()?
        .args(["--release", "--package", "reshard-bombs", "--no-fail-fast"])
        .args([format!("--partition=slice:{share}")])
        .env("RESHARD_THOROUGH", "1")
        .run()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(minutes: u32) -> Part {
        Part::new(minutes.to_string(), minutes, || Ok(()))
    }

    #[test]
    fn slices_together_have_each_part_once_and_none_is_too_long() -> Result<()> {
        let all = || [30, 55, 5, 20, 40, 25].map(part).into();
        let mut found = Vec::new();
        for k in 1..=4 {
            let slice = slice(all(), k, 4)?;
            let minutes: u32 = slice.iter().map(|part| part.minutes).sum();
            assert!(minutes <= LONGEST, "{minutes}");
            found.extend(slice.iter().map(|part| part.minutes));
        }
        found.sort_unstable();
        assert_eq!(found, [5, 20, 25, 30, 40, 55]);
        assert!(slice(all(), 1, 2).is_err(), "too few slices");
        assert!(slice(all(), 5, 4).is_err() && slice(all(), 0, 4).is_err());
        assert!(slice(all(), 1, 0).is_err());
        Ok(())
    }
}
