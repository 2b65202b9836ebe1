//! The texts of Zarr v3: an array whose files are shards, and the group of all arrays.
//!
//! Inner chunks are rows of their shard, in its order. So a shard holds its elements in row-major order, without gaps, and then the index.

use bytes::Bytes;
use reshard_model::{DType, Dims};
use serde::{
    Serialize, Serializer,
    ser::{Error as _, SerializeMap as _},
};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Name of the backend.
pub(crate) const NAME: &str = "zarr3";

/// The file that reshard adds: checksums, and what zarr has no place for. Other programs ignore it.
pub(crate) const RECORD: &str = "reshard-zarr3.json";

/// The name of an element type in Zarr v3. `None` for types that have none.
pub(crate) fn spelling(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Complex32 => "complex_float16",
        DType::BComplex32 => "complex_bfloat16",
        DType::Float4E2M1FnX2 => return None,
        other => other.name(),
    })
}

/// The shape of an inner chunk of a shard: rows of it, about `target` bytes of them. Inner chunks have to divide the shard. If the rows can
/// be divided only into very small inner chunks, they are larger than the target.
pub(crate) fn inner(shard: &[u64], size: u64, target: u64) -> Dims {
    let mut out = Dims::from(shard);
    for axis in 0..shard.len() {
        let rest: u64 = out[axis + 1..]
            .iter()
            .fold(size, |n, len| n.saturating_mul(*len));
        if rest.saturating_mul(out[axis]) <= target {
            return out;
        }
        if rest <= target || axis + 1 == shard.len() {
            out[axis] = rows(out[axis], rest, target);
            return out;
        }
        out[axis] = 1;
    }
    out
}

/// How many of `n` rows of so many bytes are one inner chunk.
fn rows(n: u64, row: u64, target: u64) -> u64 {
    let small = target / 16;
    // Divisors below and above the root come in pairs.
    let divisors = (1..=n.isqrt())
        .take(1 << 20)
        .filter(|d| n.is_multiple_of(*d))
        .flat_map(|d| [d, n / d]);
    let (mut below, mut above) = (0, n);
    for d in divisors {
        match d.saturating_mul(row) {
            bytes if bytes > target => above = above.min(d),
            bytes if bytes >= small => below = below.max(d),
            _ => {}
        }
    }
    if below > 0 { below } else { above }
}

/// The `zarr.json` of an array.
pub(crate) fn array(
    shape: &Dims,
    shard: &Dims,
    inner: &Dims,
    dtype: DType,
    name: &str,
) -> serde_json::Result<Bytes> {
    let little = json!({"name": "bytes", "configuration": {"endian": "little"}});
    let bytes = match dtype.word() {
        1 => json!({"name": "bytes"}),
        _ => little.clone(),
    };
    let fill = match dtype {
        DType::Bool => json!(false),
        d if d.is_complex() => json!([0.0, 0.0]),
        d if d.is_float() => json!(0.0),
        _ => json!(0),
    };
    let array = json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shard}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": [{"name": "sharding_indexed", "configuration": {
            "chunk_shape": inner,
            "codecs": [bytes],
            "index_codecs": [little, {"name": "crc32c"}],
            "index_location": "end",
        }}],
        "attributes": {},
        "storage_transformers": [],
    });
    serde_json::to_vec_pretty(&array).map(Bytes::from)
}

/// The `zarr.json` of a group.
pub(crate) fn group() -> serde_json::Result<Bytes> {
    let group = json!({"zarr_format": 3, "node_type": "group", "attributes": {}});
    serde_json::to_vec_pretty(&group).map(Bytes::from)
}

/// The `zarr.json` of the root group. `nodes` are the texts of all groups and arrays below it, by path. Only one of them is parsed at a time,
/// because each takes several times its length.
pub(crate) fn root(
    nodes: &BTreeMap<&str, &[u8]>,
    attributes: &Map<String, Value>,
) -> serde_json::Result<Bytes> {
    let root = Root {
        zarr_format: 3,
        node_type: "group",
        attributes,
        consolidated_metadata: Consolidated {
            kind: "inline",
            must_understand: false,
            metadata: Nodes(nodes),
        },
    };
    serde_json::to_vec(&root).map(Bytes::from)
}

#[derive(Serialize)]
struct Root<'t> {
    zarr_format: u32,
    node_type: &'static str,
    attributes: &'t Map<String, Value>,
    consolidated_metadata: Consolidated<'t>,
}

#[derive(Serialize)]
struct Consolidated<'t> {
    kind: &'static str,
    must_understand: bool,
    metadata: Nodes<'t>,
}

/// Texts of groups and arrays, by path.
struct Nodes<'t>(&'t BTreeMap<&'t str, &'t [u8]>);

impl Serialize for Nodes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (path, text) in self.0 {
            let node: Value = serde_json::from_slice(text).map_err(S::Error::custom)?;
            map.serialize_entry(path, &node)?;
        }
        map.end()
    }
}

/// The index of a shard whose `count` inner chunks of so many bytes follow each other, with its checksum.
pub(crate) fn index(count: u64, bytes: u64) -> Bytes {
    let entry = |n: u64| [(n * bytes).to_le_bytes(), bytes.to_le_bytes()];
    let mut out: Vec<u8> = (0..count).flat_map(entry).flatten().collect();
    out.extend(crc32c::crc32c(&out).to_le_bytes());
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn inner_chunks_are_rows_of_about_the_size_that_is_asked_for() {
        for (shard, target, want) in [
            (&[1024, 1024][..], 1 << 20, &[256, 1024][..]),
            (&[1024, 1024], 1 << 30, &[1024, 1024]),
            (&[8, 1 << 20], 1 << 20, &[1, 1 << 18]),
            (&[7, 3, 100], 400, &[1, 1, 100]),
            (&[10_007], 4000, &[10_007]),
            (&[], 1, &[]),
            (&[12], 16, &[4]),
        ] {
            assert_eq!(inner(shard, 4, target), Dims::from(want), "{shard:?}");
        }
    }

    #[test]
    fn every_type_but_packed_ones_has_a_name() {
        for dtype in DType::ALL {
            assert_eq!(spelling(*dtype).is_none(), *dtype == DType::Float4E2M1FnX2);
        }
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn inner_chunks_divide_their_shard_and_follow_each_other(shard in prop::collection::vec(1u64..40, 0..5), target in 1u64..5000) {
            let found = inner(&shard, 2, target);
            prop_assert!(shard.iter().zip(&found).all(|(n, part)| *part > 0 && n % part == 0));
            // Ones, then one axis that is cut, then whole axes.
            let cut = found.iter().position(|n| *n != 1).map_or(shard.len(), |axis| axis + 1);
            prop_assert!((cut..shard.len()).all(|axis| found[axis] == shard[axis]));
        }
    }
}
