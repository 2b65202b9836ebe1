//! `reshard.json` counts only beside the commit record that it was written for.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{
    BackendVersion, Dialect, StateDict, Tensor, blocking,
    plan::SavePlan,
    storage::Name,
    strategy::{
        FileLayout, FinishCx, Records, Resolve, Result, SaveCx, SaveFormat, StorageWriter,
        WriterHooks,
    },
    torch_dist::TorchDistConfig,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

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
    blocking::run(reshard::save(&state, dir.display().to_string()).dialect(Dialect::Dcp)).unwrap();
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
    let (ours, other) = (
        saved(home.path(), "ours", 1.0, true),
        saved(home.path(), "another", 2.0, false),
    );
    assert_eq!(sidecar(&ours), (true, None));
    assert_ne!(
        std::fs::read(ours.join(".metadata")).unwrap(),
        std::fs::read(other.join(".metadata")).unwrap()
    );
    std::fs::copy(ours.join("reshard.json"), other.join("reshard.json")).unwrap();
    let (counts, why) = sidecar(&other);
    assert!(!counts, "a sidecar of another checkpoint counts");
    assert_eq!(
        why.as_deref(),
        Some("reshard.json is ignored: it belongs to another version of .metadata")
    );
    // What it says is in nobody's state.
    let mut template = StateDict::new();
    template.insert("w", Tensor::from_vec(&[2], vec![0f32; 2]).unwrap());
    let url = other.display().to_string();
    let loaded = blocking::run(async { reshard::load(template, &url).await }).unwrap();
    assert!(loaded.get("nothing").is_none());
    assert_eq!(
        loaded
            .get("w")
            .unwrap()
            .leaf()
            .unwrap()
            .as_tensor()
            .unwrap()
            .to_vec::<f32>()
            .unwrap(),
        [2.0; 2]
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

/// torch_dist as a format that has no commit record: its metadata is a file like the others.
#[derive(Debug)]
struct WithoutRecord;

impl SaveFormat for WithoutRecord {
    fn key(&self) -> BackendVersion {
        TorchDistConfig::new().key()
    }
    fn settings(&self) -> serde_json::Value {
        serde_json::json!({})
    }
    fn writer(&self, cx: &SaveCx<'_>) -> Result<Arc<dyn StorageWriter>> {
        Ok(Arc::new(Unrecorded(TorchDistConfig::new().writer(cx)?)))
    }
}

#[derive(Debug)]
struct Unrecorded(Arc<dyn StorageWriter>);

impl WriterHooks for Unrecorded {}

impl StorageWriter for Unrecorded {
    fn key(&self) -> BackendVersion {
        self.0.key()
    }
    fn layout(&self, rank: u32, plan: &SavePlan, resolve: &Resolve<'_>) -> Result<FileLayout> {
        self.0.layout(rank, plan, resolve)
    }
    fn finish(&self, cx: &FinishCx<'_>) -> Result<Records> {
        let mut records = self.0.finish(cx)?;
        let extra = (Name::new("another")?, b"metadata".as_slice().into());
        let commit = records.commit.take();
        records.files.extend(commit.into_iter().chain([extra]));
        Ok(records)
    }
}

#[test]
fn reshard_json_of_a_format_without_a_commit_record_belongs_to_all_of_its_metadata() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("x");
    let url = dir.display().to_string();
    let mut state = StateDict::new();
    state.insert("w", Tensor::from_vec(&[2], vec![1f32; 2]).unwrap());
    state.insert_tree("nothing", StateDict::new());
    blocking::run(
        reshard::save(&state, &url)
            .dialect(Dialect::Dcp)
            .strategy(WithoutRecord),
    )
    .unwrap();
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("reshard.json")).unwrap()).unwrap();
    let files: Vec<_> = json["metadata"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["file"].clone())
        .collect();
    assert_eq!(
        (files, json.get("commit")),
        (vec![".metadata".into(), "another".into()], None)
    );
    assert_eq!(sidecar(&dir), (true, None));
    // One of them changed.
    std::fs::write(dir.join("another"), "metadatb").unwrap();
    let why = "reshard.json is ignored: it belongs to another version of .metadata, another";
    assert_eq!(sidecar(&dir), (false, Some(why.into())));
    std::fs::write(dir.join("another"), "metadata").unwrap();
    assert_eq!(sidecar(&dir), (true, None));
    // A list that is not sorted is none of ours; neither is one beside a commit record.
    let with = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut json = json.clone();
        change(&mut json);
        std::fs::write(dir.join("reshard.json"), json.to_string()).unwrap();
        sidecar(&dir).0
    };
    assert!(with(&|_| ()));
    assert!(!with(&|json| json["metadata"]
        .as_array_mut()
        .unwrap()
        .reverse()));
    assert!(!with(&|json| json["commit"] = json["metadata"][0].clone()));
    assert!(!with(&|json| json["metadata"] = serde_json::json!([])));
}
