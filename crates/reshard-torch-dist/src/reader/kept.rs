//! Keeps unpacked data of chunks for the next read.

use bytes::Bytes;
use reshard_model::Tensor;
use reshard_plan::ChunkId;
use reshard_torch_format::archive::Inflate;
use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

/// The maximal memory, unless a single chunk is larger.
const KEPT: u64 = 256 << 20;

/// Unpacked data of chunks of which only a part was wanted.
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
        let at = all
            .iter()
            .position(|(c, v, _)| (*c, *v) == (chunk, verified))?;
        all.remove(at).map(|(.., unpacked)| unpacked)
    }

    /// Whether a chunk is kept as a whole, or its stream is already past a wanted byte.
    pub(super) fn is_past(&self, chunk: ChunkId, verified: bool, start: u64) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_chunk = all.iter().find(|(c, v, _)| (*c, *v) == (chunk, verified));
        of_chunk.is_some_and(|(.., unpacked)| match unpacked {
            Unpacked::Tensor(_) => true,
            Unpacked::Stream(stream) => stream.at > start,
        })
    }

    /// Frees memory for so many bytes.
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
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back((chunk, verified, unpacked));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_model::DType;

    const MIB: u64 = 1 << 20;

    /// Zeros that nobody touches, and that take no memory for that.
    fn tensor(bytes: u64) -> Unpacked {
        Unpacked::Tensor(Tensor::zeros("t", DType::UInt8, &[bytes]).unwrap())
    }

    fn ids(kept: &Kept) -> Vec<u32> {
        kept.0
            .lock()
            .unwrap()
            .iter()
            .map(|(chunk, ..)| chunk.0)
            .collect()
    }

    #[test]
    fn what_is_kept_has_a_bound_and_the_oldest_goes_first() {
        let kept = Kept::default();
        for (chunk, bytes) in [(1, 100 * MIB), (2, 100 * MIB), (3, 56 * MIB)] {
            kept.keep(ChunkId(chunk), true, tensor(bytes));
        }
        assert_eq!(ids(&kept), [1, 2, 3], "256 MiB and not a byte more");
        kept.make_room(0);
        assert_eq!(ids(&kept), [1, 2, 3]);
        kept.keep(ChunkId(4), true, tensor(1));
        assert_eq!(ids(&kept), [2, 3, 4]);
        kept.make_room(157 * MIB);
        assert_eq!(ids(&kept), [3, 4]);
        // More than all of it: that alone is kept.
        kept.keep(ChunkId(5), false, tensor(KEPT + 1));
        assert_eq!(ids(&kept), [5]);
        assert_eq!(format!("{:?}", tensor(12)), "12 bytes");
        let taken = |chunk, verified| kept.take(ChunkId(chunk), verified).is_some();
        assert_eq!(
            [
                taken(5, true),
                taken(4, false),
                taken(5, false),
                taken(5, false)
            ],
            [false, false, true, false]
        );
    }

    #[test]
    fn a_stream_is_past_what_it_has_given() {
        let pickle = b"\x80\x02N.";
        let archive =
            reshard_torch_format::archive::write_archive(pickle, &[], &Default::default()).unwrap();
        let archive =
            reshard_torch_format::archive::Archive::open(archive.into(), &Default::default())
                .unwrap();
        let record = archive.directory().get("data.pkl").unwrap();
        let content = Inflate::new(record, Bytes::from_static(pickle)).unwrap();
        let kept = Kept::default();
        kept.keep(
            ChunkId(1),
            true,
            Unpacked::Stream(Box::new(Stream {
                content,
                packed: 4,
                at: 10,
            })),
        );
        kept.keep(ChunkId(2), true, tensor(4));
        let past = |chunk, start| kept.is_past(ChunkId(chunk), true, start);
        assert_eq!([past(1, 9), past(1, 10), past(1, 11)], [true, false, false]);
        assert_eq!([past(2, 0), past(2, 9), past(3, 0)], [true, true, false]);
        assert!(
            !kept.is_past(ChunkId(1), false, 0),
            "what was not checked is another one"
        );
    }
}
