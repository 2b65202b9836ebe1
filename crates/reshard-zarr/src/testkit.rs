//! The parsers and decoders of what comes from outside, for fuzz targets: whatever the bytes are, none of them panics.

use crate::array::{
    decode,
    meta::{
        ArrayMeta, Codec, Encoding, Node, Sharding, Stored, parse_zarr_json, parse_zarray,
        parse_zmetadata,
    },
    shard::Shard,
};
use bytes::Bytes;
use reshard_model::{DType, Dims};

/// Any bytes as a `.zarray` and a `.zmetadata`.
pub fn v2_metadata(text: &[u8]) {
    drop(parse_zmetadata(text));
    sound(parse_zarray(text).ok());
}

/// Any bytes as a `zarr.json`.
pub fn v3_metadata(text: &[u8]) {
    if let Ok(Node::Array(array)) = parse_zarr_json(text) {
        sound((*array).ok());
    }
}

/// What every reader of an array relies on.
fn sound(array: Option<ArrayMeta>) {
    let Some(array) = array else { return };
    let size = array.dtype.size();
    assert_eq!(
        array.fill.len() as u64,
        size,
        "the fill value is one element"
    );
    assert!(!array.cell().contains(&0), "a chunk has elements");
    assert!(
        array.stored().layout(array.dtype, array.cell()).is_some(),
        "a chunk fits 63 bits"
    );
}

/// Any bytes as a chunk. The first three choose the codecs and the size of the chunk.
pub fn chunk(bytes: &[u8]) {
    const CODECS: [Codec; 6] = [
        Codec::Gzip,
        Codec::Zlib,
        Codec::Zstd,
        Codec::Blosc,
        Codec::Crc32c { at_start: false },
        Codec::Crc32c { at_start: true },
    ];
    let Some((&[first, second, rows], rest)) = bytes.split_first_chunk() else {
        return;
    };
    let codec = |n: u8| CODECS.get(usize::from(n) % 7).copied();
    let stored = Stored {
        big_endian: rows % 2 == 1,
        axes: (rows % 3 == 0).then(|| vec![1, 0]),
        codecs: codec(first).into_iter().chain(codec(second)).collect(),
    };
    let shape = [u64::from(rows), 24];
    if let Ok(tensor) =
        decode::elements(&stored, DType::Int16, &shape, Bytes::copy_from_slice(rest))
    {
        assert_eq!(tensor.shape()[..], shape, "a chunk has its shape");
    }
}

/// Any bytes as a shard of 6 inner chunks. The first says what its index is like.
pub fn shard(bytes: &[u8]) {
    let Some((&how, shard)) = bytes.split_first() else {
        return;
    };
    let sharding = Sharding {
        inner: Dims::from([1, 4]),
        stored: Stored::default(),
        index_at_start: how & 1 != 0,
        index_big_endian: how & 2 != 0,
        index_crc: how & 4 != 0,
    };
    let meta = ArrayMeta {
        shape: Dims::from([5, 7]),
        chunk: Dims::from([3, 8]),
        dtype: DType::UInt8,
        fill: vec![0],
        keys: crate::array::meta::ChunkKeys::SLASHES,
        encoding: Encoding::Sharded(sharding.clone()),
    };
    let (form, length) = (Shard::of(&meta, &sharding), shard.len() as u64);
    let Ok(at) = form.index(length) else { return };
    let index = &shard[at.start as usize..at.end as usize];
    if let Ok(found) = form.parse(index, at, length) {
        let ranges = (0..form.count()).filter_map(|n| found.range(n));
        assert!(
            ranges.into_iter().all(|r| r.end <= length),
            "inner chunks lie in their shard"
        );
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn no_bytes_make_a_target_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            super::v2_metadata(&bytes);
            super::v3_metadata(&bytes);
            super::chunk(&bytes);
            super::shard(&bytes);
        }
    }
}
