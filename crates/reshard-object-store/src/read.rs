//! Reading ranges of objects.

use crate::{
    client::Client,
    fault,
    pin::{Pins, is_strong, same_tag},
    runtime::Task,
};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{GetOptions, GetRange, GetResult, path::Path};
use reshard_storage::{Result, StorageError, TakePiece};
use std::{
    future::ready,
    ops::{Range, RangeInclusive},
};
use tokio::sync::mpsc;

/// So many pieces of a body may wait for the reader. The network waits for it too, then.
const WAITING: usize = 4;

/// An object to read.
pub(crate) struct Object<'a> {
    pub(crate) client: &'a Client,
    pub(crate) path: Path,
    /// For messages.
    pub(crate) url: String,
    pub(crate) pins: Option<&'a Pins>,
}

/// What was read, and what came with it.
struct Got {
    bytes: Bytes,
    tag: Option<String>,
}

/// Why an object could not be read.
enum Failed {
    Client(object_store::Error),
    /// The object has only so many bytes, or as many.
    Length(u64),
}

impl Object<'_> {
    /// Reads exactly this range. A long one takes several requests at once.
    pub(crate) async fn range(&self, range: Range<u64>) -> Result<Bytes> {
        if range.start > range.end {
            let what = format!("{}: a range ends before it starts", self.url);
            return Err(StorageError::invalid(what));
        }
        if range.is_empty() {
            return self.nothing(range).await;
        }
        let part = self.client.hints.part_size.max(1);
        let first_end = range.end.min(range.start.saturating_add(part));
        let first = self
            .one(range.start..first_end, range.end, self.pinned())
            .await?;
        if first_end == range.end {
            return Ok(first.bytes);
        }

        // The first answer has told that the object is long enough, so the memory is not more than it has.
        let tag = &first.tag;
        let condition = &tag.clone().filter(|tag| is_strong(tag));
        let starts = (first_end..range.end).step_by(usize::try_from(part).unwrap_or(usize::MAX));
        let rest = stream::iter(starts)
            .map(|start| async move {
                let end = range.end.min(start.saturating_add(part));
                let got = self.one(start..end, range.end, condition.clone()).await?;
                match (tag, &got.tag) {
                    (Some(first), Some(tag)) if !same_tag(first, tag) => Err(self.gone()),
                    _ => Ok(got),
                }
            })
            .buffered(self.client.hints.concurrency.max(1));
        let whole = usize::try_from(range.end - range.start);
        let whole = whole.map_err(|_| {
            StorageError::invalid(format!("{}: the range does not fit in memory", self.url))
        })?;
        let mut all = BytesMut::with_capacity(whole);
        all.extend_from_slice(&first.bytes);
        let mut rest = std::pin::pin!(rest);
        while let Some(got) = rest.try_next().await? {
            all.extend_from_slice(&got.bytes);
        }
        Ok(all.freeze())
    }

    /// Reads all of it with one request, if it has at most `max` bytes. `None` if it does not exist.
    pub(crate) async fn whole(&self, max: u64) -> Result<Option<Bytes>> {
        let got = self.get(None, 0..=max, self.pinned(), |found| {
            let size = found.meta.size;
            collect(found, size)
        });
        match got.await?.map_err(|e| self.error(e))? {
            Ok(got) => {
                self.agreed(got.tag.as_deref())?;
                Ok(Some(got.bytes))
            }
            Err(Failed::Length(size)) => Err(StorageError::Longer {
                path: self.url.clone(),
                size,
                max,
            }),
            Err(Failed::Client(e)) => match self.error(e) {
                StorageError::NotFound { .. } => Ok(None),
                e => Err(e),
            },
        }
    }

    fn pinned(&self) -> Option<String> {
        self.pins.and_then(|pins| pins.of(&self.path))
    }

    /// An empty range needs an object that reaches so far.
    async fn nothing(&self, range: Range<u64>) -> Result<Bytes> {
        let size = self.size().await?;
        if range.end > size {
            let path = self.url.clone();
            return Err(StorageError::Short { path, range, size });
        }
        Ok(Bytes::new())
    }

    async fn size(&self) -> Result<u64> {
        let found = self
            .client
            .head(self.path.clone(), self.pinned())
            .await?
            .map_err(|e| self.error(e))?;
        Ok(found.ok_or_else(|| self.missing())?.size)
    }

    /// Reads exactly this range, and passes on each piece of it when it comes. What is not longer than a part takes one request.
    pub(crate) async fn pieces(&self, range: Range<u64>, take: &mut TakePiece<'_>) -> Result<()> {
        let is_part = range
            .end
            .checked_sub(range.start)
            .is_some_and(|bytes| 0 < bytes && bytes <= self.client.hints.part_size);
        if !is_part {
            take(&self.range(range).await?);
            return Ok(());
        }
        let (sender, mut receiver) = mpsc::channel(WAITING);
        let len = range.end - range.start;
        let got = self.get(
            Some(range.clone()),
            range.end..=u64::MAX,
            self.pinned(),
            move |found| async move {
                let (tag, sender) = (found.meta.e_tag.clone(), &sender);
                // If nobody takes it any more, this task is called off at once.
                let send = |bytes| async move { sender.send(bytes).await.unwrap_or_default() };
                pass_on(found, len, send).await.map(|()| tag)
            },
        );
        while let Some(piece) = receiver.recv().await {
            take(&piece);
        }
        let tag = self.answered(got.await?, &range, range.end).await?;
        self.agreed(tag.as_deref())
    }

    /// One request. The whole read goes until `end`, so an object that ends before is too short, even if this part is there.
    async fn one(&self, range: Range<u64>, end: u64, tag: Option<String>) -> Result<Got> {
        let len = range.end - range.start;
        let size = end..=u64::MAX;
        let got = self.get(Some(range.clone()), size, tag, move |found| {
            collect(found, len)
        });
        let got = self.answered(got.await?, &range, end).await?;
        self.agreed(got.tag.as_deref())?;
        Ok(got)
    }

    /// Starts a request for a range of an object, or for all of it, and lets `with` take the answer if the object has one of these sizes.
    fn get<T, F>(
        &self,
        range: Option<Range<u64>>,
        sizes: RangeInclusive<u64>,
        tag: Option<String>,
        with: impl FnOnce(GetResult) -> F + Send + 'static,
    ) -> Task<object_store::Result<Result<T, Failed>>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failed>> + Send + 'static,
    {
        let options = GetOptions {
            range: range.map(GetRange::Bounded),
            if_match: tag,
            ..GetOptions::default()
        };
        let path = self.path.clone();
        self.client.ask(|store| async move {
            Ok(match store.get_opts(&path, options).await {
                Err(e) => Err(Failed::Client(e)),
                Ok(found) if sizes.contains(&found.meta.size) => with(found).await,
                Ok(found) => Err(Failed::Length(found.meta.size)),
            })
        })
    }

    /// What came of a request for a range of a read that goes until `end`.
    async fn answered<T>(
        &self,
        got: object_store::Result<Result<T, Failed>>,
        range: &Range<u64>,
        end: u64,
    ) -> Result<T> {
        let short = |size| StorageError::Short {
            path: self.url.clone(),
            range: range.start..end,
            size,
        };
        match got.map_err(|e| self.error(e))? {
            Ok(got) => Ok(got),
            Err(Failed::Length(size)) => Err(short(size)),
            Err(Failed::Client(e)) => {
                // A range that begins behind the end is an error of its own in each service. Only a second request tells.
                let may_be_short = matches!(e, object_store::Error::Generic { .. });
                match may_be_short && !fault::is_unsupported(&e) {
                    true => match self.size().await {
                        Ok(size) if size < end => Err(short(size)),
                        _ => Err(self.error(e)),
                    },
                    false => Err(self.error(e)),
                }
            }
        }
    }

    /// Refuses what comes from another version of the object than what was read before.
    fn agreed(&self, tag: Option<&str>) -> Result<()> {
        match self.pins {
            Some(pins) if !pins.agree(&self.path, tag) => Err(self.gone()),
            _ => Ok(()),
        }
    }

    /// The object was replaced since it was read first, so the version is gone.
    fn gone(&self) -> StorageError {
        StorageError::Replaced {
            path: self.url.clone(),
        }
    }

    /// There is no such object now.
    fn missing(&self) -> StorageError {
        match self.pins.is_some_and(|pins| pins.has(&self.path)) {
            true => self.gone(),
            false => StorageError::NotFound {
                path: self.url.clone(),
            },
        }
    }

    fn error(&self, e: object_store::Error) -> StorageError {
        match e {
            object_store::Error::Precondition { .. } => self.gone(),
            e => match self.client.error("read", &self.url, e) {
                StorageError::NotFound { .. } => self.missing(),
                e => e,
            },
        }
    }
}

