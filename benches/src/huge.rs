//! A file system in memory whose files lie in huge pages. Only root may mount one.

use anyhow::{Context, Result, ensure};
use std::{path::Path, process::Command};

/// One that is mounted, until it is dropped.
pub(crate) struct Mounted(tempfile::TempDir);

impl Mounted {
    /// Mounts one.
    ///
    /// # Errors
    /// The system refuses it.
    pub(crate) fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let call = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "huge=always,size=100%", "reshard"])
            .arg(dir.path())
            .output()
            .context("the program mount did not start")?;
        let why = String::from_utf8_lossy(&call.stderr);
        ensure!(call.status.success(), "{}", why.trim());
        Ok(Self(dir))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A measurement that was called off may still have files open there, so it goes when they do.
        let done = Command::new("umount").arg("-l").arg(self.path()).status();
        drop(done);
    }
}
