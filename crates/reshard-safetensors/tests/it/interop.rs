//! Stock safetensors and PyTorch read what reshard wrote, and reshard what they wrote. `cargo xtask interop` runs it.

use super::{files, load, open, save, store};
use reshard_model::{DType, Region, ShardedTensor, Tensor};
use reshard_safetensors::SafetensorsConfig;
use reshard_storage::{LocalStore, Store};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::{fs, path::Path, process::Command, sync::Arc};

/// Types that every safetensors of the last years has.
const DTYPES: [DType; 20] = [
    DType::Bool,
    DType::UInt8,
    DType::Int8,
    DType::UInt16,
    DType::Int16,
    DType::UInt32,
    DType::Int32,
    DType::UInt64,
    DType::Int64,
    DType::Float16,
    DType::BFloat16,
    DType::Float32,
    DType::Float64,
    DType::Complex64,
    DType::Float8E4M3Fn,
    DType::Float8E4M3FnUz,
    DType::Float8E5M2,
    DType::Float8E5M2FnUz,
    DType::Float8E8M0Fnu,
    DType::Float4E2M1FnX2,
];

/// What PyTorch's reader of files of ranks has a name for.
const KNOWN_TO_DCP: [DType; 10] = [
    DType::Bool,
    DType::UInt8,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::Float16,
    DType::BFloat16,
    DType::Float32,
    DType::Float64,
];

const SHAPES: [&[u64]; 4] = [&[], &[7], &[10, 6], &[0, 3]];

fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

/// All tensors, each in rows of two ranks, and what other programs have to read.
fn tensors(dtypes: &[DType], empty: bool) -> (Vec<Vec<ShardedTensor>>, Map<String, Value>) {
    let (mut ranks, mut expected) = (vec![Vec::new(), Vec::new()], Map::new());
    for &dtype in dtypes {
        for shape in SHAPES {
            // safetensors counts single numbers of 4 bits along the last axis, so there must be one.
            let no_axis = dtype == DType::Float4E2M1FnX2 && shape.is_empty();
            if shape.contains(&0) && !empty || no_axis {
                continue;
            }
            let key = format!("{}/of.{}.{}", dtype.name(), shape.len(), shape.contains(&0));
            let whole = Region::whole(shape);
            let byte = |n: u64| match dtype {
                DType::Bool => u8::from(n.is_multiple_of(3)),
                _ => (n * 7 % 60) as u8,
            };
            let bytes: Vec<u8> = (0..whole.volume().unwrap() * dtype.size())
                .map(byte)
                .collect();
            let facts = json!({"dtype": dtype.name(), "shape": shape, "sha256": sha256(&bytes)});
            expected.insert(key.clone(), facts);
            let tensor = Tensor::new(dtype, shape, bytes).unwrap();
            let mut add = |rank: usize, region: Region| {
                let data = tensor.narrow(&region);
                let leaf = ShardedTensor::region_of(&key, dtype, shape, region);
                ranks[rank].push(leaf.with_data(data));
            };
            match shape {
                [rows, ..] if *rows > 1 => {
                    let cut = rows / 2 + 1;
                    let (mut first, mut rest) = (whole.clone(), whole);
                    first.lengths[0] = cut;
                    (rest.offsets[0], rest.lengths[0]) = (cut, rows - cut);
                    add(0, first);
                    add(1, rest);
                }
                _ => add(0, whole),
            }
        }
    }
    (ranks, expected)
}

/// Saves, and puts the files into a folder.
fn save_to(config: &SafetensorsConfig, folder: &Path, ranks: Vec<Vec<ShardedTensor>>) {
    let store = store();
    save(&store, config, ranks);
    fs::create_dir_all(folder).unwrap();
    for (name, bytes) in files(&store) {
        fs::write(folder.join(name), bytes).unwrap();
    }
}

fn run(python: &str, what: &str, folder: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/interop.py");
    let out = Command::new(python)
        .arg(script)
        .arg(what)
        .arg(folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
}

#[test]
#[ignore = "needs a Python with torch and safetensors, which RESHARD_SAFETENSORS_PYTHON names"]
fn needs_python_other_programs_read_what_reshard_wrote() {
    let python = std::env::var("RESHARD_SAFETENSORS_PYTHON").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let config = SafetensorsConfig::default();
    let (ranks, all) = tensors(&DTYPES, true);
    save_to(&config, &at("whole"), ranks.clone());
    save_to(
        &config.clone().with_max_shard_size(300),
        &at("index"),
        ranks,
    );
    let (ranks, known) = tensors(&KNOWN_TO_DCP, false);
    let several = config.clone().with_max_shard_size(300);
    save_to(&several, &at("known"), ranks.clone());
    assert!(at("known/model.safetensors.index.json").is_file());
    save_to(&config.with_sharded(true), &at("sharded"), ranks);
    let expected = json!({"whole": all, "index": all, "sharded": known, "known": known});
    fs::write(at("expected.json"), expected.to_string()).unwrap();
    run(&python, "read", folder.path());
}

#[test]
#[ignore = "needs a Python with torch and safetensors, which RESHARD_SAFETENSORS_PYTHON names"]
fn needs_python_reshard_reads_what_other_programs_wrote() {
    let python = std::env::var("RESHARD_SAFETENSORS_PYTHON").unwrap();
    let folder = tempfile::tempdir().unwrap();
    run(&python, "write", folder.path());
    let text = fs::read(folder.path().join("expected.json")).unwrap();
    let expected: Map<String, Value> = serde_json::from_slice(&text).unwrap();
    for (name, tensors) in &expected {
        let place = folder.path().join(name);
        let store: Arc<dyn Store> = Arc::new(LocalStore::at(&place).unwrap());
        let reader = open(&store);
        let tensors = tensors.as_object().unwrap();
        assert_eq!(reader.metadata().tensor_count(), tensors.len(), "{name}");
        let (mut wanted, mut sums) = (Vec::new(), Vec::new());
        for (key, facts) in tensors {
            let t = reader.metadata().tensor(key).unwrap();
            assert_eq!(facts["dtype"], t.dtype().name(), "{name}: {key}");
            assert_eq!(facts["shape"], json!(t.shape().to_vec()), "{name}: {key}");
            let (dtype, shape) = (t.dtype(), t.shape());
            if name == "sharded" && !shape.is_empty() {
                assert_eq!(t.chunk_count(), 2, "{key} lies on two ranks");
            }
            wanted.push(ShardedTensor::region_of(
                key,
                dtype,
                &shape,
                Region::whole(&shape),
            ));
            sums.push((key, &facts["sha256"]));
        }
        let loaded = load(&store, vec![wanted]).remove(0);
        for ((key, sum), tensor) in sums.into_iter().zip(loaded) {
            assert_eq!(*sum, sha256(&tensor.to_bytes()), "{name}: {key}");
        }
    }
}
