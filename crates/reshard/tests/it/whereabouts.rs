//! Errors of places that are no checkpoint say what lies there, and what to open instead.
#![cfg(all(feature = "torch-dist", feature = "local"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use reshard::{DType, ErrorKind, ShardedTensor, StateDict, Tensor, blocking};
use std::{fs, path::Path};

fn state() -> StateDict {
    let mut state = StateDict::new();
    let data = Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
    state.insert("w", ShardedTensor::full("w", data));
    state
}

fn save(at: &Path) {
    let state = state();
    drop(blocking::run(reshard::save(&state, at)).unwrap());
}

/// The errors of everything that opens a checkpoint.
fn errors(at: &Path) -> Vec<reshard::Error> {
    let mut template = StateDict::new();
    template.insert("w", ShardedTensor::template("w", DType::Float32, &[2]));
    let load = blocking::load(template, at).unwrap_err();
    assert!(load.is_no_checkpoint(), "{load}");
    let prune = blocking::run(reshard_manager::prune(at)).unwrap_err();
    assert!(prune.is_no_checkpoint(), "{prune}");
    let text = at.display().to_string();
    let remove = blocking::run(reshard_manager::remove_sharded_tensors(&text, "w")).unwrap_err();
    let open = blocking::Checkpoint::open(at).unwrap_err();
    vec![load.into(), prune.into(), remove, open]
}

fn says(at: &Path, parts: &[&str]) {
    for e in errors(at) {
        assert!(e.is_no_checkpoint(), "{e}");
        assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
        let text = e.to_string();
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }
}

#[test]
fn nothing_lies_there_and_what_lies_beside_it_is_named() {
    let home = tempfile::tempdir().unwrap();
    let at = home.path().join("iter_0000011");
    says(&at, &[&format!("nothing lies at {}", at.display())]);
    save(&home.path().join("iter_0000010"));
    let instead = home.path().join("iter_0000010").display().to_string();
    says(
        &at,
        &[
            "beside it lie iter_0000010; name one of them",
            &format!("such as {instead}"),
        ],
    );
    let e = blocking::Checkpoint::open(&at).unwrap_err();
    assert_eq!(e.whereabouts().unwrap().instead(), Some(&*instead));
}

#[test]
fn a_folder_that_holds_checkpoints_names_them() {
    let home = tempfile::tempdir().unwrap();
    for step in [5, 10] {
        save(&home.path().join(format!("iter_{step:07}")));
    }
    says(
        home.path(),
        &["is not a checkpoint, but holds some: iter_0000010, iter_0000005"],
    );
}

#[test]
fn a_file_of_a_checkpoint_leads_to_its_directory() {
    let home = tempfile::tempdir().unwrap();
    let at = home.path().join("step");
    save(&at);
    says(
        &at.join(".metadata"),
        &["is the metadata of a checkpoint", "name the directory"],
    );
    let data = at.join("__0_0.distcp");
    let open = blocking::Checkpoint::open(&data).unwrap_err();
    let found = open.whereabouts().unwrap();
    assert_eq!(found.instead(), Some(&*at.display().to_string()));
    fs::write(home.path().join("x"), "").unwrap();
    says(&home.path().join("x"), &["is a file, and "]);
}

#[test]
fn what_is_damaged_or_denied_is_no_missing_checkpoint() {
    let home = tempfile::tempdir().unwrap();
    let at = home.path().join("step");
    save(&at);
    fs::write(at.join(".metadata"), "x").unwrap();
    let e = blocking::Checkpoint::open(&at).unwrap_err();
    assert!(!e.is_no_checkpoint() && e.whereabouts().is_none(), "{e}");
    assert_eq!(e.kind(), ErrorKind::Corrupt);
}

#[test]
fn a_place_that_holds_something_names_the_wanted_option() {
    let home = tempfile::tempdir().unwrap();
    let at = home.path().join("step");
    save(&at);
    let state = state();
    let e = blocking::run(reshard::save(&state, &at)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Exists);
    assert!(e.to_string().contains("`.overwrite(true)`"), "{e}");
}
