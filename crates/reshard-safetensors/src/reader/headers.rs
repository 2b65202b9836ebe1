//! Headers that opening has not read, because the record of reshard says the same.

use super::{SafetensorsReader, tensor};
use reshard_plan::ChunkId;
use reshard_storage::Name;
use reshard_strategy::{ReadTensor, Result, Selection, StrategyError};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::OnceLock,
};

/// What is wrong with a header that is not the one that reshard noted.
pub(crate) const CHANGED: &str = "its header is not the one that was written, judging by reshard-safetensors.json; if it was changed on purpose, remove reshard-safetensors.json";

/// So many headers are read in one call, and of so many bytes, except that one always is.
const AT_ONCE: (usize, u64) = (256, 32 << 20);

/// By the numbers of their files.
#[derive(Debug, Default)]
pub(crate) struct UnreadHeaders(BTreeMap<u32, UnreadHeader>);

#[derive(Debug)]
struct UnreadHeader {
    /// Where the first tensor begins.
    end: u64,
    /// The CRC-32 of all bytes before it, as they were written.
    crc: u32,
    /// Whether it is the written one, since it was read after all.
    is_written: OnceLock<bool>,
}

impl UnreadHeaders {
    /// Adds the header of a file.
    pub(crate) fn add(&mut self, file: u32, end: u64, crc: u32) {
        let is_written = OnceLock::new();
        let unread = UnreadHeader {
            end,
            crc,
            is_written,
        };
        self.0.insert(file, unread);
    }
}

impl SafetensorsReader {
    /// Looks at the headers of files of which a read takes what no checksum covers: then nothing else tells that the bytes are those that are wanted.
    /// Returns how many requests that took, and how many bytes.
    ///
    /// # Errors
    /// A header is not the written one.
    pub(super) async fn look_before(
        &self,
        reads: &[ReadTensor],
        verify: bool,
    ) -> Result<(u64, u64)> {
        let mut of_chunk: BTreeMap<ChunkId, Vec<&Selection>> = BTreeMap::new();
        for read in reads.iter().filter(|_| !self.unread.0.is_empty()) {
            let of = of_chunk.entry(read.selection.chunk).or_default();
            of.push(&read.selection);
        }
        let mut needed: BTreeMap<u32, ChunkId> = BTreeMap::new();
        for (id, selections) in of_chunk {
            let unread = self.chunks.get(id.0 as usize);
            let unread = unread.filter(|chunk| self.unread.0.contains_key(&chunk.file));
            let Some(chunk) = unread.filter(|chunk| !needed.contains_key(&chunk.file)) else {
                continue;
            };
            let all = || -> Result<bool> {
                let layout = self.stored(id)?.layout;
                Ok(Selection::cover_once(&selections, layout.elements()))
            };
            if !verify || chunk.crc.is_none() || !all()? {
                needed.insert(chunk.file, id);
            }
        }
        let files: BTreeSet<u32> = needed.keys().copied().collect();
        let read = self.read_headers(&files).await?;
        for (file, id) in needed {
            if self.is_changed(file) {
                let stored = self.stored(id)?;
                let what = format!("{}: {CHANGED}", tensor(stored.key));
                return Err(StrategyError::corrupt(stored.file, None, what));
            }
        }
        Ok(read)
    }

    /// The files whose headers were not read when the checkpoint was opened, and are not the written ones.
    pub(super) async fn changed(&self) -> Result<BTreeSet<u32>> {
        let all: BTreeSet<u32> = self.unread.0.keys().copied().collect();
        self.read_headers(&all).await?;
        Ok(all.into_iter().filter(|n| self.is_changed(*n)).collect())
    }

    fn is_changed(&self, file: u32) -> bool {
        let unread = self.unread.0.get(&file);
        unread.is_some_and(|unread| unread.is_written.get() == Some(&false))
    }

    /// Reads the headers of these files that were not read yet.
    async fn read_headers(&self, files: &BTreeSet<u32>) -> Result<(u64, u64)> {
        let mut left: Vec<(&Name, &UnreadHeader)> = Vec::new();
        for (n, unread) in &self.unread.0 {
            let wanted = files.contains(n) && unread.is_written.get().is_none();
            left.extend(
                self.files
                    .get(*n as usize)
                    .filter(|_| wanted)
                    .map(|name| (name, unread)),
            );
        }
        let (mut requests, mut bytes) = (0, 0);
        let mut left = &left[..];
        while !left.is_empty() {
            let mut sum = 0u64;
            let fits = |(_, unread): &&(&Name, &UnreadHeader)| {
                sum = sum.saturating_add(unread.end);
                sum <= AT_ONCE.1
            };
            let count = left.iter().take(AT_ONCE.0).take_while(fits).count();
            let (part, rest) = left.split_at(count.max(1));
            left = rest;
            let ranges = part
                .iter()
                .map(|(name, unread)| ((*name).clone(), 0..unread.end));
            let (texts, traffic) = self.store.read_ranges(ranges.collect()).await?;
            requests += traffic.requests;
            bytes += traffic.bytes + traffic.beside;
            for ((_, unread), text) in part.iter().zip(texts) {
                let is_written = || crc32fast::hash(&text) == unread.crc;
                unread.is_written.get_or_init(is_written);
            }
        }
        Ok((requests, bytes))
    }
}
