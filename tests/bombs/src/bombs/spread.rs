//! Checkpoints whose conversion is asked to be spread too thin.

use super::Bomb;
use crate::{
    checkpoint::{Item, put_items},
    pickle::{Pickle, Type, View},
    zip,
};

/// Bombs.
pub fn spread() -> Vec<Bomb> {
    let item = |key: &str, rows: i64| {
        let mut p = Pickle::new();
        p.tensor(View {
            of: Type::U8,
            shape: &[rows],
            strides: &[1],
            numel: rows,
            record: "0",
        });
        Item::tensor(
            key,
            Type::U8,
            &[rows],
            zip::torch(&p.end(), &[("0", &vec![7; rows as usize])]),
        )
    };
    vec![
        Bomb::new("a small checkpoint for many ranks", move |dir| {
            put_items(dir, &[item("a", 10_000), item("b", 1)])
        })
        .only()
        .with(&[
            "convert",
            "DIR",
            "TO",
            "--ranks",
            "4096",
            "--files-per-rank",
            "65536",
        ])
        .with(&[
            "convert",
            "DIR",
            "TO",
            "--ranks",
            "4096",
            "--files-per-rank",
            "65536",
            "--json",
        ])
        .with(&[
            "convert",
            "DIR",
            "TO",
            "--ranks",
            "1",
            "--files-per-rank",
            "2048",
        ])
        .with(&["convert", "DIR", "TO", "--ranks", "4096"])
        .with(&[
            "convert",
            "DIR",
            "TO",
            "--ranks",
            "64",
            "--max-shard-size",
            "1",
        ])
        .with(&[
            "convert",
            "DIR",
            "TO",
            "--policy",
            r#"{"type":"max_shard_size","max_shard_size":"1"}"#,
        ])
        .with(&[
            "convert",
            "DIR",
            "TO",
            "--ranks",
            "4096",
            "--policy",
            r#"{"type":"by_files","files":65536}"#,
        ]),
    ]
}
