//! Files and folders of other programs are named, with the next step.
//!
//! `foreign/make.py` made those in the folder `foreign`.

use crate::{run, run_with, states};
use futures::executor::block_on;
use reshard::{
    Stores,
    strategy::{FOREIGN, Foreign},
};
use reshard_object_store::{
    ObjectStores,
    object_store::{ObjectStoreExt as _, memory::InMemory, path::Path as ObjectPath},
};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\n\
    oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 16\n";

/// What names a kind, and a place of it: paths with their content. A place with one path whose name is empty is a file.
struct Case {
    what: &'static str,
    name: &'static str,
    files: Vec<(String, Vec<u8>)>,
}

fn case<'a>(
    what: &'static str,
    name: &'static str,
    files: impl IntoIterator<Item = (&'a str, &'a [u8])>,
) -> Case {
    let files = files.into_iter();
    let files = files.map(|(path, bytes)| (path.to_owned(), bytes.to_owned()));
    Case {
        what,
        name,
        files: files.collect(),
    }
}

/// A file or folder that the real program wrote, under another name.
fn made(what: &'static str, of: &str, name: &'static str) -> Case {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/foreign");
    let from = root.join(of);
    let mut files = Vec::new();
    let mut paths = vec![from.clone()];
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(fs::read_dir(path).unwrap().map(|e| e.unwrap().path()));
            continue;
        }
        let inside = path.strip_prefix(&from).unwrap();
        files.push((inside.display().to_string(), fs::read(&path).unwrap()));
    }
    Case { what, name, files }
}

fn cases() -> Vec<Case> {
    let mut all = files();
    all.extend(folders());
    all
}

fn files() -> Vec<Case> {
    let file = |what, name, bytes| case(what, name, [("", bytes)]);
    let v1 = b"\x00\x00\x04\x0a\x02\x08\x00 and so on \x57\xfb\x80\x8b\x24\x75\x47\xdb";
    let lite = b"\x1c\x00\x00\x00TFL3\x14\x00\x20\x00";
    vec![
        file("a Git LFS pointer", "pointer", POINTER),
        file("a Git LFS pointer", "model.safetensors", POINTER),
        file("a Git LFS pointer", "model.pth", POINTER),
        made("an HDF5 file", "weights.h5", "weights"),
        made("an HDF5 file", "weights.h5", "weights.pt"),
        made("a Keras archive", "net.keras", "net.keras"),
        made("a GGUF file", "llama.gguf", "llama.bin"),
        file("a TensorFlow Lite model", "net.tflite", lite),
        file("a Core ML model", "net.mlmodel", b"\x08\x06\x12\xda\x01\n"),
        made("a NumPy archive", "arrays.npz", "arrays.ckpt"),
        made("a NumPy array", "array.npy", "array"),
        made("a zip archive of Zarr arrays", "zipped.zarr.zip", "w.zip"),
        made("a tar archive", "files.tar", "w.tar"),
        file(
            "a file compressed with gzip",
            "w.pt.gz",
            b"\x1f\x8b\x08\x00",
        ),
        file("a TensorFlow V1 checkpoint", "model.ckpt-7", v1),
        file(
            "the graph of a TensorFlow SavedModel",
            "saved_model.pb",
            b"\x08\x01\x12\x20",
        ),
        made("an ONNX model", "net.onnx", "net"),
        made("an ONNX model", "plain.onnx", "plain.onnx"),
        // Content of no kind: the name counts.
        file("an ONNX model", "odd.onnx", b"\xff"),
        made("a file of Flax", "flax.msgpack", "checkpoint_10"),
    ]
}

