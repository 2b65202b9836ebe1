//! Much of what is little by itself: files, items, tensors that share memory, bytes that are named again and again.

use super::Bomb;
use crate::{
    checkpoint::{DATA, Item, put, put_common, put_items, put_sparse},
    pickle::{Pickle, Type, View, done},
    zip::{self, Record},
    zstd,
};

/// A `.metadata` of tensors of one element: each in a file of its own, or one behind the other in one file.
fn tensors(n: usize, apart: bool) -> Vec<u8> {
    const LENGTH: i64 = 588;
    let mut p = Pickle::new();
    // What all have in common is named once, so that the file is not longer than it must be.
    p.properties("float32")
        .keep(0)
        .size(&[1])
        .keep(1)
        .list(|p| done(p.chunk(&[0], &[1])))
        .keep(2);
    let key = |k: usize| 1_000 + k as u32;
    let entry = |p: &mut Pickle, k: usize| {
        p.text(format!("t{k}")).put(key(k));
        p.tensor_entry_of(|p| done(p.get(0)), |p| done(p.get(1)), |p| done(p.get(2)));
    };
    let place = |p: &mut Pickle, k: usize| {
        p.index_of(|p| done(p.get(key(k))), Some((&[0], 0)));
        let (file, at) = if apart {
            (format!("f{k}"), 0)
        } else {
            (DATA.into(), k as i64 * LENGTH)
        };
        p.place_of(|p| done(p.text(file)), at, LENGTH, |_| ());
    };
    p.metadata(
        |p| done(p.each(n, entry)),
        |p| done(p.each(n, place)),
        |_| (),
    );
    p.end()
}

/// As many objects, of which nobody knows where they lie.
fn objects(n: usize) -> Vec<u8> {
    let mut p = Pickle::new();
    p.object_entry().keep(0);
    let entry = |p: &mut Pickle, k: usize| done(p.text(format!("o{k}")).get(0));
    p.metadata(|p| done(p.each(n, entry)), |_| (), |_| ());
    p.end()
}

/// Common state of a list that holds one value many times, behind bytes that make it worth more.
fn common(pad: usize, times: usize, write: impl FnOnce(&mut Pickle)) -> Vec<u8> {
    let mut p = Pickle::new();
    p.bytes(&vec![0; pad]).raw(b"0").with(write).keep(0);
    p.dict(|p| done(p.text("iteration").list(|p| done(p.times(times, b"h\0")))));
    zip::torch(&p.end(), &[("0", &[0; 4])])
}

/// Bombs.
pub fn many() -> Vec<Bomb> {
    vec![
        Bomb::metadata("tensors in files that are not there", || {
            tensors(180_000, true)
        }),
        Bomb::new("tensors in a file that is all hole", |dir| {
            put(dir, ".metadata", &tensors(240_000, false))?;
            put_sparse(dir, DATA, b"", 8 << 40)
        }),
        Bomb::metadata("objects that lie nowhere", || objects(350_000)),
        Bomb::new(
            "tensors that are 1,000 times what is stored of each",
            |dir| {
                let mut p = Pickle::new();
                let shape = &[1_000, 1 << 16];
                p.tensor(View {
                    of: Type::U8,
                    shape,
                    strides: &[0, 1],
                    numel: 1 << 16,
                    record: "0",
                });
                let bytes = zip::torch(&p.end(), &[("0", &[7; 1 << 16])]);
                let item =
                    |k: usize| Item::tensor(&format!("t{k}"), Type::U8, shape, bytes.clone());
                put_items(dir, &(0..300).map(item).collect::<Vec<_>>())
            },
        ),
        Bomb::new("4 MiB of zstd in each of 20,000 tensors", |dir| {
            let stored = zstd::blown_up(0, 32);
            let item = |k: usize| Item {
                transforms: vec!["stream.zstd/1"],
                ..Item::tensor(&format!("t{k}"), Type::U8, &[4], stored.clone())
            };
            put_items(dir, &(0..20_000).map(item).collect::<Vec<_>>())
        }),
        Bomb::new("60 MiB of zstd in each of 3,000 objects", |dir| {
            let stored = zstd::blown_up(0, 480);
            let item = |k: usize| Item {
                transforms: vec!["stream.zstd/1"],
                ..Item::object(&format!("o{k}"), stored.clone())
            };
            put_items(dir, &(0..3_000).map(item).collect::<Vec<_>>())
        }),
        Bomb::new("descriptions of 1 MiB, deflated, of 6,000 tensors", |dir| {
            let mut p = Pickle::new();
            p.times((1 << 19) - 500, b"N0");
            p.tensor(View {
                of: Type::U8,
                shape: &[4],
                strides: &[1],
                numel: 4,
                record: "0",
            });
            let description = Record::deflated("archive/data.pkl", &p.end())?;
            let stored = zip::torch_of(&description, &[Record::plain("archive/data/0", &[0; 4])]);
            let item = |k: usize| Item::tensor(&format!("t{k}"), Type::U8, &[4], stored.clone());
            put_items(dir, &(0..6_000).map(item).collect::<Vec<_>>())
        }),
        Bomb::new(
            "half a million shared values in each of 3,000 objects",
            |dir| {
                let mut p = Pickle::new();
                p.none().levels(5, |p, k| {
                    done(p.list(|p| (0..14).for_each(|_| done(p.get(k)))))
                });
                let stored = zip::torch(&p.end(), &[]);
                let item = |k: usize| Item::object(&format!("o{k}"), stored.clone());
                put_items(dir, &(0..3_000).map(item).collect::<Vec<_>>())
            },
        ),
        Bomb::new("elements that are 1,000 times the common state", |dir| {
            let shape = &[1 << 20];
            let view = View {
                of: Type::U8,
                shape,
                strides: &[0],
                numel: 1,
                record: "0",
            };
            put_common(dir, &common(20 << 20, 16_000, |p| done(p.tensor(view))))
        }),
        Bomb::new("a megabyte in 900 places of common state", |dir| {
            put_common(dir, &common(0, 900, |p| done(p.bytes(&[0xff; 1 << 20]))))
        }),
        Bomb::new(
            "ints of 1,000 bytes in 100,000 places of common state",
            |dir| put_common(dir, &common(2 << 20, 100_000, |p| done(p.long(1_000)))),
        ),
        Bomb::new("three million values in common state", |dir| {
            put_common(dir, &common(2 << 20, 3_000_000, |p| done(p.none())))
        }),
    ]
}
