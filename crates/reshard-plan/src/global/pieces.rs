use super::numbers::{NONE, Numbers};
use crate::{Dedup, WriteItem};

/// A chunk or object. All ranks that offer it share one piece.
pub(super) struct Piece<'p> {
    key: u32,
    /// The item of the first rank that offers it.
    pub(super) item: &'p WriteItem,
    pub(super) rank: u32,
    /// How many times it is offered.
    pub(super) offers: u32,
    cost: u64,
    /// Where its offset begins in the column of offsets. Objects have no offset.
    offset: usize,
    ndim: u32,
}

/// All pieces that ranks offer. A piece is identified by key and offset, as in DCP.
pub(super) struct Pieces<'p> {
    pieces: Numbers<Piece<'p>>,
    /// The offsets in one column, because the items are scattered over the memory.
    offsets: Vec<u64>,
    offers: usize,
}

impl<'p> Pieces<'p> {
    /// Reserves memory as if every item were a piece of its own: unused memory costs nothing, but growing does.
    pub(super) fn with_capacity(items: usize) -> Self {
        Self {
            pieces: Numbers::with_capacity(items),
            offsets: Vec::with_capacity(2 * items),
            offers: 0,
        }
    }

    /// The piece of an item. The first rank that offers it gives it its item; later offers only count.
    pub(super) fn offer(&mut self, key: u32, item: &'p WriteItem, rank: u32) -> u32 {
        let Self {
            pieces, offsets, ..
        } = self;
        let (known, at) = (pieces.len(), offsets.len());
        let offset: &[u64] = item.tensor().map_or(&[], |t| &t.region.offsets);
        let of = |p: &Piece<'_>| (p.key, &offsets[p.offset..p.offset + p.ndim as usize]);
        let piece = pieces.intern((key, offset), of, || Piece {
            key,
            item,
            rank,
            offers: 0,
            cost: item.cost(),
            offset: at,
            ndim: offset.len() as u32,
        });
        if pieces.len() > known {
            offsets.extend_from_slice(offset);
        }
        pieces.get_mut(piece).offers += 1;
        self.offers += 1;
        piece
    }

    pub(super) fn get(&self, piece: u32) -> &Piece<'p> {
        self.pieces.get(piece)
    }

    /// The rank that writes each piece. `offers` are the piece and the rank of every offer, by rank.
    pub(super) fn owners(
        &self,
        ranks: usize,
        dedup: Dedup,
        offers: impl Iterator<Item = (u32, u32)>,
    ) -> Vec<u32> {
        if dedup == Dedup::LowestRank || self.offers == self.pieces.len() {
            return self.pieces.iter().map(|p| p.rank).collect();
        }
        // Sorts the offers by piece (counting sort). The ranks of a piece stay in ascending order.
        let mut next = Vec::with_capacity(self.pieces.len());
        let mut sum = 0u32;
        for p in self.pieces.iter() {
            next.push(sum);
            sum += p.offers;
        }
        let mut candidates = vec![NONE; sum as usize];
        for (piece, rank) in offers {
            let at = &mut next[piece as usize];
            candidates[*at as usize] = rank;
            *at += 1;
        }
        // Each piece goes to the least loaded of its ranks. `min_by_key` takes the first, so ties go to the lowest rank.
        let mut load = vec![0u64; ranks];
        let mut from = 0;
        self.pieces
            .iter()
            .map(|p| {
                let to = from + p.offers as usize;
                let least = candidates[from..to]
                    .iter()
                    .copied()
                    .min_by_key(|r| load[*r as usize]);
                from = to;
                let owner = least.unwrap_or(p.rank);
                load[owner as usize] = load[owner as usize].saturating_add(p.cost);
                owner
            })
            .collect()
    }
}
