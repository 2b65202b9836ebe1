//! Tensors as items: such that share memory, and such that unpack to more than they say.

use super::Bomb;
use crate::{
    checkpoint::{Item, put_items},
    pickle::{Pickle, Type, View, done},
    zip::{self, Record},
    zstd,
};
use anyhow::Result;
use std::path::Path;

/// The pickle of a view.
fn view(of: Type, shape: &[i64], strides: &[i64], numel: i64) -> Vec<u8> {
    let mut p = Pickle::new();
    p.tensor(View {
        of,
        shape,
        strides,
        numel,
        record: "0",
    });
    p.end()
}

/// A tensor over a storage of some bytes.
fn shared(key: &str, of: Type, shape: &[i64], strides: &[i64], storage: &[u8]) -> Item {
    let size = if matches!(of, Type::F32) { 4 } else { 1 };
    let pickle = view(of, shape, strides, storage.len() as i64 / size);
    Item::tensor(key, of, shape, zip::torch(&pickle, &[("0", storage)]))
}

/// A tensor of a few bytes behind a stream transform, of what is stored.
fn packed(stored: Vec<u8>, transforms: &[&'static str]) -> Item {
    Item {
        transforms: transforms.to_vec(),
        ..Item::tensor("t", Type::U8, &[4], stored)
    }
}

const ZSTD: &str = "stream.zstd/1";

/// Bombs.
pub fn tensors() -> Vec<Bomb> {
    [over_few_bytes(), deflated(), streams()]
        .into_iter()
        .flatten()
        .collect()
}

/// Many elements over few bytes.
fn over_few_bytes() -> Vec<Bomb> {
    vec![
        Bomb::new("2^40 elements over 4 bytes", |dir| {
            put_items(dir, &[shared("t", Type::F32, &[1 << 40], &[0], &[7; 4])])
        })
        .with(&["convert", "DIR", "TO", "--max-shard-size", "1GiB"])
        .with(&["convert", "DIR", "TO", "--ranks", "4096", "--no-verify"]),
        Bomb::new("1 TiB over a byte, in three axes", |dir| {
            put_items(
                dir,
                &[shared(
                    "t",
                    Type::U8,
                    &[1 << 10, 1 << 20, 1 << 10],
                    &[0, 0, 0],
                    &[7],
                )],
            )
        }),
        Bomb::new("windows of 1 TiB", |dir| {
            put_items(
                dir,
                &[shared(
                    "t",
                    Type::U8,
                    &[1 << 20, 1 << 20],
                    &[1, 1],
                    &[7; 2 << 20],
                )],
            )
        }),
        Bomb::new("windows of 2 GiB", |dir| {
            put_items(
                dir,
                &[shared(
                    "t",
                    Type::U8,
                    &[1 << 11, 1 << 20],
                    &[0, 1],
                    &[7; 1 << 20],
                )],
            )
        }),
        Bomb::new("many tensors over 4 bytes each", |dir| {
            let item = |k: usize| shared(&format!("t{k}"), Type::U8, &[1 << 30], &[0], &[7; 4]);
            put_items(dir, &(0..1_000).map(item).collect::<Vec<_>>())
        }),
        Bomb::new("2^62 elements over 4 bytes", |dir| {
            put_items(
                dir,
                &[shared("t", Type::U8, &[1 << 31, 1 << 31], &[0, 0], &[7; 4])],
            )
        }),
        Bomb::new("a negated tensor over 4 bytes", |dir| {
            let mut p = Pickle::new();
            let form =
                |p: &mut Pickle| done(p.tuple(|p| done(p.int(1 << 32))).tuple(|p| done(p.int(0))));
            let more = |p: &mut Pickle| done(p.dict(|p| done(p.text("neg").raw(b"\x88"))));
            p.tensor_of(
                View {
                    of: Type::F32,
                    shape: &[],
                    strides: &[],
                    numel: 1,
                    record: "0",
                },
                form,
                more,
            );
            put_items(
                dir,
                &[Item::tensor(
                    "t",
                    Type::F32,
                    &[1 << 32],
                    zip::torch(&p.end(), &[("0", &[0; 4])]),
                )],
            )
        }),
    ]
}

/// Storages that are deflated.
fn deflated() -> Vec<Bomb> {
    vec![
        Bomb::new("a deflated storage of 8 GiB", |dir| {
            let storage = Record::blown_up("archive/data/0", b"", 7, 8 << 10, b"")?;
            let pickle = Record::plain("archive/data.pkl", &view(Type::U8, &[4], &[1], 8 << 30));
            put_items(
                dir,
                &[Item::tensor(
                    "t",
                    Type::U8,
                    &[4],
                    zip::torch_of(&pickle, &[storage]),
                )],
            )
        }),
        Bomb::new(
            "a deflated storage of 8 GiB that says it is of 4 bytes",
            |dir| {
                let storage = Record {
                    size: 4,
                    ..Record::blown_up("archive/data/0", b"", 7, 8 << 10, b"")?
                };
                let pickle = Record::plain("archive/data.pkl", &view(Type::U8, &[4], &[1], 4));
                put_items(
                    dir,
                    &[Item::tensor(
                        "t",
                        Type::U8,
                        &[4],
                        zip::torch_of(&pickle, &[storage]),
                    )],
                )
            },
        ),
        Bomb::new(
            "a deflated storage of 4 bytes that says it is of 3 GiB",
            |dir| {
                let storage = Record {
                    size: 3 << 30,
                    ..Record::deflated("archive/data/0", &[7; 4])?
                };
                let pickle = Record::plain(
                    "archive/data.pkl",
                    &view(Type::U8, &[3 << 30], &[1], 3 << 30),
                );
                put_items(
                    dir,
                    &[Item::tensor(
                        "t",
                        Type::U8,
                        &[3 << 30],
                        zip::torch_of(&pickle, &[storage]),
                    )],
                )
            },
        ),
        Bomb::new("a deflated column-major tensor of 64 MiB", |dir| {
            columns(dir, 64)
        }),
        Bomb::new("a deflated column-major tensor of 320 MiB", |dir| {
            columns(dir, 320)
        }),
        Bomb::new("many deflated storages of 256 MiB", |dir| {
            let storage = Record::blown_up("archive/data/0", b"", 7, 256, b"")?;
            let pickle = Record::plain("archive/data.pkl", &view(Type::U8, &[4], &[1], 256 << 20));
            let bytes = zip::torch_of(&pickle, &[storage]);
            let item = |k: usize| Item::tensor(&format!("t{k}"), Type::U8, &[4], bytes.clone());
            put_items(dir, &(0..40).map(item).collect::<Vec<_>>())
        }),
    ]
}

/// Items that went through a stream transform.
fn streams() -> Vec<Bomb> {
    let archive = || zip::torch(&view(Type::U8, &[4], &[1], 4), &[("0", &[7; 4])]);
    vec![
        Bomb::new("a stream of 240 kB that holds 8 GB", |dir| {
            put_items(dir, &[packed(zstd::blown_up(0, 61_036), &[ZSTD])])
        }),
        Bomb::new("an object in a stream that holds 8 GB", |dir| {
            put_items(
                dir,
                &[Item {
                    transforms: vec![ZSTD],
                    ..Item::object("o", zstd::blown_up(0, 61_036))
                }],
            )
        }),
        Bomb::new(
            "a sound archive, and 8 GB behind it in the stream",
            move |dir| put_items(dir, &[packed(zstd::stored(&archive(), 0, 61_036), &[ZSTD])]),
        ),
        Bomb::new("a stream in a stream", |dir| {
            // 8 GiB of RLE blocks in 256 kB, of which 32 KiB hold the same again.
            let inner = zstd::blown_up(0, 61_036);
            put_items(dir, &[packed(zstd::stored(&inner, 0, 0), &[ZSTD, ZSTD])])
        }),
        Bomb::new("a stream many times over", move |dir| {
            let mut bytes = archive();
            for _ in 0..200 {
                bytes = zstd::stored(&bytes, 0, 0);
            }
            put_items(dir, &[packed(bytes, &[ZSTD; 200])])
        }),
        Bomb::new("a million transforms of nothing", |dir| {
            put_items(dir, &[packed(Vec::new(), &[ZSTD; 200_000])])
        }),
        Bomb::new("many streams of 256 MiB", |dir| {
            let bytes = zstd::blown_up(0, 2_048);
            let item = |k: usize| Item {
                key: format!("t{k}"),
                ..packed(bytes.clone(), &[ZSTD])
            };
            put_items(dir, &(0..100).map(item).collect::<Vec<_>>())
        }),
        Bomb::new("a window of 3 GiB", |dir| {
            // Exponent 21, mantissa 4: 2^31 and a half of that.
            let mut bytes = zstd::blown_up(0, 4);
            bytes[5] = 21 << 3 | 4;
            put_items(dir, &[packed(bytes, &[ZSTD])])
        }),
        Bomb::new("a frame that says it holds 2^60 bytes", |dir| {
            let mut bytes = b"\x28\xb5\x2f\xfd\xe0".to_vec();
            bytes.extend_from_slice(&(1u64 << 60).to_le_bytes());
            bytes.extend_from_slice(&zstd::blown_up(0, 10)[6..]);
            put_items(dir, &[packed(bytes, &[ZSTD])])
        }),
        Bomb::new("many empty frames", |dir| {
            put_items(
                dir,
                &[packed(
                    b"\x28\xb5\x2f\xfd\x00\x38\x01\0\0".repeat(500_000),
                    &[ZSTD],
                )],
            )
        }),
        Bomb::new("many skipped frames", |dir| {
            put_items(
                dir,
                &[packed(b"\x50\x2a\x4d\x18\0\0\0\0".repeat(500_000), &[ZSTD])],
            )
        }),
        Bomb::new("many blocks of nothing", |dir| {
            let mut bytes = b"\x28\xb5\x2f\xfd\x00\x38".to_vec();
            bytes.extend_from_slice(&b"\0\0\0".repeat(2_000_000));
            bytes.extend_from_slice(b"\x01\0\0");
            put_items(dir, &[packed(bytes, &[ZSTD])])
        }),
    ]
}

/// A deflated tensor of so many MiB, whose columns lie one after the other.
fn columns(dir: &Path, mebibytes: i64) -> Result<()> {
    let storage = Record::blown_up("archive/data/0", b"", 7, mebibytes as usize, b"")?;
    let (rows, numel) = (mebibytes << 8, mebibytes << 18);
    let pickle = Record::plain(
        "archive/data.pkl",
        &view(Type::F32, &[rows, 1 << 10], &[1, rows], numel),
    );
    put_items(
        dir,
        &[Item::tensor(
            "t",
            Type::F32,
            &[rows, 1 << 10],
            zip::torch_of(&pickle, &[storage]),
        )],
    )
}
