//! Positional I/O on one file, with errors that name it.

use super::root::{Root, what_it_is};
use crate::{Name, Result, StorageError};
use bytes::Bytes;
use rustix::{buffer::spare_capacity, fs::FileType, io::Errno};
use std::{
    fs::File,
    io::{IoSlice, IoSliceMut},
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

/// The most buffers that one call of the system takes.
pub(super) const MAX_VECTORS: usize = 1024;

/// A file that is open for reading.
#[derive(Debug)]
pub(super) struct Input {
    file: File,
    path: PathBuf,
    size: u64,
}

impl Input {
    pub(super) fn open(root: &Root, name: &Name) -> Result<Self> {
        let (path, file) = (root.path_of(name), root.open_file(name)?);
        let meta = file.metadata().map_err(|e| StorageError::io("look at", &path, e))?;
        if !meta.is_file() {
            let what = what_it_is(FileType::from_raw_mode(meta.mode()));
            return Err(StorageError::NoFile { path: path.display().to_string(), what });
        }
        Ok(Self { file, size: meta.len(), path })
    }

    fn short(&self, range: Range<u64>, size: u64) -> StorageError {
        StorageError::Short { path: self.path.display().to_string(), range, size }
    }

    /// That the file is long enough to have these bytes.
    pub(super) fn expect(&self, range: &Range<u64>) -> Result<()> {
        if range.end > self.size { Err(self.short(range.clone(), self.size)) } else { Ok(()) }
    }

    /// The file has shrunk since it was opened, or the system failed.
    fn failed(&self, range: Range<u64>, e: impl Into<std::io::Error>) -> StorageError {
        let e = e.into();
        match (e.kind(), self.file.metadata()) {
            (std::io::ErrorKind::UnexpectedEof, Ok(now)) => self.short(range, now.len()),
            _ => StorageError::io("read", &self.path, e),
        }
    }

    /// Fills `out` from byte `at` on.
    pub(super) fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let range = at..at + out.len() as u64;
        self.file.read_exact_at(out, at).map_err(|e| self.failed(range, e))
    }

    /// A range in memory of its own. The range was checked against the file's size, so that no length from a damaged
    /// file makes us take more memory than the file has bytes.
    pub(super) fn read_bytes(&self, range: &Range<u64>) -> Result<Bytes> {
        self.expect(range)?;
        let len = (range.end - range.start) as usize;
        let mut out: Vec<u8> = Vec::new();
        // A file with holes may be longer than all memory.
        out.try_reserve_exact(len).map_err(|_| {
            let e =
                std::io::Error::new(std::io::ErrorKind::OutOfMemory, format!("no memory for {len} bytes"));
            StorageError::io("read", &self.path, e)
        })?;
        while out.len() < len {
            let at = range.start + out.len() as u64;
            match rustix::io::pread(&self.file, spare_capacity(&mut out), at) {
                Ok(0) => return Err(self.failed(range.clone(), std::io::ErrorKind::UnexpectedEof)),
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(self.failed(range.clone(), e)),
            }
        }
        // There may be room for more than was asked for.
        out.truncate(len);
        Ok(out.into())
    }

    /// Fills consecutive buffers from byte `at` on. At most [`MAX_VECTORS`] of them.
    pub(super) fn read_vectored(&self, at: u64, out: &mut [&mut [u8]]) -> Result<()> {
        if let [only] = out {
            return self.read(at, only);
        }
        let mut vectors: Vec<IoSliceMut<'_>> = out.iter_mut().map(|b| IoSliceMut::new(b)).collect();
        let len: u64 = vectors.iter().map(|v| v.len() as u64).sum();
        let (mut rest, mut from) = (vectors.as_mut_slice(), at);
        while from < at + len {
            match rustix::io::preadv(&self.file, rest, from) {
                Ok(0) => return Err(self.failed(at..at + len, std::io::ErrorKind::UnexpectedEof)),
                Ok(n) => {
                    IoSliceMut::advance_slices(&mut rest, n);
                    from += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(self.failed(at..at + len, e)),
            }
        }
        Ok(())
    }
}

/// Writes consecutive blocks from byte `at` on. At most [`MAX_VECTORS`] of them.
pub(super) fn write_vectored(file: &File, path: &Path, at: u64, blocks: &[Bytes]) -> Result<()> {
    let fail = |e: std::io::Error| StorageError::io("write", path, e);
    if let [only] = blocks {
        return file.write_all_at(only, at).map_err(fail);
    }
    let mut vectors: Vec<IoSlice<'_>> = blocks.iter().map(|b| IoSlice::new(b)).collect();
    let len: u64 = blocks.iter().map(|b| b.len() as u64).sum();
    let (mut rest, mut from) = (vectors.as_mut_slice(), at);
    while from < at + len {
        match rustix::io::pwritev(file, rest, from) {
            Ok(0) => return Err(fail(std::io::ErrorKind::WriteZero.into())),
            Ok(n) => {
                IoSlice::advance_slices(&mut rest, n);
                from += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(fail(e.into())),
        }
    }
    Ok(())
}
