//! Checks by rustfmt, clippy, rustdoc and cargo-deny, and the examples of other frameworks.

use anyhow::Result;

use crate::shell::{Program, cargo, tool};

const DENY_VERSION: &str = "0.20.2";

pub(crate) fn run() -> Result<()> {
    // The last two have needs of their own for all else: MPI, a nightly compiler.
    for manifest in [
        "Cargo.toml",
        "examples/Cargo.toml",
        "crates/reshard-comm-mpi/Cargo.toml",
        "fuzz/Cargo.toml",
    ] {
        let manifest = ["--manifest-path", manifest];
        cargo(&["fmt", "--all"])
            .args(manifest)
            .args(["--", "--check"])
            .run()?;
        // A change of a crate's dependencies belongs into the lock of each workspace that takes it.
        cargo(&["metadata", "--locked", "--format-version=1"])
            .args(manifest)
            .read()?;
    }
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--locked",
        "--",
        "-D",
        "warnings",
    ];
    cargo(&clippy).run()?;
    // Each format and place can be left out.
    for features in [
        "",
        "local",
        "map",
        "safetensors",
        "tensor-bundle",
        "torch-dist",
        "torch-save",
    ] {
        let check = [
            "clippy",
            "-p",
            "reshard",
            "--lib",
            "--no-default-features",
            "--features",
            features,
            "--locked",
            "--",
            "-D",
            "warnings",
        ];
        cargo(&check).run()?;
    }
    // Libraries only: the program `reshard` and the library `reshard` would write the same page.
    cargo(&[
        "doc",
        "--workspace",
        "--lib",
        "--no-deps",
        "--all-features",
        "--locked",
    ])
    .env("RUSTDOCFLAGS", "-D warnings")
    .run()?;
    // Advisories are left out: they come from outside, and would turn an unchanged tree red.
    Program::new(tool("cargo-deny", DENY_VERSION)?)
        .args([
            "--workspace",
            "--all-features",
            "--locked",
            "check",
            "licenses",
            "bans",
            "sources",
        ])
        .run()
}

/// Runs the examples of candle and burn, and tests the crates that convert their tensors.
pub(crate) fn frameworks() -> Result<()> {
    let frameworks = ["--manifest-path", "examples/Cargo.toml"];
    for example in ["reshard-example-candle", "reshard-example-burn"] {
        cargo(&["run", "--locked", "-p", example])
            .args(frameworks)
            .run()?;
    }
    let crates = ["-p", "reshard-candle", "-p", "reshard-burn"];
    cargo(&["test", "--locked"])
        .args(crates)
        .args(frameworks)
        .run()
}
