//! Files of safetensors, their indexes, and quantised tensors.

use super::Bomb;
use crate::{
    checkpoint::put,
    safetensors::{Tensor, put_header, put_tensors},
};
use anyhow::Result;
use std::{fmt::Write, path::Path};

const FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The longest header that any program reads.
const HEADER: usize = 100_000_000;

/// A file with a header, and no tensors.
fn headed(name: &str, header: impl Fn() -> String + 'static) -> Bomb {
    Bomb::new(name, move |dir| put_header(dir, FILE, &header(), 0))
}

/// A header of so many entries.
fn entries(n: usize, one: impl Fn(usize) -> String) -> String {
    let all: Vec<String> = (0..n).map(one).collect();
    format!("{{{}}}", all.join(","))
}

/// A folder of one small file with an index.
fn indexed(name: &str, index: impl Fn() -> String + 'static) -> Bomb {
    Bomb::new(name, move |dir| {
        put_tensors(dir, "a.safetensors", &[("w", "U8", &[4], 4)])?;
        put(dir, INDEX, index().as_bytes())
    })
}

/// A file with quantised tensors, which are read as the numbers that they stand for, too.
fn quantised(name: &str, make: impl Fn(&Path) -> Result<()> + 'static) -> Bomb {
    Bomb::new(name, make)
        .with(&["digest", "DIR", "--dequantize", "bfloat16"])
        .with(&["verify", "DIR", "--dequantize", "bfloat16"])
        .with(&["convert", "DIR", "TO", "--dequantize", "bfloat16"])
        .with(&["diff", "DIR", "DIR", "--dequantize", "float32"])
}

/// Bombs.
pub fn safetensors() -> Vec<Bomb> {
    [headers(), of_files(), indexes(), quantised_ones()]
        .into_iter()
        .flatten()
        .collect()
}

