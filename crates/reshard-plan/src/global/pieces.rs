use super::keys::NONE;
use crate::{Dedup, TensorWrite, WriteItem};
use foldhash::fast::RandomState;
use hashbrown::{HashTable, hash_table::Entry};
use reshard_model::Region;
use std::hash::{BuildHasher, Hasher};

/// A chunk or object. All ranks that offer it share one piece.
struct Piece<'p> {
    key: u32,
    /// The item of the first rank that offers it.
    item: &'p WriteItem,
    rank: u32,
    offers: u32,
    cost: u64,
    /// Where its offset begins in the column of offsets. Objects have no offset.
    offset: usize,
    ndim: u32,
    /// The piece that followed this one last time.
    next: u32,
    object: bool,
}

/// All pieces that ranks offer, in the order of first appearance. A piece is identified by key and offset, as in DCP.
pub(super) struct Pieces<'p> {
    pieces: Vec<Piece<'p>>,
    /// The offsets in one column, because the items are scattered over the memory.
    offsets: Vec<u64>,
    offers: usize,
    table: HashTable<u32>,
    hasher: RandomState,
    last: Option<u32>,
}

impl<'p> Pieces<'p> {
    /// Reserves memory as if every item were a piece of its own: unused memory costs nothing, but growing does.
    pub(super) fn with_capacity(items: usize) -> Self {
        Self {
            pieces: Vec::with_capacity(items),
            offsets: Vec::with_capacity(2 * items),
            offers: 0,
            table: HashTable::with_capacity(items),
            hasher: RandomState::default(),
            last: None,
        }
    }

    pub(super) fn object(&mut self, key: u32, item: &'p WriteItem, rank: u32) -> u32 {
        self.offer(key, item, &[], rank, true)
    }

    pub(super) fn chunk(
        &mut self,
        key: u32,
        item: &'p WriteItem,
        t: &'p TensorWrite,
        rank: u32,
    ) -> u32 {
        self.offer(key, item, &t.region.offsets, rank, false)
    }

    /// Replicas usually offer the same pieces in the same order. So the piece that followed the previous one last time is
    /// tried first, which avoids a look-up in the table.
    fn offer(
        &mut self,
        key: u32,
        item: &'p WriteItem,
        offset: &[u64],
        rank: u32,
        object: bool,
    ) -> u32 {
        let guess = self
            .last
            .map_or(NONE, |last| self.pieces[last as usize].next);
        let piece = match self.pieces.get_mut(guess as usize) {
            Some(p)
                if p.key == key
                    && self.offsets[p.offset..p.offset + p.ndim as usize] == *offset =>
            {
                p.offers += 1;
                guess
            }
            _ => self.find_or_insert(key, item, offset, rank, object),
        };
        if let Some(last) = self.last {
            self.pieces[last as usize].next = piece;
        }
        self.last = Some(piece);
        self.offers += 1;
        piece
    }

    fn find_or_insert(
        &mut self,
        key: u32,
        item: &'p WriteItem,
        offset: &[u64],
        rank: u32,
        object: bool,
    ) -> u32 {
        let Self {
            pieces,
            offsets,
            table,
            hasher,
            ..
        } = self;

        // The table holds numbers only. It hashes and compares through `pieces`, so keys and offsets exist once.
        let hash = |key: u32, offset: &[u64]| {
            let mut h = hasher.build_hasher();
            h.write_u32(key);
            offset.iter().for_each(|&o| h.write_u64(o));
            h.finish()
        };
        let of = |p: &Piece<'_>| &offsets[p.offset..p.offset + p.ndim as usize];
        let found = table.entry(
            hash(key, offset),
            |n| {
                let p = &pieces[*n as usize];
                p.key == key && of(p) == offset
            },
            |n| {
                let p = &pieces[*n as usize];
                hash(p.key, of(p))
            },
        );

        // The first rank that offers a piece gives it its item. Later offers only count.
        match found {
            Entry::Occupied(o) => {
                let n = *o.get();
                pieces[n as usize].offers += 1;
                n
            }
            Entry::Vacant(v) => {
                let n = pieces.len() as u32;
                v.insert(n);
                pieces.push(Piece {
                    key,
                    item,
                    rank,
                    offers: 1,
                    cost: item.cost(),
                    offset: offsets.len(),
                    ndim: offset.len() as u32,
                    next: NONE,
                    object,
                });
                offsets.extend_from_slice(offset);
                n
            }
        }
    }

    /// How many times a piece is offered.
    pub(super) fn count(&self, piece: u32) -> u32 {
        self.pieces[piece as usize].offers
    }

    /// The rank that offered it first.
    pub(super) fn rank(&self, piece: u32) -> u32 {
        self.pieces[piece as usize].rank
    }

    /// The chunk that the first rank offered.
    pub(super) fn region(&self, piece: u32) -> Option<&'p Region> {
        let p = &self.pieces[piece as usize];
        p.item.tensor().filter(|_| !p.object).map(|t| &t.region)
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
        for p in &self.pieces {
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
