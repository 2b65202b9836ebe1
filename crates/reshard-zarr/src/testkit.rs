//! The parsers and decoders of what comes from outside, for fuzz targets: whatever the bytes are, none of them panics.

use crate::array::{
    decode,
    meta::{
        ArrayMeta, Codec, Encoding, Node, Numbers, Recoded, Sharding, Stored, Sum, parse_zarr_json,
        parse_zarray, parse_zmetadata,
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

const fn numbers(decoded: DType, encoded: DType, big_endian: bool) -> Recoded {
    const fn of(dtype: DType, big_endian: bool) -> Numbers {
        Numbers { dtype, big_endian }
    }
    Recoded {
        decoded: of(decoded, big_endian),
        encoded: of(encoded, big_endian),
    }
}

/// Every codec, with some settings.
pub(crate) const CODECS: [Codec; 18] = [
    Codec::Gzip,
    Codec::Zlib,
    Codec::Zstd,
    Codec::Bz2,
    Codec::Blosc,
    Codec::Lz4,
    sum(Sum::Crc32c, false),
    sum(Sum::Crc32c, true),
    sum(Sum::Crc32, true),
    sum(Sum::Adler32, true),
    sum(Sum::Fletcher32, false),
    Codec::Shuffle { element: 6 },
    Codec::Delta(numbers(DType::Int16, DType::Int8, false)),
    Codec::Delta(numbers(DType::Float16, DType::Float32, true)),
    Codec::Scale {
        offset: 1000.0,
        scale: 0.1,
        numbers: numbers(DType::Int16, DType::UInt64, true),
    },
    Codec::Scale {
        offset: -1e300,
        scale: 0.0,
        numbers: numbers(DType::Float64, DType::Float16, false),
    },
    Codec::PackBits,
    Codec::Narrow { bits: 4 },
];

const fn sum(sum: Sum, at_start: bool) -> Codec {
    Codec::Checksum { sum, at_start }
}

/// Any bytes as a chunk. The first three choose the codecs and the size of the chunk.
pub fn chunk(bytes: &[u8]) {
    let Some((&[first, second, rows], rest)) = bytes.split_first_chunk() else {
        return;
    };
    let codec = |n: u8| CODECS.get(usize::from(n) % (CODECS.len() + 1)).copied();
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

/// Decodes a chunk of `decoded` bytes that one codec has encoded: one of those for any bytes, by its name. Returns whether a chunk came out.
pub fn undo(codec: &str, stored: Vec<u8>, decoded: u64) -> bool {
    let codec = CODECS.iter().find(|known| known.name() == codec);
    codec.is_some_and(|codec| decode::decode(&[*codec], stored.into(), decoded).is_ok())
}

/// Any bytes as a shard of 6 inner chunks. The first says what its index is like.
pub fn shard(bytes: &[u8]) {
    let Some((&how, shard)) = bytes.split_first() else {
        return;
    };
    let sharding = Sharding {
        inner: Dims::from([1, 4]),
        axes: (how & 8 != 0).then(|| vec![1, 0]),
        within: Box::new(Encoding::Chunk(Stored::default())),
        index_at_start: how & 1 != 0,
        index_big_endian: how & 2 != 0,
        index_crc: how & 4 != 0,
    };
    let meta = ArrayMeta {
        shape: Dims::from([5, 7]),
        chunk: Dims::from([3, 8]),
        dtype: DType::UInt8,
        stated: None,
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
