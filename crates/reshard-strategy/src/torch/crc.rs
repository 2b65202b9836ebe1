//! Computes the checksum of a record on the way. If a record is cut, several threads compute it.

use reshard_model::BoxError;
use reshard_storage::Checksum;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

/// Compares the CRC-32 of a record with the one in its archive.
pub struct Crc {
    hasher: crc32fast::Hasher,
    /// The number of bytes of the record before those that this check sees.
    at: u64,
    /// Bytes that it has seen.
    seen: u64,
    record: Arc<Record>,
}

struct Record {
    len: u64,
    stored: u32,
    /// The name of what it holds, for the error.
    name: Box<dyn Fn() -> String + Send + Sync>,
    /// The parts that were seen, by their start.
    parts: Mutex<Parts>,
}

type Parts = BTreeMap<u64, (crc32fast::Hasher, u64)>;

impl Crc {
    /// For a record of `len` bytes. `name` says what it holds, for the error.
    pub fn new(len: u64, stored: u32, name: impl Fn() -> String + Send + Sync + 'static) -> Self {
        let record = Arc::new(Record {
            len,
            stored,
            name: Box::new(name),
            parts: Mutex::default(),
        });
        Self {
            hasher: crc32fast::Hasher::new(),
            at: 0,
            seen: 0,
            record,
        }
    }
}

impl fmt::Debug for Crc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crc({:08x})", self.record.stored)
    }
}

impl Checksum for Crc {
    fn update(&mut self, bytes: &[u8]) {
        self.seen += bytes.len() as u64;
        self.hasher.update(bytes);
    }

    fn finish(self: Box<Self>) -> Result<(), BoxError> {
        let Self {
            hasher,
            at,
            seen,
            record,
        } = *self;
        let found = if seen == record.len {
            Some(hasher.finalize())
        } else {
            let mut parts = record.parts.lock().unwrap_or_else(PoisonError::into_inner);
            parts.insert(at, (hasher, seen));
            whole(&parts, record.len)
        };
        match found {
            Some(found) if found != record.stored => {
                let (what, stored) = ((record.name)(), record.stored);
                Err(format!(
                    "{what}: the CRC-32 of its elements is {found:08x}, but the archive says {stored:08x}"
                )
                .into())
            }
            _ => Ok(()),
        }
    }

    fn split(&mut self, at: u64) -> Option<Box<dyn Checksum>> {
        let (hasher, at) = (crc32fast::Hasher::new(), self.at + at);
        Some(Box::new(Self {
            hasher,
            at,
            seen: 0,
            record: Arc::clone(&self.record),
        }))
    }
}

/// The checksum of all parts, once all of them are complete.
fn whole(parts: &Parts, len: u64) -> Option<u32> {
    let (mut sum, mut end) = (crc32fast::Hasher::new(), 0);
    for (&at, (hasher, seen)) in parts {
        if at != end {
            return None;
        }
        sum.combine(hasher);
        end += seen;
    }
    (end == len).then(|| sum.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn parts_are_right_together_if_the_whole_is(
            bytes in prop::collection::vec(any::<u8>(), 1..300), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
            order in any::<prop::sample::Index>(), flip in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let stored = crc32fast::hash(&bytes);
            let mut read = bytes.clone();
            if let Some(at) = &flip {
                read[at.index(bytes.len())] ^= 4;
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len())).chain([0, bytes.len()]).collect();
            cuts.sort_unstable();
            cuts.dedup();
            let crc = Crc::new(bytes.len() as u64, stored, String::new);
            let mut checks: Vec<(std::ops::Range<usize>, Box<dyn Checksum>)> = vec![(0..bytes.len(), Box::new(crc))];
            for &cut in &cuts[1..cuts.len() - 1] {
                let Some((range, last)) = checks.last_mut() else { unreachable!() };
                let rest = last.split((cut - range.start) as u64).unwrap();
                let behind = cut..range.end;
                range.end = cut;
                checks.push((behind, rest));
            }
            let n = checks.len();
            checks.rotate_left(order.index(n));
            let mut outcomes = Vec::new();
            for (range, mut check) in checks {
                check.update(&read[range]);
                outcomes.push(check.finish().is_ok());
            }
            // The last one speaks for all.
            prop_assert!(outcomes[..n - 1].iter().all(|ok| *ok));
            prop_assert_eq!(outcomes[n - 1], flip.is_none());
        }
    }
}
