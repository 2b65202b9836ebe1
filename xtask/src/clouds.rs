//! The tests of object stores, against servers on this machine that speak the protocols of clouds.

mod servers;
mod torch;

pub(crate) use self::servers::{moto, s3s};
pub(crate) use self::torch::s3fs;

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use self::servers::azurite;
use crate::shell::{Program, ignored, steps, target_dir};
use crate::venv::TORCH_215;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The tests that need only moto.
    Moto,
    /// The tests of all servers.
    AllServers,
    /// The tests of all servers, with 2,000 faults of the network and 300 kills.
    Thorough,
}

/// The folder for the files and logs of the servers, emptied.
fn data() -> Result<PathBuf> {
    let data = target_dir().join("clouds");
    if data.exists() {
        std::fs::remove_dir_all(&data)
            .with_context(|| format!("cannot remove {}", data.display()))?;
    }
    std::fs::create_dir_all(&data)?;
    Ok(data)
}

pub(crate) fn run(extent: Extent) -> Result<()> {
    let data = data()?;
    let moto = moto(&data)?;
    let others = match extent {
        Extent::Moto => None,
        Extent::AllServers | Extent::Thorough => Some((s3s(&data)?, azurite(&data)?)),
    };
    let with_servers = || {
        let mut tests = match &others {
            None => needs_clouds(" - test(s3s) - test(azurite) - test(random_moments)")?,
            Some((s3s, azurite)) => needs_clouds("")?
                .env("RESHARD_S3S", &s3s.url)
                .env("RESHARD_AZURITE", &azurite.url),
        };
        tests = tests.env("RESHARD_MOTO", &moto.url);
        if extent == Extent::Thorough {
            tests = tests.env("RESHARD_THOROUGH", "1");
        }
        tests.run()
    };
    let torch = || torch::run(&TORCH_215.python()?, &moto.url, &data);
    steps(&[("servers", &with_servers), ("torch", &torch)])
}

/// The ignored tests that need a server, less those that the rest of a filter expression removes.
fn needs_clouds(less: &str) -> Result<Program> {
    let tests = ignored(&format!("test(needs_clouds){less}"))?;
    // Their reports say how many faults and kills there were.
    Ok(tests.args(["--no-fail-fast", "--success-output", "immediate"]))
}
