//! The extent of tests: seeds and cases of property tests, and steps of long loops.

use proptest::test_runner::{Config, RngSeed};

/// The seed of each package: its property tests try the same cases in every run, so that a run judges the code alone.
///
/// Change a seed now and then, in a commit of its own. What the new cases find is then known to be older than the next change.
/// `cargo xtask nightly` tries other seeds.
const SEEDS: &[(&str, u64)] = &[
    ("reshard-cli", 1),
    ("reshard-comm", 1),
    ("reshard-comm-mpi", 1),
    ("reshard-comm-tcp", 1),
    ("reshard-convert", 1),
    ("reshard-embedding", 1),
    ("reshard-laws", 1),
    ("reshard-map", 1),
    ("reshard-megatron", 1),
    ("reshard-model", 1),
    ("reshard-optim", 1),
    ("reshard-parallel", 1),
    ("reshard-plan", 1),
    ("reshard-policy", 1),
    ("reshard-safetensors", 1),
    ("reshard-storage", 1),
    ("reshard-strategy", 1),
    ("reshard-tensor-bundle", 1),
    ("reshard-torch-dist", 1),
    ("reshard-torch-format", 1),
    ("reshard-torch-save", 1),
    ("reshard-zarr", 1),
];

/// The least number of cases if tests are thorough.
const THOROUGH: u32 = 512;

/// Returns the configuration of a property test with this many cases, or more if tests are thorough, and the seed of the package
/// under test.
///
/// `PROPTEST_CASES` and `PROPTEST_RNG_SEED` override both. Failures are kept in `proptest-regressions/`, or beside a test that
/// is a program of its own, and tried first by the next run.
///
/// # Panics
/// If the package has no seed in `SEEDS`, or if cargo or nextest did not start the test.
pub fn law(cases: u32) -> Config {
    let asked = std::env::var("PROPTEST_CASES").ok();
    let asked = asked.and_then(|n| n.parse().ok());
    let least = if is_thorough() { THOROUGH } else { 0 };
    let mut config = Config::with_cases(asked.unwrap_or(cases.max(least)));
    if config.rng_seed == RngSeed::Random {
        let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
        let seed = SEEDS.iter().find(|(name, _)| *name == package);
        assert!(
            seed.is_some(),
            "the package `{package}` has no seed: add one to SEEDS in {}",
            file!()
        );
        config.rng_seed = seed.map_or(RngSeed::Random, |(_, seed)| RngSeed::Fixed(*seed));
    }
    config
}

/// Returns `true` if tests should try everything: `RESHARD_THOROUGH` is set, as by `cargo xtask nightly`.
pub fn is_thorough() -> bool {
    std::env::var_os("RESHARD_THOROUGH").is_some()
}

/// Returns `n` as the step of a loop that tries one of `n` cases, or 1 if tests are thorough.
pub fn one_in(n: usize) -> usize {
    if is_thorough() { 1 } else { n }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prelude::*, test_runner::TestRunner};
    use std::cell::RefCell;

    #[test]
    fn each_run_of_a_law_tries_the_same_cases() {
        let run = || {
            let cases = RefCell::new(Vec::new());
            let keep = |n| {
                cases.borrow_mut().push(n);
                Ok(())
            };
            TestRunner::new(law(20)).run(&any::<u64>(), keep).unwrap();
            cases.into_inner()
        };
        let first = run();
        assert!(first.len() >= 20);
        assert_eq!(first, run());
    }
}
