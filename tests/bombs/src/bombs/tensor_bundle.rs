//! Checkpoints of TensorFlow: tables, the messages in them, and slices.

use super::Bomb;
use crate::checkpoint::{put, put_sparse};
use anyhow::Result;
use reshard_tensor_bundle::testkit::{EntryFields, header, slice_key, table, table_of};
use std::path::Path;

/// Of float32, as TensorFlow numbers types.
const FLOAT: i64 = 1;
/// Of strings.
const STRING: i64 = 7;

type Entry = (Vec<u8>, Vec<u8>);

/// An entry that has so many bytes of the data file, from its begin.
fn entry(dtype: i64, shape: &[i64], size: i64) -> EntryFields {
    EntryFields {
        dtype,
        shape: shape.to_vec(),
        shard_id: 0,
        offset: 0,
        size,
        crc32c: 0,
        slices: Vec::new(),
    }
}

/// An index of these entries, with the header before them, and a data file that is all hole.
fn put_entries(dir: &Path, entries: impl IntoIterator<Item = Entry>, data: u64) -> Result<()> {
    let first = (Vec::new(), header(1, 0, (1, 0)));
    let all: Vec<Entry> = [first].into_iter().chain(entries).collect();
    put(dir, "ckpt.index", &table(&all))?;
    put_sparse(dir, "ckpt.data-00000-of-00001", b"", data)
}

fn of_entries(name: &str, data: u64, make: impl Fn() -> Vec<Entry> + 'static) -> Bomb {
    Bomb::new(&format!("bundle/{name}"), move |dir| {
        put_entries(dir, make(), data)
    })
    .with(&["stats", "DIR"])
    .with(&["diff", "DIR", "DIR"])
}

/// An index of one block, as it is packed or not.
fn of_block(name: &str, packed: u8, block: impl Fn() -> Vec<u8> + 'static) -> Bomb {
    Bomb::new(&format!("bundle/{name}"), move |dir| {
        put(dir, "ckpt.index", &table_of(&block(), packed))?;
        put(dir, "ckpt.data-00000-of-00001", b"")
    })
}

