//! The archive as one extent: its head, the storages, and what stands between and behind them with their checksums.

use bytes::Bytes;
use reshard_storage::{Extent, Length};
use reshard_strategy::{Blocks, Result, StrategyError};
use reshard_torch_format::{Stored, archive::ArchiveLayout};
use std::{collections::VecDeque, io};

/// Elements that are written.
pub(super) struct Source {
    pub(super) blocks: Blocks,
    pub(super) bytes: u64,
}

/// The lengths of storages.
pub(super) fn lengths(storages: &[Stored], sources: &[Source]) -> Result<Vec<u64>> {
    let length = |stored: &Stored| match stored {
        Stored::Bytes(bytes) => Some(bytes.len() as u64),
        Stored::Described(n) => sources.get(*n).map(|source| source.bytes),
    };
    let lengths: Option<Vec<u64>> = storages.iter().map(length).collect();
    lengths.ok_or_else(|| StrategyError::Internal("a storage has no source".into()))
}

pub(super) struct FileExtent {
    layout: ArchiveLayout,
    head: Option<Bytes>,
    /// Those that are still to be written, in the order of the file, with their numbers.
    left: VecDeque<(usize, Blocks)>,
    crc: crc32fast::Hasher,
    /// By number.
    crcs: Vec<u32>,
    ended: bool,
    receipt: Bytes,
}

impl FileExtent {
    pub(super) fn new(
        layout: ArchiveLayout,
        storages: Vec<Stored>,
        sources: Vec<Source>,
        receipt: Bytes,
    ) -> Self {
        let mut sources: Vec<Option<Blocks>> =
            sources.into_iter().map(|s| Some(s.blocks)).collect();
        let mut blocks: Vec<Option<Blocks>> = storages
            .into_iter()
            .map(|stored| match stored {
                Stored::Bytes(bytes) => Some(Box::new(std::iter::once(Ok(bytes))) as Blocks),
                Stored::Described(n) => sources.get_mut(n).and_then(Option::take),
            })
            .collect();
        let order = layout.order().iter();
        let left = order.filter_map(|&n| Some((n, blocks.get_mut(n)?.take()?)));
        Self {
            left: left.collect(),
            head: Some(Bytes::copy_from_slice(layout.head())),
            crc: crc32fast::Hasher::new(),
            crcs: vec![0; layout.storages()],
            ended: false,
            layout,
            receipt,
        }
    }
}

impl Extent for FileExtent {
    fn length(&self) -> Length {
        Length::Exact(self.layout.len())
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        if let Some(head) = self.head.take() {
            return Some(Ok(head));
        }
        while let Some((number, blocks)) = self.left.front_mut() {
            match blocks.next() {
                Some(Ok(block)) if block.is_empty() => {}
                Some(Ok(block)) => {
                    self.crc.update(&block);
                    return Some(Ok(block));
                }
                Some(Err(e)) => return Some(Err(e)),
                None => {
                    let (number, crc) = (*number, std::mem::take(&mut self.crc).finalize());
                    if let Some(place) = self.crcs.get_mut(number) {
                        *place = crc;
                    }
                    self.left.pop_front();
                    let gap = self.layout.gap(number, crc);
                    if !gap.is_empty() {
                        return Some(Ok(gap.into()));
                    }
                }
            }
        }
        if std::mem::replace(&mut self.ended, true) {
            return None;
        }
        let tail = self.layout.finish(&self.crcs);
        Some(tail.map(Bytes::from).map_err(io::Error::other))
    }

    fn receipt(&mut self) -> Bytes {
        self.receipt.clone()
    }
}
