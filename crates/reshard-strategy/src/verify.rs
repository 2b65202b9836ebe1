//! Checks a checkpoint for damage without loading it: one walk over all items for every format,
//! which only checks its own items.

use crate::{
    CheckedItems, Damage, Refused, Result, StorageInfo, StorageReader, StrategyError, VerifyReport,
};
use async_trait::async_trait;
use reshard_model::ErrorKind;
use reshard_plan::{ChunkId, Fault, ObjectId, TensorRef};
use reshard_storage::{Name, Progress};
use std::{collections::BTreeMap, ops::Range};

/// The checks of a format's items, made for one check of a checkpoint by
/// [`StorageReader::verifier`].
///
/// The order of the calls is [`tensor`](Self::tensor) for each tensor, each time followed by
/// [`fault`](Self::fault), if its chunks have one, and [`chunk`](Self::chunk) for its chunks, then
/// [`object`](Self::object) for each object, and [`rest`](Self::rest) once.
#[async_trait]
pub trait ItemVerifier<'r>: Send + Sync {
    /// Checks the description of a tensor. Returns `false` if neither it nor its chunks are to be
    /// counted or checked any further. The default checks nothing.
    async fn tensor(&mut self, _tensor: &TensorRef<'r>, _run: &mut VerifyRun<'r>) -> bool {
        true
    }

    /// Whether chunks make up their tensor by the form of the format, as those of a regular grid do. Then
    /// the walk doesn't look for [faults](Self::fault). The default is no.
    fn is_grid(&self) -> bool {
        false
    }

    /// Adds what the walk has found of the chunks of a tensor: one reaches out of it, two overlap,
    /// or they leave a hole. The default adds it as damage.
    fn fault(&self, key: &'r str, fault: &Fault, run: &mut VerifyRun<'r>) {
        run.corrupt(key, fault.text());
    }

    /// Checks that the file has all of a chunk, and the bytes too if [`read`](ItemCheck::read) is
    /// set. Returns the number of bytes that were read. Items without a checksum and bytes that
    /// none covers are added to the report.
    ///
    /// # Errors
    /// The first problem of the chunk. The caller adds it to the report.
    async fn chunk(&mut self, item: ChunkCheck<'r>, run: &mut VerifyRun<'r>) -> Result<u64>;

    /// As [`chunk`](Self::chunk), for an object. One that is read must also decode.
    ///
    /// # Errors
    /// The first problem of the object. The caller adds it to the report.
    async fn object(&mut self, item: ObjectCheck<'r>, run: &mut VerifyRun<'r>) -> Result<u64>;

    /// Checks everything that belongs to no item of the metadata, and if all items were read counts
    /// the bytes between them. The default does nothing.
    ///
    /// # Errors
    /// Only errors that stop the whole check.
    async fn rest(&mut self, _run: &mut VerifyRun<'r>) -> Result<()> {
        Ok(())
    }

    /// Makes a finding of the error of an item. The default is [`Damage::of`].
    fn damage(&self, key: &str, e: &StrategyError) -> Damage {
        Damage::of(Some(key), e)
    }
}

/// A boxed [`ItemVerifier`].
pub type BoxVerifier<'r> = Box<dyn ItemVerifier<'r> + 'r>;

/// A request to check one stored item.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ItemCheck<'r, I> {
    /// The key of its tensor or object.
    pub key: &'r str,
    /// Its number.
    pub id: I,
    /// Whether all its bytes are read.
    pub read: bool,
}

/// A request to check a chunk.
pub type ChunkCheck<'r> = ItemCheck<'r, ChunkId>;

/// A request to check an object.
pub type ObjectCheck<'r> = ItemCheck<'r, ObjectId>;

/// The state of a running check: its settings and its findings.
#[derive(Debug)]
#[non_exhaustive]
pub struct VerifyRun<'r> {
    /// The findings so far.
    pub report: VerifyReport,
    /// The items that are read.
    pub items: &'r CheckedItems,
    /// Called with the number of bytes after each read.
    pub progress: &'r Progress,
    /// Kind and key of the last finding that was counted but not listed.
    counted: Option<(ErrorKind, &'r str)>,
}