fn folders() -> Vec<Case> {
    let torch = b"PK\x03\x04".as_slice();
    vec![
        case(
            "the graph of a TensorFlow SavedModel",
            "served",
            [("saved_model.pb", b"\x08\x01\x12\x20".as_slice())],
        ),
        case(
            "a Core ML model",
            "net.mlpackage",
            [
                ("Manifest.json", b"{}".as_slice()),
                (
                    "Data/com.apple.CoreML/model.mlmodel",
                    b"\x08\x06\x12\x02\n\x00",
                ),
            ],
        ),
        made("an OCDBT database", "ocdbt", "params"),
        case(
            "an OCDBT database",
            "step",
            [("default/manifest.ocdbt", b"\x0c\xdb\x3a\x2a".as_slice())],
        ),
        made("a folder of N5 arrays", "n5", "group"),
        made("a folder of N5 arrays", "n5/w", "w.n5"),
        case(
            "a checkpoint of DeepSpeed ZeRO",
            "run",
            [
                ("latest", b"global_step1".as_slice()),
                ("zero_to_fp32.py", b"#!/usr/bin/env python\n"),
                ("global_step1/mp_rank_00_model_states.pt", torch),
            ],
        ),
        case(
            "a checkpoint of DeepSpeed ZeRO",
            "global_step1",
            [
                ("mp_rank_00_model_states.pt", torch),
                ("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", torch),
            ],
        ),
        case(
            "a checkpoint of DeepSpeed ZeRO",
            "global_step3",
            [
                ("zero_pp_rank_0_mp_rank_00_model_states.pt", torch),
                ("zero_pp_rank_0_mp_rank_00_optim_states.pt", torch),
            ],
        ),
        case(
            "Megatron's legacy format",
            "megatron",
            [
                ("latest_checkpointed_iteration.txt", b"10".as_slice()),
                ("iter_0000010/mp_rank_00/model_optim_rng.pt", torch),
                ("iter_0000010/mp_rank_01/model_optim_rng.pt", torch),
            ],
        ),
        case(
            "Megatron's legacy format",
            "iter_0000010",
            [("mp_rank_00_001/model_optim_rng.pt", torch)],
        ),
        case(
            "a folder of the Trainer",
            "outputs",
            [
                ("checkpoint-5/trainer_state.json", b"{}".as_slice()),
                ("checkpoint-5/optimizer.pt", torch),
            ],
        ),
        case(
            "a checkpoint of the Trainer",
            "checkpoint-5",
            [
                ("trainer_state.json", b"{}".as_slice()),
                ("optimizer.pt", torch),
            ],
        ),
    ]
}

fn written(case: &Case, dir: &Path) -> PathBuf {
    let place = dir.join(case.name);
    for (path, bytes) in &case.files {
        let path = match &**path {
            "" => place.clone(),
            path => place.join(path),
        };
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    place
}

fn kind(what: &str) -> &'static Foreign {
    let mut kinds = FOREIGN.iter().filter(|foreign| foreign.what.contains(what));
    let found = kinds.next().unwrap_or_else(|| panic!("no kind is {what}"));
    assert!(kinds.next().is_none(), "{what}");
    found
}

#[test]
fn every_kind_is_named_with_its_next_step_by_every_command() {
    let mut seen = BTreeSet::new();
    for case in cases() {
        let dir = tempfile::tempdir().unwrap();
        let place = written(&case, dir.path());
        let (place, to) = (place.to_str().unwrap(), dir.path().join("to"));
        let foreign = kind(case.what);
        seen.insert(foreign.what);
        let wanted = format!(
            "error: {place} is {}\nhint: {}\n",
            foreign.what, foreign.next
        );
        for args in [
            &["inspect", place][..],
            &["verify", place],
            &["convert", place, to.to_str().unwrap()],
        ] {
            let ran = run(args);
            assert_eq!((ran.code, &*ran.err), (3, &*wanted), "{args:?}");
            assert!(!to.exists(), "{args:?}");
        }
        let json = run(&["verify", place, "--json"]);
        assert!(
            json.out.contains("\"status\":\"not a checkpoint\""),
            "{}",
            json.out
        );
    }
    let all: BTreeSet<&str> = FOREIGN.iter().map(|foreign| foreign.what).collect();
    assert_eq!(seen, all);
}

