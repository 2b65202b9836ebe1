//! Chunks whose elements are not in a file as they are: compressed ones, and those of the other order of bytes.

use super::opened::{Chunk, ZarrReader};
use crate::array::decode;
use bytes::Bytes;
use reshard_model::Tensor;
use reshard_plan::ChunkId;
use reshard_storage::Name;
use reshard_strategy::{ReadCx, ReadTensor, Refused, Result, Traffic};
use std::ops::Range;

/// The most stored bytes that are in memory together, except that one chunk always is.
const WINDOW: u64 = 32 << 20;

/// Memory that a kept chunk takes besides its elements.
const OVERHEAD: u64 = 512;

/// A chunk to decode, where its bytes lie, and what is wanted of it.
pub(super) struct Packed<'r> {
    pub(super) chunk: Chunk<'r>,
    pub(super) file: Name,
    pub(super) at: Range<u64>,
    pub(super) reads: Vec<ReadTensor>,
}

impl ZarrReader {
    /// Reads chunks and decodes them, some at a time.
    pub(super) async fn read_packed(
        &self,
        all: Vec<Packed<'_>>,
        cx: &ReadCx<'_>,
        totals: &mut Traffic,
    ) -> Result<()> {
        let mut left = all.into_iter().peekable();
        while left.peek().is_some() {
            let (mut window, mut bytes) = (Vec::new(), 0u64);
            while let Some(packed) = left.next_if(|next| {
                window.is_empty() || bytes + (next.at.end - next.at.start) <= WINDOW
            }) {
                bytes += packed.at.end - packed.at.start;
                window.push(packed);
            }
            self.read_window(window, cx, totals).await?;
        }
        Ok(())
    }

    async fn read_window(
        &self,
        window: Vec<Packed<'_>>,
        cx: &ReadCx<'_>,
        totals: &mut Traffic,
    ) -> Result<()> {
        let kept: Vec<Option<Tensor>> = window
            .iter()
            .map(|packed| self.kept().get(&packed.chunk.id()).cloned())
            .collect();
        let mut ranges = Vec::new();
        for (packed, kept) in window.iter().zip(&kept) {
            if kept.is_none() {
                self.affords(&packed.chunk, &packed.at)?;
                ranges.push((packed.file.clone(), packed.at.clone()));
            }
        }
        let (stored, traffic) = self.store.read_ranges(ranges).await?;
        totals.requests += traffic.requests;
        let mut stored = stored.into_iter();
        for (packed, kept) in window.into_iter().zip(kept) {
            let is_kept = kept.is_some();
            let tensor = match kept {
                Some(tensor) => tensor,
                None => {
                    let bytes = stored.next().unwrap_or_default();
                    totals.beside += bytes.len() as u64;
                    self.decoded(&packed.chunk, &packed.file, &packed.at, bytes)?
                }
            };
            let Packed { chunk, reads, .. } = packed;
            let wanted: u64 = reads.iter().map(|read| read.into.bytes()).sum();
            totals.needed += wanted;
            cx.progress.add(wanted);
            for read in reads {
                read.fill_from(&tensor)?;
            }
            if !is_kept && wanted < tensor.nbytes() {
                // With what of the chunk lies beyond the shape.
                let bytes = tensor.buffer_bytes().len() as u64 + OVERHEAD;
                self.kept().insert(chunk.id(), tensor, bytes);
            }
        }
        Ok(())
    }

    /// Fails if a chunk is too much to be read and decoded as a whole, or if few stored bytes would expand to very many.
    pub(super) fn affords(&self, chunk: &Chunk<'_>, at: &Range<u64>) -> Result<()> {
        let what = || format!("a chunk of {}", chunk.array.key);
        let (stored, bytes) = (at.end - at.start, chunk.array.meta.cell_bytes());
        self.limits.whole(what(), stored)?;
        self.limits.whole(what(), bytes)?;
        self.limits.repeated(what(), bytes, stored)
    }

    /// The elements of a chunk that lie in the shape.
    pub(super) fn decoded(
        &self,
        chunk: &Chunk<'_>,
        file: &Name,
        at: &Range<u64>,
        stored: Bytes,
    ) -> Result<Tensor> {
        let Chunk { array, number } = chunk;
        let meta = &array.meta;
        let whole = decode::elements(meta.stored(), meta.dtype, meta.cell(), stored);
        let region = || array.grid.region(&array.grid.nth((*number).into()));
        let failed = |why: Refused| {
            let what = format!("chunk {} of {}: {}", region(), array.key, why.what);
            decode::error_in(file, Some(at.start), Refused::new(why.kind, what))
        };
        Ok(whole.map_err(failed)?.narrow(&array.inside(*number)))
    }
}

impl Chunk<'_> {
    /// Its number among all chunks of the checkpoint.
    pub(super) fn id(&self) -> ChunkId {
        ChunkId(self.array.first.saturating_add(self.number))
    }
}
