//! What PyTorch's `HuggingFaceStorageWriter` wrote.

use futures::executor::block_on;
use reshard::{
    Checkpoint, DType, OpenOptions, Region, StateDict, Tensor, safetensors::SafetensorsLoadConfig,
    storage::Progress,
};
use reshard_golden::{OfSafetensors, chain, compare_facts, of_safetensors, ours, sha256};
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
    assert!(
        tensors == 15 || !ours() && tensors > 0,
        "{tensors} in {}",
        all.len()
    );
}

/// Those with quantised tensors.
fn quantised() -> Vec<OfSafetensors> {
    let mut all = of_safetensors();
    all.retain(|f| f.expected.get("dequantized").is_some());
    assert!(!all.is_empty(), "no quantised checkpoint was found");
    all
}

#[test]
fn quantised_tensors_are_read_as_pytorch_reads_them_and_by_region() {
    for f in quantised() {
        let expected = &f.expected["dequantized"];
        let checkpoint = opened_as(&f.folder.join("ckpt"), DType::Float32);
        let is_mxfp4 = |key: &str| key.ends_with("_blocks");
        let mut blocks = expected.clone();
        blocks
            .as_object_mut()
            .unwrap()
            .retain(|key, _| !is_mxfp4(key));
        let wrong = differences(&f.name, &checkpoint, &blocks);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        for (key, facts) in expected
            .as_object()
            .unwrap()
            .iter()
            .filter(|(k, _)| is_mxfp4(k))
        {
            mxfp4_is_right(&f.folder.join("ckpt"), key, facts, &checkpoint);
        }
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

/// Each byte has two numbers, the first one in its low bits; a byte of scales belongs to each group of them.
fn mxfp4_is_right(folder: &Path, key: &str, facts: &Json, checkpoint: &Checkpoint) {
    let numbers: Tensor = block_on(checkpoint.tensor(key).unwrap().read(..)).unwrap();
    let numbers: Vec<f32> = numbers.to_vec().unwrap();
    let stored = open(folder);
    let bytes = |key: &str| -> Tensor { block_on(stored.tensor(key).unwrap().read(..)).unwrap() };
    let (blocks, scales) = (bytes(key), bytes(&key.replace("_blocks", "_scales")));
    let group = *blocks.shape().last().unwrap() as usize;
    let of_row = group * 2 * *scales.shape().last().unwrap() as usize;
    let scales: Vec<u8> = scales.to_vec().unwrap();
    let mut wanted = Vec::new();
    for (i, byte) in blocks.to_vec::<u8>().unwrap().into_iter().enumerate() {
        for bits in [byte & 15, byte >> 4] {
            let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(bits & 7)];
            let sign = if bits & 8 == 0 { 1.0 } else { -1.0 };
            wanted.push(sign * size * 2f32.powi(i32::from(scales[i / group]) - 127));
        }
    }
    assert_eq!(numbers, wanted, "{key}");

    // PyTorch 2.15 reads only the first byte of each row, and leaves the rest zero. That is what its digest is of.
    let of_pytorch = numbers.iter().enumerate();
    let of_pytorch = of_pytorch.map(|(i, n)| if i % of_row < 2 { *n } else { 0.0 });
    let bytes: Vec<u8> = of_pytorch.flat_map(f32::to_le_bytes).collect();
    assert_eq!(facts["sha256"], sha256([&bytes]), "{key}");
}

#[test]
fn quantised_tensors_are_loaded_in_other_types() {
    for f in quantised() {
        let folder = f.folder.join("ckpt");
        let (wide, narrow) = (
            opened_as(&folder, DType::Float32),
            opened_as(&folder, DType::BFloat16),
        );
        for key in f.expected["dequantized"].as_object().unwrap().keys() {
            let read = |checkpoint: &Checkpoint| -> Tensor {
                block_on(checkpoint.tensor(key).unwrap().read(..)).unwrap()
            };
            let want = read(&wide).cast(DType::BFloat16).unwrap();
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
