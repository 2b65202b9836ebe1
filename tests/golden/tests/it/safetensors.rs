//! What PyTorch's `HuggingFaceStorageWriter` wrote.

use futures::executor::block_on;
use reshard::{
    Checkpoint, DType, OpenOptions, Region, StateDict, Tensor, safetensors::SafetensorsLoadConfig,
    storage::Progress,
};
use reshard_golden::{chain, compare_facts, of_safetensors, ours, sha256};
use serde_json::Value as Json;
use std::path::Path;

fn open(folder: &Path) -> Checkpoint {
    block_on(Checkpoint::open(&folder.display().to_string())).unwrap()
}

fn opened_as(folder: &Path, dtype: DType) -> Checkpoint {
    let config = SafetensorsLoadConfig::default().with_dequantize(dtype);
    let options = OpenOptions::new().strategy(config);
    block_on(options.open(&folder.display().to_string())).unwrap()
}

/// The tensors of `expected`, each with what differs.
fn differences(name: &str, checkpoint: &Checkpoint, expected: &Json) -> Vec<String> {
    let mut wrong = Vec::new();
    for (key, facts) in expected.as_object().unwrap() {
        let tensor = checkpoint.tensor(key).map_err(|e| chain(&e));
        let read = tensor.and_then(|t| block_on(t.read(..)).map_err(|e| chain(&e)));
        let found = read.and_then(|t| compare_facts(facts, &t));
        wrong.extend(found.err().map(|what| format!("{name}: {key}: {what}")));
    }
    wrong
}

#[test]
fn every_tensor_is_read_bit_for_bit_and_nothing_is_damaged() {
    let (mut wrong, mut tensors) = (Vec::new(), 0);
    let all = of_safetensors();
    for f in &all {
        let expected = &f.expected["tensors"];
        for folder in f.places() {
            let checkpoint = open(&folder);
            wrong.extend(differences(&f.name, &checkpoint, expected));
            tensors += expected.as_object().unwrap().len();
            if f.expected.get("dequantized").is_none() {
                let keys = checkpoint.tensors().count();
                assert_eq!(keys, expected.as_object().unwrap().len(), "{}", f.name);
            }
            let report = block_on(checkpoint.verify(true, Progress::default())).unwrap();
            assert!(report.damage.is_empty(), "{}: {report:?}", f.name);
            assert_eq!(checkpoint.backend().to_string(), "safetensors/1");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tensors == 15 || !ours(), "{tensors} in {}", all.len());
}

#[test]
fn quantised_tensors_are_read_as_pytorch_reads_them_and_by_region() {
    for f in of_safetensors() {
        let Some(expected) = f.expected.get("dequantized") else {
            continue;
        };
        let checkpoint = opened_as(&f.folder.join("ckpt"), DType::Float32);
        let wrong = differences(&f.name, &checkpoint, expected);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let scales = |key: &str| key.contains("scale");
        assert!(
            !checkpoint.tensors().any(|t| scales(t.key())),
            "scales are no tensors"
        );

        // A region is the region of the whole, also over the ends of blocks and groups.
        for key in expected.as_object().unwrap().keys() {
            let tensor = checkpoint.tensor(key).unwrap();
            let whole: Tensor = block_on(tensor.read(..)).unwrap();
            let shape = whole.shape().clone();
            for (from, to) in [(0.0, 0.5), (0.4, 0.9), (0.9, 1.0)] {
                let mut region = Region::whole(&shape);
                for (axis, n) in shape.iter().enumerate() {
                    let at = |part: f64| (*n as f64 * part) as u64;
                    region.offsets[axis] = at(from);
                    region.lengths[axis] = (at(to) - at(from)).max(1);
                }
                let part = block_on(tensor.read(region.clone())).unwrap();
                let want = whole.narrow(&region);
                assert_eq!(part.to_bytes(), want.to_bytes(), "{key} {region}");
            }
        }
    }
}

#[test]
fn quantised_tensors_are_loaded_in_other_types() {
    for f in of_safetensors()
        .iter()
        .filter(|f| f.expected.get("dequantized").is_some())
    {
        let folder = f.folder.join("ckpt");
        let (wide, narrow) = (
            opened_as(&folder, DType::Float32),
            opened_as(&folder, DType::BFloat16),
        );
        for key in f.expected["dequantized"].as_object().unwrap().keys() {
            let read = |checkpoint: &Checkpoint| -> Tensor {
                block_on(checkpoint.tensor(key).unwrap().read(..)).unwrap()
            };
            let want = reshard::plan::cast::tensor(&read(&wide), DType::BFloat16).unwrap();
            assert_eq!(read(&narrow).to_bytes(), want.to_bytes(), "{key}");
        }
    }
}

#[test]
fn what_is_saved_again_is_read_by_its_digests() {
    for f in of_safetensors() {
        let checkpoint = open(&f.folder.join("ckpt"));
        let mut state = StateDict::new();
        let mut digests = Vec::new();
        for t in checkpoint.tensors() {
            let tensor: Tensor = block_on(t.read(..)).unwrap();
            digests.push((t.key().to_owned(), sha256(tensor.blocks(1 << 20))));
            state.insert(t.key(), tensor);
        }
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("again").display().to_string();
        let save = reshard::save(&state, &url)
            .dialect(reshard::Dialect::TensorsOnly)
            .strategy(reshard::safetensors::SafetensorsConfig::default());
        block_on(async { save.await }).unwrap();
        let again = block_on(Checkpoint::open(&url)).unwrap();
        for (key, digest) in digests {
            let tensor: Tensor = block_on(again.tensor(&key).unwrap().read(..)).unwrap();
            assert_eq!(sha256(tensor.blocks(1 << 20)), digest, "{}: {key}", f.name);
        }
    }
}
