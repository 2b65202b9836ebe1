//! Chunks and objects that unpack to much: together, or again and again.

use super::Bomb;
use crate::{
    checkpoint::{DATA, Item, put, put_items},
    pickle::{Pickle, Type, View, done},
    zip::{self, Record, Zip},
    zstd,
};
use anyhow::Result;
use std::path::Path;

const ZSTD: &[&str] = &["stream.zstd/1"];

/// The pickle of a row-major tensor of bytes.
fn description(shape: &[i64]) -> Vec<u8> {
    let strides: Vec<i64> = (1..=shape.len())
        .map(|axis| shape[axis..].iter().product())
        .collect();
    let mut p = Pickle::new();
    p.tensor(View {
        of: Type::U8,
        shape,
        strides: &strides,
        numel: shape.iter().product(),
        record: "0",
    });
    p.end()
}

/// The archive of a tensor of zeros.
fn zeros(shape: &[i64]) -> Vec<u8> {
    let bytes = shape.iter().product::<i64>() as usize;
    zip::torch(&description(shape), &[("0", &vec![0; bytes])])
}

/// A tensor of so many rows, with so many columns, each of them a chunk with the same stored bytes.
fn columns(dir: &Path, rows: i64, n: usize, stored: &[u8], transforms: &[&str]) -> Result<()> {
    let mut p = Pickle::new();
    p.text(DATA).keep(0).size(&[rows, 1]).keep(1);
    let entry = |p: &mut Pickle| {
        let chunk = |p: &mut Pickle, k: usize| {
            done(p.chunk_of(|p| done(p.size(&[0, k as i64])), |p| done(p.get(1))))
        };
        p.text("t").tensor_entry_of(
            |p| done(p.properties("uint8")),
            |p| done(p.size(&[rows, n as i64])),
            |p| done(p.list(|p| done(p.each(n, chunk)))),
        );
    };
    let length = stored.len() as i64;
    let place = |p: &mut Pickle, k: usize| {
        p.index("t", Some((&[0, k as i64], k as i64)));
        let more = |p: &mut Pickle| {
            if !transforms.is_empty() {
                p.text("transform_descriptors");
                p.list(|p| transforms.iter().for_each(|t| done(p.text(t))));
            }
        };
        p.place_of(|p| done(p.get(0)), k as i64 * length, length, more);
    };
    p.metadata(entry, |p| done(p.each(n, place)), |_| ());
    put(dir, ".metadata", &p.end())?;
    put(dir, DATA, &stored.repeat(n))
}

/// Bombs.
pub fn packed() -> Vec<Bomb> {
    vec![
        Bomb::new("100 MiB of zeros, of zstd, in each of 300 tensors", |dir| {
            let shape = &[100 << 20];
            let stored = zstd::packed(&zeros(shape));
            let item = |k: usize| Item {
                transforms: ZSTD.to_vec(),
                ..Item::tensor(&format!("t{k}"), Type::U8, shape, stored.clone())
            };
            put_items(dir, &(0..300).map(item).collect::<Vec<_>>())
        }),
        Bomb::new("20,000 columns of 4,000 bytes, of zstd", |dir| {
            let stored = zstd::packed(&zeros(&[4_000, 1]));
            columns(dir, 4_000, 20_000, &stored, ZSTD)
        }),
        Bomb::new("20,000 columns of 12,000 bytes, deflated", |dir| {
            let storage = Record::deflated("archive/data/0", &[0; 12_000])?;
            let pickle = Record::plain("archive/data.pkl", &description(&[12_000, 1]));
            let stored = zip::torch_of(&pickle, &[storage]);
            columns(dir, 12_000, 20_000, &stored, &[])
        }),
        Bomb::new("1,000 columns of 100,000 bytes, deflated little", |dir| {
            // Six random bits in each byte: so it is no tensor whose elements share bytes.
            let mut state = 1u32;
            let noise = |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8 & 0x3f
            };
            let bytes: Vec<u8> = (0..100_000).map(noise).collect();
            let storage = Record::deflated("archive/data/0", &bytes)?;
            let pickle = Record::plain("archive/data.pkl", &description(&[100_000, 1]));
            let stored = zip::torch_of(&pickle, &[storage]);
            columns(dir, 100_000, 1_000, &stored, &[])
        }),
        Bomb::new("two columns of 900 MiB, of zstd", |dir| {
            let rows = 900 << 20;
            let stored = zstd::packed(&zeros(&[rows, 1]));
            columns(dir, rows, 2, &stored, ZSTD)
        }),
        Bomb::new(
            "60 MiB of instructions, deflated, in each of 32 objects",
            |dir| {
                let mut p = Pickle::new();
                p.times(30 << 20, b"N0").none();
                let pickle = Record::deflated("archive/data.pkl", &p.end())?;
                let stored = zip::torch_of(&pickle, &[]);
                let item = |k: usize| Item::object(&format!("o{k}"), stored.clone());
                put_items(dir, &(0..32).map(item).collect::<Vec<_>>())
            },
        ),
        Bomb::new("60,000 empty records in each of 8 archives", |dir| {
            let mut zip = Zip::default();
            zip.add(&Record::plain("archive/data.pkl", &description(&[4])))
                .add(&Record::plain("archive/byteorder", b"little"))
                .add(&Record::plain("archive/data/0", &[0; 4]));
            for k in 0..60_000 {
                zip.add(&Record::plain(format!("archive/{k}"), b""));
            }
            let stored = zip.add(&Record::plain("archive/version", b"3\n")).end(b"");
            let item = |k: usize| Item::tensor(&format!("t{k}"), Type::U8, &[4], stored.clone());
            put_items(dir, &(0..8).map(item).collect::<Vec<_>>())
        }),
    ]
}