fn varint(mut n: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while n > 127 {
        out.push(n as u8 | 128);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

/// What stands behind the entries of a block: one restart.
const RESTARTS: [u8; 8] = [0, 0, 0, 0, 1, 0, 0, 0];

/// Messages in each other.
fn nested(levels: usize, tag: u8) -> Vec<u8> {
    let mut inside = Vec::new();
    for _ in 0..levels {
        // Written from behind, so that nothing is copied.
        let mut length = varint(inside.len() as u64);
        length.reverse();
        inside.extend(length);
        inside.push(tag);
    }
    inside.reverse();
    inside
}

fn numbered(n: usize) -> Vec<u8> {
    format!("k{n:08}").into()
}

/// Bombs.
pub fn tensor_bundle() -> Vec<Bomb> {
    [tables(), messages(), slices()]
        .into_iter()
        .flatten()
        .collect()
}

fn tables() -> Vec<Bomb> {
    vec![
        of_block("tiny entries", 0, || {
            // Four bytes each: what an entry shares with the one before, and one byte more.
            let mut block = vec![0, 0, 4, 8, 1, 26, 0];
            let mut last = [0; 4];
            for n in 0..4_000_000u32 {
                let key = [n >> 18, n >> 12, n >> 6, n].map(|b| (b & 63 | 64) as u8);
                let shared = key.iter().zip(&last).take_while(|(a, b)| a == b).count();
                block.extend([shared as u8, (4 - shared) as u8, 0]);
                block.extend(&key[shared..]);
                last = key;
            }
            block.extend(RESTARTS);
            block
        }),
        of_block("long keys that share their bytes", 0, || {
            let mut block = vec![0, 0, 4, 8, 1, 26, 0, 0];
            block.extend(varint(1 << 20));
            block.push(0);
            block.extend(vec![b'k'; 1 << 20]);
            for n in 0..=255u8 {
                for m in 0..=255u8 {
                    block.extend(varint(1 << 20));
                    block.extend([2, 0, n, m]);
                }
            }
            block.extend(RESTARTS);
            block
        }),
        of_block("a block that says that it is a gigabyte", 1, || {
            vec![0x80, 0x80, 0x80, 0x80, 4, 0]
        }),
        of_block("a block that unpacks to very much", 1, || {
            // One literal byte, and copies of 64 bytes from one byte before.
            let copies = 40 << 20;
            let mut block = varint(64 * copies as u64 + 1);
            block.extend([0, 0]);
            block.extend([254, 1, 0].repeat(copies));
            block
        }),
        of_block("restarts without end", 0, || vec![0xff; 64 << 20]),
        Bomb::new("bundle/a table that is all hole", |dir| {
            put_sparse(dir, "ckpt.index", b"", 3 << 30)?;
            put(dir, "ckpt.data-00000-of-00001", b"")
        }),
        Bomb::new("bundle/very many data files", |dir| {
            let first = (Vec::new(), header(i64::from(i32::MAX), 0, (1, 0)));
            put(dir, "ckpt.index", &table(&[first]))?;
            put(dir, "ckpt.data-00000-of-00001", b"")
        }),
    ]
}

fn messages() -> Vec<Bomb> {
    let value = |name: &str, value: fn() -> Vec<u8>| {
        of_entries(name, 4, move || vec![(b"w".into(), value())])
    };
    vec![
        value("an entry of slices that say nothing", || {
            [0x3a, 0].repeat(20 << 20)
        }),
        value("an entry of extents that say nothing", || {
            let extents = [0x0a, 0].repeat(254);
            let mut one = vec![0x3a];
            one.extend(varint(extents.len() as u64));
            one.extend(extents);
            one.repeat(40_000)
        }),
        value("an entry of unknown fields", || [0x78, 1].repeat(30 << 20)),
        value("messages in each other", || nested(1_000_000, 0x12)),
        value("groups in each other", || vec![0x0b; 30 << 20]),
        of_entries(
            "an object graph of messages in each other",
            40 << 20,
            || {
                let size = 40 << 20;
                vec![(
                    b"_CHECKPOINTABLE_OBJECT_GRAPH".into(),
                    entry(STRING, &[], size).to_bytes(),
                )]
            },
        ),
        of_entries("strings without end", 8 << 20, || {
            let e = entry(STRING, &[1 << 50], 8 << 20);
            vec![(b"s".into(), e.to_bytes())]
        }),
        of_entries("millions of empty strings", 64 << 20, || {
            let e = entry(STRING, &[(64 << 20) - 4], 64 << 20);
            vec![(b"s".into(), e.to_bytes())]
        }),
        of_entries("a tensor of all there can be", 8, || {
            let e = entry(FLOAT, &[1 << 61], i64::MAX);
            vec![(b"w".into(), e.to_bytes())]
        }),
        of_entries("tensors that share their bytes", 16 << 20, || {
            let e = entry(FLOAT, &[4 << 20], 16 << 20).to_bytes();
            (0..2000).map(|n| (numbered(n), e.clone())).collect()
        }),
        of_entries("tensors without elements", 0, || {
            let e = entry(FLOAT, &[0], 0).to_bytes();
            (0..500_000).map(|n| (numbered(n), e.clone())).collect()
        }),
        of_entries("tensors of many axes", 4, || {
            let e = entry(FLOAT, &[1; 254], 4).to_bytes();
            (0..20_000).map(|n| (numbered(n), e.clone())).collect()
        }),
    ]
}

/// A tensor with a slice for each of its rows.
fn sliced(rows: i64, of: fn(i64) -> (i64, i64), with_entries: bool) -> Vec<Entry> {
    let all: Vec<(i64, i64)> = (0..rows).map(of).collect();
    let whole = EntryFields {
        slices: all.iter().map(|(at, n)| vec![(*at, Some(*n))]).collect(),
        ..entry(FLOAT, &[rows], 0)
    };
    let mut out: Vec<Entry> = Vec::new();
    if with_entries {
        let parts = all.iter().map(|(at, n)| {
            let key = slice_key(b"w", &[(*at, *n)]);
            (key, entry(FLOAT, &[*n], 4 * n).to_bytes())
        });
        out.extend(parts);
        out.sort();
        out.dedup_by(|a, b| a.0 == b.0);
    }
    out.push((b"w".into(), whole.to_bytes()));
    out
}

fn slices() -> Vec<Bomb> {
    vec![
        of_entries("slices by the million that have no entries", 4, || {
            sliced(2_000_000, |n| (n, 1), false)
        }),
        of_entries("slices by the hundred thousand", 4, || {
            sliced(300_000, |n| (n, 1), true)
        }),
        of_entries("one slice again and again", 4, || {
            sliced(300_000, |_| (0, 1), true)
        }),
        of_entries("slices that overlap", 4 * 4000, || {
            sliced(4000, |n| (0, n + 1), true)
        }),
        of_entries("slices that no tensor has", 4, || {
            let mut all = sliced(300_000, |n| (n, 1), true);
            all.pop();
            all
        }),
        of_entries("slices of many axes", 4, || {
            let axes = 100;
            let extents = |n: i64| -> Vec<(i64, i64)> {
                let one = |axis: i64| (n >> axis.min(62) & 1, 1);
                (0..axes).map(one).collect()
            };
            let rows: Vec<Vec<(i64, i64)>> = (0..5000).map(extents).collect();
            let mut out: Vec<Entry> = rows
                .iter()
                .map(|e| (slice_key(b"w", e), entry(FLOAT, &[1; 100], 4).to_bytes()))
                .collect();
            out.sort();
            let slices = rows
                .iter()
                .map(|e| e.iter().map(|(a, n)| (*a, Some(*n))).collect());
            let mut shape = vec![1; 100];
            shape[..20].fill(2);
            let whole = EntryFields {
                slices: slices.collect(),
                ..entry(FLOAT, &shape, 0)
            };
            out.push((b"w".into(), whole.to_bytes()));
            out
        }),
    ]
}
