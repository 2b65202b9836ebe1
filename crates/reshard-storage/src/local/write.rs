//! Writing the files of a transaction: by position, several threads at once, without locks on the data and without copies.

use super::{
    dir::Dir,
    file::{MAX_VECTORS, write_vectored},
};
use crate::{
    Durability, Extent, ExtentReader, FileBody, Length, Name, Progress, Result, Source,
    StorageError, Store, Written, WrittenExtent,
    action_log::{Action, note},
    body::whole,
    failpoint,
    local::during::During as _,
    pool::{self, Batch, Priority},
};
use bytes::Bytes;
use std::{
    collections::VecDeque,
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// Blocks are gathered until a window of the file is full; they are still in cache then.
const WINDOW: usize = 512 << 10;
/// Longer blocks are written in pieces: progress is told, and stopping is possible, in between.
const STRIDE: usize = 8 << 20;
/// What one thread takes at once, when extents are small.
const UNIT: u64 = 4 << 20;

/// Extents that follow each other, taken by one thread at a time.
struct Unit {
    at: u64,
    /// The number of the first extent in its file.
    first: usize,
    extents: Vec<Box<dyn Extent>>,
}

/// What all files of one call share.
struct Shared {
    durability: Durability,
    progress: Progress,
    written: AtomicU64,
    total: u64,
    /// Extents that are written, by the numbers of the file and of the extent in it; in any order.
    done: Mutex<Vec<((usize, usize), WrittenExtent)>>,
}

/// One file that is being written.
struct Output {
    shared: Arc<Shared>,
    number: usize,
    name: Name,
    path: PathBuf,
    file: File,
    waiting: Mutex<VecDeque<Unit>>,
    /// Units that are not written yet.
    left: AtomicUsize,
}

pub(super) async fn write(
    built: Dir,
    files: Vec<FileBody>,
    durability: Durability,
    progress: Progress,
) -> Result<Vec<Written>> {
    // Everything that can be refused is refused before the first file is made.
    let mut total = 0u64;
    let mut out: Vec<Written> = Vec::with_capacity(files.len());
    let (mut new, mut copies) = (Vec::new(), Vec::new());
    for (number, body) in files.into_iter().enumerate() {
        let too_long =
            || StorageError::invalid(format!("{}: its length does not fit 63 bits", body.name));
        let length = body.length().ok_or_else(too_long)?;
        out.push(Written {
            name: body.name.clone(),
            bytes: 0,
            extents: Vec::new(),
        });
        match body.source {
            Source::CopyOf { store, name } => copies.push((number, store, name)),
            Source::Extents(extents) => {
                i64::try_from(length.at_most()).map_err(|_| too_long())?;
                total = total.saturating_add(length.at_most());
                new.push((number, body.name, length, extents));
            }
        }
    }

    // New files are written by all threads at once. Each unit tells its extents when it is done, in any order.
    let (written, done) = (AtomicU64::new(0), Mutex::default());
    let shared = Arc::new(Shared {
        durability,
        progress: progress.clone(),
        written,
        total,
        done,
    });
    let (dir, all) = (built.clone(), Arc::clone(&shared));
    pool::run(move |batch| {
        for (number, name, length, extents) in new {
            let (dir, shared) = (dir.clone(), Arc::clone(&all));
            batch.spawn(Priority::Main, move |batch| {
                main(&dir, (number, name, length), extents, shared, batch)
            });
        }
        Ok(())
    })
    .await?;

    let mut done = std::mem::take(&mut *shared.done.lock().unwrap_or_else(PoisonError::into_inner));
    done.sort_unstable_by_key(|(place, _)| *place);
    for ((file, _), extent) in done {
        out[file].bytes = extent.range.end;
        out[file].extents.push(extent);
    }

    // Copies come after the new files, because they read another store and wait for it.
    for (number, store, name) in copies {
        out[number].bytes = copy(
            &built,
            &out[number].name,
            store,
            name,
            durability,
            &progress,
        )
        .await?;
    }

    // The directories come last: only now do all names exist that have to be on the disk.
    let names: Vec<Name> = out.iter().map(|w| w.name.clone()).collect();
    pool::run_one(move || {
        failpoint::hit("write.done");
        if durability == Durability::Machine {
            built.sync_directories(&names)?;
        }
        failpoint::hit("write.synced");
        Ok(())
    })
    .await?;
    Ok(out)
}

/// Opens a file, asks others to help, and writes.
fn main(
    dir: &Dir,
    (number, name, length): (usize, Name, Length),
    extents: Vec<Box<dyn Extent>>,
    shared: Arc<Shared>,
    batch: &Arc<Batch<()>>,
) -> Result<()> {
    // What is not known beforehand grows while it is written, in one unit.
    let (bytes, unit) = match length {
        Length::Exact(bytes) => (bytes, UNIT),
        Length::Unknown { .. } => (0, u64::MAX),
    };
    let (path, file) = dir.create(&name, bytes)?;
    failpoint::hit("write.opened");
    let waiting = units(extents, unit);
    let left = AtomicUsize::new(waiting.len());
    let out = Arc::new(Output {
        shared,
        number,
        name,
        path,
        file,
        left,
        waiting: Mutex::new(waiting),
    });
    if out.left.load(Ordering::Relaxed) == 0 {
        return out.close();
    }
    // A file system takes one writer of a file at a time, mostly; but making and hashing the bytes goes side by side.
    if !batch.is_inline() {
        let helpers = (pool::width() - 1).min(out.left.load(Ordering::Relaxed) - 1);
        for _ in 0..helpers {
            let out = Arc::clone(&out);
            batch.spawn(Priority::Helper, move |batch| help(out, batch));
        }
    }
    while !batch.is_stopped()
        && let Some(unit) = out.take()
    {
        out.write(unit, batch)?;
    }
    Ok(())
}

/// Writes one unit of another's file, and comes again later: threads go to files of their own first.
fn help(out: Arc<Output>, batch: &Arc<Batch<()>>) -> Result<()> {
    while let Some(unit) = out.take() {
        out.write(unit, batch)?;
        if batch.is_stopped() {
            break;
        }
        if pool::is_busy() {
            batch.spawn(Priority::Helper, move |batch| help(out, batch));
            break;
        }
    }
    Ok(())
}

/// Units of about so many bytes.
fn units(extents: Vec<Box<dyn Extent>>, size: u64) -> VecDeque<Unit> {
    let mut out: VecDeque<Unit> = VecDeque::new();
    let (mut at, mut room) = (0, 0);
    for (first, e) in extents.into_iter().enumerate() {
        let len = e.length().at_most();
        match out.back_mut() {
            Some(unit) if len <= room => {
                unit.extents.push(e);
                room -= len;
            }
            _ => {
                out.push_back(Unit {
                    at,
                    first,
                    extents: vec![e],
                });
                room = size.saturating_sub(len);
            }
        }
        at += len;
    }
    out
}

impl Output {
    fn take(&self) -> Option<Unit> {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    }

    fn write(&self, unit: Unit, batch: &Arc<Batch<()>>) -> Result<()> {
        let mut pending = Pending {
            out: self,
            at: unit.at,
            len: 0,
            blocks: Vec::new(),
        };

        // A source may give less or more than it said. Neither may reach the place of the next extent.
        let mut offset = unit.at;
        let mut done = Vec::with_capacity(unit.extents.len());
        for (number, extent) in (unit.first..).zip(unit.extents) {
            let mut extent = ExtentReader::new(extent, offset);
            while let Some(block) = extent.next_block(&self.name)? {
                if batch.is_stopped() {
                    return Ok(());
                }
                pending.push(block)?;
            }
            let written = extent.finish();
            offset = written.range.end;
            done.push(((self.number, number), written));
        }

        // Extents count as written only after the last of their bytes is.
        pending.flush()?;
        self.shared
            .done
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .append(&mut done);

        // Whoever writes the last unit closes the file, so the bytes of all threads are there when it is synced.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.close()
        } else {
            Ok(())
        }
    }

    /// Every byte is written.
    fn close(&self) -> Result<()> {
        match self.shared.durability {
            Durability::Process => Ok(()),
            Durability::Machine => sync_file(&self.file, &self.path),
        }
    }

    fn put(&self, at: u64, blocks: &[Bytes]) -> Result<()> {
        write_vectored(&self.file, &self.path, at, blocks)?;
        note(|| Action::Wrote(self.path.clone()));
        let len: u64 = blocks.iter().map(|b| b.len() as u64).sum();
        let before = self.shared.written.fetch_add(len, Ordering::Relaxed);
        let half = self.shared.total / 2;
        if before < half && before + len >= half {
            failpoint::hit("write.half");
        }
        self.shared.progress.add(len);
        Ok(())
    }
}

