//! Benchmarks beside the real torch DCP, and beside TensorFlow's embeddings, in the same run.

use anyhow::Result;

use crate::shell::cargo;
use crate::venv;

/// Builds the package `reshard-benches` and prints its table, beside the torch and the TensorFlow of the Pythons that it is given.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (python, tensorflow) = (venv::TORCH_215.python()?, venv::TENSORFLOW.python()?);
    cargo(&[
        "run",
        "--release",
        "--locked",
        "--package",
        "reshard-benches",
        "--",
        "table",
        "--python",
    ])
    .args([python])
    .args(["--tensorflow"])
    .args([tensorflow])
    .args(args)
    .run()
}
