//! Reads chunks whose elements are not in a file as they are: deflated ones, transformed ones, and ones that need a change.
//!
//! Each chunk takes memory, so they are read one after the other. Data that were unpacked for one part of a chunk are kept for the next
//! part. So a program that reads a tensor in blocks unpacks it only once.

use super::{
    head::{Deflated, Wanted},
    opened::TorchDistReader,
};
use crate::{
    limits::not_understood,
    table::{Place, chunk_bytes},
    transform::{self, Refused},
};
use bytes::Bytes;
use reshard_model::{StridedCopy, Tensor};
use reshard_plan::ChunkId;
use reshard_storage::StorageError;
use reshard_strategy::{
    LimitOption, ReadCx, ReadTensor, Result, StrategyError, Traffic,
    torch::{INFLATE, Stream, Unpacked},
};
use reshard_torch_format::archive::{Directory, Inflate, Method};
use std::{io, ops::Range};

/// The bytes of an archive in addition to the elements: more than any description takes, and in proportion to what is stored, so that a
/// small file with many chunks does not unpack to very much.
fn description(stored: u64) -> u64 {
    stored
        .saturating_mul(16)
        .saturating_add(16 << 10)
        .min(4 << 20)
}

/// The number of bytes that are inflated at a time.
const BLOCK: usize = 256 << 10;

impl TorchDistReader {
    /// Bytes of a chunk's elements.
    pub(crate) fn chunk_bytes(&self, chunk: ChunkId) -> u64 {
        let described = self.table.metadata.chunk(chunk);
        described.map_or(0, |(tensor, region)| {
            chunk_bytes(&tensor, &region).unwrap_or(u64::MAX)
        })
    }

    /// Counts that a chunk is unpacked for so many bytes of it, and stops what would take forever.
    fn unpacks(&self, w: &Wanted, wanted: u64) -> Result<()> {
        let bytes = self.chunk_bytes(w.chunk);
        self.kept
            .unpacks(w.chunk, bytes, wanted, || self.name_of(w.chunk))
    }

    pub(crate) fn unpacks_to_at_most(&self, w: &Wanted) -> u64 {
        self.chunk_bytes(w.chunk)
            .saturating_add(description(w.len()))
    }

    /// Checks that the archive of a chunk does not unpack to more than its shape needs.
    pub(crate) fn unpacks_to_its_shape(&self, w: &Wanted, directory: &Directory) -> Result<()> {
        let packed = directory.records().filter(|r| r.method != Method::Stored);
        let size = packed.map(|r| r.size).fold(0, u64::saturating_add);
        match size {
            0 => Ok(()),
            _ if size > self.unpacks_to_at_most(w) => Err(self.unpacks_to_more(w)),
            _ => self.is_affordable(w),
        }
    }

    /// Whoever looks for damage reads tensors that are too much to load, but does not unpack them.
    fn is_affordable(&self, w: &Wanted) -> Result<()> {
        match self.table.metadata.chunk(w.chunk) {
            Some((tensor, _)) => self.affords(tensor.key()),
            None => Ok(()),
        }
    }

    fn unpacks_to_more(&self, w: &Wanted) -> StrategyError {
        not_understood(format!(
            "reading {} at byte {} of {} (it unpacks to far more than the {} bytes of its elements)",
            self.name_of(w.chunk),
            w.range.start,
            w.file,
            self.chunk_bytes(w.chunk)
        ))
    }

    /// The archive of a chunk whose stored bytes may have gone through stream transforms.
    pub(crate) fn archive_of(&self, w: &Wanted, stored: Bytes) -> Result<Bytes> {
        if self.table.is_transformed(w.place) {
            self.is_affordable(w)?;
        }
        let shape = self.unpacks_to_at_most(w);
        let most = shape.min(self.limits.max_whole);
        self.untransform(w.place, &self.name_of(w.chunk), stored, most)?
            .ok_or_else(|| match most < shape {
                true => self.too_large(&self.name_of(w.chunk)),
                false => self.unpacks_to_more(w),
            })
    }

    pub(crate) fn too_large(&self, what: &str) -> StrategyError {
        let what = format!("{what} unpacks to more than is read as a whole");
        StrategyError::Limit {
            what,
            option: LimitOption::MaxWhole,
            max: self.limits.max_whole,
        }
    }

    /// Undoes the transforms of an item. `None` if more than `most` bytes come out.
    pub(crate) fn untransform(
        &self,
        place: Place,
        what: &str,
        stored: Bytes,
        most: u64,
    ) -> Result<Option<Bytes>> {
        // The metadata names the transforms in the order in which they are undone, each on what the one before gave.
        let mut bytes = stored;
        for descriptor in self.table.descriptors(place) {
            let file = || {
                self.table
                    .file(place)
                    .map_or_else(|_| crate::METADATA.into(), |f| f.to_string())
            };
            bytes = match transform::decode(descriptor, &bytes, most) {
                Ok(bytes) => bytes,
                Err(Refused::More) => return Ok(None),
                Err(Refused::NoMemory(had)) => {
                    let why = format!("no memory for {what}, of which {had} bytes are unpacked");
                    let source = io::Error::new(io::ErrorKind::OutOfMemory, why);
                    return Err(StorageError::io("unpack", file(), source).into());
                }
                Err(Refused::Unknown(why)) => {
                    return Err(not_understood(format!(
                        "reading {what} at byte {} of {} ({why})",
                        place.offset,
                        file()
                    )));
                }
                Err(Refused::Damaged(why)) => {
                    let what = format!("{what}: {why}");
                    return Err(StrategyError::corrupt(file(), Some(place.offset), what));
                }
            };
        }
        Ok(Some(bytes))
    }

