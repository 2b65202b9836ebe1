//! Very many faults, each of which has a long key or a long name of a file.

use super::Bomb;
use crate::{
    checkpoint::DATA,
    pickle::{Pickle, done},
};

/// A tensor of a long key in chunks that lie in no file.
fn chunks(key: usize, n: usize) -> Vec<u8> {
    let mut p = Pickle::new();
    p.text("k".repeat(key)).keep(0).text(DATA).keep(1);
    p.size(&[1]).keep(2);
    let entry = |p: &mut Pickle| {
        let chunk = |p: &mut Pickle, k: usize| {
            done(p.chunk_of(|p| done(p.size(&[k as i64])), |p| done(p.get(2))))
        };
        p.get(0).tensor_entry_of(
            |p| done(p.properties("float32")),
            |p| done(p.size(&[n as i64])),
            |p| done(p.list(|p| done(p.each(n, chunk)))),
        );
    };
    let place = |p: &mut Pickle, k: usize| {
        p.index_of(|p| done(p.get(0)), Some((&[k as i64], k as i64)));
        p.place_of(|p| done(p.get(1)), k as i64, 1, |_| ());
    };
    p.metadata(entry, |p| done(p.each(n, place)), |_| ());
    p.end()
}

/// Objects that overlap in a file of a long name.
fn objects(name: usize, n: usize) -> Vec<u8> {
    let mut p = Pickle::new();
    p.text(vec!["f".repeat(200); name / 201].join("/")).keep(0);
    p.object_entry().keep(1);
    let entry = |p: &mut Pickle, k: usize| done(p.text(format!("o{k}")).get(1));
    let place = |p: &mut Pickle, k: usize| {
        p.index(&format!("o{k}"), None);
        p.place_of(|p| done(p.get(0)), k as i64, 5, |_| ());
    };
    p.metadata(
        |p| done(p.each(n, entry)),
        |p| done(p.each(n, place)),
        |_| (),
    );
    p.end()
}

/// Bombs.
pub fn faults() -> Vec<Bomb> {
    vec![
        Bomb::metadata("a key of 100 kB in 1,000 chunks that are lost", || {
            chunks(100_000, 1_000)
        }),
        Bomb::metadata("a key of 100 kB in 20,000 chunks that are lost", || {
            chunks(100_000, 20_000)
        }),
        Bomb::metadata(
            "a name of 4 kB of a file in which 100,000 objects overlap",
            || objects(4_000, 100_000),
        ),
    ]
}
