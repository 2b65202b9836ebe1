//! The index of a shard: where its inner chunks lie.

use super::{
    decode::{CRC, check_sum},
    meta::{ArrayMeta, Encoding, Sharding, Sum},
};
use crate::grid::Grid;
use reshard_model::Dims;
use reshard_strategy::Refused;
use std::ops::Range;

/// Bytes of an entry: where an inner chunk begins, and its length.
pub(crate) const ENTRY: u64 = 16;

impl ArrayMeta {
    /// The grid of files.
    pub(crate) fn files(&self) -> Option<Grid> {
        Grid::new(self.shape.clone(), self.chunk.clone())
    }

    /// The position of the file of a chunk, or of an inner chunk of a shard, and the number of the inner chunk there.
    pub(crate) fn place(&self, at: Dims) -> (Dims, Option<u64>) {
        match &self.encoding {
            Encoding::Chunk(_) => (at, None),
            Encoding::Sharded(sharding) => Shard::of(self, sharding).place(&at),
        }
    }
}

/// How a shard is cut, and where its index lies.
#[derive(Clone, Debug)]
pub(crate) struct Shard<'a> {
    sharding: &'a Sharding,
    /// Inner chunks per axis.
    cells: Dims,
    /// The same of the smallest chunks in an inner chunk: ones, if it is no shard.
    parts: Dims,
    /// An inner chunk that is a shard.
    within: Option<Box<Shard<'a>>>,
}

impl<'a> Shard<'a> {
    pub(crate) fn of(meta: &ArrayMeta, sharding: &'a Sharding) -> Self {
        Self::cut(&meta.chunk, sharding)
    }

    fn cut(shard: &Dims, sharding: &'a Sharding) -> Self {
        // The parser has checked that none is 0.
        let per_axis = |whole: &Dims, part: &Dims| -> Dims {
            let axes = whole.iter().zip(part);
            axes.map(|(whole, part)| whole / part.max(&1)).collect()
        };
        let inner = &sharding.inner;
        Self {
            sharding,
            cells: per_axis(shard, inner),
            parts: per_axis(inner, sharding.within.cell(inner)),
            within: match &*sharding.within {
                Encoding::Chunk(_) => None,
                Encoding::Sharded(within) => Some(Box::new(Self::cut(inner, within))),
            },
        }
    }

    /// The position of the shard of one of the smallest chunks, and the number of the chunk there.
    fn place(&self, at: &[u64]) -> (Dims, Option<u64>) {
        let all = || self.cells.iter().zip(&self.parts);
        let counts: Dims = all().map(|(a, b)| a.saturating_mul(*b).max(1)).collect();
        let axes = at.iter().zip(&counts);
        let (position, inside): (Vec<u64>, Vec<u64>) = axes.map(|(at, n)| (at / n, at % n)).unzip();
        (position.into(), Some(self.number(&inside)))
    }

    /// The number of one of the smallest chunks by its position in the shard: they are counted by inner chunk.
    fn number(&self, at: &[u64]) -> u64 {
        let mut number = 0u64;
        let mut rest = Dims::zeros(at.len());
        for n in 0..at.len() {
            let axis = self.sharding.axes.as_ref().map_or(n, |axes| axes[n]);
            let parts = self.parts[axis].max(1);
            number = number.saturating_mul(self.cells[axis]);
            number = number.saturating_add(at[axis] / parts);
            rest[axis] = at[axis] % parts;
        }
        match &self.within {
            None => number,
            Some(within) => number
                .saturating_mul(within.count())
                .saturating_add(within.number(&rest)),
        }
    }

    /// How many of the smallest chunks there are.
    pub(crate) fn count(&self) -> u64 {
        let within = self.within.as_ref().map_or(1, |within| within.count());
        self.entries().saturating_mul(within)
    }

    /// How many inner chunks there are.
    fn entries(&self) -> u64 {
        self.cells.volume().unwrap_or(u64::MAX)
    }

    /// How an inner chunk is cut, if it is a shard.
    pub(crate) fn within(&self) -> Option<&Self> {
        self.within.as_deref()
    }

    /// Whether the index has a checksum.
    pub(crate) fn index_has_crc(&self) -> bool {
        self.sharding.index_crc
    }

    /// The bytes of an index.
    fn index_bytes(&self) -> Option<u64> {
        let crc = if self.sharding.index_crc {
            CRC as u64
        } else {
            0
        };
        self.entries()
            .checked_mul(ENTRY)
            .and_then(|n| n.checked_add(crc))
    }

    /// The length of a shard in which all inner chunks are stored once, each with so many bytes, and nothing else but the index.
    pub(crate) fn written(&self, inner: u64) -> Option<u64> {
        let chunks = self.entries().checked_mul(inner)?;
        chunks.checked_add(self.index_bytes()?)
    }

