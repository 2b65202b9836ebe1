//! Which bytes of a checkpoint a full check can't confirm.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, ops::Range};

/// Why a check can't tell whether bytes have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Uncovered {
    /// Nothing in the checkpoint has a checksum of them.
    NoChecksum,
    /// They lie between or behind items, and no item has them.
    Between,
    /// Headers and paddings of archives that another program than PyTorch has written.
    Framing,
    /// They are packed. What they unpack to was checked, and other bytes may unpack to the same.
    Packed,
    /// The file does not belong to the checkpoint.
    Foreign,
}

/// What the bytes are, to be put behind their number: `12 bytes without a checksum`.
impl fmt::Display for Uncovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoChecksum => "without a checksum",
            Self::Between => "between items",
            Self::Framing => "of headers and paddings",
            Self::Packed => "that are packed, of which only what they unpack to is checked",
            Self::Foreign => "of files that are not of the checkpoint",
        })
    }
}

/// The bytes that a full check can't confirm, by file. If such a byte has changed, the check does not find it.
///
/// At most 10,000 files are listed. The bytes of further ones are in [`more`](Self::more).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NotCovered {
    /// How many bytes of each file, by why.
    pub files: BTreeMap<String, BTreeMap<Uncovered, u64>>,
    /// Bytes of files that are not listed, by why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub more: BTreeMap<Uncovered, u64>,
}

/// So many files are listed.
const FILES: usize = 10_000;

impl NotCovered {
    /// Whether all bytes were confirmed.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.more.is_empty()
    }

    /// Bytes by why, and the files that have some.
    pub fn by_reason(&self) -> BTreeMap<Uncovered, (u64, Vec<&str>)> {
        let mut out: BTreeMap<Uncovered, (u64, Vec<&str>)> = BTreeMap::new();
        for (file, of) in &self.files {
            for (why, bytes) in of {
                let (sum, files) = out.entry(*why).or_default();
                *sum = sum.saturating_add(*bytes);
                files.push(file);
            }
        }
        for (why, bytes) in &self.more {
            let (sum, _) = out.entry(*why).or_default();
            *sum = sum.saturating_add(*bytes);
        }
        out
    }

    /// Adds bytes of a file. Zero bytes are none.
    pub fn add(&mut self, file: &str, why: Uncovered, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let is_full = self.files.len() >= FILES;
        let of = match self.files.get_mut(file) {
            Some(of) => of,
            None if is_full => &mut self.more,
            None => self.files.entry(file.into()).or_default(),
        };
        let sum = of.entry(why).or_default();
        *sum = sum.saturating_add(bytes);
    }

    /// Adds the bytes of a file of `size` bytes that lie in none of the ranges of its items.
    pub fn add_between(&mut self, file: &str, size: u64, mut items: Vec<Range<u64>>) {
        items.sort_unstable_by_key(|range| range.start);
        self.add(file, Uncovered::Between, unclaimed(size, items));
    }

    /// Adds all of another.
    pub fn merge(&mut self, other: Self) {
        for (file, of) in &other.files {
            for (why, bytes) in of {
                self.add(file, *why, *bytes);
            }
        }
        for (why, bytes) in other.more {
            let sum = self.more.entry(why).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }

    /// Forgets what was added of a file, because all of it has a checksum elsewhere.
    pub fn confirm(&mut self, file: &str) {
        self.files.remove(file);
    }
}

/// How many of the first `size` bytes of a file lie in none of these ranges, which are sorted by their starts.
pub fn unclaimed(size: u64, ranges: impl IntoIterator<Item = Range<u64>>) -> u64 {
    let (mut end, mut free) = (0u64, 0u64);
    for range in ranges {
        free += range.start.min(size).saturating_sub(end);
        end = end.max(range.end);
    }
    free + size.saturating_sub(end)
}

/// Pairs of items of one file that share bytes: each item that does so with an earlier one, after the one of these that ends last.
///
/// `items` must be sorted by file and first byte. `place` returns the file of an item and its bytes there.
pub fn overlapping<T: Copy, F: PartialEq>(
    items: impl IntoIterator<Item = T>,
    place: impl Fn(T) -> (F, Range<u64>),
) -> impl Iterator<Item = (T, T)> {
    let mut last: Option<T> = None;
    items.into_iter().filter_map(move |item| {
        let (file, range) = place(item);
        // An empty range shares no byte.
        if range.is_empty() {
            return None;
        }
        let before = last.map(|last| (last, place(last)));
        let before = before.filter(|(_, (of, _))| *of == file);
        let end = before.as_ref().map(|(_, (_, range))| range.end);
        if end.is_none_or(|end| end < range.end) {
            last = Some(item);
        }
        let before = before.filter(|_| end.is_some_and(|end| end > range.start));
        before.map(|(before, _)| (before, item))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_no_range_are_counted_once() {
        assert_eq!(unclaimed(10, []), 10);
        assert_eq!(unclaimed(10, [0..4, 4..10]), 0);
        assert_eq!(unclaimed(10, [1..4, 2..3, 6..8]), 1 + 2 + 2);
        // Ranges may reach beyond the end.
        assert_eq!(unclaimed(10, [0..4, 20..30]), 6);
        assert_eq!(unclaimed(10, [0..40, 20..30]), 0);
    }

    #[test]
    fn files_are_listed_up_to_a_number_and_their_bytes_are_counted() {
        let mut all = NotCovered::default();
        all.add("a", Uncovered::Between, 0);
        assert!(all.is_empty());
        for n in 0..FILES + 2 {
            all.add(&format!("{n}"), Uncovered::NoChecksum, 3);
        }
        all.add("0", Uncovered::NoChecksum, 4);
        all.add("0", Uncovered::Between, 1);
        assert_eq!(all.files.len(), FILES);
        assert_eq!(all.more, BTreeMap::from([(Uncovered::NoChecksum, 6)]));
        let of = [(Uncovered::NoChecksum, 7), (Uncovered::Between, 1)];
        assert_eq!(all.files["0"], BTreeMap::from(of));
        let by = all.by_reason();
        assert_eq!(by[&Uncovered::Between], (1, vec!["0"]));
        let bytes = 3 * (FILES as u64 + 2) + 4;
        let (sum, files) = &by[&Uncovered::NoChecksum];
        assert_eq!((*sum, files.len()), (bytes, FILES));
        all.confirm("0");
        assert!(!all.files.contains_key("0"));
    }
}
