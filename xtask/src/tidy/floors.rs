//! Each crate uses only crates of the floors below it; the pure ones pull no async runtime.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::shell::cargo;

/// The floors of `docs/architecture.md`. Crates of one floor do not know each other.
const FLOORS: &[(&str, u32)] = &[
    ("reshard-model", 0),
    ("reshard-plan", 1),
    ("reshard-policy", 1),
    ("reshard-map", 1),
    ("reshard-torch-format", 1),
    ("reshard-storage", 1),
    ("reshard-comm", 1),
    ("reshard-strategy", 2),
    ("reshard-object-store", 2),
    ("reshard-comm-tcp", 2),
    ("reshard-comm-mpi", 2),
    ("reshard-torch-dist", 3),
    ("reshard-torch-save", 3),
    ("reshard-zarr", 3),
    ("reshard-tensor-bundle", 3),
    ("reshard-safetensors", 3),
    ("reshard-megatron", 3),
    ("reshard-parallel", 3),
    ("reshard-embedding", 3),
    ("reshard-optim", 3),
    ("reshard-open", 4),
    ("reshard", 5),
    ("reshard-convert", 6),
    ("reshard-manager", 6),
    ("reshard-cli", 7),
    ("reshard-python", 8),
];

/// Crates that a program may take without getting any runtime with them.
const WITHOUT_RUNTIME: &[&str] = &[
    "reshard-model",
    "reshard-plan",
    "reshard-policy",
    "reshard-map",
    "reshard-torch-format",
];

const RUNTIMES: &[&str] = &[
    "tokio",
    "mio",
    "async-std",
    "async-executor",
    "async-global-executor",
    "async-io",
    "smol",
    "actix-rt",
    "compio",
    "glommio",
    "monoio",
];

pub(super) fn check(metadata: &Value, complaints: &mut Vec<String>) -> Result<()> {
    check_edges(&edges(metadata)?, complaints);
    for name in WITHOUT_RUNTIME {
        let tree = [
            "tree",
            "--package",
            name,
            "--edges",
            "normal",
            "--all-features",
            "--prefix",
            "none",
            "--locked",
        ];
        check_runtime(name, &cargo(&tree).read()?, complaints);
    }
    Ok(())
}

/// For each crate under `crates/` the names of what it depends on, optional ones too.
fn edges(metadata: &Value) -> Result<BTreeMap<String, Vec<String>>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut edges = BTreeMap::new();
    for package in list(&metadata["packages"]) {
        let name = package["name"]
            .as_str()
            .context("cargo metadata has a package without name")?;
        let manifest = package["manifest_path"]
            .as_str()
            .unwrap_or_default()
            .replace('\\', "/");
        if !manifest.ends_with(&format!("/crates/{name}/Cargo.toml")) {
            continue;
        }
        let normal = list(&package["dependencies"])
            .into_iter()
            .filter(|dependency| dependency["kind"].is_null());
        let names = normal
            .filter_map(|dependency| dependency["name"].as_str().map(String::from))
            .collect();
        edges.insert(name.to_owned(), names);
    }
    Ok(edges)
}

fn check_edges(edges: &BTreeMap<String, Vec<String>>, complaints: &mut Vec<String>) {
    let floor = |name: &str| {
        FLOORS
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, floor)| *floor)
    };
    for (name, uses) in edges {
        let Some(own) = floor(name) else {
            complaints.push(format!(
                "{name} has no floor: give it one in xtask/src/tidy/floors.rs"
            ));
            continue;
        };
        for used in uses {
            match floor(used) {
                Some(below) if below >= own => complaints.push(format!(
                    "{name} (floor {own}) uses {used} (floor {below}): a crate uses only floors below its own"
                )),
                None if used.starts_with("reshard") => complaints.push(format!(
                    "{name} uses {used}, which has no floor: tests and tools stay out of crates/"
                )),
                _ => {}
            }
        }
    }
}

fn check_runtime(name: &str, tree: &str, complaints: &mut Vec<String>) {
    let mut found: Vec<&str> = tree
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    found.retain(|package| RUNTIMES.contains(package));
    found.sort_unstable();
    found.dedup();
    for runtime in found {
        complaints.push(format!(
            "{name} pulls {runtime}: see `cargo tree -p {name} -e normal --all-features -i {runtime}`"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(name: &str, uses: &[&str]) -> Vec<String> {
        let uses = uses.iter().map(|used| (*used).to_owned()).collect();
        let mut complaints = Vec::new();
        check_edges(&BTreeMap::from([(name.to_owned(), uses)]), &mut complaints);
        complaints
    }

    #[test]
    fn a_crate_may_use_any_floor_below_it() {
        assert!(
            complaints(
                "reshard-torch-dist",
                &["reshard-model", "reshard-strategy", "serde"]
            )
            .is_empty()
        );
    }

    #[test]
    fn a_crate_may_not_use_its_own_floor_or_a_higher_one() {
        assert!(
            complaints("reshard-plan", &["reshard-storage"])[0]
                .contains("reshard-storage (floor 1)")
        );
        assert!(complaints("reshard-model", &["reshard"])[0].contains("floor 5"));
    }

    #[test]
    fn a_crate_without_floor_is_named() {
        assert!(complaints("reshard-new", &[])[0].contains("no floor"));
        assert!(complaints("reshard-cli", &["reshard-tests"])[0].contains("no floor"));
    }

    #[test]
    fn a_runtime_anywhere_in_the_tree_is_named_once() {
        let mut complaints = Vec::new();
        check_runtime(
            "reshard-plan",
            "reshard-plan v0.1.0\nbytes v1.2.3\ntokio v1.0.0\ntokio v1.0.0 (*)\n",
            &mut complaints,
        );
        assert_eq!(complaints.len(), 1);
        assert!(complaints[0].contains("pulls tokio"));
    }
}
