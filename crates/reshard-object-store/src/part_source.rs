//! Cuts the contents of a file into parts of equal size.

use bytes::{Bytes, BytesMut};
use reshard_storage::{
    Extent, ExtentReader, FileBody, Length, Name, Result, Source, StorageError, Store, StoreExt,
    WrittenExtent, run_blocking,
};
use std::{sync::Arc, vec};

/// Blocks that are shorter are gathered in one buffer, so that a part never has many of them.
const SMALL: usize = 16 << 10;

/// The blocks of one part. All parts but the last have the size that was asked for.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) blocks: Vec<Bytes>,
    pub(crate) bytes: u64,
    pub(crate) is_last: bool,
}

/// Where the parts of a file come from.
pub(crate) enum PartSource {
    Extents(Box<Pull>),
    Copy(CopyOf),
}

impl PartSource {
    /// Parts of a file, and its length as far as it is known.
    pub(crate) async fn new(body: FileBody) -> Result<(Self, Length)> {
        let too_long =
            || StorageError::invalid(format!("{}: its length does not fit 64 bits", body.name));
        let length = body.length().ok_or_else(too_long)?;
        Ok(match body.source {
            Source::Extents(extents) => {
                let pull = Pull {
                    name: body.name,
                    waiting: extents.into_iter(),
                    current: None,
                    at: 0,
                    rest: Bytes::new(),
                    written: Vec::new(),
                };
                (Self::Extents(Box::new(pull)), length)
            }
            Source::CopyOf { store, name } => {
                let bytes = store.len(&name).await?;
                let bytes = bytes.ok_or_else(|| StorageError::NotFound {
                    path: format!("{}/{name}", store.url()),
                })?;
                let copy = CopyOf {
                    store,
                    name,
                    at: 0,
                    bytes,
                };
                (Self::Copy(copy), Length::Exact(bytes))
            }
        })
    }

    /// The next part. Extents are pulled on I/O threads, because they compute and may block.
    pub(crate) async fn next(self, size: u64) -> Result<(Self, Part)> {
        match self {
            Self::Extents(mut pull) => {
                let work = move || {
                    let part = pull.part(size);
                    (pull, part)
                };
                let done = run_blocking([work]).await?.pop();
                let (pull, part) = done.ok_or_else(|| StorageError::Internal {
                    what: "a task ended without an outcome".into(),
                })?;
                Ok((Self::Extents(pull), part?))
            }
            Self::Copy(mut copy) => {
                let part = copy.part(size).await?;
                Ok((Self::Copy(copy), part))
            }
        }
    }

    /// The extents that were written. A copy has none.
    pub(crate) fn written(self) -> Vec<WrittenExtent> {
        match self {
            Self::Extents(pull) => pull.written,
            Self::Copy(_) => Vec::new(),
        }
    }
}

/// A file of another place.
pub(crate) struct CopyOf {
    store: Arc<dyn Store>,
    name: Name,
    at: u64,
    bytes: u64,
}

impl CopyOf {
    async fn part(&mut self, size: u64) -> Result<Part> {
        let end = self.bytes.min(self.at.saturating_add(size));
        let block = match self.at < end {
            true => self.store.read(&self.name, self.at..end).await?,
            false => Bytes::new(),
        };
        self.at = end;
        Ok(Part {
            bytes: block.len() as u64,
            blocks: vec![block],
            is_last: end == self.bytes,
        })
    }
}

/// The extents of a file, one after the other.
pub(crate) struct Pull {
    name: Name,
    waiting: vec::IntoIter<Box<dyn Extent>>,
    current: Option<ExtentReader>,
    /// Where the next extent starts.
    at: u64,
    /// What the last part had no room for.
    rest: Bytes,
    written: Vec<WrittenExtent>,
}

impl Pull {
    fn part(&mut self, size: u64) -> Result<Part> {
        let mut part = Part::default();
        let mut small = BytesMut::new();
        while part.bytes < size && self.fetch()? {
            let room = usize::try_from(size - part.bytes).unwrap_or(usize::MAX);
            let block = self.rest.split_to(room.min(self.rest.len()));
            part.bytes += block.len() as u64;
            if block.len() < SMALL {
                small.extend_from_slice(&block);
                continue;
            }
            if !small.is_empty() {
                part.blocks.push(small.split().freeze());
            }
            part.blocks.push(block);
        }
        if !small.is_empty() {
            part.blocks.push(small.freeze());
        }
        part.is_last = !self.fetch()?;
        Ok(part)
    }

    /// Makes sure that there is a rest. `false` if all extents have ended.
    fn fetch(&mut self) -> Result<bool> {
        while self.rest.is_empty() {
            let next = || Some(ExtentReader::new(self.waiting.next()?, self.at));
            let Some(mut current) = self.current.take().or_else(next) else {
                return Ok(false);
            };
            match current.next_block(&self.name)? {
                Some(block) => {
                    self.rest = block;
                    self.current = Some(current);
                }
                None => {
                    let written = current.finish();
                    self.at = written.range.end;
                    self.written.push(written);
                }
            }
        }
        Ok(true)
    }
}
