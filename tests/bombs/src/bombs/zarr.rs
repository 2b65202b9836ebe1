//! Folders of Zarr arrays.

use super::Bomb;
use crate::{
    checkpoint::{put, put_sparse},
    zstd,
};
use anyhow::Result;
use flate2::{Compression, write::ZlibEncoder};
use serde_json::{Value, json};
use std::{fs, io::Write, path::Path};

/// A `.zarray` of bytes.
fn v2(shape: &[u64], chunks: &[u64]) -> Value {
    json!({
        "zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "|u1", "compressor": null, "fill_value": 0,
        "order": "C", "filters": null,
    })
}

/// A `zarr.json` of bytes in shards.
fn sharded(shape: &[u64], shard: &[u64], inner: &[u64], codecs: &Value) -> Value {
    json!({
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shard}}, "chunk_key_encoding": "default",
        "codecs": [{"name": "sharding_indexed", "configuration": {
            "chunk_shape": inner, "codecs": codecs, "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        }}],
    })
}

/// A file in a folder of its own.
fn put_in(dir: &Path, folder: &str, name: &str, bytes: &[u8]) -> Result<()> {
    fs::create_dir_all(dir.join(folder))?;
    put(&dir.join(folder), name, bytes)
}

fn put_array(dir: &Path, folder: &str, array: &Value) -> Result<()> {
    put_in(dir, folder, ".zarray", array.to_string().as_bytes())
}

/// An array of bytes in one chunk of zstd.
fn put_packed(dir: &Path, length: u64, chunk: &[u8]) -> Result<()> {
    let array = json!({
        "zarr_format": 3, "node_type": "array", "shape": [length], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [length]}}, "chunk_key_encoding": "default",
        "codecs": ["bytes", "zstd"],
    });
    put_in(dir, "a", "zarr.json", array.to_string().as_bytes())?;
    put_in(dir, "a/c", "0", chunk)
}

/// An array with attributes that are a list of one text many times.
fn attributes(one: &'static str, bytes: usize) -> impl Fn(&Path) -> Result<()> {
    move |dir| {
        let list = vec![one; bytes / (one.len() + 1)].join(",");
        let array = v2(&[4], &[4]).to_string();
        let text = format!("{{\"attributes\":[{list}],{}", &array[1..]);
        put_in(dir, "a", ".zarray", text.as_bytes())
    }
}

/// An index of inner chunks of equal length, one behind the other.
fn index(count: u64, length: u64) -> Vec<u8> {
    let entry = |n: u64| [(n * length).to_le_bytes(), length.to_le_bytes()].concat();
    (0..count).flat_map(entry).collect()
}

/// Bombs.
pub fn zarr() -> Vec<Bomb> {
    [descriptions(), chunks()].into_iter().flatten().collect()
}

/// Descriptions that are long, or promise much.
fn descriptions() -> Vec<Bomb> {
    vec![
        Bomb::new("zarr/chunks that are not there", |dir| {
            put_array(dir, "a", &v2(&[1 << 24], &[1]))
        }),
        Bomb::new("zarr/chunks of many arrays that are not there", |dir| {
            (0..60).try_for_each(|n| put_array(dir, &format!("a{n}"), &v2(&[1 << 20], &[1])))
        }),
        Bomb::new(
            "zarr/objects in attributes",
            attributes("{\"\":0}", 60 << 20),
        ),
        Bomb::new("zarr/lists in attributes", attributes("[0]", 60 << 20)),
        Bomb::new("zarr/numbers in attributes", attributes("0", 60 << 20)),
        Bomb::new("zarr/descriptions that are all hole", |dir| {
            (0..200).try_for_each(|n| {
                let folder = format!("a{n}");
                put_array(dir, &folder, &json!(null))?;
                put_sparse(&dir.join(folder), ".zarray", b"{", 60 << 20)
            })
        }),
        Bomb::new("zarr/long descriptions that are all hole", |dir| {
            put_array(dir, "a", &json!(null))?;
            put_sparse(&dir.join("a"), ".zarray", b"{", 3 << 30)?;
            put_sparse(dir, ".zmetadata", b"{", 3 << 30)
        }),
        Bomb::new(
            "zarr/arrays that are only in consolidated metadata",
            |dir| {
                let nodes: Vec<String> = (0..2 << 20)
                    .map(|n| format!("\"{n}/.zarray\":{{}}"))
                    .collect();
                let text = format!("{{\"metadata\":{{{}}}}}", nodes.join(","));
                put_array(dir, "a", &v2(&[4], &[4]))?;
                put(dir, ".zmetadata", text.as_bytes())
            },
        ),
    ]
}

