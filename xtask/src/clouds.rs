//! The tests of object stores, against servers on this machine that speak the protocols of clouds.

mod servers;
mod torch;

pub(crate) use self::servers::{moto, s3s};
pub(crate) use self::torch::s3fs;

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use self::servers::azurite;
use crate::shell::{steps, target_dir, tests};
use crate::venv::TORCH_215;

/// Where servers keep what they have, and write what they say.
fn data() -> Result<PathBuf> {
    let data = target_dir().join("clouds");
    if data.exists() {
        std::fs::remove_dir_all(&data)
            .with_context(|| format!("cannot remove {}", data.display()))?;
    }
    std::fs::create_dir_all(&data)?;
    Ok(data)
}

/// With `thorough` as many faults and kills as nobody waits for.
pub(crate) fn run(thorough: bool) -> Result<()> {
    let data = data()?;
    let (moto, s3s) = (moto(&data)?, s3s(&data)?);
    let azurite = azurite(&data)?;

    let with_servers = || {
        let mut tests = tests().args(["--no-fail-fast"]);
        for test in ["clouds", "places", "network", "buckets", "wire", "it"] {
            tests = tests.args(["--test", test]);
        }
        tests = tests.args(["--", "--include-ignored", "--nocapture", "needs_clouds"]);
        tests = tests.env("RESHARD_MOTO", &moto.url);
        tests = tests.env("RESHARD_AZURITE", &azurite.url);
        tests = tests.env("RESHARD_S3S", &s3s.url);
        if thorough {
            tests = tests.env("RESHARD_THOROUGH", "1");
        }
        tests.run()
    };
    let torch = || torch::run(&TORCH_215.python()?, &moto.url, &data);
    steps(&[("servers", &with_servers), ("torch", &torch)])
}