impl<'r> VerifyRun<'r> {
    /// Adds an item that opening has refused. It is not in the metadata, so it is counted here.
    pub fn refuse(&mut self, key: &str, why: &Refused) {
        self.report.items += 1;
        self.report.add(why.kind, why.damage(key));
    }

    /// Adds damage of an item.
    pub fn corrupt(&mut self, key: &'r str, what: impl Into<String>) {
        self.add(ErrorKind::Corrupt, key, || Damage::new(what).of_key(key));
    }

    /// Adds the error of an item.
    pub fn error(&mut self, key: &'r str, e: &StrategyError) {
        self.add(e.kind(), key, || Damage::of(Some(key), e));
    }

    /// Adds a finding about a key. `found` is only called if the list has room for it.
    pub fn add(&mut self, kind: ErrorKind, key: &'r str, found: impl FnOnce() -> Damage) {
        if !self.report.is_full(kind) {
            return self.report.add(kind, found());
        }
        // There may be a million findings about chunks of one tensor. Its key, which may be long, is looked at once.
        let is_again = |(k, last): (ErrorKind, &str)| k == kind && std::ptr::eq(last, key);
        let rest = self.report.rest(kind);
        match self.counted.is_some_and(is_again) {
            true => rest.findings += 1,
            false => rest.count(Some(key)),
        }
        self.counted = Some((kind, key));
    }

    /// Adds the result of [`ItemVerifier::chunk`] or [`ItemVerifier::object`].
    pub fn note(&mut self, by: &dyn ItemVerifier<'r>, key: &'r str, found: Result<u64>) {
        match found {
            Ok(bytes) => self.report.bytes += bytes,
            Err(e) => self.add(e.kind(), key, || by.damage(key, &e)),
        }
    }

    /// Counts the bytes of these files that belong to no item. `sizes` are the lengths of the
    /// files, and `items` all parts of items, in any order.
    pub fn between(
        &mut self,
        sizes: &BTreeMap<Name, u64>,
        items: impl IntoIterator<Item = StorageInfo>,
    ) {
        let mut ranges: BTreeMap<Name, Vec<Range<u64>>> = BTreeMap::new();
        for StorageInfo { file, range, .. } in items {
            ranges.entry(file).or_default().push(range);
        }
        for (file, size) in sizes {
            let of_file = ranges.remove(file).unwrap_or_default();
            let covered = &mut self.report.not_covered;
            covered.add_between(file.as_str(), *size, of_file);
        }
    }
}

/// Checks all of a checkpoint.
pub(crate) async fn verify<'r, R: StorageReader + ?Sized>(
    reader: &'r R,
    items: &'r CheckedItems,
    progress: &'r Progress,
) -> Result<VerifyReport> {
    let mut run = VerifyRun {
        report: VerifyReport::default(),
        items,
        progress,
        counted: None,
    };
    let mut verifier = reader.verifier(&mut run).await?;
    for tensor in reader.metadata().tensors() {
        if !verifier.tensor(&tensor, &mut run).await {
            continue;
        }
        let key = tensor.key();
        if !verifier.is_grid()
            && let Some(fault) = tensor.fault()
        {
            verifier.fault(key, &fault, &mut run);
        }
        for (id, _) in tensor.chunks() {
            run.report.items += 1;
            let read = items.has_chunk(id);
            let found = verifier.chunk(ItemCheck { key, id, read }, &mut run).await;
            run.note(&*verifier, key, found);
        }
    }
    for (id, key) in reader.metadata().objects() {
        run.report.items += 1;
        let read = items.has_object(id);
        let found = verifier.object(ItemCheck { key, id, read }, &mut run).await;
        run.note(&*verifier, key, found);
    }
    verifier.rest(&mut run).await?;
    Ok(run.report)
}
