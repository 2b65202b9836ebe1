//! Builds a table, to the byte as TensorFlow's `TableBuilder` does with its default options.

use super::{FOOTER, MAGIC};
use crate::{crc::mask, varint};

/// A block ends when it has so many bytes.
const BLOCK: usize = 256 << 10;

/// Entries between two whole keys of a data block.
const INTERVAL: usize = 16;

/// Builds a table of entries that come in the order of their keys.
#[derive(Debug)]
pub(crate) struct TableBuilder {
    out: Vec<u8>,
    data: BlockBuilder,
    index: BlockBuilder,
    /// Where the last block lies. Its entry in the index waits for the next key.
    pending: Option<Vec<u8>>,
    last: Vec<u8>,
}

impl Default for TableBuilder {
    fn default() -> Self {
        Self {
            out: Vec::new(),
            data: BlockBuilder::new(INTERVAL),
            index: BlockBuilder::new(1),
            pending: None,
            last: Vec::new(),
        }
    }
}

impl TableBuilder {
    /// Adds an entry. Keys have to increase.
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) {
        // A large entry gets a block of its own.
        if key.len() + value.len() >= 2 * BLOCK {
            self.flush();
        }
        if let Some(handle) = self.pending.take() {
            self.index.add(&separator(&self.last, key), &handle);
        }
        self.data.add(key, value);
        key.clone_into(&mut self.last);
        if self.data.size() >= BLOCK {
            self.flush();
        }
    }

    /// The table.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.flush();
        let meta = put(&mut self.out, BlockBuilder::new(INTERVAL).take());
        if let Some(handle) = self.pending.take() {
            self.index.add(&successor(&self.last), &handle);
        }
        let index = put(&mut self.out, self.index.take());
        footer(self.out, meta, index)
    }

    fn flush(&mut self) {
        if !self.data.is_empty() {
            self.pending = Some(put(&mut self.out, self.data.take()));
        }
    }
}

/// Ends a table, whose last two blocks lie there.
fn footer(mut out: Vec<u8>, meta: Vec<u8>, index: Vec<u8>) -> Vec<u8> {
    let from = out.len();
    out.extend(meta);
    out.extend(index);
    out.resize(from + FOOTER - MAGIC.len(), 0);
    out.extend(MAGIC);
    out
}

/// Appends a block with its trailer. Returns where it lies.
fn put(out: &mut Vec<u8>, block: Vec<u8>) -> Vec<u8> {
    put_packed(out, block, 0)
}

fn put_packed(out: &mut Vec<u8>, block: Vec<u8>, packed: u8) -> Vec<u8> {
    let mut handle = Vec::new();
    varint::put(&mut handle, out.len() as u64);
    varint::put(&mut handle, block.len() as u64);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&block), &[packed]);
    out.extend(block);
    out.push(packed);
    out.extend(mask(crc).to_le_bytes());
    handle
}

#[derive(Debug)]
struct BlockBuilder {
    out: Vec<u8>,
    restarts: Vec<u32>,
    /// Entries since the last restart.
    count: usize,
    interval: usize,
    last: Vec<u8>,
}

impl BlockBuilder {
    fn new(interval: usize) -> Self {
        Self {
            out: Vec::new(),
            restarts: vec![0],
            count: 0,
            interval,
            last: Vec::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Bytes of the block, if it ended here.
    fn size(&self) -> usize {
        self.out.len() + 4 * self.restarts.len() + 4
    }

    fn add(&mut self, key: &[u8], value: &[u8]) {
        let shared = if self.count < self.interval {
            self.last
                .iter()
                .zip(key)
                .take_while(|(a, b)| a == b)
                .count()
        } else {
            self.restarts.push(self.out.len() as u32);
            self.count = 0;
            0
        };
        for n in [shared, key.len() - shared, value.len()] {
            varint::put(&mut self.out, n as u64);
        }
        self.out.extend(&key[shared..]);
        self.out.extend(value);
        key.clone_into(&mut self.last);
        self.count += 1;
    }

    fn take(&mut self) -> Vec<u8> {
        let done = std::mem::replace(self, Self::new(self.interval));
        let mut out = done.out;
        for restart in &done.restarts {
            out.extend(restart.to_le_bytes());
        }
        out.extend((done.restarts.len() as u32).to_le_bytes());
        out
    }
}

/// A short key that is not before `low` and before `high`.
fn separator(low: &[u8], high: &[u8]) -> Vec<u8> {
    let same = low.iter().zip(high).take_while(|(a, b)| a == b).count();
    match (low.get(same), high.get(same)) {
        (Some(&a), Some(&b)) if a < 0xff && a + 1 < b => {
            let mut out = low[..=same].to_vec();
            out[same] += 1;
            out
        }
        _ => low.to_vec(),
    }
}

/// A short key that is not before `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    match key.iter().position(|b| *b != 0xff) {
        Some(at) => {
            let mut out = key[..=at].to_vec();
            out[at] += 1;
            out
        }
        None => key.to_vec(),
    }
}

/// A table of one block, packed by this method, as another program may have written it.
#[cfg(any(test, feature = "testkit"))]
pub(crate) fn of_block(block: &[u8], packed: u8) -> Vec<u8> {
    let mut out = Vec::new();
    let data = put_packed(&mut out, block.to_vec(), packed);
    let meta = put(&mut out, BlockBuilder::new(INTERVAL).take());
    let mut index = BlockBuilder::new(1);
    // No key of the block is after this one.
    index.add(&[0xff; 8], &data);
    let index = put(&mut out, index.take());
    footer(out, meta, index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_index_are_short() {
        assert_eq!(separator(b"abcde", b"abx"), b"abd");
        assert_eq!(separator(b"abcde", b"abd"), b"abcde");
        assert_eq!(separator(b"ab", b"abc"), b"ab");
        assert_eq!(separator(b"a\xff", b"b"), b"a\xff");
        assert_eq!(successor(b"step"), b"t");
        assert_eq!(successor(b"\xff\xff"), b"\xff\xff");
        assert_eq!(successor(b"\xff\x01x"), b"\xff\x02");
    }

    #[test]
    fn an_empty_table_has_two_empty_blocks_and_a_footer() {
        assert_eq!(TableBuilder::default().finish().len(), 2 * 13 + FOOTER);
    }
}
