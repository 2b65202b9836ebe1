//! Rewriting a checkpoint, beside copying its files.

use crate::{
    analysis::ones,
    measured::{Measured, peak, timed},
};
use anyhow::{Context, Result, anyhow};
use reshard::{
    blocking::{self, Checkpoint},
    strategy::SaveShardedStrategy,
};
use reshard_convert::convert;
use serde::Deserialize;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// As `reshard convert` does it, into the format of a configuration. All values are checked off the clock.
pub(crate) fn into_format(
    src: &Path,
    dst: &Path,
    iterations: usize,
    ranks: u32,
    format: &serde_json::Value,
) -> Result<Measured> {
    let (src, url) = (src.display().to_string(), dst.display().to_string());
    let before = peak();
    let mut measured = times(dst, iterations, || {
        let source = Checkpoint::open(&src)?;
        let format = SaveShardedStrategy::deserialize(format)?;
        let conversion = convert(&source, &url).ranks(ranks).strategy(format);
        let report = blocking::run(conversion)?;
        Ok(report.saved.totals.all.bytes)
    })?;
    measured.peak = peak();
    measured.grown = measured.peak - before;
    ones(dst)?;
    fs::remove_dir_all(dst)?;
    Ok(measured)
}

/// As `reshard convert --ranks 2 --unflatten` does it: all checksums are checked first. What grows is the memory of the process. All values are checked off the clock.
pub(crate) fn unflatten(src: &Path, dst: &Path, iterations: usize) -> Result<Measured> {
    let (src, url) = (src.display().to_string(), dst.display().to_string());
    let before = peak();
    let mut measured = times(dst, iterations, || {
        let source = Checkpoint::open(&src)?;
        let report = blocking::run(convert(&source, &url).ranks(2).unflatten(true))?;
        Ok(report.saved.totals.all.bytes)
    })?;
    measured.peak = peak();
    measured.grown = measured.peak - before;
    is_plain(&url)?;
    ones(dst)?;
    Ok(measured)
}

/// No tensor is flattened any more.
fn is_plain(url: &str) -> Result<()> {
    let written = Checkpoint::open(url)?;
    let flattened = written.tensors().find(|t| t.flattened_shape().is_some());
    flattened.map_or(Ok(()), |t| Err(anyhow!("{} is still flattened", t.key())))
}

/// Each thread copies every other file. The files are on the disk at the end, as those of a conversion are.
pub(crate) fn copy_files(src: &Path, dst: &Path, iterations: usize) -> Result<Measured> {
    let mut files = Vec::new();
    for entry in fs::read_dir(src).with_context(|| format!("reading {}", src.display()))? {
        files.push(entry?.path());
    }
    files.sort();
    times(dst, iterations, || {
        fs::create_dir_all(dst)?;
        let copies = [0, 1].map(|first| {
            let mine: Vec<PathBuf> = files.iter().skip(first).step_by(2).cloned().collect();
            let dst = dst.to_path_buf();
            std::thread::spawn(move || -> Result<u64> {
                let mut bytes = 0;
                for file in mine {
                    let to = dst.join(file.file_name().context("a file has no name")?);
                    bytes += fs::copy(&file, &to)?;
                    fs::File::open(to)?.sync_data()?;
                }
                Ok(bytes)
            })
        });
        let mut bytes = 0;
        for copy in copies {
            bytes += copy.join().map_err(|_| anyhow!("a copy panicked"))??;
        }
        Ok(bytes)
    })
}

/// What the run before wrote is removed off the clock.
fn times(dst: &Path, iterations: usize, work: impl FnMut() -> Result<u64>) -> Result<Measured> {
    let before = || {
        drop(fs::remove_dir_all(dst));
        rustix::fs::sync();
        Ok(())
    };
    timed(iterations, before, work)
}
