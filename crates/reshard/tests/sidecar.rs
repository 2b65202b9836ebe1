//! `reshard.json` counts only beside the commit record that it was written for.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{Dialect, StateDict, Tensor, blocking};
use std::path::{Path, PathBuf};

/// A checkpoint with a tensor of this value, in PyTorch's dialect, and a dict without entries, which only `reshard.json` holds.
fn saved(home: &Path, name: &str, value: f32, empty: bool) -> PathBuf {
    let dir = home.join(name);
    let mut state = StateDict::new();
    state.insert("w", Tensor::from_vec(&[2], vec![value; 2]).unwrap());
    if empty {
        state.insert_tree("nothing", StateDict::new());
    }
    // Commit records name keys and places, not values: with another key they differ.
    state.insert(name, f64::from(value));
    blocking::run(reshard::save(&state, &dir.display().to_string()).dialect(Dialect::Dcp)).unwrap();
    dir
}

/// Whether the sidecar counts, and what is said if it does not.
fn sidecar(dir: &Path) -> (bool, Option<String>) {
    let opened = blocking::run(reshard::Checkpoint::open(&dir.display().to_string())).unwrap();
    let (found, why) = blocking::run(opened.sidecar());
    (found.is_some(), why)
}

#[test]
fn reshard_json_beside_another_metadata_is_ignored_and_said_so() {
    let home = tempfile::tempdir().unwrap();
    let (ours, other) = (saved(home.path(), "ours", 1.0, true), saved(home.path(), "another", 2.0, false));
    assert_eq!(sidecar(&ours), (true, None));
    assert_ne!(
        std::fs::read(ours.join(".metadata")).unwrap(),
        std::fs::read(other.join(".metadata")).unwrap()
    );
    std::fs::copy(ours.join("reshard.json"), other.join("reshard.json")).unwrap();
    let (counts, why) = sidecar(&other);
    assert!(!counts, "a sidecar of another checkpoint counts");
    assert_eq!(why.as_deref(), Some("reshard.json is ignored: it belongs to another .metadata"));
    // What it says is in nobody's state.
    let mut template = StateDict::new();
    template.insert("w", Tensor::from_vec(&[2], vec![0f32; 2]).unwrap());
    let url = other.display().to_string();
    let loaded = blocking::run(async { reshard::load(template, &url).await }).unwrap();
    assert!(loaded.get("nothing").is_none());
    assert_eq!(
        loaded.get("w").unwrap().leaf().unwrap().as_tensor().unwrap().to_vec::<f32>(),
        Some(vec![2.0; 2])
    );
}

#[test]
fn reshard_json_is_ignored_when_one_byte_of_its_metadata_changed_or_it_is_gone() {
    let home = tempfile::tempdir().unwrap();
    let dir = saved(home.path(), "ours", 1.0, true);
    let url = dir.display().to_string();
    let record = dir.join(".metadata");
    let mut bytes = std::fs::read(&record).unwrap();
    // Behind the end of the pickle: it is read as before.
    bytes.push(0);
    std::fs::write(&record, bytes).unwrap();
    match blocking::run(reshard::Checkpoint::open(&url)) {
        Ok(opened) => assert!(blocking::run(opened.sidecar()).0.is_none()),
        Err(error) => assert!(error.to_string().contains(".metadata"), "{error}"),
    }
}
