//! `torch.load(weights_only=True)` loads what was written, and what torch wrote of it, in both layouts, is read. `cargo xtask interop` runs it.

use super::{contracts::InFiles, files, fixtures, open, place, save, save_as, store};
use reshard_model::{DType, Region, ShardedTensor, StateDict, Tensor, Tree, Value};
use reshard_strategy::{StorageReader, testkit::numbered};
use serde_json::{Map, json};
use sha2::{Digest, Sha256};
use std::{fs, path::Path, process::Command, sync::Arc};

const SHAPES: [&[u64]; 5] = [&[], &[7], &[10, 6], &[6, 4, 5], &[0, 3]];

/// Types that every torch since 1.13 has.
const OLD: [DType; 12] = [
    DType::Float64,
    DType::Float32,
    DType::Float16,
    DType::BFloat16,
    DType::Int64,
    DType::Int32,
    DType::Int16,
    DType::Int8,
    DType::UInt8,
    DType::Bool,
    DType::Complex64,
    DType::Complex128,
];

fn is_torchs(dtype: DType) -> bool {
    !matches!(dtype, DType::BComplex32)
}

fn tensor(dtype: DType, shape: &[u64]) -> Tensor {
    let elements = shape.iter().product::<u64>();
    let byte = |n: u64| match dtype {
        DType::Bool => u8::from(n.is_multiple_of(3)),
        _ => (n * 7 % 60) as u8,
    };
    let bytes: Vec<u8> = (0..elements * dtype.size()).map(byte).collect();
    Tensor::new(dtype, shape, bytes).unwrap()
}

fn told(t: &Tensor) -> serde_json::Value {
    let sum = Sha256::digest(t.to_bytes());
    let sum: String = sum.iter().map(|b| format!("{b:02x}")).collect();
    json!({ "dtype": t.dtype().name(), "shape": t.shape().to_vec(), "sha256": sum })
}

type Told = Map<String, serde_json::Value>;

/// What each of two ranks saves, and what torch has to load. Without `floats` there are none outside of tensors.
fn states(dtypes: &[DType], floats: bool) -> (Vec<StateDict>, Told) {
    let (mut ranks, mut expected) = (vec![StateDict::new(), StateDict::new()], Told::new());
    for (rank, state) in ranks.iter_mut().enumerate() {
        let mut model = StateDict::new();
        for dtype in dtypes {
            for shape in SHAPES {
                let key = format!("{}_{}", dtype.name(), shape.len());
                let all = tensor(*dtype, shape);
                let mut region = Region::whole(shape);
                // Columns, which alternate in the file.
                if let Some(last) = shape.len().checked_sub(1) {
                    let half = shape[last] / 2;
                    region.offsets[last] = if rank == 0 { 0 } else { half };
                    region.lengths[last] = if rank == 0 { half } else { shape[last] - half };
                }
                let leaf = ShardedTensor::region_of("", *dtype, shape, region.clone());
                model.insert(&*key, leaf.with_data(all.narrow(&region)));
                expected.insert(format!("model.{key}"), told(&all));
            }
        }
        state.insert_tree("model", model);
        let mut optim = StateDict::new();
        for n in 0..2u64 {
            let t = tensor(DType::Float32, &[n + 1]);
            expected.insert(format!("optim.{n}"), told(&t));
            optim.insert(n, Value::Tensor(t));
        }
        state.insert_tree("optim", optim);
        let tied = tensor(DType::Float32, &[5]);
        let both: Vec<_> = (0..2)
            .map(|n| {
                expected.insert(format!("tied.{n}"), told(&tied));
                Tree::Leaf(Value::Tensor(tied.clone()).into())
            })
            .collect();
        state.insert_tree("tied", Tree::List(both));
        state.insert("step", 7);
        if floats {
            state.insert("lr", 0.5);
        }
        state.insert("name", "é");
    }
    for (key, value) in [("step", "7"), ("lr", "0.5"), ("name", "'é'")] {
        if floats || key != "lr" {
            expected.insert(key.into(), json!({ "value": value }));
        }
    }
    (ranks, expected)
}

