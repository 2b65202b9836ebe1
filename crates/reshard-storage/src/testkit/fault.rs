use crate::{
    Depth, Durability, Entry, FileBody, Head, IfExists, Leftover, Link, Listing, Name, Progress,
    RecordRead, Recovery, Removal, Result, Source, StorageError, Store, StoreExt, Traffic,
    Transaction, UnfinishedUpload, Written, WrittenExtent, record_read::reads, remove_by_record,
};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use std::{
    cmp::Ordering as CallOrder,
    fs::File,
    io,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// What a [`FaultStore`] can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "they are the methods of Store, Recovery and Transaction"
)]
pub enum Op {
    Read,
    ReadRanges,
    ReadInto,
    List,
    Remove,
    Head,
    Pinned,
    Resolved,
    Begin,
    Leftovers,
    RemoveLeftover,
    FinishReplacing,
    RemoveVersion,
    UnfinishedUploads,
    AbortUpload,
    Write,
    Commit,
    Rollback,
}

impl Op {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::Read,
        Self::ReadRanges,
        Self::ReadInto,
        Self::List,
        Self::Remove,
        Self::Head,
        Self::Pinned,
        Self::Resolved,
        Self::Begin,
        Self::Leftovers,
        Self::RemoveLeftover,
        Self::FinishReplacing,
        Self::RemoveVersion,
        Self::UnfinishedUploads,
        Self::AbortUpload,
        Self::Write,
        Self::Commit,
        Self::Rollback,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::ReadRanges => "read ranges of",
            Self::ReadInto => "read into",
            Self::List => "list",
            Self::Remove => "remove from",
            Self::Head => "look at",
            Self::Pinned => "pin",
            Self::Resolved => "resolve",
            Self::Begin => "begin",
            Self::Leftovers => "list leftovers of",
            Self::RemoveLeftover => "remove a leftover of",
            Self::FinishReplacing => "finish replacing",
            Self::RemoveVersion => "remove the version of",
            Self::UnfinishedUploads => "list the uploads of",
            Self::AbortUpload => "abort an upload of",
            Self::Write => "write to",
            Self::Commit => "commit",
            Self::Rollback => "rollback",
        }
    }
}

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It fails, and nothing was done.
    Before,
    /// It is done, and then says that it failed.
    After,
    /// Reads find that the file is cut. Other calls fail as by [`Before`](Self::Before).
    Short,
    /// Reads succeed, and one bit of what they read is wrong. Other calls succeed.
    FlippedBit,
    /// Writes say that they succeeded, and the last of their files is not there. Other calls succeed.
    Lost,
    /// Writes say that they succeeded, and the last of their files lacks its last byte. Other calls succeed.
    Cut,
}

#[derive(Debug)]
struct Planned {
    op: Op,
    /// Calls of `op` to let through first.
    wait: u64,
    fault: Fault,
}

/// When the process dies, as far as the store sees it.
#[derive(Debug, Default)]
struct Death {
    /// Calls so far, of any kind.
    calls: u64,
    at: Option<(u64, Fault)>,
}

impl Death {
    /// What happens to the next call.
    fn next(&mut self) -> Option<Fault> {
        let call = self.calls;
        self.calls += 1;
        let (at, fault) = self.at?;
        match call.cmp(&at) {
            CallOrder::Less => None,
            CallOrder::Equal => Some(fault),
            CallOrder::Greater => Some(Fault::Before),
        }
    }
}

/// Fails chosen calls; all others go through.
#[derive(Clone, Debug)]
pub struct FaultStore {
    inner: Arc<dyn Store>,
    plan: Arc<Mutex<Vec<Planned>>>,
    death: Arc<Mutex<Death>>,
    flip: Arc<AtomicBool>,
}

