//! The parsers of what comes from outside, for fuzz targets: whatever the bytes are, none of them panics. And keys of slices, for tests.

use crate::{
    entry::{Entry, Extent, Header, Shape, Slice, Version},
    graph::ObjectGraph,
    index::Index,
    object::{Codec, Object},
    ordered_code,
    state_file::CheckpointState,
    strings::{self, Order},
    table::read::{Budget, entries},
    variant,
};
use bytes::Bytes;
use prost::Message as _;
use reshard_model::ObjectCodec;

/// How much memory a table may ask for here.
const MEMORY: u64 = 16 << 20;

/// Any bytes as a table.
pub fn sstable(bytes: &[u8]) {
    let mut last: Option<Vec<u8>> = None;
    drop(entries(bytes, Budget(MEMORY), &mut |_, key, _| {
        assert!(
            last.as_deref().is_none_or(|last| last < key),
            "keys increase"
        );
        last = Some(key.to_vec());
        Ok(())
    }));
    drop(Index::parse(bytes, None, MEMORY));
}

/// Any bytes as the messages in an index, an object graph, a state file, strings and objects.
pub fn protos(bytes: &[u8]) {
    drop(Header::decode(bytes));
    if let Some(entry) = Entry::parse(bytes) {
        assert_eq!(
            Entry::parse(&entry.encode_to_vec()),
            Some(entry),
            "an entry is read as it was written"
        );
    }
    drop(ObjectGraph::parse(bytes).map(|graph| graph.owner_paths()));
    drop(
        std::str::from_utf8(bytes)
            .ok()
            .and_then(CheckpointState::parse),
    );
    drop(ordered_code::name_of(bytes));
    for order in [Order::Little, Order::Big] {
        let elements = u64::from(bytes.first().copied().unwrap_or(0));
        drop(strings::decode(bytes, elements, order));
        drop(variant::check(bytes, elements, order));
    }
    let bytes = Bytes::copy_from_slice(bytes);
    drop(Object::parse(&bytes).map(|object| object.crc()));
    drop(Codec::default().decode(&bytes));
}

/// The name of the index of a checkpoint in a place of files with one prefix.
pub const INDEX: &str = crate::names::INDEX;

/// Any bytes as the only block of an otherwise sound table, packed by snappy.
pub fn snappy(block: &[u8]) {
    sstable(&table_of(block, 1));
}

/// A table of one block, whose trailer names the method `packed`. Its checksums are right.
pub fn table_of(block: &[u8], packed: u8) -> Vec<u8> {
    crate::table::write::of_block(block, packed)
}

/// The key of a slice: start and length on each axis; an axis that is given as a whole has length -1.
pub fn slice_key(name: &[u8], extents: &[(i64, i64)]) -> Vec<u8> {
    ordered_code::slice_key(name, extents.iter().copied())
}

/// The entries of a table, in their order. `None` if it is damaged.
pub fn entries_of(table: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut all = Vec::new();
    let visited = entries(table, Budget(1 << 30), &mut |_, key, value| {
        all.push((key.to_vec(), value.to_vec()));
        Ok(())
    });
    visited.is_ok().then_some(all)
}

/// A table of these entries, in this order, as TensorFlow builds it.
pub fn table(entries: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut builder = crate::table::write::TableBuilder::default();
    entries
        .iter()
        .for_each(|(key, value)| builder.add(key, value));
    builder.finish()
}

/// The fields of an entry, for tests that damage one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the message")]
pub struct EntryFields {
    pub dtype: i64,
    pub shape: Vec<i64>,
    pub shard_id: i64,
    pub offset: i64,
    pub size: i64,
    /// Not masked.
    pub crc32c: u32,
    /// Start and length on each axis of each slice. A whole axis has no length.
    pub slices: Vec<Vec<(i64, Option<i64>)>>,
}

impl EntryFields {
    /// `None` if these are no bytes of an entry.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let entry = Entry::parse(bytes)?;
        let of_slice = |slice: &Slice| {
            let extents = slice.extents.iter();
            extents.map(|e| (e.start, e.length)).collect()
        };
        Some(Self {
            dtype: entry.dtype.into(),
            shape: entry.lengths(),
            shard_id: entry.shard.into(),
            offset: entry.offset,
            size: entry.size,
            crc32c: crate::crc::unmask(entry.crc),
            slices: entry.slices.iter().map(of_slice).collect(),
        })
    }

    /// The bytes of the entry.
    pub fn to_bytes(&self) -> Vec<u8> {
        let slice = |extents: &Vec<(i64, Option<i64>)>| {
            let extents = extents.iter();
            Slice {
                extents: extents
                    .map(|&(start, length)| Extent { start, length })
                    .collect(),
            }
        };
        Entry {
            dtype: self.dtype as i32,
            shape: Some(Shape::new(self.shape.iter().copied())),
            shard: self.shard_id as i32,
            offset: self.offset,
            size: self.size,
            crc: crate::crc::mask(self.crc32c),
            slices: self.slices.iter().map(slice).collect(),
        }
        .encode_to_vec()
    }
}

/// The bytes of a header.
pub fn header(num_shards: i64, endianness: i64, (producer, min_consumer): (i64, i64)) -> Vec<u8> {
    let version = Version {
        producer: producer as i32,
        min_consumer: min_consumer as i32,
        bad_consumers: Vec::new(),
    };
    Header {
        shards: num_shards as i32,
        endianness: endianness as i32,
        version: Some(version),
    }
    .encode_to_vec()
}