fn headers() -> Vec<Bomb> {
    vec![
        headed("safetensors/a header of brackets", || "[".repeat(HEADER)),
        headed("safetensors/a header of braces", || {
            r#"{"a":"#.repeat(HEADER / 5)
        }),
        headed("safetensors/a header of spaces", || {
            format!("{{{}}}", " ".repeat(HEADER - 2))
        }),
        headed("safetensors/tensors without elements", || {
            entries(300_000, |n| {
                format!(r#""{n}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#)
            })
        }),
        headed("safetensors/tensors of many axes", || {
            let shape = vec!["0"; 255].join(",");
            entries(30_000, |n| {
                format!(r#""{n}":{{"dtype":"U8","shape":[{shape}],"data_offsets":[0,0]}}"#)
            })
        }),
        headed("safetensors/tensors of 64 axes", || {
            let shape = vec!["0"; 64].join(",");
            entries(1000, |n| {
                format!(r#""{n}":{{"dtype":"U8","shape":[{shape}],"data_offsets":[0,0]}}"#)
            })
        })
        .with(&["convert", "DIR/model.safetensors", "TO", "--to", "zarr3"])
        .within(150 << 20),
        headed("safetensors/a shape of millions of axes", || {
            let shape = vec!["1"; HEADER / 3].join(",");
            format!(r#"{{"w":{{"dtype":"U8","shape":[{shape}],"data_offsets":[0,0]}}}}"#)
        }),
        headed("safetensors/metadata of millions of keys", || {
            let all = entries(2_000_000, |n| format!(r#""{n}":"""#));
            format!(r#"{{"__metadata__":{all}}}"#)
        }),
        headed("safetensors/a long key", || {
            let key = "k".repeat(HEADER - 200);
            format!(r#"{{"{key}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}}"#)
        }),
        headed("safetensors/many long keys", || {
            let key = "k".repeat(65_000);
            entries(500, |n| {
                format!(r#""{n}{key}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#)
            })
        }),
        headed("safetensors/a long element type", || {
            let dtype = "F".repeat(HEADER - 200);
            format!(r#"{{"w":{{"dtype":"{dtype}","shape":[0],"data_offsets":[0,0]}}}}"#)
        }),
        headed("safetensors/offsets of pieces without end", || {
            let offsets = vec!["0"; 10_000_000].join(",");
            let info = format!(r#"{{\"w\":{{\"saved_offsets\":[{offsets}]}}}}"#);
            format!(
                r#"{{"__metadata__":{{"DCP_SHARDING_INFO":"{info}"}},"w":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}}"#
            )
        }),
    ]
}

fn of_files() -> Vec<Bomb> {
    vec![
        Bomb::new("safetensors/a length of all there can be", |dir| {
            put(dir, FILE, &u64::MAX.to_le_bytes())
        }),
        Bomb::new("safetensors/a header that is all hole", |dir| {
            put_header(dir, FILE, "", 0)?;
            let length = (HEADER as u64).to_le_bytes();
            crate::checkpoint::put_sparse(dir, FILE, &length, 8 + HEADER as u64)
        }),
        Bomb::new(
            "safetensors/pieces of one tensor in thousands of files",
            |dir| {
                const FILES: usize = 5_000;
                let mut one = String::new();
                for n in 0..FILES {
                    one.clear();
                    write!(
                        one,
                        r#"{{"__metadata__":{{"DCP_SHARDING_INFO":"{{\"w\":{{\"saved_offsets\":[{n}]}}}}"}},"w":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#
                    )?;
                    let name = format!("shard-{:05}-model-00001-of-00001.safetensors", n + 1);
                    put_header(dir, &name, &one, 1)?;
                }
                Ok(())
            },
        ),
        Bomb::new(
            "safetensors/a tensor of few elements and many pieces",
            |dir| {
                // Converting takes some 40 µs of CPU time for each, however many there are.
                let keys: Vec<String> = (0..200_000).map(|n| n.to_string()).collect();
                let tensors: Vec<Tensor<'_>> =
                    keys.iter().map(|k| (&**k, "U8", &[1][..], 1)).collect();
                put_tensors(dir, FILE, &tensors)
            },
        ),
    ]
}

fn indexes() -> Vec<Bomb> {
    let map = |n: usize, one: fn(usize) -> String| {
        format!(r#"{{"metadata":{{}},"weight_map":{}}}"#, entries(n, one))
    };
    vec![
        indexed(
            "safetensors/an index of keys that are not there",
            move || map(2_000_000, |n| format!(r#""{n}":"a.safetensors""#)),
        ),
        indexed(
            "safetensors/an index of files that are not there",
            move || map(500_000, |n| format!(r#""{n}":"{n}.safetensors""#)),
        ),
        indexed("safetensors/an index in brackets", || "[".repeat(60 << 20)),
        indexed("safetensors/an index with long metadata", || {
            let list = vec!["[0]"; 15 << 20].join(",");
            format!(r#"{{"metadata":{{"a":[{list}]}},"weight_map":{{"w":"a.safetensors"}}}}"#)
        }),
        indexed("safetensors/an index with a long name", || {
            let name = "n".repeat(60 << 20);
            format!(r#"{{"weight_map":{{"w":"{name}.safetensors"}}}}"#)
        }),
    ]
}

fn quantised_ones() -> Vec<Bomb> {
    const MIB: u64 = 1 << 20;
    vec![
        quantised("safetensors/quantised tensors of great length", |dir| {
            put_tensors(
                dir,
                FILE,
                &[
                    ("w.weight", "F8_E4M3", &[1 << 11, 1 << 14], 32 * MIB),
                    ("w.weight_scale_inv", "F32", &[16, 128], 16 * 128 * 4),
                ],
            )
        }),
        quantised("safetensors/scales of a tensor without elements", |dir| {
            put_tensors(
                dir,
                FILE,
                &[
                    ("w.weight", "F8_E4M3", &[0, 1 << 40], 0),
                    ("w.weight_scale_inv", "F32", &[0, 1 << 33], 0),
                    ("e_blocks", "U8", &[0, 1 << 40, 16], 0),
                    ("e_scales", "U8", &[0, 1 << 40], 0),
                ],
            )
        }),
        quantised("safetensors/blocks of one element", |dir| {
            put_tensors(
                dir,
                FILE,
                &[
                    ("w.weight", "F8_E4M3", &[1 << 10, 1 << 10], MIB),
                    ("w.weight_scale_inv", "F32", &[1 << 10, 1 << 10], 4 * MIB),
                    ("e_blocks", "U8", &[1 << 20, 1, 1], MIB),
                    ("e_scales", "U8", &[1 << 20, 1], MIB),
                ],
            )
        }),
        quantised("safetensors/many quantised tensors", |dir| {
            let keys: Vec<String> = (0..50_000)
                .flat_map(|n| [format!("{n}.weight"), format!("{n}.weight_scale_inv")])
                .collect();
            let one = |key: &'_ String| -> Tensor<'static> {
                match key.ends_with("inv") {
                    true => ("", "F32", &[1, 1], 4),
                    false => ("", "F8_E4M3", &[1, 1], 1),
                }
            };
            let tensors: Vec<Tensor<'_>> = keys
                .iter()
                .map(|key| {
                    let (_, dtype, shape, bytes) = one(key);
                    (&**key, dtype, shape, bytes)
                })
                .collect();
            put_tensors(dir, FILE, &tensors)
        }),
    ]
}