#[test]
fn the_same_is_named_in_an_object_store() {
    for case in cases() {
        let client = Arc::new(InMemory::new());
        for (path, bytes) in &case.files {
            let path = format!("{}/{path}", case.name);
            let path = ObjectPath::parse(path.trim_end_matches('/')).unwrap();
            block_on(client.put(&path, bytes.clone().into())).unwrap();
        }
        let clouds = ObjectStores::new().with_client("s3://bucket", client);
        let stores = Stores::linked().unwrap().with("s3", clouds);
        let url = format!("s3://bucket/{}", case.name);
        let ran = run_with(stores, &["inspect", &url]);
        let wanted = format!("error: {url} is {}\n", kind(case.what).what);
        assert!(
            ran.code == 3 && ran.err.starts_with(&wanted),
            "{wanted}{}",
            ran.err
        );
    }
}

/// `git clone` of a repository of Hugging Face without Git LFS.
#[test]
fn pointers_in_a_folder_are_named_and_not_called_damaged_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    fs::write(dir.path().join("config.json"), "{}").unwrap();
    fs::write(dir.path().join("model.safetensors"), POINTER).unwrap();
    let ran = run(&["inspect", path]);
    let wanted = format!("error: {path}/model.safetensors is a Git LFS pointer");
    assert!(ran.code == 3 && ran.err.starts_with(&wanted), "{}", ran.err);

    fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    for (index, file) in [
        (
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
        ),
        (
            "pytorch_model.bin.index.json",
            "pytorch_model-00001-of-00002.bin",
        ),
    ] {
        let text = format!(r#"{{"metadata":{{}},"weight_map":{{"w":"{file}"}}}}"#);
        fs::write(dir.path().join(index), text).unwrap();
        fs::write(dir.path().join(file), POINTER).unwrap();
        let ran = run(&["verify", path]);
        assert_eq!(ran.code, 1, "{}", ran.err);
        assert!(ran.out.contains("is a Git LFS pointer"), "{}", ran.out);
        assert!(ran.out.contains("git lfs pull"), "{}", ran.out);
        fs::remove_file(dir.path().join(index)).unwrap();
        fs::remove_file(dir.path().join(file)).unwrap();
    }

    let saved = states::dcp();
    fs::write(saved.path(".metadata"), POINTER).unwrap();
    let ran = run(&["inspect", &saved.url]);
    assert!(
        ran.err.contains(".metadata is a Git LFS pointer"),
        "{}",
        ran.err
    );
}

#[test]
fn content_of_torch_and_safetensors_opens_under_any_name() {
    let saved = states::dcp_with(&["w"]);
    for (made, names) in [
        ("a.pt", ["b.pth.tar", "weights", "b.safetensors", "b.onnx"]),
        ("a.safetensors", ["b.tensors", "weights", "b.pt", "b.bin"]),
    ] {
        let file = saved.beside(made);
        let converted = run(&["convert", &saved.url, &file, "--drop-objects"]);
        assert_eq!(converted.code, 0, "{}", converted.err);
        let want = run(&["digest", &file, "--json"]).ok();
        for name in names {
            let other = saved.beside(name);
            fs::copy(&file, &other).unwrap();
            assert_eq!(run(&["digest", &other, "--json"]).ok(), want, "{name}");
            assert_eq!(run(&["verify", &other]).code, 0, "{name}");
            fs::remove_file(&other).unwrap();
        }
    }
}

#[test]
fn the_page_lists_every_kind() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/other-programs.md");
    let page = fs::read_to_string(page).unwrap();
    let row = |foreign: &Foreign| {
        let content = foreign.has_content().then(|| "content".to_owned());
        let endings = foreign.endings.iter().map(|ending| format!("`.{ending}`"));
        let folder = foreign.folder.iter().map(|path| format!("`{path}`"));
        let signs: Vec<String> = content.into_iter().chain(endings).chain(folder).collect();
        format!(
            "| {} | {} | {} |\n",
            foreign.what,
            signs.join(", "),
            foreign.next
        )
    };
    let table: String = FOREIGN.iter().map(row).collect();
    assert!(
        page.contains(&table),
        "docs/other-programs.md should have\n{table}"
    );
}
