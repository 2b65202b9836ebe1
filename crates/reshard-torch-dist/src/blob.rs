//! A tensor's blob on its way to a file: the head, the elements straight from the caller's buffer, and the tail with the
//! checksum that was computed while they passed.

use bytes::Bytes;
use reshard_model::{BoxError, Region, Tensor, TensorSource};
use reshard_storage::Extent;
use reshard_torch_format::archive::ArchiveLayout;
use std::{io, sync::Arc};

/// Small enough to stay in a core's cache between the checksum and the write, large enough to be few.
const BLOCK: u64 = 256 << 10;

/// Elements that are pulled in row-major order.
pub(crate) enum Elements {
    Host(Tensor),
    Source { source: Arc<dyn TensorSource>, shape: Region, item: u64 },
}

type Blocks = Box<dyn Iterator<Item = io::Result<Bytes>> + Send>;

impl Elements {
    fn blocks(self) -> Blocks {
        match self {
            Self::Host(t) => Box::new(t.blocks(BLOCK).map(Ok)),
            Self::Source { source, shape, item } => {
                Box::new(shape.blocks(BLOCK * 4 / item.max(1)).map(move |r| {
                    let mut out = vec![0; (r.volume().unwrap_or(0) * item) as usize];
                    source.read(&r, &mut out).map_err(|e: BoxError| io::Error::other(e))?;
                    Ok(out.into())
                }))
            }
        }
    }
}

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
