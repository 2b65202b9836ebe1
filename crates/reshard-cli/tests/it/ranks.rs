//! Rank-local checkpoints whose ranks contradict each other, or name the same bytes.

use crate::{
    handmade::{Item, archive, pickle, write_rank},
    limits::sound,
    run,
};
use reshard::{DType, ShardedTensor};
use serde_json::{Value as Json, json};
use std::path::Path;

/// A checkpoint of ranks that have these items, each in a file of its own.
fn ranks(ranks: &[Vec<Item>]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (rank, items) in ranks.iter().enumerate() {
        write_rank(dir.path(), rank, &format!("__{rank}_0.distcp"), items);
    }
    dir
}

/// Exit code and report of `verify`.
fn verified(dir: &Path, flags: &[&str]) -> (u8, Json) {
    let url = dir.display().to_string();
    let ran = run(&[&["verify", &url, "--json"][..], flags].concat());
    (ran.code, serde_json::from_str(&ran.out).unwrap())
}

fn none(key: &str) -> Item {
    let pickle = pickle(b"N".to_vec());
    Item::object(key, archive(&pickle, &[], false))
}

/// The same tensor, said to be of another shape.
fn reshaped(key: &str) -> Item {
    Item {
        shape: Some(vec![6]),
        ..sound(key, 6, false)
    }
}

#[test]
fn what_ranks_say_differently_of_a_key_is_damage_of_this_key_alone() {
    for (second, is) in [
        (reshaped("w"), "a tensor of float32 and shape [6]"),
        (none("w"), "an object"),
    ] {
        let dir = ranks(&[
            vec![sound("w", 4, false), sound("v", 4, false), none("o")],
            vec![second, sound("v", 4, false), none("o")],
        ]);
        let url = dir.path().display().to_string();
        for flags in [&[][..], &["--quick"]] {
            let (code, j) = verified(dir.path(), flags);
            assert_eq!((code, &j["status"]), (1, &json!("damaged")), "{j}");
            let first = &j["damage"][0];
            assert_eq!(
                (&first["key"], &first["file"]),
                (&json!("w"), &json!("__1.metadata"))
            );
            let want = format!(
                "is a tensor of float32 and shape [4] in __0.metadata, and {is} in __1.metadata"
            );
            assert_eq!(first["what"], want);
        }
        // The others are read.
        let elsewhere = tempfile::tempdir().unwrap();
        let ran = run(&["digest", &url]);
        assert_eq!(ran.code, 1, "{}", ran.err);
        assert!(ran.out.contains("  v") && !ran.out.contains("  w"));
        assert!(ran.err.contains("__1.metadata: is a tensor"), "{}", ran.err);
        for flags in [&[][..], &["--no-verify"]] {
            let to = elsewhere.path().join("to").display().to_string();
            let ran = run(&[&["convert", &url, &to][..], flags].concat());
            assert_eq!(ran.code, 1, "{}", ran.err);
            assert!(ran.err.contains("__0.metadata, and "), "{}", ran.err);
        }
    }
    // Of another number of axes: what the second rank has is no part of what the first one has.
    let matrix = Item {
        shape: Some(vec![4, 1]),
        ..sound("w", 4, false)
    };
    let vector = Item {
        shape: Some(vec![8]),
        ..sound("w", 8, false)
    };
    for first in [matrix, vector] {
        let dir = ranks(&[vec![first], vec![sound("w", 4, false)]]);
        let checkpoint =
            reshard::blocking::Checkpoint::open(dir.path().display().to_string()).unwrap();
        let mut template = reshard::StateDict::new();
        let leaf = ShardedTensor::template("w", DType::Float32, &[4]);
        template.insert("w", leaf);
        let e = reshard::blocking::load(template, checkpoint.url()).unwrap_err();
        assert_eq!(e.kind(), reshard::ErrorKind::Corrupt);
        assert!(
            e.to_string()
                .contains("and a tensor of float32 and shape [4] in __1.metadata"),
            "{e}"
        );
    }
    // An object that a later rank says is a tensor.
    let dir = ranks(&[vec![none("w"), none("o")], vec![sound("w", 4, false)]]);
    let checkpoint = reshard::blocking::Checkpoint::open(dir.path().display().to_string()).unwrap();
    let e = checkpoint.object("w").unwrap_err();
    assert_eq!(e.kind(), reshard::ErrorKind::Corrupt);
    assert!(
        e.to_string()
            .contains("object w is an object in __0.metadata"),
        "{e}"
    );
    assert!(checkpoint.object("o").is_ok());
    assert_eq!(verified(dir.path(), &[]).0, 1);
}

