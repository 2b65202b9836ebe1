//! One item that can't be read does not block the others: `--skip-unread` and `--exclude`. Formats of two checkpoints.

use crate::run;
use serde_json::{Value, json};
use std::{fs, path::Path};
use tempfile::TempDir;

/// Two arrays, of which `odd` has a codec that nobody knows, and `cut` a chunk that is cut.
fn arrays(dir: &Path) {
    for key in ["good", "odd", "cut"] {
        let compressor = match key {
            "odd" => json!({"id": "lzma"}),
            _ => Value::Null,
        };
        let array = json!({
            "zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<i4", "order": "C", "fill_value": 0, "filters": null,
            "compressor": compressor,
        });
        let folder = dir.join(key);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(".zarray"), array.to_string()).unwrap();
        let bytes = if key == "cut" { 15 } else { 16 };
        fs::write(folder.join("0"), vec![1; bytes]).unwrap();
    }
}

fn json_of(args: &[&str], code: u8) -> Value {
    let ran = run(args);
    assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
    serde_json::from_str(&ran.out).unwrap()
}

struct Places {
    dir: TempDir,
    src: String,
}

impl Places {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let src = dir.path().join("src");
        arrays(&src);
        let src = src.to_str().unwrap().to_owned();
        Self { dir, src }
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }
}

#[test]
fn a_conversion_skips_what_cannot_be_read_and_its_ledger_says_why() {
    let places = Places::new();
    let (src, dst) = (&*places.src, places.at("dst"));
    let blocked = run(&["convert", src, &dst]);
    assert_ne!(blocked.code, 0);
    assert!(blocked.err.contains("--skip-unread"), "{}", blocked.err);
    let j = json_of(&["convert", src, &dst, "--skip-unread", "--json"], 0);
    assert_eq!((&j["tensors"], &j["files"]), (&json!(1), &json!(1)), "{j}");
    let unread = j["unread"].as_object().unwrap();
    assert_eq!(unread.keys().collect::<Vec<_>>(), ["cut", "odd"]);
    assert!(unread["odd"].as_str().unwrap().contains("lzma"), "{j}");
    let ledger = j["ledger"].as_array().unwrap();
    for key in ["cut", "odd"] {
        let of_key = ledger.iter().filter(|entry| entry["name"] == key);
        let [entry] = of_key.collect::<Vec<_>>()[..] else {
            panic!("{key}: {j}")
        };
        let why = entry["why"].as_str().unwrap();
        assert_eq!(
            (&entry["outcome"], &entry["kind"]),
            (&json!("left_out"), &json!("tensor"))
        );
        assert!(why.starts_with("it can't be read: "), "{why}");
    }
    assert_eq!(run(&["ls", &dst]).out, "good\n");
    // It is told in text, too.
    let told = run(&["convert", src, &places.at("text"), "--skip-unread"]);
    assert!(
        told.err
            .contains("odd was left out, because it can't be read"),
        "{}",
        told.err
    );
    // Without checksums only what opening has found is known.
    let unchecked = run(&[
        "convert",
        src,
        &places.at("unchecked"),
        "--skip-unread",
        "--no-verify",
    ]);
    assert_ne!(unchecked.code, 0, "{}", unchecked.out);
}

#[test]
fn skipping_contradicts_a_conversion_without_loss_and_one_of_nothing() {
    let places = Places::new();
    let (src, dst) = (&*places.src, places.at("dst"));
    let ran = run(&["convert", src, &dst, "--skip-unread", "--lossless"]);
    assert!(
        ran.code == 2 && ran.err.contains("--lossless"),
        "{}",
        ran.err
    );
    let ran = run(&["convert", src, &dst, "--skip-unread", "--key", "odd"]);
    assert_ne!(ran.code, 0, "{}", ran.out);
    assert!(!Path::new(&dst).exists());
}

#[test]
fn excluded_keys_are_out_of_every_command_that_takes_keys() {
    let places = Places::new();
    let (src, dst) = (&*places.src, places.at("dst"));
    let exclude = ["--exclude", "odd", "--exclude", "c?t"];
    for command in ["ls", "digest", "stats"] {
        let ran = run(&[&[command, src][..], &exclude].concat());
        assert!(
            ran.code == 0 && ran.out.contains("good"),
            "{command}: {}",
            ran.err
        );
        assert!(!ran.out.contains("cut"), "{command}: {}", ran.out);
    }
    assert_eq!(
        run(&[&["convert", src, &dst][..], &exclude].concat()).code,
        0
    );
    assert_eq!(run(&[&["diff", src, &dst][..], &exclude].concat()).code, 0);
    assert_eq!(run(&["diff", src, &dst, "--key", "good"]).code, 0);
    // Also of those that are chosen.
    let ran = run(&["digest", src, "--key", "good", "--exclude", "g*"]);
    assert!(
        ran.code == 2 && ran.err.contains("--exclude leaves out all keys"),
        "{}",
        ran.err
    );
    let ran = run(&["digest", src, "--key", "good", "--exclude", "goood"]);
    assert!(
        ran.code == 0 && ran.err.contains("did you mean good"),
        "{}",
        ran.err
    );
}

#[test]
fn a_comparison_skips_what_cannot_be_read_on_either_side() {
    let places = Places::new();
    let (src, dst) = (&*places.src, places.at("dst"));
    assert_eq!(
        run(&["convert", src, &dst, "--key", "good", "--to", "safetensors"]).code,
        0
    );
    let ran = run(&["diff", src, &dst]);
    assert!(
        ran.code == 2 && ran.err.contains("--skip-unread"),
        "{}",
        ran.err
    );
    for (first, second, side) in [(src, &*dst, "first"), (&dst, src, "second")] {
        let j = json_of(&["diff", first, second, "--skip-unread", "--json"], 0);
        assert_eq!(
            (&j["equal"], &j["compared"]["tensors"]),
            (&json!(true), &json!(1)),
            "{j}"
        );
        let unread = j["unread"][side].as_object().unwrap();
        assert_eq!(unread.keys().collect::<Vec<_>>(), ["cut", "odd"]);
    }
    let ran = run(&["diff", src, src, "--skip-unread", "--key", "odd"]);
    assert!(
        ran.code == 2 && ran.err.contains("nothing was compared"),
        "{}",
        ran.err
    );
}

#[test]
fn each_side_of_a_comparison_has_its_format() {
    let places = Places::new();
    let (src, dst) = (&*places.src, places.at("dst"));
    assert_eq!(
        run(&["convert", src, &dst, "--key", "good", "--to", "safetensors"]).code,
        0
    );
    let diff = |formats: &str| run(&["diff", src, &dst, "--key", "good", "--format", formats]);
    assert_eq!(diff("zarr,safetensors").code, 0);
    assert_eq!(diff("zarr/1,safetensors/1").code, 0);
    // One is for both.
    assert_ne!(diff("zarr").code, 0);
    assert_ne!(diff("safetensors,zarr").code, 0);
    assert_eq!(
        run(&["diff", src, src, "--key", "good", "--format", "zarr"]).code,
        0
    );
    // A command about one checkpoint takes one.
    let ran = run(&["ls", src, "--format", "zarr,safetensors"]);
    assert_eq!(ran.code, 2, "{}", ran.out);
}
