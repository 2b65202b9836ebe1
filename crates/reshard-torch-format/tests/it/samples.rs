//! Files that torch 2.15 and 2.1 wrote (`tests/data/make.py`): read, compared with what Python says, written again.

use crate::python::{repr, sha256};
use bytes::Bytes;
use reshard_model::{DType, ErrorKind};
use reshard_torch_format::{
    Limits, TensorRef,
    archive::{Archive, ArchiveOptions, Era, Verify},
    load, save_with,
};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

pub(crate) const FOLDERS: [&str; 2] = ["torch-2.15.0", "torch-2.1.2"];

pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

pub(crate) fn sample(name: &str) -> Bytes {
    std::fs::read(folder(FOLDERS[0]).join(name))
        .expect(name)
        .into()
}

/// `(folder/name, bytes, expected)` of every sample.
pub(crate) fn samples() -> Vec<(String, Bytes, Json)> {
    let mut out = Vec::new();
    for name in FOLDERS {
        let folder = folder(name);
        let expected: Json =
            serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
        for (file, facts) in expected.as_object().unwrap() {
            out.push((
                format!("{name}/{file}"),
                std::fs::read(folder.join(file)).unwrap().into(),
                facts.clone(),
            ));
        }
    }
    out
}

#[test]
fn every_sample_is_what_python_says() {
    for (name, bytes, facts) in samples() {
        let value = match load(bytes) {
            Ok(value) => value,
            Err(e) => {
                assert!(name.ends_with("cycle.pkl"), "{name}: {e}");
                assert_eq!(
                    e.to_string(),
                    "byte 2: a value that contains itself is not supported"
                );
                continue;
            }
        };
        let shown = repr(&value);
        if let Some(want) = facts["repr"].as_str() {
            assert_eq!(shown, want, "{name}");
        }
        if let Some(want) = facts["repr_sha256"].as_str() {
            assert_eq!(sha256(shown.as_bytes()), want, "{name}");
        }
    }
}

#[test]
fn the_tensor_of_a_subclass_or_parameter_can_be_taken_and_the_rest_is_kept() {
    for name in ["attribute.pt", "subclass.pt", "parameter.pt"] {
        let archive = Archive::open(sample(name), &Limits::default()).unwrap();
        let pickle = archive.read("data.pkl", Verify::Crc).unwrap();
        let tensor = TensorRef::parse(&pickle, &Limits::default()).unwrap();
        assert_eq!(
            (tensor.dtype, &tensor.shape[..]),
            (DType::Float32, &[2][..]),
            "{name}"
        );
        let value = load(sample(name)).unwrap();
        assert_eq!(
            value.as_tensor().is_some(),
            name == "parameter.pt",
            "{name}"
        );
    }
    let tag = load(sample("attribute.pt")).unwrap();
    assert!(
        repr(&tag).contains("Str(\"tag\"), Int(1)"),
        "{}",
        repr(&tag)
    );
    for name in ["quantized.pt", "sparse.pt", "bits8.pt", "numbers.pt"] {
        let archive = Archive::open(sample(name), &Limits::default()).unwrap();
        let pickle = archive.read("data.pkl", Verify::Crc).unwrap();
        let error = TensorRef::parse(&pickle, &Limits::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
    }
}

#[test]
fn a_parameter_says_whether_it_wants_gradients() {
    for (name, wants) in [
        ("parameter.pt", true),
        ("requires_grad.pt", true),
        ("float32.pt", false),
    ] {
        let archive = Archive::open(sample(name), &Limits::default()).unwrap();
        let pickle = archive.read("data.pkl", Verify::Crc).unwrap();
        let tensor = TensorRef::parse(&pickle, &Limits::default()).unwrap();
        assert_eq!(tensor.requires_grad, wants, "{name}");
        assert_eq!(tensor.is_parameter, name == "parameter.pt", "{name}");
        // It is written byte for byte as torch does.
        assert_eq!(tensor.pickle().unwrap(), &pickle[..], "{name}");
    }
}

/// Samples that reshard writes otherwise than torch, though they mean the same.
const OTHERWISE: &[(&str, &str)] = &[
    ("transposed.pt", "tensors are written row-major"),
    (
        "view.pt",
        "a view is written without the rest of its storage",
    ),
    ("expanded.pt", "repeated elements are written out"),
    ("conj.pt", "conjugates are resolved"),
    ("neg.pt", "negatives are resolved"),
    (
        "requires_grad.pt",
        "a tensor forgets whether gradients were wanted",
    ),
    ("parameter.pt", "a parameter becomes its tensor"),
    ("module.pt", "parameters become their tensors"),
    (
        "odd_text.pt",
        "a text with lone surrogates becomes the call that makes it",
    ),
    ("enum.pt", "an object that is shared is written twice"),
];

#[test]
fn every_archive_is_written_again_byte_for_byte() {
    for (name, bytes, _) in samples()
        .into_iter()
        .filter(|(_, b, _)| b.starts_with(b"PK"))
    {
        let value = load(bytes.clone()).unwrap();
        let archive = Archive::open(bytes.clone(), &Limits::default()).unwrap();
        let era = match archive.directory().find(".format_version") {
            Some(_) => Era::Torch27,
            None => Era::Torch21,
        };
        let options = ArchiveOptions::default()
            .with_era(era)
            .with_prefix(archive.directory().prefix());
        let again: Bytes = save_with(&value, &options).expect(&name).into();
        assert_eq!(load(again.clone()).unwrap(), value, "{name}");
        let file = name.rsplit('/').next().unwrap();
        assert_eq!(
            again != bytes,
            OTHERWISE.iter().any(|(f, _)| *f == file),
            "{name}"
        );
    }
}
