//! Every stored item of the checkpoints in `tests/fixtures`, or in the folder that `RESHARD_FIXTURES` names.

use crate::python::{repr, sha256, typed};
use bytes::Bytes;
use reshard_model::testkit::fixtures;
use reshard_torch_format::{
    Limits, TensorRef,
    archive::{Archive, ArchiveOptions, Era, Verify, write_archive},
    load, save_with,
};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

/// `(folder, expected.json)` of every sound checkpoint of one kind.
fn checkpoints(kind: &str) -> Vec<(PathBuf, Json)> {
    let mut out: Vec<(PathBuf, Json)> = Vec::new();
    let mut folders = vec![fixtures().join(kind)];
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        for entry in entries.map(|e| e.unwrap().path()).filter(|p| p.is_dir()) {
            match std::fs::read(entry.join("expected.json")) {
                Ok(text) => out.push((entry, serde_json::from_slice(&text).unwrap())),
                Err(_) => folders.push(entry),
            }
        }
    }
    out.retain(|(_, e)| e.get("expect").is_none_or(|e| e == "ok"));
    out.sort_by(|a, b| a.0.cmp(&b.0));
    out
}

/// A stored item, if it is an archive (and not compressed, and not safetensors).
fn blob(folder: &Path, file: &Json, offset: &Json, len: &Json) -> Option<Bytes> {
    let path = folder.join("ckpt").join(file.as_str()?);
    let file = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (from, len) = (offset.as_u64()? as usize, len.as_u64()? as usize);
    file.get(from..from + len)
        .map(Bytes::copy_from_slice)
        .filter(|b| b.starts_with(b"PK"))
}

fn options(archive: &Archive) -> ArchiveOptions {
    let era = match archive.directory().find(".format_version") {
        Some(_) => Era::Torch27,
        None => Era::Torch21,
    };
    ArchiveOptions::default()
        .with_era(era)
        .with_prefix(archive.directory().prefix())
}

/// A folder that holds nothing of a kind would make these tests pass for the wrong reason.
fn looked_at(count: usize) {
    assert!(
        count > 0,
        "nothing to look at: RESHARD_FIXTURES names a folder without such checkpoints"
    );
}

#[test]
fn every_tensor_is_read_and_written_again_byte_for_byte() {
    let mut count = 0;
    for (folder, expected) in checkpoints("dcp") {
        let Some(tensors) = expected["tensors"].as_object() else {
            continue;
        };
        for (fqn, t) in tensors {
            for chunk in t["chunks"].as_array().into_iter().flatten() {
                let Some(blob) = blob(&folder, &chunk["file"], &chunk["offset"], &chunk["length"])
                else {
                    continue;
                };
                let name = format!("{} {fqn}", folder.display());
                let archive = Archive::open(blob.clone(), &Limits::default()).expect(&name);
                let pickle = archive.read("data.pkl", Verify::Crc).expect(&name);
                let tensor = TensorRef::parse(&pickle, &Limits::default()).expect(&name);
                assert_eq!(tensor.pickle().unwrap(), pickle, "{name}");
                let data = archive
                    .read(&tensor.storage.record(), Verify::Crc)
                    .expect(&name);
                let again = write_archive(&pickle, &[&data], &options(&archive)).unwrap();
                assert!(again == blob, "{name}");
                let order = archive.byte_order().unwrap();
                let tensor = tensor
                    .tensor(std::sync::Arc::new(data), order)
                    .expect(&name);
                assert_eq!(
                    tensor.dtype().name(),
                    t["dtype"].as_str().unwrap(),
                    "{name}"
                );
                if t["chunks"].as_array().map(Vec::len) == Some(1) && t["sha256"].is_string() {
                    assert_eq!(
                        sha256(&tensor.to_bytes()),
                        t["sha256"].as_str().unwrap(),
                        "{name}"
                    );
                }
                count += 1;
            }
        }
    }
    looked_at(count);
}

