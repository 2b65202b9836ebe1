//! Benchmarks beside the real torch DCP, safetensors, TensorFlow, zarr-python and Megatron Core's strategies, in the same run.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::clouds::{moto, s3fs, s3s};
use crate::shell::{cargo, target_dir};
use crate::venv;

/// A folder for what servers have. It is removed with this value.
struct Data(PathBuf);

impl Data {
    /// In memory, where the system has files there: disks differ, and nobody's program should wait for one.
    fn new() -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let above = match memory.is_dir() {
            true => memory.to_path_buf(),
            false => target_dir(),
        };
        let dir = above.join(format!("reshard-bench-servers-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        // Its servers have ended.
        std::fs::remove_dir_all(&self.0).unwrap_or_default();
    }
}

/// Builds the package `reshard-benches` and prints its table, beside the torch, the TensorFlow, the Megatron Core and the zarr-python of the Pythons
/// that it is given, and for rows of buckets on servers that it starts.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (python, tensorflow) = (venv::TORCH_215.python()?, venv::TENSORFLOW.python()?);
    let (megatron, zarr) = (venv::MCORE_012.python()?, venv::ZARR.python()?);
    let data = Data::new()?;
    // Servers that nobody asks would only disturb the other rows.
    let servers = match wants_buckets(args) {
        true => Some((s3fs(&python)?, s3s(&data.0)?, moto(&data.0)?)),
        false => None,
    };
    let mut bench = cargo(&[
        "run",
        "--release",
        "--locked",
        "--package",
        "reshard-benches",
        "--features",
        "clouds",
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
    .args([zarr]);
    if let Some((s3fs, s3s, moto)) = &servers {
        bench = bench
            .args(["--s3fs"])
            .args([s3fs])
            .args(["--s3s", &s3s.url, "--moto", &moto.url]);
    }
    bench.args(args).run()
}

/// Whether rows of buckets are asked for: all rows are, or the text after `--only` names a bucket or a server.
fn wants_buckets(args: &[String]) -> bool {
    let only = args.iter().skip_while(|arg| *arg != "--only").nth(1);
    only.is_none_or(|text| {
        ["bucket", "s3s", "moto"]
            .iter()
            .any(|name| text.contains(name))
    })
}
