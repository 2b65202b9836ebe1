//! Keys: long ones, deep ones, ones that are nearly the same, and patterns that look for them.

use super::Bomb;
use crate::{
    checkpoint::{Item, put, put_items},
    pickle::{Pickle, Type, View, done},
    zip,
};
use anyhow::Result;
use std::path::Path;

/// An item that any tensor of one element may be.
fn element() -> Vec<u8> {
    let mut p = Pickle::new();
    p.tensor(View {
        of: Type::U8,
        shape: &[1],
        strides: &[1],
        numel: 1,
        record: "0",
    });
    zip::torch(&p.end(), &[("0", &[7])])
}

/// Tensors of one element under these keys.
fn under(dir: &Path, keys: impl IntoIterator<Item = String>) -> Result<()> {
    let items: Vec<Item> = keys
        .into_iter()
        .map(|k| Item::tensor(&k, Type::U8, &[1], element()))
        .collect();
    put_items(dir, &items)
}

/// A tensor of which nobody knows anything but its key, which need not be UTF-8.
fn named(key: &[u8]) -> Vec<u8> {
    let mut p = Pickle::new();
    let entries = |p: &mut Pickle| {
        p.text(key).tensor_entry(Type::U8, &[1]);
        p.text("w").object_entry();
    };
    let places = |p: &mut Pickle| {
        p.index_of(|p| done(p.text(key)), Some((&[0], 0)))
            .place(0, element().len() as i64);
    };
    p.metadata(entries, places, |_| ());
    p.end()
}

/// Bombs.
pub fn keys() -> Vec<Bomb> {
    [patterns(), texts(), cells(), paths()]
        .into_iter()
        .flatten()
        .collect()
}

/// Keys that commands look for.
fn patterns() -> Vec<Bomb> {
    let long = format!("{}x", "layers.".repeat(570));
    vec![
        Bomb::new("keys of 100 kB with near misses", move |dir| {
            let key = |k: usize| format!("{}{k}", "layers.".repeat(14_000));
            under(dir, (0..100).map(key))
        })
        .with(&["ls", "DIR", "--key", &long])
        .with(&["digest", "DIR", "--key", &long])
        .with(&["convert", "DIR", "TO", "--key", &long]),
        Bomb::new("keys for patterns of many stars", |dir| {
            under(dir, (0..50).map(|k| format!("{}{k}", "a".repeat(100_000))))
        })
        .with(&["ls", "DIR", "--key", &"*a".repeat(2_000)])
        .with(&["ls", "DIR", "--key", &format!("{}b", "*a".repeat(2_000))])
        .with(&["ls", "DIR", "--key", &"*".repeat(4_000)])
        .with(&["ls", "DIR", "--key", &format!("*{}b", "a".repeat(4_000))])
        .with(&["ls", "DIR", "--key", &format!("*{}b*", "a?".repeat(20))])
        .with(&["ls", "DIR", "--key", &format!("*{}b", "?".repeat(100))]),
        Bomb::new("many short keys and long patterns", |dir| {
            under(dir, (0..20_000).map(|k| format!("layers.{k}.weight")))
        })
        .with(&["ls", "DIR", "--key", &"layers.".repeat(500)])
        .with(&["inspect", "DIR", "--key", &"?*".repeat(2_000)]),
    ]
}

/// Keys of odd letters or lengths.
fn texts() -> Vec<Bomb> {
    vec![
        Bomb::new("a lone surrogate", |dir| {
            put(dir, "__0_0.distcp", &element())?;
            put(dir, ".metadata", &named(b"a\xed\xa0\x80b"))
        }),
        Bomb::new("a million lone surrogates", |dir| {
            put(dir, ".metadata", &named(&b"\xed\xa0\x80".repeat(1_000_000)))
        }),
        Bomb::new("a key of 10 MB", |dir| under(dir, ["k".repeat(10_000_000)])),
        Bomb::new("a key of 5 MB that can't be seen", |dir| {
            under(dir, ["\u{202e}".repeat(1_500_000)])
        }),
        Bomb::new("many keys beside a long one", |dir| {
            under(
                dir,
                (0..2_000).map(|k| {
                    if k == 7 {
                        "k".repeat(3_000_000)
                    } else {
                        k.to_string()
                    }
                }),
            )
        }),
        Bomb::new("a key of a million dots", |dir| {
            under(dir, [".".repeat(1_000_000)])
        }),
        Bomb::new("a key of a million slashes", |dir| {
            under(dir, ["/".repeat(1_000_000)])
        }),
        Bomb::new("keys within keys", |dir| {
            under(dir, (1..2_000).map(|k| ["a"; 2_000][..k].join(".")))
        }),
    ]
}

/// Keys that name a cell of an array of objects, or seem to.
fn cells() -> Vec<Bomb> {
    vec![
        Bomb::new("an object of a million dots", |dir| {
            put_items(
                dir,
                &[Item::object(
                    &".".repeat(1_000_000),
                    zip::torch(b"\x80\x02N.", &[]),
                )],
            )
        }),
        Bomb::new("cells of an array without end", |dir| {
            let cell = |k: u64| {
                Item::object(
                    &format!("a/shard_{k}_{}", u64::MAX),
                    zip::torch(b"\x80\x02]N.a.", &[]),
                )
            };
            put_items(dir, &[cell(0), cell(1 << 60)])
        }),
        Bomb::new("cells of arrays of many axes", |dir| {
            let many = |n: &str| vec![n; 100_000].join(".");
            put_items(
                dir,
                &[Item::object(
                    &format!("a/shard_{}_{}", many("0"), many("9")),
                    zip::torch(b"\x80\x02]N.a.", &[]),
                )],
            )
        }),
    ]
}

/// Paths of keys.
fn paths() -> Vec<Bomb> {
    vec![
        Bomb::new("paths with an index beyond all lists", |dir| {
            nested(dir, |p| done(p.text("list").int(1 << 60)))
        }),
        Bomb::new("paths with an index of 2^31", |dir| {
            nested(dir, |p| done(p.int(1 << 31)))
        }),
        Bomb::new("a path of 100,000 steps", |dir| {
            nested(dir, |p| done(p.times(100_000, b"K\0")))
        }),
        Bomb::new("a path of 100,000 names", |dir| {
            nested(dir, |p| {
                done(p.each(100_000, |p, k| done(p.text(k.to_string()))))
            })
        }),
        Bomb::new("a path with a long name", |dir| {
            nested(dir, |p| done(p.text("n".repeat(5_000_000)).int(0)))
        }),
    ]
}

/// A tensor `t` whose planner data gives it a path.
fn nested(dir: &Path, path: impl FnOnce(&mut Pickle)) -> Result<()> {
    let mut p = Pickle::new();
    p.metadata(
        |p| done(p.text("t").tensor_entry(Type::U8, &[1])),
        |p| {
            done(
                p.index("t", Some((&[0], 0)))
                    .place(0, element().len() as i64),
            )
        },
        |p| {
            done(
                p.text("planner_data")
                    .dict(|p| done(p.text("t").tuple(path))),
            )
        },
    );
    put(dir, "__0_0.distcp", &element())?;
    put(dir, ".metadata", &p.end())
}
