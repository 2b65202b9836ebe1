//! The bytes of one chunk's file, made of the pieces that lie in it.

use crate::receipt::Receipt;
use bytes::Bytes;
use reshard_model::{DType, Data, Region};
use reshard_plan::WriteItem;
use reshard_storage::{Extent, Length};
use reshard_strategy::{Blocks, Elements, Piece, Result, StrategyError, mosaic, run_of};
use std::{io, ops::Range};

/// The most bytes of a block of padding.
const ZEROS: usize = 256 << 10;

/// A chunk that is written.
pub(super) struct Chunk {
    cell: Region,
    size: u64,
    bytes: u64,
    receipt: Receipt,
    pieces: Vec<(Piece, Elements)>,
}

/// The extents of a file.
pub(super) type Extents = Vec<Box<dyn Extent>>;

impl Chunk {
    /// Of these elements, some of which may lie beyond the shape of the array.
    pub(super) fn new(key: &str, cell: Region, dtype: DType, receipt: Receipt) -> Result<Self> {
        let size = dtype.size();
        let bytes = cell.volume().and_then(|n| n.checked_mul(size));
        let bytes = bytes
            .filter(|bytes| i64::try_from(*bytes).is_ok())
            .ok_or_else(|| {
                let what = format!(
                    "{key}: a chunk of shape {} is too large for a file",
                    cell.lengths
                );
                StrategyError::Invalid(what)
            })?;
        Ok(Self {
            cell,
            size,
            bytes,
            receipt,
            pieces: Vec::new(),
        })
    }

    /// Its bytes, with what lies beyond the shape of the array.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a piece that lies in it.
    pub(super) fn add(&mut self, item: &WriteItem, data: Data) -> Result<()> {
        let t = item.tensor().filter(|t| self.cell.contains(&t.region));
        let t = t.ok_or_else(|| {
            StrategyError::Internal(format!(
                "{} does not lie in its chunk {}",
                item.id(),
                self.cell
            ))
        })?;
        let piece = Piece::new(t.region.within(&self.cell), self.size, &data);
        self.pieces.push((piece, Elements::of(item, t, data)?));
        Ok(())
    }

    /// The extents of its file, and which of them make up each piece. Pieces that are runs of the chunk follow each other, with zeros
    /// between them. Otherwise all pieces are one extent, which belongs to the first of them.
    pub(super) fn extents(self) -> (Extents, Vec<Vec<u32>>) {
        match self.runs() {
            Some(runs) => self.row(runs),
            None => {
                let mut of_items = vec![Vec::new(); self.pieces.len()];
                if let Some(first) = of_items.first_mut() {
                    first.push(0);
                }
                let pieces = self.pieces.into_iter().map(|(piece, _)| piece).collect();
                let blocks = mosaic(self.cell.lengths.clone(), self.size, pieces);
                let all = Summed::new(0..self.bytes, blocks, self.receipt);
                (vec![Box::new(all)], of_items)
            }
        }
    }

    /// Which bytes of the file each piece is, if each is one run, and they don't overlap.
    fn runs(&self) -> Option<Vec<(usize, Range<u64>)>> {
        let pieces = self.pieces.iter().enumerate();
        let run = |(n, (piece, _)): (usize, &(Piece, Elements))| {
            let run = run_of(piece.region(), &self.cell.lengths)?;
            Some((n, run.start * self.size..run.end * self.size))
        };
        let mut runs = pieces.map(run).collect::<Option<Vec<_>>>()?;
        runs.sort_by_key(|(_, run)| run.start);
        let disjoint = runs
            .windows(2)
            .all(|w| matches!(w, [(_, a), (_, b)] if a.end <= b.start));
        disjoint.then_some(runs)
    }

    fn row(self, runs: Vec<(usize, Range<u64>)>) -> (Extents, Vec<Vec<u32>>) {
        let mut of_items = vec![Vec::new(); self.pieces.len()];
        let mut elements: Vec<Option<Elements>> = self
            .pieces
            .into_iter()
            .map(|(_, elements)| Some(elements))
            .collect();
        let (mut extents, mut at, mut last) = (Extents::new(), 0, None);
        let mut push = |blocks, bytes: Range<u64>, item: Option<usize>| {
            if let Some(of) = item.and_then(|n: usize| of_items.get_mut(n)) {
                of.push(extents.len() as u32);
            }
            let extent = Summed::new(bytes, blocks, self.receipt.clone());
            extents.push(Box::new(extent) as Box<dyn Extent>);
        };
        for (n, run) in runs {
            // Padding belongs to the piece before it, or else to the first one.
            if run.start > at {
                push(zeros(run.start - at), at..run.start, last.or(Some(n)));
            }
            if let Some(elements) = elements.get_mut(n).and_then(Option::take) {
                push(elements.blocks(), run.clone(), Some(n));
            }
            (at, last) = (run.end, Some(n));
        }
        if self.bytes > at {
            push(zeros(self.bytes - at), at..self.bytes, last);
        }
        (extents, of_items)
    }
}

fn zeros(bytes: u64) -> Blocks {
    let block = Bytes::from(vec![0; bytes.min(ZEROS as u64) as usize]);
    let mut left = bytes;
    Box::new(std::iter::from_fn(move || {
        let n = left.min(block.len() as u64);
        left -= n;
        (n > 0).then(|| Ok(block.slice(..n as usize)))
    }))
}

/// Bytes of a file, as blocks, and the checksums of what went by.
struct Summed {
    length: u64,
    blocks: Blocks,
    /// Where the next block lies in its file.
    at: u64,
    crc: crc32fast::Hasher,
    crcs: Vec<u32>,
    receipt: Receipt,
}

impl Summed {
    fn new(bytes: Range<u64>, blocks: Blocks, receipt: Receipt) -> Self {
        Self {
            length: bytes.end - bytes.start,
            blocks,
            at: bytes.start,
            crc: crc32fast::Hasher::new(),
            crcs: Vec::new(),
            receipt,
        }
    }

    fn update(&mut self, mut bytes: &[u8]) {
        let step = self.receipt.step();
        while !bytes.is_empty() {
            let left = step - self.at % step;
            let n = left.min(bytes.len() as u64);
            let (now, later) = bytes.split_at(n as usize);
            self.crc.update(now);
            self.at += n;
            if n == left {
                self.crcs.push(std::mem::take(&mut self.crc).finalize());
            }
            bytes = later;
        }
    }
}

impl Extent for Summed {
    fn length(&self) -> Length {
        Length::Exact(self.length)
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        let block = self.blocks.next()?;
        if let Ok(bytes) = &block {
            self.update(bytes);
        }
        Some(block)
    }

    fn receipt(&mut self) -> Bytes {
        if !self.at.is_multiple_of(self.receipt.step()) {
            self.crcs.push(std::mem::take(&mut self.crc).finalize());
        }
        self.receipt.with(&std::mem::take(&mut self.crcs))
    }
}

/// Bytes that stand at the end of a file.
pub(super) fn tail(bytes: Bytes, at: u64, receipt: Receipt) -> Box<dyn Extent> {
    let end = at.saturating_add(bytes.len() as u64);
    Box::new(Summed::new(
        at..end,
        Box::new(std::iter::once(Ok(bytes))),
        receipt,
    ))
}
