//! What the compiler's friends say: rustfmt, clippy, rustdoc, cargo-deny.

use std::path::PathBuf;

use anyhow::Result;

use crate::shell::{Program, cargo, say, target_dir};

const DENY_VERSION: &str = "0.20.2";

pub(crate) fn run() -> Result<()> {
    cargo(&["fmt", "--all", "--", "--check"]).run()?;
    let clippy =
        ["clippy", "--workspace", "--all-targets", "--all-features", "--locked", "--", "-D", "warnings"];
    cargo(&clippy).run()?;
    // Libraries only: the program `reshard` and the library `reshard` would write the same page.
    cargo(&["doc", "--workspace", "--lib", "--no-deps", "--all-features", "--locked"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    // Advisories are left out: they come from outside, and would turn an unchanged tree red.
    Program::new(cargo_deny()?)
        .args(["--workspace", "--all-features", "--locked", "check", "licenses", "bans", "sources"])
        .run()
}

/// The program cargo-deny: the one at hand if its version is ours, else our own, built once.
fn cargo_deny() -> Result<PathBuf> {
    let tools = target_dir().join("tools");
    let own = tools.join("bin").join("cargo-deny");
    let wanted = format!("cargo-deny {DENY_VERSION}");
    for program in [own.clone(), PathBuf::from("cargo-deny")] {
        if Program::new(&program).args(["--version"]).read().is_ok_and(|version| version.trim() == wanted) {
            return Ok(program);
        }
    }
    say("cargo-deny is built once into target/tools; this takes some minutes");
    let package = format!("cargo-deny@{DENY_VERSION}");
    cargo(&["install", "--quiet", "--locked", "--root"]).args([tools.as_os_str(), package.as_ref()]).run()?;
    Ok(own)
}
