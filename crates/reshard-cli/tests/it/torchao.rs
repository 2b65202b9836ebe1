//! Quantised tensors of torchao, in files that torchao wrote (`tests/fixtures/make/quantised.py`).

use crate::run;
use serde_json::Value as Json;
use std::{fs, path::Path};

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/torchao");
    folder.join(name).display().to_string()
}

/// The header of a file of safetensors.
fn header(path: &str) -> Json {
    let bytes = fs::read(path).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap();
    serde_json::from_slice(&rest[..length]).unwrap()
}

/// `__metadata__` with its texts as JSON, and the list of tensors sorted.
fn metadata(path: &str) -> Json {
    let mut header = header(path);
    let texts = header["__metadata__"].as_object_mut().unwrap();
    texts.remove("format");
    for text in texts.values_mut() {
        *text = serde_json::from_str(text.as_str().unwrap()).unwrap();
    }
    let names = texts["tensor_names"].as_array_mut().unwrap();
    names.sort_by_key(|name| name.as_str().map(str::to_owned));
    header["__metadata__"].take()
}

fn tensors(url: &str) -> Vec<String> {
    let found = run(&["inspect", url, "--json"]).json();
    let all = found["tensors"].as_array().unwrap().iter();
    all.map(|t| format!("{} {} {}", t["key"], t["dtype"], t["shape"]).replace('"', ""))
        .collect()
}

#[test]
fn inner_tensors_are_listed_and_checked() {
    for (name, note, inner) in [
        (
            "int8_dynamic.pt",
            "1 tensor of class torchao.quantization.Int8Tensor",
            "0._weight_zero_point int8 [8,1]",
        ),
        (
            "int8_dynamic.safetensors",
            "1 tensor of class Int8Tensor",
            "0._weight_zero_point int8 [8,1]",
        ),
        (
            "nf4.pt",
            "1 tensor of class torchao.quantization.quantize_.workflows.nf4.nf4_tensor.NF4Tensor",
            "0._weight_quantized_data uint8 [128]",
        ),
        (
            "affine.pt",
            "1 tensor of class torchao.dtypes.affine_quantized_tensor.AffineQuantizedTensor",
            "0._weight_tensor_impl_int_data int8 [8,32]",
        ),
    ] {
        let url = fixture(name);
        let out = run(&["inspect", &url]).ok();
        let note = format!("quantised by torchao: {note}");
        assert!(out.contains(&note), "{out}");
        let tensors = tensors(&url);
        assert!(tensors.iter().any(|t| t == inner), "{tensors:?}");
        // torchao's classes only make data.
        run(&["verify", "--strict", &url]).ok();
    }
    let out = run(&["inspect", &fixture("int8_dynamic.pt")]).ok();
    assert!(
        out.contains("torchao.quantization.Int8Tensor, blocks of [1, 32]"),
        "{out}"
    );
}

#[test]
fn a_copy_states_what_torchao_states() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let own = fixture("int8_dynamic.safetensors");
    for (name, from) in [
        ("from_pt.safetensors", "int8_dynamic.pt"),
        ("again.safetensors", "int8_dynamic.safetensors"),
    ] {
        run(&["convert", &fixture(from), &path(name)]).ok();
        assert_eq!(metadata(&path(name)), metadata(&own), "{name}");
    }
    run(&["diff", &own, &path("again.safetensors")]).ok();
    // The pickle has the same tensors again, whatever their classes.
    for name in ["int8_dynamic.pt", "nf4.pt", "affine.pt"] {
        run(&["convert", &fixture(name), &path(name)]).ok();
        let out = run(&["diff", &fixture(name), &path(name)]).ok();
        assert!(out.contains("equal") || !out.contains("differ"), "{out}");
        let inspected = |url: &str| run(&["inspect", url, "--json"]).json()["annotations"].clone();
        assert_eq!(inspected(&fixture(name)), inspected(&path(name)));
    }
}

#[test]
fn a_copy_that_torchao_could_not_open_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let to = |name: &str| dir.path().join(name).display().to_string();
    let int8 = "0.weight is quantised by torchao (Int8Tensor); ";
    for (from, to, options, want) in [
        ("nf4.pt", to("a.safetensors"), &[][..], "NF4Tensor"),
        (
            "affine.pt",
            to("b.safetensors"),
            &[],
            "AffineQuantizedTensor",
        ),
        (
            "int8_dynamic.pt",
            to("dcp"),
            &[],
            "torch_dist/1 has no place",
        ),
        (
            "int8_dynamic.safetensors",
            to("c.pt"),
            &[],
            "torch_save/1 has no place",
        ),
        (
            "int8_dynamic.pt",
            to("d.safetensors"),
            &["--exclude", "*_scale"],
            "0._weight_scale would be left out",
        ),
        (
            "int8_dynamic.safetensors",
            to("e.safetensors"),
            &["--exclude", "*_scale"],
            "0._weight_scale would be left out",
        ),
    ] {
        let from = fixture(from);
        let args = [&["convert", &from, &to], options].concat();
        let ran = run(&args);
        assert!(
            ran.code != 0 && ran.err.contains(want),
            "{} {}",
            ran.out,
            ran.err
        );
        assert!(
            !want.contains("place") || ran.err.contains(int8),
            "{}",
            ran.err
        );
        assert!(!Path::new(&to).exists());
    }
    // Without the metadata the inner tensors are tensors like others, and the ledger says so.
    let plain = to("plain");
    let args = [
        "convert",
        &fixture("int8_dynamic.pt"),
        &plain,
        "--drop-objects",
    ];
    let out = run(&args).ok();
    assert!(
        out.contains("no place for the metadata of torchao's tensors"),
        "{out}"
    );
}

#[test]
fn metadata_does_not_name_tensors_that_a_copy_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy.safetensors").display().to_string();
    let own = fixture("int8_dynamic.safetensors");
    run(&["convert", &own, &copy, "--exclude", "0._weight*"]).ok();
    let texts = metadata(&copy);
    assert_eq!(
        texts["tensor_names"].to_string(),
        r#"["0.bias","1.bias","1.weight"]"#
    );
    assert!(texts.get("0.weight").is_none(), "{texts}");
}

#[test]
fn dcp_is_refused_by_name() {
    let ran = run(&["verify", &fixture("int8-dcp")]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    let want = "torchao's Int8Tensor (torchao.quantization.Int8Tensor), which PyTorch DCP stores as one pickled object";
    assert!(ran.out.contains(want), "{}", ran.out);
}
