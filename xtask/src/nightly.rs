//! What takes too long for every change: more cases of each law, fuzzing, and mutants.

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::mutants;
use crate::shell::{Program, cargo, root, steps, tool};

const FUZZ_VERSION: &str = "0.13.2";

/// Cases of each property test that does not say how many it wants.
const CASES: &str = "512";

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
    cargo(&["test", "--workspace", "--locked", "--no-fail-fast", "--", "--include-ignored"])
        .env("PROPTEST_CASES", CASES)
        .env("RESHARD_THOROUGH", "1")
        .run()
}

/// Hostile checkpoints, with the time that the program has as users get it.
fn bombs() -> Result<()> {
    cargo(&["test", "--release", "--package", "reshard-bombs", "--locked", "--no-fail-fast"]).run()
}

/// Each target for a while, from what it found before.
fn fuzz(seconds: u64) -> Result<()> {
    let program = tool("cargo-fuzz", FUZZ_VERSION)?;
    let manifest = root().join("fuzz/Cargo.toml");
    let metadata =
        cargo(&["metadata", "--no-deps", "--format-version=1", "--manifest-path"]).args([manifest]).read()?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata is no JSON")?;
    let targets = metadata["packages"][0]["targets"].as_array().into_iter().flatten();
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
