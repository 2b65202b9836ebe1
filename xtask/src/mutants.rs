//! Mutation tests: cargo-mutants changes the code in small ways, and a test should fail each time.
//!
//! `.cargo/mutants.toml` lists the mutated files, and the mutants that no test can detect. A run tries one shard of all
//! mutants, which the seed selects.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::shell::{Program, nextest_program, say, target_dir, tool};

/// Other versions generate other mutants, so the patterns in `.cargo/mutants.toml` may not match theirs.
const MUTANTS: (&str, &str) = ("cargo-mutants", "27.1.0");

/// The maximal number of mutants that a run tries. Two CPUs take less than an hour for them.
const MOST: usize = 40;

/// Exit code of cargo-mutants when tests of some mutants timed out, which counts as detected, and no mutant survived.
const TIMEOUT: i32 = 3;

const ADVICE: &str = "if mutants survive, write tests that detect them, \
     or list them in .cargo/mutants.toml with the reason why no test can";

/// Packages that one call of cargo-mutants mutates.
#[derive(Debug)]
struct Group {
    name: &'static str,
    mutated: &'static [&'static str],
    /// Packages whose tests run for each mutant, apart from those of the mutated package.
    tested: &'static [&'static str],
}

const GROUPS: [Group; 2] = [
    Group {
        name: "units",
        mutated: &[
            "reshard-model",
            "reshard-plan",
            "reshard-torch-format",
            "reshard-storage",
            "reshard-comm",
        ],
        tested: &[],
    },
    // Most of the tests that judge these save and load whole checkpoints, and belong to other packages.
    Group {
        name: "checkpoints",
        mutated: &["reshard-strategy", "reshard-torch-dist"],
        tested: &[
            "reshard-strategy",
            "reshard-torch-dist",
            "reshard",
            "reshard-cli",
            "reshard-golden",
            "reshard-laws",
            "reshard-example",
        ],
    },
];

#[derive(Debug)]
pub(crate) struct Options {
    /// Selects the shard. Consecutive seeds select different shards until all mutants were tried.
    pub(crate) seed: u64,
    /// Only list the mutants of the shard.
    pub(crate) list: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut total = 0;
    for group in &GROUPS {
        total += call(group)?.args(["--list"]).read()?.lines().count();
    }
    let (shard, shards) = shard(total, options.seed);
    say(format!(
        "shard {shard} of {shards}: at most {MOST} of {total} mutants; --seed {} selects it again",
        options.seed
    ));

    let home = target_dir().join("mutants");
    let builds = home.join("builds");
    let mut results = Vec::new();
    for group in &GROUPS {
        let call = call(group)?.args(["--shard", &format!("{shard}/{shards}")]);
        if options.list {
            call.args(["--list"]).run()?;
            continue;
        }
        let output = home.join(group.name);
        std::fs::create_dir_all(&output)
            .with_context(|| format!("cannot make {}", output.display()))?;
        let tried = call
            .args(["--output".as_ref(), output.as_os_str()])
            .env("CARGO_TARGET_DIR", &builds)
            .run_unless(&[TIMEOUT]);
        // A survivor in one group must not hide those in the next.
        results.push(tried.with_context(|| format!("group `{}`: {ADVICE}", group.name)));
    }

    // The groups share builds of dependencies. The next run can't use them: cargo-mutants copies the sources to a new
    // directory each time, and cargo would keep what it built from every copy.
    if builds.exists() {
        std::fs::remove_dir_all(&builds)
            .with_context(|| format!("cannot remove {}", builds.display()))?;
    }
    results.into_iter().collect()
}

/// The number of a shard, and the number of all shards.
fn shard(total: usize, seed: u64) -> (u64, u64) {
    // The mutants of each group are divided, so rounding up may add one mutant for each group but the first.
    let shards = total.div_ceil(MOST + 1 - GROUPS.len()).max(1) as u64;
    (seed % shards, shards)
}

/// A call of cargo-mutants for one group.
fn call(group: &Group) -> Result<Program> {
    let mutants = tool(MUTANTS.0, MUTANTS.1)?;
    let nextest = nextest_program()?;
    // Cargo looks for nextest in PATH.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = nextest
        .parent()
        .filter(|dir| dir.is_absolute())
        .map(Path::to_owned);
    let path = std::env::join_paths(own.into_iter().chain(std::env::split_paths(&path)))?;

    // Unlike `--test-package`, this also adds the packages to the run on unchanged code, which sets the timeout.
    let tested = group
        .tested
        .iter()
        .map(|p| format!("--cargo-arg=--package={p}"));
    Ok(Program::new(mutants)
        .args(["mutants"])
        .args(group.mutated.iter().flat_map(|p| ["--package", p]))
        .args(tested)
        .env("PATH", path)
        .env("CARGO_INCREMENTAL", "1")
        .env("PROPTEST_CASES", "64")
        // A failing test is enough, so none looks for the smallest counterexample.
        .env("PROPTEST_MAX_SHRINK_ITERS", "0"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::shell::root;

    #[test]
    fn consecutive_seeds_try_all_mutants_in_small_shards() {
        for total in [0, 1, 59, 60, 61, 2659] {
            for first in 0..=total.min(300) {
                let (_, shards) = shard(total, 0);
                let groups = [first, total - first];
                // As cargo-mutants deals them out in turn.
                let size = |shard: u64| {
                    groups.map(|all| (0..all as u64).filter(|i| i % shards == shard).count())
                };
                let sizes: Vec<usize> = (7..7 + shards)
                    .map(|seed| size(shard(total, seed).0).iter().sum())
                    .collect();
                assert!(sizes.iter().all(|size| *size <= MOST));
                assert_eq!(sizes.iter().sum::<usize>(), total);
            }
        }
    }

    #[test]
    fn every_mutated_file_exists_and_belongs_to_a_group() -> Result<()> {
        let config = std::fs::read_to_string(root().join(".cargo/mutants.toml"))?;
        let files = config
            .lines()
            .filter_map(|line| line.trim().strip_prefix("\"crates/")?.strip_suffix("\","));
        let mut packages = BTreeSet::new();
        for file in files {
            let path = root().join("crates").join(file.trim_end_matches("/*.rs"));
            assert!(path.exists(), "{} moved", path.display());
            packages.extend(file.split('/').next());
        }
        assert_eq!(
            packages,
            GROUPS
                .iter()
                .flat_map(|group| group.mutated)
                .copied()
                .collect()
        );
        Ok(())
    }
}