/// Takes a body as one piece of memory.
async fn collect(found: GetResult, len: u64) -> Result<Got, Failed> {
    let tag = found.meta.e_tag.clone();
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    let join = |bytes: Bytes| {
        // A body that comes in one piece is not copied.
        if first.is_empty() && all.is_empty() {
            first = bytes;
            return ready(());
        }
        if all.is_empty() {
            all.reserve(usize::try_from(len).unwrap_or(0));
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&bytes);
        ready(())
    };
    pass_on(found, len, join).await?;
    let bytes = if all.is_empty() { first } else { all.freeze() };
    Ok(Got { bytes, tag })
}

/// Passes on the pieces of a body. Its length was promised, so more or less is an error.
async fn pass_on<F: Future<Output = ()>>(
    found: GetResult,
    len: u64,
    mut take: impl FnMut(Bytes) -> F,
) -> Result<(), Failed> {
    let odd = |what: String| {
        Failed::Client(object_store::Error::Generic {
            store: "answer",
            source: what.into(),
        })
    };
    if found.range.end - found.range.start != len {
        return Err(odd(format!(
            "it has bytes {:?}, and {len} bytes were asked for",
            found.range
        )));
    }
    let mut body = found.into_stream();
    let mut got = 0u64;
    while let Some(bytes) = body.try_next().await.map_err(Failed::Client)? {
        got = got.saturating_add(bytes.len() as u64);
        if got > len {
            return Err(odd(format!("it is longer than {len} bytes")));
        }
        take(bytes).await;
    }
    if got != len {
        return Err(odd(format!("it ends after {got} of {len} bytes")));
    }
    Ok(())
}
