//! Looks for damage without loading anything. The walk over all items is the same for every format, and each format checks its items.

use crate::{
    CheckedItems, Damage, Result, StorageInfo, StorageReader, StrategyError, VerifyReport,
};
use async_trait::async_trait;
use reshard_model::ErrorKind;
use reshard_plan::{ChunkId, ObjectId, TensorRef};
use reshard_storage::{Name, Progress};
use std::{collections::BTreeMap, ops::Range};

/// The checks of a format, for one check of a checkpoint. The methods are called in this order: for each tensor [`tensor`](Self::tensor)
/// and [`chunk`](Self::chunk) for its chunks, [`object`](Self::object) for each object, and [`rest`](Self::rest).
#[async_trait]
pub trait ItemVerifier<'r>: Send + Sync {
    /// Checks what is said of a tensor, before its chunks. With `false` the chunks are neither counted nor checked. The default finds
    /// nothing.
    async fn tensor(&mut self, _tensor: &TensorRef<'r>, _run: &mut VerifyRun<'r>) -> bool {
        true
    }

    /// Checks that a chunk is in its file, and with [`read`](ItemCheck::read) all its bytes. Returns how many bytes were read.
    ///
    /// # Errors
    /// The first problem of the chunk, which goes into the report.
    async fn chunk(&mut self, item: ChunkCheck<'r>, run: &mut VerifyRun<'r>) -> Result<u64>;

    /// Checks that an object is in its file, and with [`read`](ItemCheck::read) all its bytes, and that they can be decoded. Returns how
    /// many bytes were read.
    ///
    /// # Errors
    /// The first problem of the object, which goes into the report.
    async fn object(&mut self, item: ObjectCheck<'r>, run: &mut VerifyRun<'r>) -> Result<u64>;

    /// Checks what belongs to no item of the metadata, and after all items were read counts the bytes between them. The default does nothing.
    ///
    /// # Errors
    /// Only errors that stop the whole check.
    async fn rest(&mut self, _run: &mut VerifyRun<'r>) -> Result<()> {
        Ok(())
    }

    /// Describes the error of an item. The default is [`Damage::of`].
    fn damage(&self, key: &str, e: &StrategyError) -> Damage {
        Damage::of(Some(key), e)
    }
}

/// The checks of a checkpoint's items, as [`StorageReader::verifier`] returns them.
pub type BoxVerifier<'r> = Box<dyn ItemVerifier<'r> + 'r>;

/// A stored item that is checked.
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

/// A chunk that is checked.
pub type ChunkCheck<'r> = ItemCheck<'r, ChunkId>;

/// An object that is checked.
pub type ObjectCheck<'r> = ItemCheck<'r, ObjectId>;

/// A check that is running.
#[derive(Debug)]
#[non_exhaustive]
pub struct VerifyRun<'r> {
    /// The findings so far.
    pub report: VerifyReport,
    /// The items that are read.
    pub items: &'r CheckedItems,
    /// Is called with the bytes that were read.
    pub progress: &'r Progress,
    /// The last finding that is not listed.
    counted: Option<(ErrorKind, &'r str)>,
}

impl<'r> VerifyRun<'r> {
    /// Adds an item that opening has refused. It is not in the metadata, so it is counted here.
    pub fn refuse(&mut self, kind: ErrorKind, found: Damage) {
        self.report.items += 1;
        self.report.add(kind, found);
    }

    /// Adds damage of a key.
    pub fn corrupt(&mut self, key: &'r str, what: impl Into<String>) {
        self.add(ErrorKind::Corrupt, key, || Damage::new(what).of_key(key));
    }

    /// Adds an error about a key.
    pub fn error(&mut self, key: &'r str, e: &StrategyError) {
        self.add(e.kind(), key, || Damage::of(Some(key), e));
    }

    /// Adds a finding about a key. It is only made if it is listed.
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

    /// Adds the result of an item: the bytes that were read, or what is wrong.
    pub fn note(&mut self, by: &dyn ItemVerifier<'r>, key: &'r str, found: Result<u64>) {
        match found {
            Ok(bytes) => self.report.bytes += bytes,
            Err(e) => self.add(e.kind(), key, || by.damage(key, &e)),
        }
    }

    /// Counts the bytes of files with these sizes that no item has. `items` are all parts of items, in any order.
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
