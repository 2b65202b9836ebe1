//! What was unpacked of chunks, for the part that is wanted next.

use bytes::Bytes;
use reshard_model::Tensor;
use reshard_plan::ChunkId;
use reshard_torch_format::archive::Inflate;
use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

/// What is kept at most, unless one chunk alone is larger.
const KEPT: u64 = 256 << 20;

/// What was unpacked of chunks of which only a part was wanted.
#[derive(Debug, Default)]
pub(super) struct Kept(Mutex<VecDeque<(ChunkId, bool, Unpacked)>>);

pub(super) enum Unpacked {
    /// All of it.
    Tensor(Tensor),
    /// How far a deflated record was read.
    Stream(Box<Stream>),
}

impl std::fmt::Debug for Unpacked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes())
    }
}

pub(super) struct Stream {
    pub(super) content: Inflate<Bytes>,
    pub(super) packed: u64,
    /// Bytes of the record that were given.
    pub(super) at: u64,
}

impl Unpacked {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Tensor(t) => t.nbytes(),
            Self::Stream(s) => s.packed,
        }
    }
}

impl Kept {
    pub(super) fn take(&self, chunk: ChunkId, verified: bool) -> Option<Unpacked> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|(c, v, _)| (*c, *v) == (chunk, verified))?;
        all.remove(at).map(|(.., unpacked)| unpacked)
    }

    /// Whether what was unpacked of a chunk is all of it, or begins behind a byte that is wanted.
    pub(super) fn is_past(&self, chunk: ChunkId, verified: bool, start: u64) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_chunk = all.iter().find(|(c, v, _)| (*c, *v) == (chunk, verified));
        of_chunk.is_some_and(|(.., unpacked)| match unpacked {
            Unpacked::Tensor(_) => true,
            Unpacked::Stream(stream) => stream.at > start,
        })
    }

    /// Lets go of what has to make room for so many bytes.
    pub(super) fn make_room(&self, bytes: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept: u64 = all.iter().map(|(.., u)| u.bytes()).sum();
        while kept.saturating_add(bytes) > KEPT
            && let Some((.., gone)) = all.pop_front()
        {
            kept -= gone.bytes();
        }
    }

    pub(super) fn keep(&self, chunk: ChunkId, verified: bool, unpacked: Unpacked) {
        self.make_room(unpacked.bytes());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back((chunk, verified, unpacked));
    }
}