    /// The bytes of the index in a shard of so many bytes.
    ///
    /// # Errors
    /// The shard is too short for it.
    pub(crate) fn index(&self, shard: u64) -> Result<Range<u64>, Refused> {
        let size = self.index_bytes();
        match size.filter(|size| *size <= shard) {
            Some(size) if self.sharding.index_at_start => Ok(0..size),
            Some(size) => Ok(shard - size..shard),
            None => Err(Refused::damaged(format!(
                "a shard of {shard} bytes is too short for the index of {} inner chunks",
                self.entries()
            ))),
        }
    }

    /// Parses an index. `at` is where it lies, and `shard` the length of the shard.
    ///
    /// # Errors
    /// Its checksum is wrong, or inner chunks lie outside the shard, in the index, or in each other.
    pub(crate) fn parse(&self, bytes: &[u8], at: Range<u64>, shard: u64) -> Result<Index, Refused> {
        let entries = match self.sharding.index_crc {
            true => {
                let parts = bytes.split_last_chunk();
                let cut = || Refused::damaged("the index of a shard is cut");
                let (entries, sum) = parts.ok_or_else(cut)?;
                check_sum(Sum::Crc32c, " of the index of a shard", entries, *sum)?;
                entries
            }
            false => bytes,
        };
        let number = |bytes: &[u8; 8]| match self.sharding.index_big_endian {
            true => u64::from_be_bytes(*bytes),
            false => u64::from_le_bytes(*bytes),
        };
        let (words, rest) = entries.as_chunks::<8>();
        if words.len() as u64 != self.entries().saturating_mul(2) || !rest.is_empty() {
            return Err(Refused::damaged(format!(
                "the index of a shard has {} bytes for {} inner chunks",
                bytes.len(),
                self.entries()
            )));
        }
        let mut found = Vec::with_capacity(words.len() / 2);
        for (n, entry) in words.chunks_exact(2).enumerate() {
            let (offset, length) = (number(&entry[0]), number(&entry[1]));
            if (offset, length) == (u64::MAX, u64::MAX) {
                found.push(None);
                continue;
            }
            let end = offset.checked_add(length).filter(|end| *end <= shard);
            let Some(end) = end else {
                return Err(Refused::damaged(format!(
                    "inner chunk {n} of {length} bytes at byte {offset} does not lie in its shard of {shard} bytes"
                )));
            };
            if length > 0 && offset < at.end && end > at.start {
                return Err(Refused::damaged(format!(
                    "inner chunk {n} of {length} bytes at byte {offset} lies in the index"
                )));
            }
            found.push(Some(offset..end));
        }
        let index = Index {
            found,
            covered: Vec::new(),
        };
        index.overlap()?;
        Ok(index)
    }
}

/// Where the smallest chunks of a shard lie, or its inner chunks while the indexes of these are still to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    /// By their numbers.
    pub(crate) found: Vec<Option<Range<u64>>>,
    /// Where indexes of inner chunks lie that have checksums.
    pub(crate) covered: Vec<Range<u64>>,
}

impl Index {
    /// The bytes of an inner chunk. `None` if it is not stored.
    pub(crate) fn range(&self, number: u64) -> Option<Range<u64>> {
        self.found.get(usize::try_from(number).ok()?)?.clone()
    }

    /// Whether all inner chunks are stored, each with so many bytes, one behind the other from the first byte on.
    pub(crate) fn follows(&self, inner: u64) -> bool {
        let starts = (0u64..).map(|n| n.saturating_mul(inner));
        let mut found = self.found.iter().zip(starts);
        found.all(|(at, start)| *at == Some(start..start.saturating_add(inner)))
    }