impl FaultStore {
    /// Around another store; without faults yet.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            plan: Arc::default(),
            death: Arc::default(),
            flip: Arc::default(),
        }
    }

    /// Around another store, with the same faults: a call of either counts for both.
    pub fn around(&self, inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            ..self.clone()
        }
    }

    /// Fails the `nth` call of `op` from now on; 0 is the next one.
    pub fn fail(&self, op: Op, nth: u64, fault: Fault) {
        self.plan
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Planned {
                op,
                wait: nth,
                fault,
            });
    }

    /// Fails the `nth` call of any kind, 0 is the first one of all, and all calls after it, as if the process had been killed there. Each
    /// file of a write is a call of its own then.
    pub fn die(&self, nth: u64, fault: Fault) {
        self.lock_death().at = Some((nth, fault));
    }

    /// How many calls there were, of any kind.
    pub fn calls(&self) -> u64 {
        self.lock_death().calls
    }

    fn lock_death(&self) -> MutexGuard<'_, Death> {
        self.death.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn due(&self, op: Op) -> Option<Fault> {
        if let Some(fault) = self.lock_death().next() {
            return Some(fault);
        }
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let mut due = None;
        plan.retain_mut(|p| {
            if p.op != op {
                return true;
            }
            if p.wait > 0 {
                p.wait -= 1;
                return true;
            }
            due = Some(p.fault);
            false
        });
        due
    }

    fn error(&self, op: Op) -> StorageError {
        StorageError::Io {
            action: op.name(),
            path: self.inner.url(),
            source: io::Error::other("injected fault"),
        }
    }

    async fn with<T>(&self, op: Op, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.faulty(self.due(op), op, work).await
    }

    async fn faulty<T>(
        &self,
        fault: Option<Fault>,
        op: Op,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match fault {
            Some(Fault::Before | Fault::Short) => Err(self.error(op)),
            Some(Fault::After) => {
                work.await?;
                Err(self.error(op))
            }
            Some(Fault::FlippedBit | Fault::Lost | Fault::Cut) | None => work.await,
        }
    }

    fn short(&self, name: &Name, range: Range<u64>) -> StorageError {
        let size = range.start + (range.end - range.start) / 2;
        StorageError::Short {
            path: format!("{}/{name}", self.inner.url()),
            range,
            size,
        }
    }
}

