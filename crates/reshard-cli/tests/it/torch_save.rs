//! Files of `torch.save`, by the commands of the program.

use crate::run;
use serde_json::{Map, Value as Json, json};
use std::path::{Path, PathBuf};

/// Files that torch wrote, as archives and in the layout before those, with the keys of their tensors, as `expected.json` shows these, and of
/// their objects.
const FILES: [(&str, &[&str], &[&str]); 4] = [
    ("tied.pt", &["a", "b", "part"], &[]),
    ("legacy.pt", &["a", "b", "t"], &["n"]),
    ("float32.pt", &["tensor"], &[]),
    ("transposed.pt", &["tensor"], &[]),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../reshard-torch-format/tests/data")
        .join("torch-2.15.0")
}

/// What torch said of the tensors of a file: in `{'a': tensor(dtype=float32, shape=(2, 3), sha256=…)}` these are type, shape and digest.
fn told(file: &str) -> Vec<Json> {
    let text = std::fs::read_to_string(folder().join("expected.json")).unwrap();
    let expected: Map<String, Json> = serde_json::from_str(&text).unwrap();
    let shown = expected[file]["repr"].as_str().unwrap();
    let tensors = shown.split("tensor(dtype=").skip(1);
    let one = |tensor: &str| {
        let (dtype, rest) = tensor.split_once(", shape=(").unwrap();
        let (shape, rest) = rest.split_once("), sha256=").unwrap();
        let axes = shape.split([',', ' ']).filter(|n| !n.is_empty());
        let axes: Vec<u64> = axes.map(|n| n.parse().unwrap()).collect();
        json!({ "dtype": dtype, "shape": axes, "sha256": &rest[..64] })
    };
    tensors.map(one).collect()
}

#[test]
fn digests_and_shapes_of_files_of_torch_are_those_that_torch_says() {
    for (file, keys, objects) in FILES {
        let url = folder().join(file).display().to_string();
        let told = told(file);
        assert_eq!(told.len(), keys.len(), "{file}");
        let want: Map<String, Json> = keys
            .iter()
            .map(|key| (*key).to_owned())
            .zip(told.clone())
            .collect();
        let digest = run(&["digest", &url, "--json"]).json();
        assert_eq!(digest, json!({ "schema": 1, "tensors": want }), "{file}");

        let inspected = run(&["inspect", &url, "--json"]).json();
        assert_eq!(inspected["backend"], "torch_save", "{file}");
        let names = |what: &str| -> Vec<Json> {
            let all = inspected[what].as_array().unwrap().iter();
            all.map(|item| item["key"].clone()).collect()
        };
        assert_eq!(json!(names("tensors")), json!(keys), "{file}");
        assert_eq!(json!(names("objects")), json!(objects), "{file}");
        let tensors = inspected["tensors"].as_array().unwrap();
        for (tensor, told) in tensors.iter().zip(&told) {
            assert_eq!(tensor["dtype"], told["dtype"], "{file}");
            assert_eq!(tensor["shape"], told["shape"], "{file}");
        }
        assert_eq!(inspected["problems"], json!([]), "{file}");

        let text = run(&["inspect", &url]).ok();
        assert!(text.contains("torch_save/1"), "{text}");
        let table = keys.iter().chain(objects);
        assert!(table.clone().all(|key| text.contains(key)), "{text}");
    }
}

