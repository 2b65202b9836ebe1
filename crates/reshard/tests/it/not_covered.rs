//! What a full check can't confirm is listed, by file and by why.
#![cfg(all(feature = "torch-dist", feature = "local"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use reshard::{
    Dialect, ShardedTensor, StateDict, Tensor,
    blocking::{self, Checkpoint},
    storage::Progress,
    strategy::{Uncovered, VerifyReport},
};
use std::{fs, path::Path};

fn saved(at: &Path, dialect: Dialect, integrity: bool) {
    let mut state = StateDict::new();
    let data = Tensor::from_vec(&[3], vec![1f32, 2., 3.]).unwrap();
    state.insert("weight", ShardedTensor::full("weight", data));
    if dialect == Dialect::Megatron {
        state.insert("iteration", 7);
    }
    let save = reshard::save(&state, at).dialect(dialect);
    drop(blocking::run(save.integrity(integrity)).unwrap());
}

fn verified(at: &Path) -> VerifyReport {
    let checkpoint = Checkpoint::open(at).unwrap();
    checkpoint.verify(true, Progress::none()).unwrap()
}

/// Files with why their bytes can't be confirmed, and how many.
fn listed(at: &Path) -> Vec<(String, Uncovered, u64)> {
    let report = verified(at);
    assert_eq!(report.damage, []);
    let files = report.not_covered.files.into_iter();
    let flat = |(file, of): (String, std::collections::BTreeMap<_, _>)| {
        of.into_iter()
            .map(move |(why, bytes)| (file.clone(), why, bytes))
            .collect::<Vec<_>>()
    };
    files.flat_map(flat).collect()
}

fn file(name: &str, why: Uncovered, at: &Path) -> (String, Uncovered, u64) {
    (name.into(), why, fs::metadata(at.join(name)).unwrap().len())
}

#[test]
fn what_nobody_can_confirm_is_listed_by_why() {
    let home = tempfile::tempdir().unwrap();
    let at = home.path().join("step");
    saved(&at, Dialect::Dcp, false);
    // All metadata have digests in `reshard.json`, which has its own.
    assert_eq!(listed(&at), []);
    // A quick check covers nothing, and lists nothing.
    let checkpoint = Checkpoint::open(&at).unwrap();
    let quick = checkpoint.verify(false, Progress::none()).unwrap();
    assert!(quick.not_covered.is_empty());

    // Bytes behind the last item, and a file of somebody.
    let data = at.join("__0_0.distcp");
    let sound = fs::read(&data).unwrap();
    fs::write(&data, [&sound[..], &[0; 9]].concat()).unwrap();
    fs::write(at.join("README"), "of somebody").unwrap();
    let readme = file("README", Uncovered::Foreign, &at);
    let between = ("__0_0.distcp".to_owned(), Uncovered::Between, 9);
    assert_eq!(listed(&at), [readme, between]);
    fs::remove_file(at.join("README")).unwrap();
    fs::write(&data, &sound).unwrap();

    // A changed format record, beside the data that were written: it is damaged.
    let metadata = fs::read(at.join(".metadata")).unwrap();
    let text = metadata.windows(6).position(|w| w == b"weight").unwrap();
    let mut changed = metadata.clone();
    changed[text..text + 6].copy_from_slice(b"weighs");
    fs::write(at.join(".metadata"), changed).unwrap();
    let damage = verified(&at).damage;
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert_eq!(damage[0].file.as_deref(), Some(".metadata"));
    // With other data it is that of another save, and nothing confirms it.
    fs::write(&data, [&sound[..], &[0; 9]].concat()).unwrap();
    let report = verified(&at);
    assert_eq!(
        (report.damage.len(), report.changed.len()),
        (0, 1),
        "{report}"
    );
    let of = &report.not_covered.files[".metadata"];
    assert!(of.contains_key(&Uncovered::NoChecksum), "{of:?}");
    fs::write(&data, sound).unwrap();
    fs::write(at.join(".metadata"), metadata).unwrap();

    // As PyTorch would have left it.
    fs::remove_file(at.join("reshard.json")).unwrap();
    let record = file(".metadata", Uncovered::NoChecksum, &at);
    assert_eq!(listed(&at), [record]);
}

#[test]
fn files_that_integrity_json_lists_are_covered() {
    let home = tempfile::tempdir().unwrap();
    let at = home.path().join("step");
    saved(&at, Dialect::Megatron, true);
    let list = file("integrity.json", Uncovered::NoChecksum, &at);
    assert_eq!(listed(&at), [list]);
}

#[test]
fn every_byte_of_common_state_is_looked_at() {
    let home = tempfile::tempdir().unwrap();
    let at = home.path().join("step");
    saved(&at, Dialect::Megatron, false);
    let common = at.join("common.pt");
    let mut bytes = fs::read(&common).unwrap();
    // A padding, which no reader needs.
    let padding = bytes.windows(4).position(|w| w == b"ZZZZ").unwrap();
    bytes[padding] = b'z';
    fs::write(&common, bytes).unwrap();
    let damage = verified(&at).damage;
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert_eq!(damage[0].file.as_deref(), Some("common.pt"));
    assert!(damage[0].what.contains("torch.save writes"), "{damage:?}");
}
