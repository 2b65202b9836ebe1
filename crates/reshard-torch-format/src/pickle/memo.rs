//! The memo, kept only for what is fetched again.
//!
//! CPython numbers nearly every object of a pickle, and names few of them later. A pass over the opcodes finds which, so
//! that the memo of a pickle with fifteen million numbered objects holds the few thousand that matter.

use super::{Op, Reader};
use crate::{Error, Limits, Result};

#[derive(Clone, Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    #[inline(always)]
    fn get(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1)
    }

    /// Sets a bit; says whether it was clear.
    #[inline(always)]
    fn set(&mut self, i: usize) -> bool {
        if self.0.len() <= i / 64 {
            self.0.resize(i / 64 + 1, 0);
        }
        let bit = 1u64 << (i % 64);
        self.0.get_mut(i / 64).is_some_and(|word| {
            let was_clear = *word & bit == 0;
            *word |= bit;
            was_clear
        })
    }
}

/// What the first pass finds.
#[derive(Debug)]
pub(super) struct Plan {
    fetched: Bits,
    /// Bits set in `fetched` before each word.
    ranks: Vec<u32>,
    count: usize,
    /// Numbers are not simply 0, 1, 2, …
    sparse: bool,
    /// Just after the STOP.
    pub(super) end: usize,
}

/// The decimal number of a text GET or PUT.
pub(super) fn number(line: &[u8]) -> Option<usize> {
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

impl Plan {
    pub(super) fn scan(bytes: &[u8], limits: &Limits) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let mut filled = Bits::default();
        let mut fetched = Bits::default();
        let (mut next, mut sparse) = (0usize, false);
        // A number beyond the input's length can't be the count of anything in it.
        let max = bytes
            .len()
            .min(usize::try_from(limits.memo).unwrap_or(usize::MAX));
        let bad = |at: usize, what: &str| Err(Error::pickle(at, what));
        loop {
            let at = reader.offset();
            let (put, get) = match reader.next_op() {
                Ok(Op::Memoize) => (Some(next), None),
                Ok(Op::BinPut(i)) => (Some(usize::from(i)), None),
                Ok(Op::BinGet(i)) => (None, Some(usize::from(i))),
                Ok(Op::LongBinPut(i)) => (Some(i as usize), None),
                Ok(Op::LongBinGet(i)) => (None, Some(i as usize)),
                Ok(Op::Put(line)) => (number(line), None),
                Ok(Op::Get(line)) => (None, number(line)),
                Ok(Op::Stop) => break,
                Ok(_) => continue,
                Err(t) => return Err(Error::pickle(at, t.to_string())),
            };

            // A get counts only after its put, as in the second pass, so that pass never misses an entry.
            match (put, get) {
                (Some(i), _) if i < max => {
                    sparse |= i != next;
                    next += usize::from(filled.set(i));
                }
                (Some(_), _) if (max as u64) < bytes.len() as u64 => {
                    return Err(Error::Limit {
                        offset: at as u64,
                        limit: "memo entries",
                        max: limits.memo,
                    });
                }
                (Some(_), _) => return bad(at, "a memo number is larger than the pickle"),
                (_, Some(i)) if filled.get(i) => {
                    fetched.set(i);
                }
                (_, Some(_)) => return bad(at, "it names a memo entry that is not there"),
                (None, None) => return bad(at, "the name of a memo entry is not a number"),
            }
        }

        // The rank of a fetched number is its slot, so the memo has no holes.
        let mut count = 0u32;
        let ranks = fetched
            .0
            .iter()
            .map(|w| {
                let before = count;
                count += w.count_ones();
                before
            })
            .collect();
        Ok(Self {
            fetched,
            ranks,
            count: count as usize,
            sparse,
            end: reader.offset(),
        })
    }

    #[inline(always)]
    fn slot(&self, i: usize) -> Option<usize> {
        let word = *self.fetched.0.get(i / 64)?;
        let bit = 1u64 << (i % 64);
        let before = *self.ranks.get(i / 64)? as usize;
        (word & bit != 0).then(|| before + (word & (bit - 1)).count_ones() as usize)
    }
}

/// The entries that are fetched again.
#[derive(Debug)]
pub(super) struct Memo<V> {
    plan: Plan,
    slots: Vec<Option<V>>,
    next: usize,
    filled: Bits,
}

impl<V> Memo<V> {
    pub(super) fn new(plan: Plan) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(plan.count, || None);
        Self {
            plan,
            slots,
            next: 0,
            filled: Bits::default(),
        }
    }

    /// Counts an entry, and gives its place if it is ever fetched. `None` for the number: the next one.
    #[inline(always)]
    pub(super) fn place(&mut self, number: Option<usize>) -> Option<&mut Option<V>> {
        let i = number.unwrap_or(self.next);
        if self.plan.sparse {
            self.next += usize::from(self.filled.set(i));
        } else {
            self.next += 1;
        }
        let slot = self.plan.slot(i)?;
        self.slots.get_mut(slot)
    }

    #[inline(always)]
    pub(super) fn fetch(&self, i: usize) -> Option<&V> {
        self.slots.get(self.plan.slot(i)?)?.as_ref()
    }
}