/// Shards and packed chunks, and many files.
fn chunks() -> Vec<Bomb> {
    let plain = json!(["bytes"]);
    let packed = json!(["bytes", {"name": "zlib", "configuration": {"level": 1}}]);
    vec![
        Bomb::new("zarr/an index of a shard that is all hole", {
            let plain = plain.clone();
            move |dir| {
                const INNER: u64 = 1 << 27;
                let array = sharded(&[4], &[INNER], &[1], &plain);
                put_in(dir, "a", "zarr.json", array.to_string().as_bytes())?;
                put_in(dir, "a/c", "0", b"")?;
                put_sparse(&dir.join("a/c"), "0", b"", 16 * INNER + 4)
            }
        }),
        Bomb::new(
            "zarr/indexes of many shards that are all hole",
            move |dir| {
                const INNER: u64 = 1 << 20;
                let array = sharded(&[64 * INNER], &[INNER], &[1], &plain);
                put_in(dir, "a", "zarr.json", array.to_string().as_bytes())?;
                (0..64).try_for_each(|n| {
                    put_in(dir, "a/c", &n.to_string(), b"")?;
                    put_sparse(&dir.join("a/c"), &n.to_string(), b"", 16 * INNER)
                })
            },
        ),
        // Blocks of rows want a part of each chunk.
        Bomb::new("zarr/packed columns in a shard", move |dir| {
            const INNER: u64 = 300_000;
            const ROWS: u64 = 64;
            let mut one = ZlibEncoder::new(Vec::new(), Compression::fast());
            one.write_all(&[7; ROWS as usize])?;
            let one = one.finish()?;
            let array = sharded(&[ROWS, INNER], &[ROWS, INNER], &[ROWS, 1], &packed);
            put_in(dir, "a", "zarr.json", array.to_string().as_bytes())?;
            let mut shard = one.repeat(INNER as usize);
            shard.extend(index(INNER, one.len() as u64));
            put_in(dir, "a/c/0", "0", &shard)
        }),
        Bomb::new("zarr/a chunk that unpacks to 800 MB", |dir| {
            const BLOCKS: usize = 6100;
            let length = (BLOCKS as u64) << 17;
            let chunk = zstd::blown_up(0, BLOCKS);
            put_packed(dir, length, &chunk)
        })
        .within(400 << 20),
        Bomb::new("zarr/empty frames of zstd", |dir| {
            let frame = b"\x28\xb5\x2f\xfd\x00\x38\x01\x00\x00";
            put_packed(dir, 4, &frame.repeat(10_000_000))
        }),
        Bomb::new("zarr/a record of many checksums", |dir| {
            put_array(dir, "a", &v2(&[4], &[4]))?;
            let sums = vec!["1"; 150 << 20].join(",");
            let text = format!(
                "{{\"schema\":1,\"arrays\":{{\"a\":{{\"zarray\":1,\"chunks\":[{sums}]}}}}}}"
            );
            put(dir, "reshard-zarr.json", text.as_bytes())
        }),
        Bomb::new(
            "zarr/files of groups beside arrays with longer names",
            |dir| {
                (0..15_000).try_for_each(|n| {
                    put_array(dir, &format!("x-{n}"), &v2(&[4], &[4]))?;
                    put_in(dir, &format!("x/{n}"), ".zattrs", b"{}")
                })
            },
        ),
        Bomb::new("zarr/an optimizer that is named in many places", |dir| {
            (0..20_000).try_for_each(|n| {
                let folder = format!("chained_{n}.optimizer.state.param.w");
                put_array(dir, &folder, &v2(&[4], &[4]))
            })
        }),
    ]
}
