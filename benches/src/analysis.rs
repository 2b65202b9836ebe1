//! `diff` and `stats` of checkpoints that are not in the page cache.

use crate::{
    files::{evict, read_from_disk},
    measured::{Measured, peak, timed},
};
use anyhow::{Result, ensure};
use reshard::blocking::{self, Checkpoint};
use reshard_convert::Tolerance;
use std::path::{Path, PathBuf};

/// Compares two checkpoints that are equal.
pub(crate) fn diff(first: &Path, second: &Path, iterations: usize) -> Result<Measured> {
    cold(&[first.into(), second.into()], iterations, || {
        let [a, b] = [first, second].map(|dir| Checkpoint::open(dir.display().to_string()));
        let (a, b) = (a?, b?);
        let mut bytes = 0;
        let found = blocking::run(reshard_convert::diff(
            &a,
            &b,
            |_| true,
            Tolerance::default(),
            Default::default(),
            |t| bytes += t.shapes[0].volume().unwrap_or(0) * t.dtypes[0].size() * 2,
        ))?;
        ensure!(found.is_equal(), "the two checkpoints differ");
        Ok(bytes)
    })
}

/// Looks at the numbers of a checkpoint, all of which are 1.
pub(crate) fn stats(dir: &Path, iterations: usize) -> Result<Measured> {
    cold(&[dir.into()], iterations, || ones(dir))
}

/// Checks that all numbers of a checkpoint are 1, and returns how many bytes its tensors have.
pub(crate) fn ones(dir: &Path) -> Result<u64> {
    let checkpoint = Checkpoint::open(dir.display().to_string())?;
    let (mut bytes, mut wrong) = (0, None);
    blocking::run(reshard_convert::stats(
        &checkpoint,
        |_| true,
        Default::default(),
        |t| {
            bytes += t.shape.volume().unwrap_or(0) * t.dtype.size();
            let ones = t
                .stats
                .is_some_and(|s| (s.min, s.max) == (Some(1.0), Some(1.0)));
            if !ones {
                wrong = Some(t.key);
            }
        },
    ))?;
    match wrong {
        None => Ok(bytes),
        Some(key) => anyhow::bail!("{key} has wrong values"),
    }
}

/// Before each run the files of the folders leave the page cache. A run that found them there is no measurement.
fn cold(
    dirs: &[PathBuf],
    iterations: usize,
    mut work: impl FnMut() -> Result<u64>,
) -> Result<Measured> {
    let before = peak();
    let evicted = || dirs.iter().try_for_each(|dir| evict(dir));
    let mut measured = timed(iterations, evicted, || {
        let had = read_from_disk();
        let bytes = work()?;
        let read = read_from_disk() - had;
        ensure!(
            read >= bytes / 10 * 9,
            "only {read} of {bytes} bytes came from the disk; use a place on a disk whose cache can be dropped"
        );
        Ok(bytes)
    })?;
    measured.peak = peak();
    measured.grown = measured.peak - before;
    Ok(measured)
}
