//! Benchmarks beside the real torch DCP, TensorFlow's embeddings and Megatron Core's strategies, in the same run.

use anyhow::Result;

use crate::shell::cargo;
use crate::venv;

/// Builds the package `reshard-benches` and prints its table, beside the torch, the TensorFlow and the Megatron Core of the Pythons that it is given.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (python, tensorflow) = (venv::TORCH_215.python()?, venv::TENSORFLOW.python()?);
    let (megatron, zarr) = (venv::MCORE_012.python()?, venv::ZARR.python()?);
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
    .args(["--megatron"])
    .args([megatron])
    .args(["--zarr"])
    .args([zarr])
    .args(args)
    .run()
}
