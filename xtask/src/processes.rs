//! Tests with ranks in real processes: the contract of groups, ranks that are killed, many ranks,
//! MPI, PyTorch.

pub(crate) mod mpi;

use anyhow::Result;

use crate::interop;
use crate::shell::{ignored, programs, steps, target_dir, tests};
use crate::venv::python_with_torch;

pub(crate) fn run() -> Result<()> {
    steps(&[
        ("tcp", &tcp),
        ("kills", &kills),
        ("races", &races),
        ("64 ranks", &many),
        ("mpi", &mpi::run),
        ("torch", &torch),
    ])
}

/// The tests of groups over TCP, whose contract suite also runs in processes.
fn tcp() -> Result<()> {
    tests()?.args(["-E", "package(reshard-comm-tcp)"]).run()
}

/// One of four ranks is killed: at each collective and at each named step. `cargo xtask nightly` adds 200 random moments.
fn kills() -> Result<()> {
    tests()?
        .args(["-E", "package(reshard-crash) & test(ranks::)"])
        .env("RESHARD_THOROUGH", "1")
        .run()
}

/// Places that others change while processes save to them, 200 times each.
fn races() -> Result<()> {
    let swaps = "package(reshard-crash) & test(swap::) & test(processes)";
    tests()?.args(["--run-ignored", "all", "-E", swaps]).run()
}

/// 64 ranks on one machine.
fn many() -> Result<()> {
    ignored("package(reshard-crash) & test(sixty_four_ranks)")?.run()
}

/// PyTorch's TCPStore, and workers of torchrun, with the Python that `RESHARD_PYTHON` names, or with that of `cargo xtask interop` if it is there.
fn torch() -> Result<()> {
    let Some(python) = python_with_torch() else {
        return Ok(());
    };
    ignored("package(reshard-comm-tcp) & test(torch::)")?
        .env("RESHARD_PYTHON", &python)
        .run()?;
    let program = programs(&["reshard-interop"])?.join("reshard-interop");
    let dir = target_dir().join("processes");
    // What an earlier run has left would be in the way.
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    interop::beside_torchrun(&program, &python, &dir).run()?;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