/// Blocks that wait until there are enough of them for one call.
struct Pending<'a> {
    out: &'a Output,
    at: u64,
    len: usize,
    blocks: Vec<Bytes>,
}

impl Pending<'_> {
    /// Calls end where a window of the file ends: aligned writes make large pages in the cache, which are read faster.
    fn push(&mut self, mut block: Bytes) -> Result<()> {
        while !block.is_empty() {
            let filled = (self.at + self.len as u64) % WINDOW as u64;
            let room = WINDOW - filled as usize;
            let windows = if self.blocks.is_empty() {
                block.len().min(STRIDE).saturating_sub(room) / WINDOW
            } else {
                0
            };
            let piece = block.split_to(block.len().min(room + windows * WINDOW));
            self.len += piece.len();
            let ends = piece.len() >= room;
            self.blocks.push(piece);
            if ends || self.blocks.len() == MAX_VECTORS {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if !self.blocks.is_empty() {
            self.out.put(self.at, &self.blocks)?;
            self.blocks.clear();
            self.at += std::mem::take(&mut self.len) as u64;
        }
        Ok(())
    }
}

/// Brings a file over from another place, and returns its length.
async fn copy(
    dir: &Dir,
    to: &Name,
    from: Arc<dyn Store>,
    of: Name,
    durability: Durability,
    progress: &Progress,
) -> Result<u64> {
    let (built, name, bytes) = (dir.clone(), to.clone(), whole(&*from, &of).await?);
    if let Some(file) = from.local_file(&of).await? {
        let linked = pool::run_one(move || {
            let Some((path, bytes)) = built.link(&name, &file)? else {
                return Ok(None);
            };
            // Whoever wrote it may not have waited for the disk.
            if durability == Durability::Machine {
                sync_file(&file, &path)?;
            }
            Ok(Some(bytes))
        });
        if let Some(bytes) = linked.await? {
            progress.add(bytes);
            return Ok(bytes);
        }
    }
    let (built, name) = (dir.clone(), to.clone());
    let (path, file) = pool::run_one(move || built.create(&name, bytes)).await?;
    let (path, file) = (Arc::new(path), Arc::new(file));
    let mut at = 0;
    while at < bytes {
        let block = from.read(&of, at..bytes.min(at + STRIDE as u64)).await?;
        let (path, file, len) = (Arc::clone(&path), Arc::clone(&file), block.len() as u64);
        pool::run_one(move || write_vectored(&file, &path, at, &[block])).await?;
        progress.add(len);
        at += len;
    }
    if durability == Durability::Machine {
        pool::run_one(move || sync_file(&file, &path)).await?;
    }
    Ok(bytes)
}

pub(super) fn sync_file(file: &File, path: &Path) -> Result<()> {
    file.sync_data().during("sync", path)?;
    note(|| Action::SyncedFile(path.into()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IfExists, LocalStore, Store};
    use futures_executor::block_on;

    const K: usize = 1 << 10;
    const M: usize = 1 << 20;

    /// Blocks that a source gives one by one.
    struct Blocks(VecDeque<Bytes>);

    impl Extent for Blocks {
        fn length(&self) -> Length {
            Length::Exact(self.0.iter().map(|b| b.len() as u64).sum())
        }

        fn next_block(&mut self) -> Option<std::io::Result<Bytes>> {
            self.0.pop_front().map(Ok)
        }
    }

    /// How many bytes each call writes of an extent whose blocks are so long.
    fn calls(blocks: &[usize]) -> Vec<u64> {
        let home = tempfile::tempdir().unwrap();
        let store = LocalStore::at(home.path().join("x")).unwrap();
        let bytes: Vec<u8> = (0..blocks.iter().sum())
            .map(|i: usize| ((i * 31) >> 7) as u8)
            .collect();
        let mut rest = Bytes::from(bytes.clone());
        let blocks = blocks.iter().map(|n| rest.split_to(*n)).collect();
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        let progress = Progress::new(move |n| tell.lock().unwrap().push(n));
        block_on(async {
            let transaction = store.begin("a", IfExists::Refuse).await.unwrap();
            let file = FileBody::new(
                Name::new("f").unwrap(),
                vec![Box::new(Blocks(blocks)) as Box<dyn Extent>],
            );
            transaction
                .write(vec![file], Durability::Process, progress)
                .await
                .unwrap();
            transaction
                .commit(None, &[], Durability::Process)
                .await
                .unwrap();
        });
        assert!(std::fs::read(home.path().join("x/f")).unwrap() == bytes);
        let told = told.lock().unwrap();
        told.clone()
    }

    #[test]
    fn calls_end_where_windows_of_the_file_end() {
        let w = WINDOW as u64;
        assert_eq!(calls(&[100]), [100]);
        assert_eq!(calls(&[WINDOW]), [w]);
        assert_eq!(calls(&[WINDOW, 1]), [w, 1]);
        // Short blocks are gathered; one that reaches over the end of a window is cut there.
        assert_eq!(calls(&[256 * K; 5]), [w, w, w / 2]);
        assert_eq!(calls(&[300 * K, 300 * K, 300 * K]), [w, 388 << 10]);
        // A long one is written as far as windows go, at most a stride, the rest with what follows.
        assert_eq!(calls(&[M + 100 * K]), [2 * w, 100 << 10]);
        assert_eq!(calls(&[100 * K, M]), [w, w, 100 << 10]);
        assert_eq!(calls(&[17 * M]), [8 << 20, 8 << 20, 1 << 20]);
        assert_eq!(calls(&[WINDOW / 2, 9 * M]), [w, 8 << 20, w, w / 2]);
        // One call takes 1,024 buffers.
        assert_eq!(calls(&[10; 1_100]), [10_240, 760]);
    }

    #[test]
    fn a_thread_takes_extents_up_to_a_unit() {
        let of = |sizes: &[usize], size: u64| {
            let extents = sizes
                .iter()
                .map(|n| Box::new(Bytes::from(vec![0; *n])) as Box<dyn Extent>);
            let units = units(extents.collect(), size);
            units
                .iter()
                .map(|u| (u.at, u.first, u.extents.len()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            of(&[4, 5, 1, 10, 11, 1], 10),
            [(0, 0, 3), (10, 3, 1), (20, 4, 1), (31, 5, 1)]
        );
        assert_eq!(of(&[4, 0, 7], 10), [(0, 0, 2), (4, 2, 1)]);
        assert_eq!(of(&[], 10), []);
        assert_eq!(of(&[3, 4], u64::MAX), [(0, 0, 2)]);
    }
}