fn flipped(bytes: &Bytes) -> Bytes {
    let mut bytes = BytesMut::from(&bytes[..]);
    let middle = bytes.len() / 2;
    if let Some(b) = bytes.get_mut(middle) {
        *b ^= 0x10;
    }
    bytes.freeze()
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for FaultStore {
    crate::forward! { inner: url identity hints tags }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        let fault = self.due(Op::Read);
        let flip = fault == Some(Fault::FlippedBit)
            || (range.start < range.end && self.flip.swap(false, Ordering::Relaxed));
        match fault {
            Some(Fault::Before) => return Err(self.error(Op::Read)),
            Some(Fault::Short) => return Err(self.short(name, range)),
            _ => {}
        }
        let bytes = self.inner.read(name, range).await?;
        if fault == Some(Fault::After) {
            return Err(self.error(Op::Read));
        }
        Ok(if flip { flipped(&bytes) } else { bytes })
    }

    async fn read_all(&self, name: &Name, max: u64) -> Result<Option<Bytes>> {
        // It fails as its two parts do.
        let path = || format!("{}/{name}", self.inner.url());
        match self.head(name).await?.map(|head| head.bytes) {
            None => Ok(None),
            Some(size) if size > max => Err(StorageError::Longer {
                path: path(),
                size,
                max,
            }),
            Some(size) => self.read(name, 0..size).await.map(Some),
        }
    }

    async fn read_ranges(&self, reads: Vec<(Name, Range<u64>)>) -> Result<(Vec<Bytes>, Traffic)> {
        let fault = self.due(Op::ReadRanges);
        if let (Some(Fault::Short), Some((name, range))) = (fault, reads.first()) {
            return Err(self.short(name, range.clone()));
        }
        if fault == Some(Fault::Before) {
            return Err(self.error(Op::ReadRanges));
        }
        let (mut all, stats) = self.inner.read_ranges(reads).await?;
        match fault {
            Some(Fault::After) => return Err(self.error(Op::ReadRanges)),
            Some(Fault::FlippedBit) => {
                if let Some(b) = all.iter_mut().find(|b| !b.is_empty()) {
                    *b = flipped(b);
                }
            }
            _ => {}
        }
        Ok((all, stats))
    }

    async fn read_into(&self, reads: Vec<RecordRead>, progress: Progress) -> Result<Traffic> {
        let fault = self.due(Op::ReadInto);
        if let (Some(Fault::Short), Some(g)) = (fault, reads.first()) {
            return Err(self.short(&g.name, g.record.clone()));
        }
        match fault {
            Some(Fault::Before) => Err(self.error(Op::ReadInto)),
            Some(Fault::After) => {
                self.inner.read_into(reads, progress).await?;
                Err(self.error(Op::ReadInto))
            }
            Some(Fault::FlippedBit) => {
                // By reads, which pass here.
                self.flip.store(true, Ordering::Relaxed);
                let outcome = reads::read_into(self, reads, progress).await;
                self.flip.store(false, Ordering::Relaxed);
                outcome
            }
            _ => self.inner.read_into(reads, progress).await,
        }
    }

    async fn list(&self, below: Option<&Name>, depth: Depth) -> Result<Listing> {
        self.with(Op::List, self.inner.list(below, depth)).await
    }

    async fn head(&self, name: &Name) -> Result<Option<Head>> {
        self.with(Op::Head, self.inner.head(name)).await
    }

    async fn remove(&self, names: &[Name]) -> Result<()> {
        self.with(Op::Remove, self.inner.remove(names)).await
    }

    async fn pinned(&self) -> Result<Option<Arc<dyn Store>>> {
        let inner = self.with(Op::Pinned, self.inner.pinned()).await?;
        Ok(inner.map(|inner| {
            Arc::new(Self {
                inner,
                ..self.clone()
            }) as _
        }))
    }

    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>> {
        let inner = self
            .with(Op::Begin, self.inner.begin(attempt, if_exists))
            .await?;
        Ok(Arc::new(FaultTransaction {
            inner,
            store: self.clone(),
        }))
    }

    async fn resolved(&self) -> Result<Option<Arc<dyn Store>>> {
        let inner = self.with(Op::Resolved, self.inner.resolved()).await?;
        Ok(inner.map(|inner| {
            Arc::new(Self {
                inner,
                ..self.clone()
            }) as _
        }))
    }

    crate::forward! { again inner: of_kind }

    async fn local_file(&self, _: &Name) -> Result<Option<File>> {
        // What is linked would not be read through here.
        Ok(None)
    }

    async fn links(&self) -> Result<Vec<Link>> {
        self.with(Op::List, self.inner.links()).await
    }

    async fn begin_dry_run(
        &self,
        attempt: &str,
        if_exists: IfExists,
    ) -> Result<Arc<dyn Transaction>> {
        self.with(Op::Begin, self.inner.begin_dry_run(attempt, if_exists))
            .await
    }

    async fn join(&self, attempt: &str, place: Option<&str>) -> Result<Arc<dyn Transaction>> {
        let inner = self
            .with(Op::Begin, self.inner.join(attempt, place))
            .await?;
        Ok(Arc::new(FaultTransaction {
            inner,
            store: self.clone(),
        }))
    }

    fn recovery(&self) -> Option<&dyn Recovery> {
        self.inner.recovery().map(|_| self as _)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Recovery for FaultStore {
    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        self.with(Op::Leftovers, self.inner.leftovers()).await
    }

    async fn remove_leftover(&self, left: &Leftover) -> Result<()> {
        self.with(Op::RemoveLeftover, self.inner.remove_leftover(left))
            .await
    }

    async fn finish_replacing(&self, left: &Leftover, files: &[Name]) -> Result<()> {
        self.with(
            Op::FinishReplacing,
            self.inner.finish_replacing(left, files),
        )
        .await
    }

    fn removal(&self) -> Removal {
        self.inner.recovery().map_or(Removal::No, Recovery::removal)
    }

    async fn remove_version(
        &self,
        attempt: &str,
        record: Option<&Name>,
        files: &[Name],
    ) -> Result<()> {
        // Each of its steps may fail.
        if Recovery::removal(self) == Removal::Record {
            return remove_by_record(self, record, files).await;
        }
        let work = self.inner.remove_version(attempt, record, files);
        self.with(Op::RemoveVersion, work).await
    }

    async fn unfinished_uploads(&self) -> Result<Vec<UnfinishedUpload>> {
        self.with(Op::UnfinishedUploads, self.inner.unfinished_uploads())
            .await
    }

    async fn abort_upload(&self, upload: &UnfinishedUpload) -> Result<()> {
        self.with(Op::AbortUpload, self.inner.abort_upload(upload))
            .await
    }
}

#[derive(Debug)]
struct FaultTransaction {
    inner: Arc<dyn Transaction>,
    store: FaultStore,
}

impl FaultTransaction {
    /// Writes less than was asked for, and says that it was all.
    async fn damaged(
        &self,
        fault: Fault,
        mut files: Vec<FileBody>,
        durability: Durability,
        progress: Progress,
    ) -> Result<Vec<Written>> {
        // What would have been said of each file.
        let mut said = Vec::with_capacity(files.len());
        for file in &mut files {
            let (mut bytes, mut extents) = (BytesMut::new(), Vec::new());
            let name = file.name.clone();
            let (_, source) =
                std::mem::replace(file, FileBody::from_bytes(name.clone(), Bytes::new()))
                    .into_extents()
                    .await?;
            for mut extent in source {
                let start = bytes.len() as u64;
                while let Some(block) = extent.next_block() {
                    bytes.extend_from_slice(&block.unwrap());
                }
                let range = start..bytes.len() as u64;
                extents.push(WrittenExtent::of(&mut *extent, range));
            }
            said.push(Written {
                name: name.clone(),
                bytes: bytes.len() as u64,
                extents,
            });
            *file = FileBody::from_bytes(name, bytes.freeze());
        }
        if let Some(last) = files.pop()
            && fault == Fault::Cut
            && let Source::Extents(mut extents) = last.source
        {
            let mut bytes = extents
                .pop()
                .and_then(|mut e| e.next_block())
                .transpose()
                .unwrap()
                .unwrap_or_default();
            bytes.truncate(bytes.len().saturating_sub(1));
            files.push(FileBody::from_bytes(last.name, bytes));
        }
        self.inner.write(files, durability, progress).await?;
        Ok(said)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Transaction for FaultTransaction {
    crate::forward! { inner: read place folder written }

    async fn write(
        &self,
        files: Vec<FileBody>,
        durability: Durability,
        progress: Progress,
    ) -> Result<Vec<Written>> {
        if self.store.lock_death().at.is_some() && files.len() > 1 {
            let mut written = Vec::new();
            for file in files {
                written.extend(self.write(vec![file], durability, progress.clone()).await?);
            }
            return Ok(written);
        }
        match self.store.due(Op::Write) {
            Some(fault @ (Fault::Lost | Fault::Cut)) => {
                self.damaged(fault, files, durability, progress).await
            }
            fault => {
                let work = self.inner.write(files, durability, progress);
                self.store.faulty(fault, Op::Write, work).await
            }
        }
    }

    async fn commit(
        &self,
        record: Option<(Name, Bytes)>,
        files: &[Entry],
        durability: Durability,
    ) -> Result<()> {
        self.store
            .with(Op::Commit, self.inner.commit(record, files, durability))
            .await
    }

    async fn rollback(&self) -> Result<()> {
        self.store.with(Op::Rollback, self.inner.rollback()).await
    }
}
