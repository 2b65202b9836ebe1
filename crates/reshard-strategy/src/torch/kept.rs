//! Keeps unpacked data of chunks for the next read.

use crate::{LimitOption, Recent, Result, StrategyError};
use bytes::Bytes;
use reshard_model::Tensor;
use reshard_plan::ChunkId;
use reshard_torch_format::archive::Inflate;
use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// What a kept chunk takes in addition to its data, and what a stream takes that inflates it.
const ENTRY: u64 = 1 << 10;
/// The memory of a stream that inflates. A smaller chunk is better unpacked as a whole.
pub const INFLATE: u64 = 64 << 10;

/// Bytes that may be unpacked again: these, and so many for each byte that was wanted.
const AGAIN: u64 = 1 << 30;
const AGAIN_PER_BYTE: u64 = 4;

/// A chunk, and whether its checksum is checked.
type Key = (ChunkId, bool);

/// Unpacked data of chunks of which only a part was wanted.
///
/// Chunks are read in parts, and each part of a packed chunk needs what comes before it.
#[derive(Debug)]
pub struct Kept(Mutex<All>);

#[derive(Debug)]
struct All {
    unpacked: Recent<Key, Unpacked>,
    /// Chunks of which a part was wanted before.
    seen: BTreeSet<ChunkId>,
    /// Bytes that were unpacked of chunks that had been unpacked before, and bytes that were wanted.
    again: u64,
    wanted: u64,
}

/// Unpacked data of a chunk.
pub enum Unpacked {
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

/// A deflated record that is unpacked.
#[derive(Debug)]
pub struct Stream {
    /// The stream.
    pub content: Inflate<Bytes>,
    /// Bytes of the packed record.
    pub packed: u64,
    /// Bytes of the record that were given.
    pub at: u64,
}

impl Unpacked {
    /// The memory that it takes.
    fn bytes(&self) -> u64 {
        ENTRY
            + match self {
                Self::Tensor(t) => t.nbytes(),
                Self::Stream(s) => s.packed.saturating_add(INFLATE),
            }
    }
}

impl Kept {
    /// Keeps so many bytes.
    pub fn new(max: u64) -> Self {
        Self(Mutex::new(All {
            unpacked: Recent::new(max),
            seen: BTreeSet::new(),
            again: 0,
            wanted: 0,
        }))
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out what is kept of a chunk whose checksum is checked, or of one whose is not.
    pub fn take(&self, chunk: ChunkId, verified: bool) -> Option<Unpacked> {
        self.all().unpacked.take(&(chunk, verified))
    }

    /// Whether a chunk is kept as a whole, or its stream is already past a wanted byte.
    pub fn is_past(&self, chunk: ChunkId, verified: bool, start: u64) -> bool {
        match self.all().unpacked.get(&(chunk, verified)) {
            Some(Unpacked::Tensor(_)) => true,
            Some(Unpacked::Stream(stream)) => stream.at > start,
            None => false,
        }
    }

    /// Frees memory for so many bytes.
    pub fn make_room(&self, bytes: u64) {
        self.all().unpacked.make_room(bytes);
    }

    /// Keeps data, in the place of older ones.
    pub fn keep(&self, chunk: ChunkId, verified: bool, unpacked: Unpacked) {
        let bytes = unpacked.bytes();
        let key = (chunk, verified);
        self.all().unpacked.insert(key, unpacked, bytes);
    }

    /// Counts that a chunk of so many bytes is unpacked for so many of them. A program that reads a tensor in blocks may want a part of
    /// each of more chunks than are kept, in each block. That would take hours, and looks as if nothing happened.
    ///
    /// # Errors
    /// [`StrategyError::Limit`] if what is unpacked again is out of all proportion to what is wanted.
    pub fn unpacks(
        &self,
        chunk: ChunkId,
        bytes: u64,
        wanted: u64,
        name: impl FnOnce() -> String,
    ) -> Result<()> {
        let mut all = self.all();
        all.wanted = all.wanted.saturating_add(wanted);
        if wanted >= bytes || all.seen.insert(chunk) {
            return Ok(());
        }
        all.again = all.again.saturating_add(bytes);
        if all.again <= AGAIN.saturating_add(all.wanted.saturating_mul(AGAIN_PER_BYTE)) {
            return Ok(());
        }
        let what = format!(
            "parts of {} and of other compressed chunks are read in turn, and {} bytes were unpacked again for {} that were wanted, as not all chunks can be kept",
            name(),
            all.again,
            all.wanted
        );
        Err(StrategyError::Limit {
            what,
            option: LimitOption::MaxKept,
            max: all.unpacked.max(),
        })
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

    #[test]
    fn what_is_kept_has_a_bound_and_is_taken_once() {
        let kept = Kept::new(256 * MIB);
        for (chunk, bytes) in [(1, 100 * MIB), (2, 100 * MIB), (3, 56 * MIB)] {
            kept.keep(ChunkId(chunk), true, tensor(bytes - ENTRY));
        }
        kept.keep(ChunkId(4), true, tensor(1));
        kept.make_room(157 * MIB);
        assert_eq!(format!("{:?}", tensor(12)), "1036 bytes");
        let taken = |chunk, verified| kept.take(ChunkId(chunk), verified).is_some();
        assert_eq!([taken(1, true), taken(2, true)], [false, false]);
        assert_eq!(
            [
                taken(3, true),
                taken(4, false),
                taken(4, true),
                taken(4, true)
            ],
            [true, false, true, false]
        );
    }

    #[test]
    fn small_data_take_memory_by_their_number() {
        let kept = Kept::new(MIB);
        for chunk in 0..2_000 {
            kept.keep(ChunkId(chunk), true, tensor(0));
        }
        let all = (0..2_000).filter(|n| kept.take(ChunkId(*n), true).is_some());
        assert_eq!(all.count() as u64, MIB / ENTRY);
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
        let kept = Kept::new(256 * MIB);
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

    #[test]
    fn chunks_are_not_unpacked_again_and_again_for_little() {
        const GIB: u64 = 1 << 30;
        let kept = Kept::new(MIB);
        let unpacks =
            |chunk, bytes, wanted| kept.unpacks(ChunkId(chunk), bytes, wanted, || "w".into());
        // The first time of each chunk is free, and so is what is wanted as a whole.
        for chunk in 0..100 {
            assert!(unpacks(chunk, GIB, 1).is_ok());
        }
        for _ in 0..3 {
            assert!(unpacks(0, GIB, GIB).is_ok());
        }
        // Now 3 GiB were wanted, which permits 12 more.
        for at in 0..13 {
            assert!(unpacks(at, GIB, 0).is_ok(), "{at}");
        }
        let e = unpacks(0, GIB, 0).unwrap_err().to_string();
        assert!(e.contains("max_kept") && e.contains("1 MiB"), "{e}");
        // A read that wants much is fine again.
        assert!(unpacks(1, GIB, GIB / 2).is_ok());
    }
}
