//! Folders with one file per rank, as commands show them.

use crate::run;
use reshard_golden::root;
use std::{collections::BTreeSet, fs, path::Path};
use tempfile::TempDir;

/// A copy of a fixture, of which a test may take files away.
fn copy(name: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in fs::read_dir(root().join("rank_files").join(name).join("ckpt")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    dir
}

fn keys(args: &[&str]) -> BTreeSet<String> {
    let listed = run(args).json();
    let keys = listed["keys"].as_array().unwrap().iter();
    keys.map(|key| key.as_str().unwrap().to_owned()).collect()
}

#[test]
fn one_item_has_the_keys_of_the_model_in_every_command() {
    let dir = copy("verl_fsdp2_w4");
    let url = &*dir.path().display().to_string();
    let all = keys(&["ls", url, "--json"]);
    let model: BTreeSet<String> = all
        .iter()
        .filter_map(|key| key.strip_prefix("model."))
        .map(str::to_owned)
        .collect();
    assert!(!model.is_empty() && model.len() < all.len(), "{all:?}");
    let item = ["--item", "model"];
    assert_eq!(keys(&["ls", url, "--json", item[0], item[1]]), model);

    let out = tempfile::tempdir().unwrap();
    let out = &*out.path().join("model.safetensors").display().to_string();
    let converted = run(&["convert", url, out, "--to", "hf", item[0], item[1]]);
    assert_eq!(converted.code, 0, "{}", converted.err);
    assert_eq!(keys(&["ls", out, "--json"]), model);
    for args in [
        &["verify", url, item[0], item[1]][..],
        &["digest", url, item[0], item[1]],
        &["diff", out, out],
    ] {
        let ran = run(args);
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.out, ran.err);
    }
    let none = run(&["ls", url, "--item", "modle"]);
    assert_ne!(none.code, 0);
    assert!(none.err.contains("model"), "{}", none.err);
}

#[test]
fn a_missing_rank_is_incomplete_and_named() {
    let dir = copy("verl_fsdp2_w4");
    let url = &*dir.path().display().to_string();
    let sound = run(&["verify", url, "--json"]);
    assert_eq!(
        (sound.code, sound.json()["status"].as_str()),
        (0, Some("sound"))
    );

    fs::remove_file(dir.path().join("model_world_size_4_rank_2.pt")).unwrap();
    for quick in [&[][..], &["--quick"]] {
        let found = run(&[&["verify", url, "--json"][..], quick].concat());
        let json: serde_json::Value = serde_json::from_str(&found.out).unwrap();
        assert_eq!(
            (found.code, json["status"].as_str()),
            (1, Some("incomplete")),
            "{}",
            found.err
        );
        let told = run(&[&["verify", url][..], quick].concat());
        assert_eq!(told.code, 1);
        assert!(told.out.contains("rank 2"), "{}{}", told.out, told.err);
    }
    let out = tempfile::tempdir().unwrap();
    let out = out.path().join("copy");
    let refused = run(&[
        "convert",
        url,
        &out.display().to_string(),
        "--item",
        "model",
    ]);
    assert_ne!(refused.code, 0);
    assert!(refused.err.contains("rank 2"), "{}", refused.err);
    assert!(!Path::new(&out).exists());
    // What is complete can still be used.
    let optimizer = run(&["verify", url, "--item", "optim"]);
    assert_eq!(optimizer.code, 0, "{}{}", optimizer.out, optimizer.err);
}
