//! Benchmarks beside the real torch DCP, in the same run.

use anyhow::Result;

use crate::shell::cargo;
use crate::venv;

/// Builds and runs the package `reshard-benches`, which gets the Python with torch as `--python`.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let python = venv::TORCH_215.python()?;
    cargo(&["run", "--release", "--locked", "--package", "reshard-benches", "--", "--python"])
        .args([python])
        .args(args)
        .run()
}
