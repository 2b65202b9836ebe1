//! Headers that were not read, because the record of reshard says the same.

use reshard_storage::{Name, Store};
use reshard_strategy::{Result, at_once};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
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

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The numbers of their files.
    pub(crate) fn files(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }

    /// Whether the header of a file was not read when the checkpoint was opened.
    pub(crate) fn has(&self, file: u32) -> bool {
        self.0.contains_key(&file)
    }

    /// Whether a header was read, and is not the written one.
    pub(crate) fn is_changed(&self, file: u32) -> bool {
        let unread = self.0.get(&file);
        unread.is_some_and(|unread| unread.is_written.get() == Some(&false))
    }

    /// Reads the headers of these files that were not read yet. `names` are those of all files. Returns how many requests that took, and how many bytes.
    pub(crate) async fn read(
        &self,
        store: &Arc<dyn Store>,
        names: &[Name],
        files: &BTreeSet<u32>,
    ) -> Result<(u64, u64)> {
        let mut left: Vec<(&Name, &UnreadHeader)> = Vec::new();
        for (n, unread) in &self.0 {
            let wanted = files.contains(n) && unread.is_written.get().is_none();
            left.extend(
                names
                    .get(*n as usize)
                    .filter(|_| wanted)
                    .map(|name| (name, unread)),
            );
        }
        let (mut requests, mut bytes) = (0, 0);
        let mut left = &left[..];
        while !left.is_empty() {
            let lengths = left.iter().map(|(_, unread)| unread.end);
            let (part, rest) = left.split_at(at_once(lengths, AT_ONCE.0, AT_ONCE.1));
            left = rest;
            let ranges = part
                .iter()
                .map(|(name, unread)| ((*name).clone(), 0..unread.end));
            let (texts, traffic) = store.read_ranges(ranges.collect()).await?;
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
