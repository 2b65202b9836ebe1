//! Writes a tensor's archive to a file: the head, the elements straight from the caller's buffer, and the tail with the checksum, which
//! is computed on the way.

use bytes::Bytes;
use reshard_storage::{Extent, Length};
use reshard_strategy::{Blocks, Elements, crc32_combined};
use reshard_torch_format::archive::ArchiveLayout;
use std::{collections::VecDeque, io, sync::Arc};

/// The checksum stays so many bytes behind the write. A store writes half a MiB at once, which brings these bytes into the cache of the
/// core. So each byte is fetched from memory once, by the write, which can overlap fetching and storing. A checksum can't do that. This
/// was measured.
const BEHIND: usize = 512 << 10;

enum State {
    Head(Elements),
    Elements(Blocks),
    Done,
}

/// The archive of a tensor without its elements. All tensors of one type, shape and strides share it.
pub(crate) struct Form {
    layout: ArchiveLayout,
    head: Bytes,
    head_crc: u32,
}

impl Form {
    pub(crate) fn new(layout: ArchiveLayout) -> Self {
        Self {
            head: Bytes::copy_from_slice(layout.head()),
            head_crc: crc32fast::hash(layout.head()),
            layout,
        }
    }
}

/// The archive of one tensor.
pub(crate) struct Blob {
    form: Arc<Form>,
    checksum: Checksum,
    state: State,
    /// The length of the elements, their checksum and that of the tail, when all is written.
    sums: Option<(u64, u32, u32)>,
}

impl Blob {
    pub(crate) fn new(form: Arc<Form>, elements: Elements) -> Self {
        Self {
            form,
            checksum: Checksum::default(),
            state: State::Head(elements),
            sums: None,
        }
    }
}

/// A CRC-32 that reads a block only after the block has most likely been written.
#[derive(Default)]
struct Checksum {
    crc: crc32fast::Hasher,
    waiting: VecDeque<Bytes>,
    bytes: usize,
    /// The length of all.
    total: u64,
}

impl Checksum {
    fn push(&mut self, block: Bytes) {
        self.bytes += block.len();
        self.total += block.len() as u64;
        self.waiting.push_back(block);
        while let Some(first) = self.waiting.front()
            && self.bytes - first.len() >= BEHIND
        {
            self.bytes -= first.len();
            self.crc.update(first);
            self.waiting.pop_front();
        }
    }

    fn finish(&mut self) -> u32 {
        self.waiting
            .drain(..)
            .for_each(|block| self.crc.update(&block));
        std::mem::take(&mut self.crc).finalize()
    }
}

impl Extent for Blob {
    fn length(&self) -> Length {
        Length::Exact(self.form.layout.len())
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Head(elements) => {
                self.state = State::Elements(elements.blocks());
                Some(Ok(self.form.head.clone()))
            }
            State::Elements(mut blocks) => match blocks.next() {
                Some(Ok(block)) => {
                    self.checksum.push(block.clone());
                    self.state = State::Elements(blocks);
                    Some(Ok(block))
                }
                Some(Err(e)) => Some(Err(e)),
                None => {
                    let crc = self.checksum.finish();
                    let tail = self.form.layout.finish(&[crc]).map(Bytes::from);
                    if let Ok(tail) = &tail {
                        self.sums = Some((self.checksum.total, crc, crc32fast::hash(tail)));
                    }
                    Some(tail.map_err(io::Error::other))
                }
            },
            State::Done => None,
        }
    }

    fn has_crc32(&self) -> bool {
        true
    }

    fn crc32(&self) -> Option<u32> {
        let (bytes, elements, tail) = self.sums?;
        let head = self.form.head.len() as u64;
        let behind = self.form.layout.len().checked_sub(head + bytes)?;
        let parts = [
            (head, self.form.head_crc),
            (bytes, elements),
            (behind, tail),
        ];
        Some(crc32_combined(parts.into_iter()))
    }
}