    /// Fills regions from a chunk whose whole archive must be in memory.
    pub(super) async fn read_packed(
        &self,
        w: &Wanted,
        reads: Vec<ReadTensor>,
        cx: &ReadCx<'_>,
        totals: &mut Traffic,
    ) -> Result<()> {
        let verify = cx.verify;
        let wanted = reads.iter().map(|r| r.into.bytes()).sum();
        let tensor = match self.kept.take(w.chunk, verify) {
            Some(Unpacked::Tensor(tensor)) => tensor,
            _ => {
                self.unpacks(w, wanted)?;
                let (name, len) = (self.name_of(w.chunk), w.len());
                let what = format!("the archive of {name}");
                self.limits.whole(what, len)?;
                self.kept.make_room(self.chunk_bytes(w.chunk));
                let stored = self.at(w, 0..len).await?;
                (totals.beside, totals.requests) = (totals.beside + len, totals.requests + 1);
                totals.verified += u64::from(verify);
                self.in_memory(w, self.archive_of(w, stored)?, verify)?
            }
        };
        land(&tensor, reads, cx, totals)?;
        if wanted < tensor.nbytes() {
            self.kept.keep(w.chunk, verify, Unpacked::Tensor(tensor));
        }
        Ok(())
    }

    /// Fills regions from a deflated record. At most one block of it is in memory. Its checksum is checked when its end is reached. A
    /// chunk may be read backwards, for example if a column-major chunk is read in blocks of rows. Then it is unpacked as a whole,
    /// because otherwise the record would be unpacked again for each block.
    pub(super) async fn read_deflated(
        &self,
        w: &Wanted,
        d: Deflated,
        reads: Vec<ReadTensor>,
        cx: &ReadCx<'_>,
        totals: &mut Traffic,
    ) -> Result<()> {
        let verify = cx.verify;
        // A small chunk takes less memory than the stream that would unpack it.
        if self.chunk_bytes(w.chunk) <= INFLATE {
            return self.read_packed(w, reads, cx, totals).await;
        }

        // The range of the record that is wanted. If the kept stream is already past its start, the chunk is read backwards.
        let hulls = reads
            .iter()
            .map(|r| Ok(r.selection.layout(&d.layout)?.hull()));
        let hulls = hulls.collect::<Result<Vec<_>>>()?.into_iter();
        let all = hulls.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        let Range { start, end } = all.unwrap_or_default();
        if self.kept.is_past(w.chunk, verify, start) {
            return self.read_packed(w, reads, cx, totals).await;
        }
        let mut parts: Vec<StridedCopy> = Vec::with_capacity(reads.len());
        let mut wanted = 0;
        for r in reads {
            let part = r.part(&d.layout)?;
            wanted += part.into.bytes();
            parts.push(part.into.strided_copy(&part.source)?);
        }
        (totals.needed, totals.bytes) = (totals.needed + wanted, totals.bytes + wanted);
        cx.progress.add(wanted);
        let corrupt = |e| self.corrupt(w, e);
        // Continues the stream of an earlier read if it has not passed the wanted range. Otherwise it starts from the beginning.
        let mut stream = match self.kept.take(w.chunk, verify) {
            Some(Unpacked::Stream(stream)) if stream.at <= start => stream,
            _ => {
                self.unpacks(w, wanted)?;
                let packed = d.data.end - d.data.start;
                let what = format!("the packed storage of {}", self.name_of(w.chunk));
                self.limits.whole(what, packed)?;
                let stored = self.at(w, d.data.clone()).await?;
                (totals.beside, totals.requests) = (totals.beside + packed, totals.requests + 1);
                Box::new(Stream {
                    content: Inflate::new(&d.record, stored).map_err(corrupt)?,
                    packed,
                    at: 0,
                })
            }
        };
        let mut block = vec![0; BLOCK];
        while stream.at < end {
            let n = stream.content.next_block(&mut block).map_err(corrupt)?;
            if n == 0 {
                return Err(self.bad(w, "its storage ends before its elements do"));
            }
            parts
                .iter_mut()
                .for_each(|p| p.feed(stream.at, &block[..n]));
            stream.at += n as u64;
        }
        if parts.iter().any(|p| p.next_at().is_some()) {
            return Err(self.bad(w, "its storage ends before its elements do"));
        }
        let ended = stream.content.left() == 0;
        if ended && verify {
            stream.content.verify().map_err(corrupt)?;
            totals.verified += 1;
        }
        // If a read wants little of a large range, the next read will probably want the rest.
        if !ended || end - start > 2 * wanted {
            self.kept.keep(w.chunk, verify, Unpacked::Stream(stream));
        }
        Ok(())
    }
}

/// Fills regions from a tensor in memory.
pub(super) fn land(
    tensor: &Tensor,
    reads: Vec<ReadTensor>,
    cx: &ReadCx<'_>,
    totals: &mut Traffic,
) -> Result<()> {
    for r in reads {
        let bytes = r.into.bytes();
        (totals.needed, totals.bytes) = (totals.needed + bytes, totals.bytes + bytes);
        totals.beside = totals.beside.saturating_sub(bytes);
        cx.progress.add(bytes);
        r.fill_from(tensor)?;
    }
    Ok(())
}