/// Compares what reshard reads with what was saved.
fn check(reader: &Arc<dyn StorageReader>, expected: &Told, what: &str) {
    assert_eq!(reader.metadata().entries().len(), expected.len(), "{what}");
    for (key, want) in expected {
        match reader.metadata().tensor(key) {
            Some(t) => {
                let whole = Region::whole(&t.shape());
                let got = told(&fixtures::read(reader, key, whole));
                assert_eq!(&got, want, "{what}: {key}");
            }
            None => drop(fixtures::object(reader, key).unwrap()),
        }
    }
}

#[test]
#[ignore = "needs a Python with torch in RESHARD_TORCH_PYTHON"]
fn needs_python_torch_loads_what_was_written_and_what_it_writes_is_read() {
    let python = std::env::var("RESHARD_TORCH_PYTHON").unwrap();
    let old = std::env::var("RESHARD_TORCH_OLD").ok();
    // Its `weights_only` refuses every float of Python, also in files of its own.
    let floats = old.as_deref() != Some("torch-1.13");
    let all: Vec<DType> = DType::ALL
        .iter()
        .copied()
        .filter(|d| is_torchs(*d))
        .collect();
    let (ranks, expected) = states(if old.is_some() { &OLD } else { &all }, floats);
    let written = store();
    save(&written, ranks);
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let bytes = files(&written).remove("pytorch_model.bin").unwrap();
    check(
        &open(&place([("x.pt", bytes.clone())])),
        &expected,
        "reshard's",
    );
    fs::write(at("model.pt"), bytes).unwrap();
    fs::write(at("expected.json"), json!(expected).to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/torch_load.py");
    let status = Command::new(python)
        .arg(script)
        .args([at("model.pt"), at("expected.json"), home.path().into()])
        .status()
        .unwrap();
    assert!(status.success());
    for file in ["zip.pt", "legacy.pt"] {
        let bytes = fs::read(at(file)).unwrap();
        check(&open(&place([(file, bytes)])), &expected, file);
    }
}

/// Saves tensors alone as a folder of several files. Each of them is a file of `torch.save`.
#[test]
#[ignore = "needs a Python with torch in RESHARD_TORCH_PYTHON"]
fn needs_python_torch_loads_each_file_of_a_folder_and_the_folder_that_it_writes_is_read() {
    let python = std::env::var("RESHARD_TORCH_PYTHON").unwrap();
    let all: Vec<DType> = DType::ALL
        .iter()
        .copied()
        .filter(|d| is_torchs(*d))
        .collect();
    let old = std::env::var_os("RESHARD_TORCH_OLD").is_some();
    let (mut ranks, mut expected) = states(if old { &OLD } else { &all }, false);
    for state in &mut ranks {
        if let Tree::Dict(dict) = state {
            dict.retain(|_, node| !matches!(node, Tree::Leaf(_)));
        }
    }
    expected.retain(|_, told| told.get("value").is_none());
    let written = store();
    save_as(&InFiles(700).into(), &written, ranks);
    check(&open(&written), &expected, "reshard's");

    let home = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| home.path().join(name));
    for folder in [&ours, &theirs] {
        fs::create_dir(folder).unwrap();
    }
    let written = files(&written);
    let weights = written.keys().filter(|name| name.ends_with(".bin")).count();
    assert!(weights > 3, "{:?}", written.keys());
    for (name, bytes) in written {
        fs::write(ours.join(name), bytes).unwrap();
    }
    let told = home.path().join("expected.json");
    fs::write(&told, json!(expected).to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/torch_load.py");
    let status = Command::new(python)
        .arg(script)
        .args([ours, told, theirs.clone()])
        .status()
        .unwrap();
    assert!(status.success());
    let read = fs::read_dir(theirs).unwrap().map(|file| {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        (name, fs::read(file.path()).unwrap())
    });
    check(
        &open(&numbered::place(&read.collect())),
        &expected,
        "torch's",
    );
}
