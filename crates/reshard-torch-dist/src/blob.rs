//! A tensor's blob on its way to a file: the head, the elements straight from the caller's buffer, and the tail with the
//! checksum that was computed while they passed.

use bytes::Bytes;
use reshard_storage::Extent;
use reshard_strategy::{Blocks, Elements};
use reshard_torch_format::archive::ArchiveLayout;
use std::io;

enum State {
    Head(Elements),
    Elements(Blocks),
    Done,
}

/// One tensor's archive.
pub(crate) struct Blob {
    layout: ArchiveLayout,
    crc: crc32fast::Hasher,
    state: State,
}

impl Blob {
    pub(crate) fn new(layout: ArchiveLayout, elements: Elements) -> Self {
        Self { layout, crc: crc32fast::Hasher::new(), state: State::Head(elements) }
    }
}

impl Extent for Blob {
    fn len(&self) -> u64 {
        self.layout.len()
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Head(elements) => {
                self.state = State::Elements(elements.blocks());
                Some(Ok(Bytes::copy_from_slice(self.layout.head())))
            }
            State::Elements(mut blocks) => match blocks.next() {
                Some(Ok(block)) => {
                    self.crc.update(&block);
                    self.state = State::Elements(blocks);
                    Some(Ok(block))
                }
                Some(Err(e)) => Some(Err(e)),
                None => {
                    let crc = self.crc.clone().finalize();
                    Some(self.layout.finish(&[crc]).map(Bytes::from).map_err(io::Error::other))
                }
            },
            State::Done => None,
        }
    }
}
