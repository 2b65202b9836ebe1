//! Tensors that Megatron Core stores flattened: grids of too many cells.

use super::Bomb;
use crate::{
    checkpoint::{DATA, put, put_sparse},
    pickle::{Pickle, Type, done},
    zip,
};
use anyhow::Result;
use std::path::Path;

/// A tensor that is stored flattened.
struct Flattened {
    key: String,
    original: Vec<i64>,
    stored: Vec<i64>,
    /// Offsets and lengths of chunks, in stored axes.
    chunks: Vec<(Vec<i64>, Vec<i64>)>,
}

impl Flattened {
    /// One chunk that has all.
    fn whole(key: &str, original: &[i64], stored: &[i64]) -> Self {
        Self {
            key: key.into(),
            original: original.into(),
            stored: stored.into(),
            chunks: vec![(vec![0; stored.len()], stored.into())],
        }
    }
}

/// A `.metadata` of such tensors. All chunks lie at one place of one file, whose archive is of `elements` bytes.
fn put_flat(dir: &Path, tensors: &[Flattened], elements: usize) -> Result<()> {
    let mut p = Pickle::new();
    let entries = |p: &mut Pickle| {
        for t in tensors {
            p.text(&t.key).tensor_entry_of(
                |p| done(p.properties(Type::U8.name())),
                |p| done(p.size(&t.stored)),
                |p| {
                    p.list(|p| {
                        for (offsets, lengths) in &t.chunks {
                            p.chunk(offsets, lengths);
                        }
                    });
                },
            );
        }
    };
    let stored = zip::torch(b"\x80\x02N.", &[("0", &vec![0; elements])]);
    let length = stored.len() as i64;
    let places = |p: &mut Pickle| {
        for t in tensors {
            for (i, (offsets, _)) in (0..).zip(&t.chunks) {
                p.index(&t.key, Some((offsets, i))).place(0, length);
            }
        }
    };
    let flattened = |p: &mut Pickle| {
        p.text("mcore_data").dict(|p| {
            for t in tensors {
                p.text(&t.key).dict(|p| {
                    p.text("nd_reformulated_orig_global_shape")
                        .size(&t.original);
                });
            }
        });
    };
    p.metadata(entries, places, flattened);
    put(dir, ".metadata", &p.end())?;
    put_sparse(dir, DATA, &stored, stored.len() as u64)
}

fn flattened(name: &str, elements: usize, make: impl Fn() -> Vec<Flattened> + 'static) -> Bomb {
    let bomb = Bomb::new(&format!("flat/{name}"), move |dir| {
        put_flat(dir, &make(), elements)
    });
    bomb.with(&["convert", "DIR", "TO", "--unflatten", "--ranks", "3"])
        .with(&["convert", "DIR", "TO", "--to", "zarr3", "--no-verify"])
        .with(&["diff", "DIR", "DIR"])
        .with(&["stats", "DIR"])
}

/// Bombs.
pub fn flat() -> Vec<Bomb> {
    vec![
        flattened("a grid without end in one chunk", 4, || {
            vec![Flattened::whole("w", &[1 << 40], &[1 << 40, 1])]
        }),
        flattened(
            "many grids of as many cells as a read may meet",
            1 << 10,
            || {
                let one = |n: usize| Flattened::whole(&format!("w{n}"), &[1 << 10], &[1 << 10, 1]);
                (0..1000).map(one).collect()
            },
        ),
        flattened("grids of more cells than a read may meet", 1 << 16, || {
            let one = |n: usize| Flattened::whole(&format!("w{n}"), &[1 << 16], &[1 << 16, 1]);
            (0..5000).map(one).collect()
        }),
        flattened("one grid of many cells", 1 << 20, || {
            vec![Flattened::whole(
                "w",
                &[1 << 10, 1 << 10],
                &[1 << 10, 1 << 10, 1],
            )]
        }),
        flattened("a chunk for each cell", 1, || {
            let n = 200_000;
            let chunks = (0..n).map(|at| (vec![at, 0], vec![1, 1])).collect();
            vec![Flattened {
                chunks,
                ..Flattened::whole("w", &[n], &[n, 1])
            }]
        }),
        flattened("cells that overlap again and again", 1 << 15, || {
            let chunks = (0..1000).map(|_| (vec![0, 0], vec![1 << 15, 1])).collect();
            vec![Flattened {
                chunks,
                ..Flattened::whole("w", &[1 << 15], &[1 << 15, 1])
            }]
        }),
        flattened("ranges of cells of many axes", 1, || {
            let (axes, n) = (40, 20_000);
            let (mut original, mut stored) = (vec![2; axes], vec![1; axes]);
            (original[0], stored[0]) = (2 * n, n);
            stored.push(1 << axes);
            let chunk = |at: i64| {
                let (mut offsets, mut lengths) = (vec![0; axes + 1], vec![1; axes + 1]);
                (offsets[0], offsets[axes], lengths[axes]) = (at, 1, (1 << axes) - 2);
                (offsets, lengths)
            };
            vec![Flattened {
                chunks: (0..n).map(chunk).collect(),
                ..Flattened::whole("w", &original, &stored)
            }]
        }),
        flattened("cells without elements", 1, || {
            vec![Flattened::whole("w", &[0, 1 << 40], &[1 << 40, 1 << 40, 0])]
        }),
    ]
}
