//! Positional I/O on one file, with errors that name it.

use super::root::{Root, what_it_is};
use crate::shown_path;
use crate::{Name, Result, StorageError, local::during::During as _};
use bytes::Bytes;
use reshard_model::MemoryLimit;
use rustix::{buffer::spare_capacity, fs::FileType, io::Errno};
use std::{
    fs::File,
    io::{ErrorKind, IoSlice, IoSliceMut},
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
        let meta = file.metadata().during("look at", &path)?;
        if !meta.is_file() {
            let kind = FileType::from_raw_mode(meta.mode());
            return Err(root.no_file(name, what_it_is(kind)));
        }
        Ok(Self {
            file,
            size: meta.len(),
            path,
        })
    }

    fn short(&self, range: Range<u64>, size: u64) -> StorageError {
        StorageError::Short {
            path: shown_path(&self.path),
            range,
            size,
        }
    }

    /// That the file is long enough to have these bytes.
    pub(super) fn expect(&self, range: &Range<u64>) -> Result<()> {
        if range.end > self.size {
            Err(self.short(range.clone(), self.size))
        } else {
            Ok(())
        }
    }

    /// The file has shrunk since it was opened, or the system failed.
    fn failed(&self, range: Range<u64>, e: impl Into<std::io::Error>) -> StorageError {
        let e = e.into();
        match (e.kind(), self.file.metadata()) {
            (ErrorKind::UnexpectedEof, Ok(now)) => self.short(range, now.len()),
            _ => StorageError::io("read", &self.path, e),
        }
    }

    /// Fills `out` from byte `at` on.
    pub(super) fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let range = at..at + out.len() as u64;
        self.file
            .read_exact_at(out, at)
            .map_err(|e| self.failed(range, e))
    }

    /// A range in memory of its own. The range was checked against the file's size, so that no length from a damaged
    /// file makes us take more memory than the file has bytes.
    pub(super) fn read_bytes(&self, range: &Range<u64>) -> Result<Bytes> {
        self.expect(range)?;
        let len = (range.end - range.start) as usize;
        let mut out: Vec<u8> = Vec::new();
        // A file with holes may be longer than all memory.
        out.try_reserve_exact(len).map_err(|_| {
            let why = MemoryLimit::refusal(len);
            let e = std::io::Error::new(ErrorKind::OutOfMemory, why);
            StorageError::io("read", &self.path, e)
        })?;
        piecemeal(range, ErrorKind::UnexpectedEof, |at| {
            rustix::io::pread(&self.file, spare_capacity(&mut out), at)
        })
        .map_err(|e| self.failed(range.clone(), e))?;
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
        let (range, mut rest) = (at..at + len, vectors.as_mut_slice());
        let read = piecemeal(&range, ErrorKind::UnexpectedEof, |at| {
            let n = rustix::io::preadv(&self.file, rest, at)?;
            IoSliceMut::advance_slices(&mut rest, n);
            Ok(n)
        });
        read.map_err(|e| self.failed(range, e))
    }
}

/// Writes consecutive blocks from byte `at` on. At most [`MAX_VECTORS`] of them.
pub(super) fn write_vectored(file: &File, path: &Path, at: u64, blocks: &[Bytes]) -> Result<()> {
    if let [only] = blocks {
        return file.write_all_at(only, at).during("write", path);
    }
    let mut vectors: Vec<IoSlice<'_>> = blocks.iter().map(|b| IoSlice::new(b)).collect();
    let len: u64 = blocks.iter().map(|b| b.len() as u64).sum();
    let mut rest = vectors.as_mut_slice();
    let written = piecemeal(&(at..at + len), ErrorKind::WriteZero, |at| {
        let n = rustix::io::pwritev(file, rest, at)?;
        IoSlice::advance_slices(&mut rest, n);
        Ok(n)
    });
    written.during("write", path)
}

/// Calls the system until it has moved all bytes of a range: it may move fewer than it is asked to, and stop for a signal. The
/// step is called with the byte that comes next, and says how many it has moved; `none` is the error when it moves none.
fn piecemeal(
    range: &Range<u64>,
    none: ErrorKind,
    mut step: impl FnMut(u64) -> Result<usize, Errno>,
) -> std::io::Result<()> {
    let mut at = range.start;
    while at < range.end {
        match step(at) {
            Ok(0) => return Err(none.into()),
            Ok(n) => at += n as u64,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_moved_in_pieces_goes_on_where_it_stopped() {
        let mut steps = [Ok(3), Err(Errno::INTR), Ok(4), Ok(93)].into_iter();
        let mut asked = Vec::new();
        let mut step = |at| {
            asked.push(at);
            steps.next().unwrap_or(Err(Errno::IO))
        };
        piecemeal(&(10..110), ErrorKind::WriteZero, &mut step).unwrap();
        assert_eq!(asked, [10, 13, 13, 17]);
        piecemeal(&(5..5), ErrorKind::WriteZero, |_| Err(Errno::IO)).unwrap();
        let of = |outcome| piecemeal(&(0..9), ErrorKind::WriteZero, |_| outcome).unwrap_err();
        assert_eq!(of(Ok(0)).kind(), ErrorKind::WriteZero);
        assert_eq!(
            of(Err(Errno::IO)).raw_os_error(),
            Some(Errno::IO.raw_os_error())
        );
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_read_is_named_with_its_size() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("a"), [7; 1000]).unwrap();
        let input = Input::open(&Root::new(home.path().into()), &Name::new("a").unwrap()).unwrap();
        File::options()
            .write(true)
            .open(home.path().join("a"))
            .unwrap()
            .set_len(400)
            .unwrap();
        let (mut one, mut two) = ([0; 300], [0; 300]);
        let errors = [
            input.read(200, &mut one).unwrap_err(),
            input
                .read_vectored(200, &mut [&mut one, &mut two])
                .unwrap_err(),
            input.read_bytes(&(300..900)).unwrap_err(),
        ];
        let ranges = errors.map(|e| match e {
            StorageError::Short {
                range, size: 400, ..
            } => range,
            e => panic!("{e:?}"),
        });
        assert_eq!(ranges, [200..500, 200..800, 300..900]);
        let mut out = [0; 200];
        input
            .read_vectored(100, &mut [&mut out[..50], &mut one])
            .unwrap_err();
        input.read(200, &mut out).unwrap();
        assert_eq!(out, [7; 200]);
    }
}
