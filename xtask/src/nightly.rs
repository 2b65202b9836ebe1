//! What takes too long for every change: more cases of each law, fuzzing, and mutants.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::shell::{Program, cargo, say, steps, tests};
use crate::{clouds, fuzz, mutants};

/// Cases of each property test that does not say how many it wants.
const CASES: &str = "512";

/// The tests that every change gets of a night take no longer.
const SHARE: Duration = Duration::from_secs(2 * 60);

/// Mutants that are tried in one night.
const SAMPLE: usize = 300;

#[derive(Debug)]
pub(crate) struct Options {
    /// Seconds for each fuzz target.
    pub(crate) fuzz: u64,
    pub(crate) seed: u64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let sample = mutants::Options {
        cores: Vec::new(),
        sample: Some(SAMPLE),
        seed: options.seed,
        jobs: mutants::all_cpus(),
        list: false,
    };
    steps(&[
        ("long", &long),
        ("bombs", &bombs),
        ("clouds", &clouds),
        ("fuzz", &|| {
            fuzz::run(&fuzz::Options {
                seconds: options.fuzz,
                targets: Vec::new(),
            })
        }),
        ("mutants", &|| mutants::run(&sample)),
    ])
}

/// All tests, those that are ignored by default too, with more cases and more damage.
fn long() -> Result<()> {
    // `cargo xtask interop` and `cargo xtask clouds` run what is left out.
    let aside = ["--skip", "needs_python", "--skip", "needs_clouds"];
    tests()
        .args(["--no-fail-fast", "--", "--include-ignored"])
        .args(aside)
        .env("PROPTEST_CASES", CASES)
        .env("RESHARD_THOROUGH", "1")
        .run()
}

/// What every change gets of a night: the tests of one package, which the seed chooses, with as many cases.
pub(crate) fn share(seed: u64) -> Result<()> {
    let packages = tested()?;
    let chosen = usize::try_from(seed % packages.len().max(1) as u64)?;
    let (package, programs) = packages
        .iter()
        .nth(chosen)
        .context("no package of the workspace has tests")?;
    say(format!(
        "share of the night: {package}; `cargo xtask nightly --share --seed {seed}` does the same again"
    ));
    let begin = Instant::now();
    for (folder, program) in programs {
        let ended = Program::new(program)
            .within(folder)
            .env("PROPTEST_CASES", CASES)
            .env("PROPTEST_RNG_SEED", seed.to_string())
            .env("RESHARD_THOROUGH", "1")
            .run_for(SHARE.saturating_sub(begin.elapsed()))?;
        if !ended {
            say(format!(
                "nothing failed within {} minutes; the rest is left to the night",
                SHARE.as_secs() / 60
            ));
            break;
        }
    }
    Ok(())
}

/// Programs of tests, and the folders that they run in.
type Programs = Vec<(PathBuf, PathBuf)>;

/// The packages of the workspace that have tests, sorted. They are built as `cargo xtask test` builds them, so that nothing is built
/// twice. Bombs are left out: only time would make more of them.
fn tested() -> Result<BTreeMap<String, Programs>> {
    let built = tests()
        .args(["--no-run", "--message-format=json-render-diagnostics"])
        .read()?;
    let mut packages: BTreeMap<String, Programs> = BTreeMap::new();
    for line in built.lines() {
        let message: Value = serde_json::from_str(line).context("cargo speaks no JSON")?;
        if let (Some(program), Some(manifest), true) = (
            message["executable"].as_str(),
            message["manifest_path"].as_str().map(Path::new),
            message["profile"]["test"] == true,
        ) {
            let folder = manifest.parent().context("a manifest lies in a folder")?;
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            if !["bombs", "xtask"].contains(&&*name) {
                let programs = packages.entry(name.into_owned()).or_default();
                programs.push((folder.to_owned(), program.into()));
            }
        }
    }
    for programs in packages.values_mut() {
        programs.sort();
    }
    Ok(packages)
}

/// Places in buckets, with more faults of the network and more kills.
fn clouds() -> Result<()> {
    clouds::run(true)
}

/// Hostile checkpoints, with the time that the program has as users get it.
fn bombs() -> Result<()> {
    cargo(&[
        "test",
        "--release",
        "--package",
        "reshard-bombs",
        "--locked",
        "--no-fail-fast",
    ])
    .env("RESHARD_THOROUGH", "1")
    .run()
}