    /// Fails if two inner chunks share bytes. Equal chunks may share all of them.
    fn overlap(&self) -> Result<(), Refused> {
        let mut stored: Vec<(u64, u64, usize)> = self
            .found
            .iter()
            .enumerate()
            .filter_map(|(n, at)| at.as_ref().map(|at| (at.start, at.end, n)))
            .filter(|(start, end, _)| start < end)
            .collect();
        stored.sort_unstable();
        let shared = stored.windows(2).find(|pair| {
            let [(a, a_end, _), (b, b_end, _)] = [pair[0], pair[1]];
            (a, a_end) != (b, b_end) && b < a_end
        });
        match shared {
            None => Ok(()),
            Some(pair) => Err(Refused::damaged(format!(
                "inner chunks {} and {} of a shard lie in each other, at byte {}",
                pair[0].2, pair[1].2, pair[1].0
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::meta::{Node, parse_zarr_json};
    use proptest::prelude::*;
    use serde_json::json;

    /// Of 2 by 2 inner chunks of 4 bytes each.
    fn meta(at_start: bool, crc: bool) -> ArrayMeta {
        let mut index = vec![json!({"name": "bytes", "configuration": {"endian": "little"}})];
        if crc {
            index.push(json!("crc32c"));
        }
        let text = json!({
            "zarr_format": 3, "node_type": "array", "shape": [4, 8], "data_type": "uint8", "fill_value": 7,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 4]}}, "chunk_key_encoding": "default",
            "codecs": [{"name": "sharding_indexed", "configuration": {
                "chunk_shape": [1, 2], "codecs": ["bytes"], "index_codecs": index,
                "index_location": if at_start { "start" } else { "end" },
            }}],
        });
        match parse_zarr_json(text.to_string().as_bytes()).unwrap() {
            Node::Array(array) => array.unwrap(),
            Node::Group(_) => panic!("a group"),
        }
    }

    fn sharding(meta: &ArrayMeta) -> &Sharding {
        match &meta.encoding {
            Encoding::Sharded(sharding) => sharding,
            Encoding::Chunk(_) => panic!("no shard"),
        }
    }

    fn index(entries: &[(u64, u64)]) -> Vec<u8> {
        let mut out: Vec<u8> = entries
            .iter()
            .flat_map(|(at, n)| [at.to_le_bytes(), n.to_le_bytes()].concat())
            .collect();
        out.extend(crc32c::crc32c(&out).to_le_bytes());
        out
    }

    fn parse(entries: &[(u64, u64)]) -> Result<Index, Refused> {
        let meta = meta(false, true);
        Shard::of(&meta, sharding(&meta)).parse(&index(entries), 100..168, 168)
    }

    const NONE: (u64, u64) = (u64::MAX, u64::MAX);

    #[test]
    fn an_index_says_where_inner_chunks_lie() {
        let found = parse(&[(2, 2), NONE, (0, 2), (90, 10)]).unwrap();
        let ranges: Vec<_> = (0..5).map(|n| found.range(n)).collect();
        assert_eq!(ranges, [Some(2..4), None, Some(0..2), Some(90..100), None]);
        // Equal inner chunks may be stored once.
        assert!(parse(&[(2, 2), (2, 2), NONE, NONE]).is_ok());
    }

    #[test]
    fn an_index_lies_at_the_end_or_at_the_start() {
        for (start, crc, want) in [
            (false, true, 32..100),
            (false, false, 36..100),
            (true, true, 0..68),
            (true, false, 0..64),
        ] {
            let meta = meta(start, crc);
            let shard = Shard::of(&meta, sharding(&meta));
            assert_eq!(shard.count(), 4);
            assert_eq!(shard.index(100).unwrap(), want);
            let short = shard.index(60).unwrap_err();
            assert!(short.what.contains("too short for the index"), "{short:?}");
        }
    }

    #[test]
    fn a_damaged_index_is_told_what_is_wrong_with_it() {
        for (entries, what) in [
            (
                [(0, 169), NONE, NONE, NONE],
                "inner chunk 0 of 169 bytes at byte 0 does not lie in its shard",
            ),
            (
                [NONE, (u64::MAX - 1, 9), NONE, NONE],
                "does not lie in its shard",
            ),
            (
                [NONE, NONE, (99, 2), NONE],
                "inner chunk 2 of 2 bytes at byte 99 lies in the index",
            ),
            (
                [(0, 4), NONE, (3, 2), NONE],
                "inner chunks 0 and 2 of a shard lie in each other, at byte 3",
            ),
            ([(0, 9), (0, 4), NONE, NONE], "lie in each other"),
        ] {
            let fault = parse(&entries).unwrap_err();
            assert!(fault.what.contains(what), "{fault:?}");
        }
        let meta = meta(false, true);
        let shard = Shard::of(&meta, sharding(&meta));
        let mut bytes = index(&[NONE; 4]);
        bytes[5] ^= 1;
        let fault = shard.parse(&bytes, 0..68, 68).unwrap_err();
        assert!(fault.what.contains("CRC-32C of the index"), "{fault:?}");
        let fault = shard.parse(&index(&[NONE; 3]), 0..52, 52).unwrap_err();
        assert!(fault.what.contains("for 4 inner chunks"), "{fault:?}");
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn what_an_index_says_lies_in_the_shard_and_apart(
            entries in prop::collection::vec((0u64..120, 0u64..20), 4), huge in any::<(u64, u64)>(), at in 0usize..8, crc: bool,
        ) {
            let meta = meta(false, crc);
            let shard = Shard::of(&meta, sharding(&meta));
            let mut entries = entries;
            if let Some(entry) = entries.get_mut(at) {
                *entry = huge;
            }
            let mut bytes = index(&entries);
            if !crc {
                bytes.truncate(64);
            }
            let place = shard.index(168).unwrap();
            if let Ok(found) = shard.parse(&bytes, place.clone(), 168) {
                let all: Vec<Range<u64>> = (0..4).filter_map(|n| found.range(n)).filter(|r| !r.is_empty()).collect();
                for (n, a) in all.iter().enumerate() {
                    prop_assert!(a.end <= 168 && (a.end <= place.start || a.start >= place.end));
                    prop_assert!(all[..n].iter().all(|b| a == b || a.end <= b.start || b.end <= a.start));
                }
            }
        }

        #[test]
        fn no_bytes_make_a_parser_of_indexes_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), shard in any::<u64>(), crc: bool) {
            let meta = meta(true, crc);
            let form = Shard::of(&meta, sharding(&meta));
            if let Ok(at) = form.index(shard) {
                drop(form.parse(&bytes, at, shard));
            }
        }
    }
}