/// All objects of such a file lie in one pickle.
#[test]
fn bytes_that_several_objects_share_count_once() {
    let saved = crate::states::Saved::made(|_| ());
    let url = saved.beside("objects.pt");
    let from = crate::states::dcp();
    run(&["convert", &from.url, &url]).ok();
    let j = run(&["inspect", &url, "--json"]).json();
    let objects = j["objects"].as_array().unwrap();
    let bytes = |json: &Json| json.as_u64().unwrap();
    assert!(objects.len() > 1, "{j}");
    let totals = &j["totals"];
    assert_eq!(totals["object_bytes"], objects[0]["bytes"]);
    assert!(bytes(&totals["object_bytes"]) <= bytes(&totals["file_bytes"]));
    let text = run(&["inspect", &url, "--summary"]).ok();
    assert!(text.contains("objects     3, "), "{text}");

    // Others have bytes of their own.
    let j = run(&["inspect", &from.url, "--json"]).json();
    let objects = j["objects"].as_array().unwrap();
    let sum: u64 = objects.iter().map(|o| bytes(&o["bytes"])).sum();
    assert_eq!(bytes(&j["totals"]["object_bytes"]), sum);
}

#[test]
fn a_region_is_looked_at_where_torch_has_put_it() {
    let dir = tempfile::tempdir().unwrap();
    for (file, dtype) in [("tied.pt", "float32"), ("legacy.pt", "float32")] {
        let from = folder().join(file);
        let url = from.display().to_string();
        let inspected = run(&["inspect", &url, "--json", "--key", "a"]).json();
        let [tensor] = &inspected["tensors"].as_array().unwrap()[..] else {
            panic!("{inspected}")
        };
        assert_eq!(tensor["dtype"], dtype);
        let chunk = &tensor["chunks"][0];
        let at = chunk["offset"].as_u64().unwrap() as usize;
        let mut bytes = std::fs::read(&from).unwrap();
        // In an archive, too, this is where the elements begin, not the header before them.
        let elements: Vec<u8> = (0..6).flat_map(|n| (n as f32).to_le_bytes()).collect();
        assert_eq!(chunk["length"], 24, "{file}");
        assert_eq!(bytes[at..at + 24], elements, "{file}");

        // Only an archive has checksums.
        bytes[at + 5] ^= 1;
        let damaged = dir.path().join(file).display().to_string();
        std::fs::write(&damaged, bytes).unwrap();
        let ran = run(&["digest", &damaged, "--json", "--key", "a"]);
        let has_sum = file == "tied.pt";
        assert_eq!(ran.code, u8::from(has_sum), "{file}: {}", ran.out);
        assert_eq!(has_sum, ran.out.contains("CRC-32"), "{file}: {}", ran.out);
    }
}

/// A checkpoint that PyTorch made of a file of `torch.save`, as a file again. `cargo xtask interop` runs it for several versions.
#[test]
#[ignore = "needs a Python with torch in RESHARD_TORCH_PYTHON"]
fn needs_python_torch_loads_the_file_that_a_conversion_wrote() {
    let python = std::env::var("RESHARD_TORCH_PYTHON").unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let fixture = root.join("tests/fixtures/dcp/torch_save_to_dcp");
    let text = std::fs::read(fixture.join("expected.json")).unwrap();
    let said: Json = serde_json::from_slice(&text).unwrap();
    let mut expected = Map::new();
    for (key, t) in said["tensors"].as_object().unwrap() {
        let facts = ["dtype", "shape", "sha256"].map(|fact| (fact.to_owned(), t[fact].clone()));
        expected.insert(key.clone(), Json::Object(facts.into_iter().collect()));
    }
    for (key, o) in said["bytes"].as_object().unwrap() {
        // A list has an element.
        let repr = o["repr"].as_str().unwrap();
        let (key, repr) = match repr.strip_prefix('[').and_then(|r| r.strip_suffix(']')) {
            Some(element) => (format!("{key}.0"), element),
            None => (key.clone(), repr),
        };
        expected.insert(key, json!({ "value": repr }));
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let source = fixture.join("ckpt").display().to_string();
    let ran = run(&["convert", &source, &at("new.pt"), "--ranks", "2"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    std::fs::write(at("expected.json"), json!(expected).to_string()).unwrap();
    let script = root.join("crates/reshard-torch-save/tests/fixtures/torch_load.py");
    let out = std::process::Command::new(python)
        .arg(script)
        .args([at("new.pt"), at("expected.json"), at("")])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{told}");
}
