//! Benchmarks beside the real torch DCP, in the same run.

use anyhow::Result;

use crate::shell::cargo;
use crate::venv;

/// Builds the package `reshard-benches` and prints its table, beside the torch of the Python that it is given.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let python = venv::TORCH_215.python()?;
    cargo(&["run", "--release", "--locked", "--package", "reshard-benches", "--", "table", "--python"])
        .args([python])
        .args(args)
        .run()
}