#[test]
fn packed_data_are_checked_whatever_ranks_say_of_their_key() {
    let files = |stored: Vec<u8>| {
        let packed = Item {
            stored,
            ..sound("w", 4, true)
        };
        let dir = ranks(&[vec![packed], vec![reshaped("w")]]);
        let (code, j) = verified(dir.path(), &[]);
        assert_eq!(code, 1, "{j}");
        let damage = j["damage"].as_array().unwrap().clone();
        damage
            .into_iter()
            .map(|found| found["file"].clone())
            .collect::<Vec<_>>()
    };
    // The contradiction is told once, and that the second rank's data are not what the first one says.
    let mut stored = sound("w", 4, true).stored;
    assert_eq!(files(stored.clone()), ["__1.metadata", "__1_0.distcp"]);
    let at = stored.len() / 2;
    stored[at] ^= 0xff;
    assert_eq!(
        files(stored),
        ["__1.metadata", "__0_0.distcp", "__1_0.distcp"]
    );
}

#[test]
fn a_copy_without_a_place_is_damage() {
    for item in [sound("w", 4, false), none("w")] {
        let again = || Item {
            key: item.key.clone(),
            shape: item.shape.clone(),
            stored: item.stored.clone(),
            transform: None,
            placed: true,
        };
        let dir = ranks(&[vec![again()], vec![again().without_place()]]);
        for flags in [&[][..], &["--quick"]] {
            let (code, j) = verified(dir.path(), flags);
            assert_eq!(code, 1, "{j}");
            let found = &j["damage"][0];
            assert_eq!(
                (&found["key"], &found["file"]),
                (&json!("w"), &json!("__1.metadata"))
            );
            let what = found["what"].as_str().unwrap();
            assert!(what.contains("does not say where it lies"), "{what}");
            assert_eq!(j["damage"].as_array().unwrap().len(), 1, "{j}");
            assert_eq!(j["items"], 2, "{j}");
        }
        assert_eq!(
            verified(ranks(&[vec![again()], vec![again()]]).path(), &[]).0,
            0
        );
    }
}

#[test]
fn bytes_that_all_ranks_name_are_read_once() {
    for item in [|| sound("w", 10_000, false), || none("w")] {
        let (dir, length) = (tempfile::tempdir().unwrap(), item().stored.len());
        for rank in 0..50 {
            write_rank(dir.path(), rank, "__0_0.distcp", &[item()]);
        }
        let (code, j) = verified(dir.path(), &[]);
        assert_eq!(code, 0, "{j}");
        let looked = (&j["items"], &j["bytes"]);
        assert_eq!(looked, (&json!(1), &json!(length)));
        // Each rank with a file of its own has a copy of its own.
        let copies: Vec<Vec<Item>> = (0..3).map(|_| vec![item()]).collect();
        let (_, j) = verified(ranks(&copies).path(), &[]);
        let looked = (&j["items"], &j["bytes"]);
        assert_eq!(looked, (&json!(3), &json!(3 * length)));
    }
}

#[test]
fn copies_that_share_bytes_with_others_are_damage() {
    let dir = tempfile::tempdir().unwrap();
    write_rank(dir.path(), 0, "__0_0.distcp", &[sound("w", 4, false)]);
    // The same bytes, one less of them.
    let mut short = sound("w", 4, false);
    short.stored.pop();
    write_rank(dir.path(), 1, "__1_0.distcp", &[short]);
    let path = dir.path().join("__1.metadata");
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(12).position(|w| w == b"__1_0.distcp");
    let mut bytes = bytes;
    bytes[at.unwrap() + 2] = b'0';
    std::fs::write(&path, bytes).unwrap();
    let (code, j) = verified(dir.path(), &["--quick"]);
    assert_eq!(code, 1, "{j}");
    let said: Vec<&str> = j["damage"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["what"].as_str().unwrap())
        .collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].starts_with("chunk [0:4] and") && said[1].starts_with("a copy of chunk [0:4] and")
    );
    assert!(said.iter().all(|s| s.contains("lie in the same bytes")));
}
