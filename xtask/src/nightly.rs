//! What takes too long for every change: more cases of each law, fuzzing, and mutants.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::mutants;
use crate::shell::{Program, cargo, root, say, steps, tool};

const FUZZ_VERSION: &str = "0.13.2";

/// Cases of each property test that does not say how many it wants.
const CASES: &str = "512";

/// What every change gets of a night takes no longer.
const SHARE: Duration = Duration::from_secs(8 * 60);

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
        ("fuzz", &|| fuzz(options.fuzz)),
        ("mutants", &|| mutants::run(&sample)),
    ])
}

/// All tests, those that are ignored by default too, with more cases and more damage.
fn long() -> Result<()> {
    cargo(&[
        "test",
        "--workspace",
        "--locked",
        "--no-fail-fast",
        "--",
        "--include-ignored",
        // `cargo xtask interop` runs them.
        "--skip",
        "needs_python",
    ])
    .env("PROPTEST_CASES", CASES)
    .env("RESHARD_THOROUGH", "1")
    .run()
}

/// What every change gets of a night: the tests of one package, which the seed chooses, with as many cases.
pub(crate) fn share(seed: u64) -> Result<()> {
    let packages = tested()?;
    let chosen = usize::try_from(seed % packages.len().max(1) as u64)?;
    let package = packages
        .get(chosen)
        .context("no package of the workspace has tests")?;
    say(format!(
        "share of the night: {package}; `cargo xtask nightly --share --seed {seed}` does the same again"
    ));
    let ended = cargo(&["test", "--locked", "--no-fail-fast", "--package", package])
        .env("PROPTEST_CASES", CASES)
        .env("PROPTEST_RNG_SEED", seed.to_string())
        .env("RESHARD_THOROUGH", "1")
        .run_for(SHARE)?;
    if !ended {
        say(format!(
            "nothing failed within {} minutes; the rest is left to the night",
            SHARE.as_secs() / 60
        ));
    }
    Ok(())
}

/// The packages of the workspace that have tests, sorted. Bombs are left out: only time would make more of them.
fn tested() -> Result<Vec<String>> {
    let metadata = cargo(&["metadata", "--no-deps", "--format-version=1", "--locked"]).read()?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata is no JSON")?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let mut names: Vec<_> = packages
        .filter(|package| {
            let mut targets = package["targets"].as_array().into_iter().flatten();
            targets.any(|target| target["test"] == true)
        })
        .filter_map(|package| package["name"].as_str().map(str::to_owned))
        .filter(|name| name != "reshard-bombs" && name != "xtask")
        .collect();
    names.sort();
    Ok(names)
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
    .run()
}

/// Each target for a while, from what it found before.
fn fuzz(seconds: u64) -> Result<()> {
    let program = tool("cargo-fuzz", FUZZ_VERSION)?;
    let manifest = root().join("fuzz/Cargo.toml");
    let metadata = cargo(&[
        "metadata",
        "--no-deps",
        "--format-version=1",
        "--manifest-path",
    ])
    .args([manifest])
    .read()?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata is no JSON")?;
    let targets = metadata["packages"][0]["targets"]
        .as_array()
        .into_iter()
        .flatten();
    for target in targets.filter_map(|target| target["name"].as_str()) {
        // A fuzzer needs flags that only a nightly compiler has.
        Program::new(&program)
            .env("RUSTUP_TOOLCHAIN", "nightly")
            .args(["fuzz", "run", target, "--"])
            .args([format!("-max_total_time={seconds}")])
            .run()?;
    }
    Ok(())
}
