//! Groups of MPI: the crate outside the workspace, with its tests under `mpirun`.

use anyhow::{Result, bail};

use crate::shell::{Program, cargo, say, target_dir};
use crate::venv::python_with_torch;

const MANIFEST: &str = "crates/reshard-comm-mpi/Cargo.toml";

/// What Debian calls the library, its launcher, and what reads its headers.
const PACKAGES: [&str; 3] = ["libopenmpi-dev", "openmpi-bin", "libclang-dev"];

pub(crate) fn run() -> Result<()> {
    install()?;
    let clippy = [
        "clippy",
        "--all-targets",
        "--locked",
        "--manifest-path",
        MANIFEST,
    ];
    cargo(&clippy).args(["--", "-D", "warnings"]).run()?;
    cargo(&[
        "doc",
        "--lib",
        "--no-deps",
        "--locked",
        "--manifest-path",
        MANIFEST,
    ])
    .env("RUSTDOCFLAGS", "-D warnings")
    .run()?;
    cargo(&["test", "--locked", "--manifest-path", MANIFEST]).run()?;
    let large = [
        "test",
        "--locked",
        "--manifest-path",
        MANIFEST,
        "--test",
        "jobs",
    ];
    cargo(&large)
        .args(["--", "--ignored", "2_gib", "68_processes"])
        .run()?;
    let kills = [
        "test",
        "--locked",
        "--manifest-path",
        MANIFEST,
        "--test",
        "killed",
    ];
    cargo(&kills)
        .args(["--", "--nocapture"])
        .env("RESHARD_KILL_ROUNDS", "200")
        .run()?;
    mpich()?;
    let Some(python) = python_with_torch() else {
        return Ok(());
    };
    let torch = [
        "test",
        "--locked",
        "--manifest-path",
        MANIFEST,
        "--test",
        "torch",
    ];
    cargo(&torch)
        .args(["--", "--ignored"])
        .env("RESHARD_PYTHON", python)
        .run()
}

/// The same tests with MPICH, if it is there, too. What is built against it lies in a folder of its own.
fn mpich() -> Result<()> {
    if Program::new("mpirun.mpich")
        .args(["--version"])
        .read()
        .is_err()
    {
        say("mpirun.mpich is not here; install mpich and libmpich-dev to test with MPICH, too");
        return Ok(());
    }
    for test in ["jobs", "killed"] {
        cargo(&["test", "--locked", "--manifest-path", MANIFEST])
            .args(["--test", test])
            .env("MPICC", "mpicc.mpich")
            .env("RESHARD_MPIRUN", "mpirun.mpich")
            .env("RESHARD_KILL_ROUNDS", "20")
            .env("CARGO_TARGET_DIR", target_dir().join("mpich"))
            .run()?;
    }
    Ok(())
}

/// Installs Open MPI from the distribution's packages, and says so, unless some MPI is there.
fn install() -> Result<()> {
    if Program::new("mpirun").args(["--version"]).read().is_ok() {
        return Ok(());
    }
    say(format!(
        "mpirun is not here; installing {} by apt-get",
        PACKAGES.join(" ")
    ));
    let is_root = Program::new("id").args(["-u"]).read()?.trim() == "0";
    let (program, first): (&str, &[&str]) = if is_root {
        ("apt-get", &[])
    } else {
        ("sudo", &["apt-get"])
    };
    let install = ["install", "--yes", "--no-install-recommends"];
    let done = Program::new(program)
        .args(first)
        .args(install)
        .args(PACKAGES)
        .run();
    if let Err(e) = done {
        bail!(
            "{e:#}; install an MPI library with its headers, its launcher `mpirun`, and libclang"
        );
    }
    Ok(())
}