#[test]
fn every_object_is_what_python_says_it_is_and_nearly_all_are_written_again_byte_for_byte() {
    let (mut count, mut equal) = (0, 0);
    for (folder, expected) in checkpoints("dcp") {
        for (fqn, o) in expected["bytes"].as_object().into_iter().flatten() {
            let Some(blob) = blob(&folder, &o["file"], &o["offset"], &o["length"]) else {
                continue;
            };
            let name = format!("{} {fqn}", folder.display());
            let value = load(blob.clone()).expect(&name);
            if !o["type"].as_str().unwrap().starts_with("numpy")
                && !o["repr"].as_str().unwrap().contains("array")
            {
                // Python shows a set in the order of this run's hashes.
                let shown = o["repr"].as_str().unwrap().replace("{'a', 1}", "{1, 'a'}");
                assert_eq!(
                    repr(&value).replace("{'a', 1}", "{1, 'a'}"),
                    shown,
                    "{name}"
                );
            }
            let archive = Archive::open(blob.clone(), &Limits::default()).unwrap();
            let again: Bytes = save_with(&value, &options(&archive)).expect(&name).into();
            equal += usize::from(again == blob);
            assert_eq!(load(again).expect(&name), value, "{name}");
            count += 1;
        }
    }
    // The others hold objects that Python shared and a tree can't share, and views of larger storages.
    looked_at(count);
    assert!(
        equal * 20 >= count * 19,
        "{equal} of {count} objects are written as torch wrote them"
    );
}

/// Takes out what Python shows beside the content.
fn content(v: &Json) -> Json {
    match v {
        Json::Object(o) => Json::Object(
            o.iter()
                .filter(|(k, _)| *k != "values")
                .map(|(k, v)| (k.clone(), content(v)))
                .collect(),
        ),
        Json::Array(a) => Json::Array(a.iter().map(content).collect()),
        other => other.clone(),
    }
}

/// Names the first place where two differ.
fn same(found: &Json, want: &Json, at: &str) {
    match (found, want) {
        (Json::Array(f), Json::Array(w)) if f.len() == w.len() => {
            f.iter()
                .zip(w)
                .enumerate()
                .for_each(|(i, (f, w))| same(f, w, &format!("{at}/{i}")));
        }
        (Json::Object(f), Json::Object(w)) if f.keys().eq(w.keys()) => {
            f.iter()
                .zip(w.values())
                .for_each(|((k, f), w)| same(f, w, &format!("{at}/{k}")));
        }
        _ => assert_eq!(found, want, "{at}"),
    }
}

#[test]
fn megatrons_objects_and_common_states_are_what_python_says() {
    let mut count = 0;
    for (folder, expected) in checkpoints("megatron") {
        for row in expected["dcp"]["storage"].as_array().into_iter().flatten() {
            let object = &expected["objects"][row[0].as_str().unwrap()];
            let Some(blob) =
                blob(&folder, &row[3], &row[4], &row[5]).filter(|_| object.is_object())
            else {
                continue;
            };
            let name = format!("{} {}", folder.display(), row[0]);
            let value = load(blob).expect(&name);
            // The writer for Megatron wraps each object into a list of one.
            let wrapped = value
                .as_seq()
                .filter(|v| v.len() == 1 && typed(&value) != object["typed"]);
            let value = wrapped.map_or(&value, |v| &v[0]);
            same(&content(&typed(value)), &content(&object["typed"]), &name);
            count += 1;
        }
        if let Ok(common) = std::fs::read(folder.join("ckpt/common.pt")) {
            let value = load(common.clone().into()).unwrap();
            let name = folder.display();
            same(
                &content(&typed(&value)),
                &content(&expected["common"]["typed"]),
                &name.to_string(),
            );
            let archive = Archive::open(common.clone().into(), &Limits::default()).unwrap();
            let again = save_with(&value, &options(&archive)).unwrap();
            assert_eq!(load(again.into()).unwrap(), value, "{name}");
            count += 1;
        }
    }
    looked_at(count);
}
