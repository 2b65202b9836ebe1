//! Files beside the items: JSON, what a record names, and files that are mostly holes.

use super::Bomb;
use crate::{
    checkpoint::{DATA, Item, MEGATRON, empty_metadata, put, put_common, put_items, put_sparse},
    pickle::{Pickle, Type, done},
    zip,
};
use anyhow::Result;
use sha2::{Digest, Sha256};
use std::path::Path;

const TIB_8: u64 = 8 << 40;

/// A sound checkpoint without items.
fn sound(dir: &Path) -> Result<()> {
    put(dir, ".metadata", &empty_metadata(Pickle::new()))
}

/// Beside a sound checkpoint, a `reshard.json`.
fn note(name: &str, make: impl Fn(&Path) -> Result<String> + 'static) -> Bomb {
    Bomb::new(name, move |dir| {
        sound(dir)?;
        put(dir, "reshard.json", make(dir)?.as_bytes())
    })
}

fn commit(file: &str, more: &str) -> String {
    format!(r#"{{"schema":1,"writer":"x","commit":{{"file":"{file}","sha256":"00"}}{more}}}"#)
}

/// Beside a sound checkpoint, a `metadata.json`.
fn control(name: &str, make: impl Fn() -> String + 'static) -> Bomb {
    Bomb::new(name, move |dir| {
        sound(dir)?;
        put(dir, "metadata.json", make().as_bytes())
    })
}

/// An item that lies in a file which is mostly a hole.
fn sparse_item(dir: &Path, tensor: bool, length: u64) -> Result<()> {
    let mut p = Pickle::new();
    p.metadata(
        |p| {
            p.text("o");
            if tensor {
                p.tensor_entry(Type::U8, &[4])
            } else {
                p.object_entry()
            };
        },
        |p| {
            done(
                p.index("o", tensor.then_some((&[0], 0)))
                    .place(0, length as i64),
            )
        },
        |_| (),
    );
    put(dir, ".metadata", &p.end())?;
    put_sparse(dir, DATA, &zip::torch(b"\x80\x02N.", &[]), length)
}

/// Bombs.
pub fn files() -> Vec<Bomb> {
    [notes(), controls(), listings(), holes(), hollow_records()]
        .into_iter()
        .flatten()
        .collect()
}

/// Notes of reshard.
fn notes() -> Vec<Bomb> {
    vec![
        note("reshard.json that names an 8 TiB file", |dir| {
            put_sparse(dir, "large", b"", TIB_8)?;
            Ok(commit("large", ""))
        }),
        note("reshard.json that names a .metadata of 8 TiB", |dir| {
            put_sparse(dir, ".metadata", b"", TIB_8)?;
            Ok(commit(".metadata", ""))
        }),
        note("reshard.json that names an item file of 8 TiB", |dir| {
            put_sparse(dir, DATA, b"", TIB_8)?;
            Ok(commit(DATA, ""))
        }),
        note(
            "reshard.json in many brackets",
            |_| Ok("[".repeat(60 << 20)),
        ),
        note("reshard.json in many braces", |_| {
            Ok(r#"{"a":"#.repeat(10 << 20))
        }),
        note("reshard.json of empty paths", |_| {
            Ok(commit(
                ".metadata",
                &format!(r#","empty_dicts":[[]{}]"#, ",[]".repeat(18 << 20)),
            ))
        }),
        note("reshard.json of a path of many steps", |_| {
            let steps = r#",{"Index":0}"#.repeat(4 << 20);
            Ok(commit(
                ".metadata",
                &format!(r#","empty_dicts":[[{{"Key":"a"}}{steps}]]"#),
            ))
        }),
        note("reshard.json of a long writer", |_| {
            Ok(format!(
                r#"{{"schema":1,"writer":"{}","commit":{{"file":"{}","sha256":"00"}}}}"#,
                "x".repeat(30 << 20),
                "y".repeat(30 << 20)
            ))
        }),
        Bomb::new("reshard.json that fits, of paths without end", |dir| {
            sound(dir)?;
            let digest: String = Sha256::digest(empty_metadata(Pickle::new()))
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect();
            let steps = r#",{"Index":0}"#.repeat(200_000);
            let text = format!(
                r#"{{"schema":1,"writer":"x","commit":{{"file":".metadata","sha256":"{digest}"}},"empty_dicts":[[{{"Key":"a"}}{steps}],[{{"Index":18446744073709551615}}]]}}"#
            );
            put(dir, "reshard.json", text.as_bytes())
        }),
    ]
}

/// Control files of Megatron Core.
fn controls() -> Vec<Bomb> {
    vec![
        control("metadata.json in many brackets", || "[".repeat(60 << 20)),
        control("metadata.json in many braces", || {
            r#"{"a":"#.repeat(10 << 20)
        }),
        control("metadata.json of many members", || {
            format!("{{{}\"b\":1}}", "\"a\":1,".repeat(10 << 20))
        }),
        control("metadata.json with a long name", || {
            format!(
                r#"{{"sharded_backend": "{}", "sharded_backend_version": 1}}"#,
                "x".repeat(60 << 20)
            )
        }),
        control("metadata.json with a long number", || {
            format!(
                r#"{{"sharded_backend": "torch_dist", "sharded_backend_version": {}}}"#,
                "9".repeat(60 << 20)
            )
        }),
        control("metadata.json of escapes", || {
            format!(
                r#"{{"sharded_backend": "{}", "sharded_backend_version": 1}}"#,
                r"\u202e".repeat(10 << 20)
            )
        }),
        control("metadata.json beyond the limit", || " ".repeat(65 << 20)),
    ]
}

/// What lies in the directory.
fn listings() -> Vec<Bomb> {
    vec![
        Bomb::new("many files of others", |dir| {
            sound(dir)?;
            (0..20_000).try_for_each(|k| put(dir, &format!("f{k}"), b""))
        }),
        Bomb::new("many files of no item", |dir| {
            sound(dir)?;
            (0..20_000).try_for_each(|k| put(dir, &format!("__{k}_0.distcp"), b"x"))
        }),
        Bomb::new("names of files that are as long as they may be", |dir| {
            sound(dir)?;
            (0..5_000).try_for_each(|k| put(dir, &format!("{k:05}{}", "\u{202e}".repeat(80)), b""))
        }),
        Bomb::new("deep directories", |dir| {
            sound(dir)?;
            Ok(std::fs::create_dir_all(dir.join("d/".repeat(1_000)))?)
        }),
    ]
}

/// Items that are nothing but a hole.
fn holes() -> Vec<Bomb> {
    vec![
        Bomb::new("an object of 8 TiB, all hole", |dir| {
            sparse_item(dir, false, TIB_8)
        }),
        Bomb::new("an object of 3 GiB, all hole", |dir| {
            sparse_item(dir, false, 3 << 30)
        }),
        Bomb::new("a tensor's item of 8 TiB, all hole", |dir| {
            sparse_item(dir, true, TIB_8)
        }),
        Bomb::new("a tensor's item of 3 GiB, all hole", |dir| {
            sparse_item(dir, true, 3 << 30)
        }),
        Bomb::new("a stream of 3 GiB, all hole", |dir| {
            let item = Item {
                transforms: vec!["stream.zstd/1"],
                ..Item::object("o", b"x".to_vec())
            };
            put_items(dir, &[item])?;
            put_sparse(dir, DATA, b"\x28\xb5\x2f\xfd\x00\x38", 3 << 30)
        }),
        Bomb::new("an item beyond the end of all files", |dir| {
            let mut p = Pickle::new();
            let entries = |p: &mut Pickle| {
                done(
                    p.text("o")
                        .object_entry()
                        .text("t")
                        .tensor_entry(Type::U8, &[4]),
                )
            };
            let places = |p: &mut Pickle| {
                p.index("o", None)
                    .place(i64::MAX - 1, i64::MAX)
                    .index("t", Some((&[0], 0)))
                    .place(1, i64::MAX);
            };
            p.metadata(entries, places, |_| ());
            put(dir, ".metadata", &p.end())?;
            put(dir, DATA, b"x")
        }),
        Bomb::new("integrity.json of 8 TiB", |dir| {
            sound(dir)?;
            put(dir, "metadata.json", MEGATRON.as_bytes())?;
            put_sparse(dir, "integrity.json", b"", TIB_8)
        }),
    ]
}

/// Records that are nothing but a hole.
fn hollow_records() -> Vec<Bomb> {
    let mut all = Vec::new();
    for (size, length) in [("3 GiB", 3 << 30), ("8 TiB", TIB_8)] {
        all.extend([
            Bomb::new(&format!(".metadata of {size}, all hole"), move |dir| {
                put_sparse(dir, ".metadata", b"\x80\x04", length)
            }),
            Bomb::new(&format!("__0.metadata of {size}, all hole"), move |dir| {
                put_sparse(dir, "__0.metadata", b"\x80\x04", length)
            }),
            Bomb::new(&format!("common.pt of {size}, all hole"), move |dir| {
                put_common(dir, b"")?;
                put_sparse(dir, "common.pt", b"PK\x03\x04", length)
            }),
            Bomb::new(&format!("metadata.json of {size}, all hole"), move |dir| {
                sound(dir)?;
                put_sparse(dir, "metadata.json", b"{", length)
            }),
        ]);
    }
    all
}
