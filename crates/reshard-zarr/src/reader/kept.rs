//! Decoded chunks of which only a part was wanted. A program that reads a tensor in blocks decodes each chunk once.

use reshard_model::Tensor;
use reshard_plan::ChunkId;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The chunks that were decoded last, within a limit of memory.
#[derive(Debug)]
pub(crate) struct Kept {
    max: u64,
    all: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    /// With their ages.
    chunks: BTreeMap<ChunkId, (u64, Tensor)>,
    by_age: BTreeMap<u64, ChunkId>,
    next: u64,
    bytes: u64,
}

impl Kept {
    /// At most `max` bytes, unless a single chunk has more.
    pub(crate) fn new(max: u64) -> Self {
        Self {
            max,
            all: Mutex::default(),
        }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, chunk: ChunkId) -> Option<Tensor> {
        self.all()
            .chunks
            .get(&chunk)
            .map(|(_, tensor)| tensor.clone())
    }

    pub(super) fn keep(&self, chunk: ChunkId, tensor: Tensor) {
        let bytes = size(&tensor);
        let mut all = self.all();
        if all.chunks.contains_key(&chunk) {
            return;
        }
        while all.bytes.saturating_add(bytes) > self.max
            && let Some((_, oldest)) = all.by_age.pop_first()
            && let Some((_, tensor)) = all.chunks.remove(&oldest)
        {
            all.bytes -= size(&tensor);
        }
        let age = all.next;
        all.next += 1;
        all.bytes += bytes;
        all.by_age.insert(age, chunk);
        all.chunks.insert(chunk, (age, tensor));
    }
}

/// Memory that a chunk takes besides its elements.
const OVERHEAD: u64 = 512;

/// The memory that a chunk takes, with what of it lies beyond the shape.
fn size(tensor: &Tensor) -> u64 {
    tensor.buffer_bytes().len() as u64 + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_chunks_make_room() {
        let kept = Kept::new(10 + 2 * OVERHEAD);
        let tensor = |n: u8| Tensor::from_vec(&[4], vec![n; 4]).unwrap();
        for n in 0..4 {
            kept.keep(ChunkId(n), tensor(n as u8));
        }
        let there: Vec<bool> = (0..4).map(|n| kept.get(ChunkId(n)).is_some()).collect();
        assert_eq!(there, [false, false, true, true]);
        kept.keep(
            ChunkId(9),
            Tensor::from_vec(&[2000], vec![0u8; 2000]).unwrap(),
        );
        assert!(kept.get(ChunkId(9)).is_some(), "the last one always stays");
        assert!(kept.get(ChunkId(3)).is_none());
    }
}
