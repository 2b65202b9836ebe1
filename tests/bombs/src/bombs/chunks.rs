//! Tensors of many chunks: such that overlap, are one element each, or have many axes.

use super::Bomb;
use crate::{
    checkpoint::{DATA, put},
    pickle::{Pickle, Type, View, done},
    zip::{self, Record},
};
use anyhow::Result;
use std::path::Path;

/// A `.metadata` of one tensor `t`, with chunks that are written.
fn one(shape: &[i64], chunks: impl FnOnce(&mut Pickle)) -> Vec<u8> {
    let mut p = Pickle::new();
    let entry = |p: &mut Pickle| {
        p.text("t").tensor_entry_of(
            |p| done(p.properties("float32")),
            |p| done(p.size(shape)),
            |p| done(p.list(chunks)),
        );
    };
    p.metadata(entry, |_| (), |_| ());
    p.end()
}

/// A tensor in chunks of one element, each of them an item of its own; or all of them the same one.
fn elements(dir: &Path, n: usize, item: &[u8], apart: bool) -> Result<()> {
    let mut p = Pickle::new();
    // What all have in common is named once, so that the file is not longer than it must be.
    let length = item.len() as i64;
    p.text(DATA).keep(0).size(&[1]).keep(1);
    let entry = |p: &mut Pickle| {
        let chunk = |p: &mut Pickle, k: usize| {
            done(p.chunk_of(|p| done(p.size(&[k as i64])), |p| done(p.get(1))))
        };
        p.text("t").tensor_entry_of(
            |p| done(p.properties("uint8")),
            |p| done(p.size(&[n as i64])),
            |p| done(p.list(|p| done(p.each(n, chunk)))),
        );
    };
    let place = |p: &mut Pickle, k: usize| {
        p.index("t", Some((&[k as i64], k as i64)));
        p.place_of(
            |p| done(p.get(0)),
            if apart { k as i64 * length } else { 0 },
            length,
            |_| (),
        );
    };
    p.metadata(entry, |p| done(p.each(n, place)), |_| ());
    put(dir, ".metadata", &p.end())?;
    put(dir, DATA, &item.repeat(if apart { n } else { 1 }))
}

/// One element of a storage.
fn element(numel: i64) -> Vec<u8> {
    let mut p = Pickle::new();
    p.tensor(View {
        of: Type::U8,
        shape: &[1],
        strides: &[1],
        numel,
        record: "0",
    });
    p.end()
}

/// Bombs.
pub fn chunks() -> Vec<Bomb> {
    [items(), overlaps(), shapes(), holes()]
        .into_iter()
        .flatten()
        .collect()
}

/// Items that are little of what they lie in.
fn items() -> Vec<Bomb> {
    vec![
        Bomb::new(
            "one-element chunks over deflated storages of 512 MiB",
            |dir| {
                let storage = Record::blown_up("archive/data/0", b"", 7, 512, b"")?;
                elements(
                    dir,
                    40,
                    &zip::torch_of(
                        &Record::plain("archive/data.pkl", &element(512 << 20)),
                        &[storage],
                    ),
                    true,
                )
            },
        ),
        Bomb::new(
            "one-element chunks over deflated storages of one element",
            |dir| {
                let storage = Record::deflated("archive/data/0", &[7])?;
                elements(
                    dir,
                    5_000,
                    &zip::torch_of(&Record::plain("archive/data.pkl", &element(1)), &[storage]),
                    true,
                )
            },
        ),
        Bomb::new("one-element chunks in one item", |dir| {
            elements(dir, 50_000, &zip::torch(&element(1), &[("0", &[7])]), false)
        }),
        Bomb::new("a tensor in many items of one element", |dir| {
            elements(dir, 50_000, &zip::torch(&element(1), &[("0", &[7])]), true)
        }),
    ]
}

