//! Models in several files, as model hubs have them, and what other programs read of them.

use crate::run;
use std::fs;

pub(crate) const INDEX: &str = "model.safetensors.index.json";
pub(crate) const MODEL: &str = "model.safetensors";

/// A file of safetensors of one tensor for each key, of one float, or of no type and no bytes for a key in `absent`.
pub(crate) fn tensors(keys: &[(&str, f32)], absent: &[&str]) -> Vec<u8> {
    let entry = |n: usize, key: &str| {
        let (from, to) = (4 * n, 4 * n + 4);
        format!(r#""{key}":{{"dtype":"F32","shape":[1],"data_offsets":[{from},{to}]}}"#)
    };
    let entries = keys.iter().enumerate().map(|(n, (key, _))| entry(n, key));
    let none = |key: &&str| format!(r#""{key}":{{"shape":[],"dtype":"","data_offsets":[0,0]}}"#);
    let all: Vec<String> = absent.iter().map(none).chain(entries).collect();
    let header = format!("{{{}}}", all.join(","));
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.into_bytes());
    out.extend(keys.iter().flat_map(|(_, value)| value.to_le_bytes()));
    out
}

/// A model in two files with an index, in a folder.
pub(crate) struct Model(tempfile::TempDir);

impl Model {
    pub(crate) fn new() -> Self {
        let model = Self(tempfile::tempdir().unwrap());
        model.put(&shard(1), &tensors(&[("a", 1.), ("b", 2.)], &[]));
        model.put(&shard(2), &tensors(&[("c", 3.)], &[]));
        model.index(&[("a", &shard(1)), ("b", &shard(1)), ("c", &shard(2))]);
        model
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.path().join(name), bytes).unwrap();
    }

    pub(crate) fn index(&self, map: &[(&str, &str)]) {
        let map: Vec<String> = map.iter().map(|(k, f)| format!(r#""{k}":"{f}""#)).collect();
        let text = format!(r#"{{"metadata":{{}},"weight_map":{{{}}}}}"#, map.join(","));
        self.put(INDEX, text.as_bytes());
    }

    pub(crate) fn url(&self) -> String {
        self.0.path().display().to_string()
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

pub(crate) fn shard(n: u32) -> String {
    format!("model-{n:05}-of-00002.safetensors")
}

pub(crate) fn keys(url: &str) -> Vec<String> {
    let listed = run(&["ls", url]).ok();
    listed.lines().map(str::to_owned).collect()
}

/// Every command that opens a checkpoint, with and without JSON, says each of these on stderr, and in `notes`.
pub(crate) fn every_command_says(url: &str, said: &[&str]) {
    let other = tempfile::tempdir().unwrap();
    let new = |n: usize| other.path().join(n.to_string()).display().to_string();
    let (first, second) = (new(1), new(2));
    let commands: [&[&str]; 10] = [
        &["inspect", url],
        &["ls", url],
        &["show", url, "a"],
        &["digest", url],
        &["verify", url],
        &["stats", url],
        &["diff", url, url],
        &["digest", url, "--dry-run"],
        &["convert", url, &first, "--to", "torch_dist"],
        &["convert", url, &second, "--to", "zarr3"],
    ];
    for command in commands {
        let ran = run(command);
        for said in said {
            assert!(ran.err.contains(said), "{command:?}: {}", ran.err);
        }
        if command[0] == "convert" {
            fs::remove_dir_all(command[2]).unwrap();
        }
        let ran = run(&[command, &["--json"]].concat());
        let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let notes = json["notes"].to_string();
        for said in said {
            assert!(notes.contains(said), "{command:?}: {}", ran.out);
            assert!(ran.err.contains(said), "{command:?}: {}", ran.err);
        }
    }
}

#[test]
fn every_command_says_that_a_model_is_next_to_an_index() {
    let model = Model::new();
    assert_eq!(run(&["ls", &model.url()]).err, "");
    model.put(MODEL, &tensors(&[("a", 9.), ("b", 9.), ("c", 9.)], &[]));
    every_command_says(
        &model.url(),
        &[
            "model.safetensors is next to model.safetensors.index.json: transformers reads model.safetensors, and reshard the 2 files",
        ],
    );
    // Named by itself there is no doubt.
    assert_eq!(keys(&model.file(MODEL)), ["a", "b", "c"]);
    // Named by the index it is one of its files.
    fs::remove_file(model.file(&shard(1))).unwrap();
    model.put(MODEL, &tensors(&[("a", 9.), ("b", 9.)], &[]));
    model.index(&[("a", MODEL), ("b", MODEL), ("c", &shard(2))]);
    assert_eq!(keys(&model.url()), ["a", "b", "c"]);
}

#[test]
fn every_command_says_which_tensors_an_index_does_not_list_or_lists_elsewhere() {
    let model = Model::new();
    model.put(&shard(2), &tensors(&[("a", 8.), ("c", 3.), ("d", 4.)], &[]));
    let unlisted = "model.safetensors.index.json does not list d, which its files have";
    let elsewhere = "a is also in files other than model.safetensors.index.json says";
    every_command_says(&model.url(), &[unlisted, elsewhere]);
    let shown = run(&["show", &model.url(), "a"]);
    assert!(
        shown.out.contains('1') && !shown.out.contains('8'),
        "{}",
        shown.out
    );
}

#[test]
fn every_command_says_which_files_of_the_model_an_index_does_not_name() {
    let model = Model::new();
    model.index(&[("a", &shard(1)), ("b", &shard(1))]);
    let said = format!(
        "model.safetensors.index.json names no tensor of {}",
        shard(2)
    );
    every_command_says(&model.url(), &[&said]);
    let inspected = run(&["inspect", &model.url()]).out;
    assert!(!inspected.contains("foreign"), "{inspected}");
}

#[test]
fn every_command_says_that_a_file_of_torch_is_next_to_an_index() {
    let (model, home) = (Model::new(), tempfile::tempdir().unwrap());
    let url = home.path().join("m").display().to_string();
    run(&["convert", &model.url(), &url, "--to", "torch_save"]).ok();
    let part = "pytorch_model-00001-of-00001.bin";
    let at = |name: &str| home.path().join("m").join(name);
    fs::copy(at("pytorch_model.bin"), at(part)).unwrap();
    let index = format!(r#"{{"weight_map":{{"a":"{part}","b":"{part}","c":"{part}"}}}}"#);
    fs::write(at("pytorch_model.bin.index.json"), index).unwrap();
    every_command_says(
        &url,
        &["pytorch_model.bin is next to pytorch_model.bin.index.json"],
    );
}

#[test]
fn a_file_of_a_set_says_that_it_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let saved = crate::states::dcp_with(&["w"]);
    let (alone, part) = (
        path("model.safetensors"),
        path("model-00001-of-00002.safetensors"),
    );
    let made = run(&["convert", &saved.url, &alone, "--drop-objects"]);
    assert_eq!(made.code, 0, "{}", made.err);
    fs::rename(&alone, &part).unwrap();
    for command in ["verify", "digest", "ls", "inspect"] {
        let ran = run(&[command, &part]);
        let said = ran.out + &ran.err;
        assert!(
            ran.code == 0 && said.contains("file 1 of 2"),
            "{command}: {said}"
        );
    }
}

#[test]
fn files_without_an_index_that_are_read_as_one_checkpoint_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().display().to_string();
    for (file, key) in [("adapter_model", "a"), ("teacher", "b")] {
        let at = dir.path().join(format!("{file}.safetensors"));
        fs::write(at, tensors(&[(key, 1.0)], &[])).unwrap();
    }
    for command in ["ls", "inspect", "verify", "digest"] {
        let ran = run(&[command, &url]);
        let want = "adapter_model.safetensors, teacher.safetensors have no index, and are read as one checkpoint";
        assert!(
            ran.code == 0 && ran.err.contains(want),
            "{command}: {}",
            ran.err
        );
    }
}