/// Chunks that overlap, or nearly.
fn overlaps() -> Vec<Bomb> {
    vec![
        Bomb::metadata("one chunk many times", || {
            one(&[1_000], |p| {
                done(p.chunk(&[0], &[1_000]).keep(0).times(1_000_000, b"h\0"))
            })
        }),
        Bomb::metadata("one chunk of many axes many times", || {
            one(&[2; 20], |p| {
                done(p.chunk(&[0; 20], &[2; 20]).keep(0).times(1_000_000, b"h\0"))
            })
        }),
        Bomb::metadata("chunks that overlap as stairs", || {
            one(&[100_000], |p| {
                done(p.each(50_000, |p, k| done(p.chunk(&[k as i64], &[50_000]))))
            })
        }),
        Bomb::metadata("chunks that cross as rows and columns", || {
            one(&[50_000, 50_000], |p| {
                p.each(50_000, |p, k| done(p.chunk(&[k as i64, 0], &[1, 50_000])));
                p.each(50_000, |p, k| done(p.chunk(&[0, k as i64], &[50_000, 1])));
            })
        }),
        Bomb::metadata("chunks that nearly meet in all axes", || {
            // All of them touch each other's shadows along the first axis, none overlaps.
            one(&[100_000, 100_000], |p| {
                done(p.each(100_000, |p, k| done(p.chunk(&[0, k as i64], &[100_000, 1]))))
            })
        }),
        Bomb::metadata("chunks along a diagonal of eight axes", || {
            one(&[50_000; 8], |p| {
                done(p.each(20_000, |p, k| done(p.chunk(&[k as i64; 8], &[2; 8]))))
            })
        }),
    ]
}

/// Chunks of odd places and lengths.
fn shapes() -> Vec<Bomb> {
    vec![
        Bomb::metadata("many chunks without places", || {
            one(&[200_000], |p| {
                done(p.each(200_000, |p, k| done(p.chunk(&[k as i64], &[1]))))
            })
        }),
        Bomb::metadata("many chunks without elements", || {
            one(&[200_000], |p| {
                done(p.each(200_000, |p, k| done(p.chunk(&[k as i64], &[0]))))
            })
        }),
        Bomb::metadata("chunks that reach beyond all numbers", || {
            one(&[i64::MAX, i64::MAX], |p| {
                p.each(10_000, |p, k| {
                    done(p.chunk(&[i64::MAX - k as i64, i64::MAX], &[i64::MAX, i64::MAX]))
                });
            })
        }),
        Bomb::metadata("chunks of negative lengths", || {
            one(&[-5, 1 << 60], |p| {
                done(p.each(10_000, |p, k| {
                    done(p.chunk(&[-(k as i64), 0], &[i64::MIN, -1]))
                }))
            })
        }),
        Bomb::metadata("shared shapes of 64 axes", || shared_shapes(1)),
        Bomb::metadata("shared shapes of 64 axes that fill none of them", || {
            shared_shapes(2)
        }),
        Bomb::metadata("many tensors without elements", || {
            let mut p = Pickle::new();
            p.size(&[0; 64])
                .keep(1)
                .properties("float32")
                .keep(3)
                .list(|_| ())
                .keep(4);
            let entry = |p: &mut Pickle, k: usize| {
                p.text(format!("layers.{k}.weight"));
                p.tensor_entry_of(|p| done(p.get(3)), |p| done(p.get(1)), |p| done(p.get(4)));
            };
            p.metadata(|p| done(p.each(100_000, entry)), |_| (), |_| ());
            p.end()
        }),
    ]
}

/// Tensors of which much is missing.
fn holes() -> Vec<Bomb> {
    vec![
        Bomb::metadata("a tensor of nothing but holes", || one(&[1 << 62], |_| ())),
        Bomb::metadata("a tensor larger than all disks, in one chunk", || {
            one(&[1 << 60], |p| done(p.chunk(&[0], &[1 << 60])))
        }),
        Bomb::metadata("every other element is missing", || {
            one(&[400_000], |p| {
                done(p.each(200_000, |p, k| done(p.chunk(&[2 * k as i64], &[1]))))
            })
        }),
        Bomb::metadata("a chessboard", || {
            one(&[600, 600], |p| {
                done(p.each(180_000, |p, k| {
                    let (row, column) = (k / 300, k % 300);
                    p.chunk(&[row as i64, (2 * column + row % 2) as i64], &[1, 1]);
                }))
            })
        }),
    ]
}

/// One tensor whose every axis has `extent` places, and 100,000 times the chunk that is its first element.
fn shared_shapes(extent: i64) -> Vec<u8> {
    let mut p = Pickle::new();
    p.size(&[1; 64])
        .keep(1)
        .size(&[0; 64])
        .keep(2)
        .properties("float32")
        .keep(3)
        .size(&[extent; 64])
        .keep(4);
    let entry = |p: &mut Pickle| {
        let chunk = |p: &mut Pickle, _| done(p.chunk_of(|p| done(p.get(2)), |p| done(p.get(1))));
        p.text("t").tensor_entry_of(
            |p| done(p.get(3)),
            |p| done(p.get(4)),
            |p| done(p.list(|p| done(p.each(100_000, chunk)))),
        );
    };
    p.metadata(entry, |_| (), |_| ());
    p.end()
}
