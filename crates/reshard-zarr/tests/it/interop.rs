//! zarr-python and TensorStore read what reshard wrote. `cargo xtask interop` runs it.

use super::{files, flat, store, zarr3::config};
use reshard_model::{DType, Region, ShardedTensor, Tensor};
use reshard_plan::DefaultSavePlanner;
use reshard_storage::IfExists;
use reshard_strategy::{
    SaveShardedStrategy,
    testkit::{Rank, save_on_ranks},
};
use reshard_zarr::ZarrConfig;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::{fs, path::Path, process::Command, sync::Arc};

/// Types that Zarr v2 has names for, too.
fn dtypes(all: bool) -> Vec<DType> {
    let numpy = |d: &DType| !matches!(d.name(), "bfloat16") && !d.name().starts_with("float8");
    let named = |d: &DType| {
        !matches!(
            d,
            DType::Complex32 | DType::BComplex32 | DType::Float4E2M1FnX2 | DType::Float8E8M0Fnu
        )
    };
    let found = DType::ALL.iter().copied().filter(named);
    found.filter(|d| all || numpy(d)).collect()
}

/// The bytes of a tensor of any type: small numbers, so that they mean the same to all programs.
fn bytes(dtype: DType, elements: u64) -> Vec<u8> {
    let byte = |n: u64| match dtype {
        DType::Bool => u8::from(n.is_multiple_of(3)),
        _ => (n * 7 % 60) as u8,
    };
    (0..elements * dtype.size()).map(byte).collect()
}

const SHAPES: [&[u64]; 4] = [&[], &[7], &[10, 6], &[6, 4, 5]];

/// All tensors, each in rows of two ranks, and what other programs have to read.
fn tensors(all: bool) -> (Vec<Vec<ShardedTensor>>, Map<String, Value>) {
    let (mut ranks, mut expected) = (vec![Vec::new(), Vec::new()], Map::new());
    for dtype in dtypes(all) {
        for shape in SHAPES {
            let key = format!("{}/of.{}", dtype.name(), shape.len());
            let whole = Region::whole(shape);
            let bytes = bytes(dtype, whole.volume().unwrap());
            let sum: String = Sha256::digest(&bytes)
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect();
            expected.insert(
                key.clone(),
                json!({"dtype": dtype.name(), "shape": shape, "sha256": sum}),
            );
            let tensor = Tensor::new(dtype, shape, bytes).unwrap();
            let mut add = |rank: usize, region: Region| {
                let data = tensor.narrow(&region);
                ranks[rank]
                    .push(ShardedTensor::region_of(&key, dtype, shape, region).with_data(data));
            };
            match shape {
                [] => add(0, whole),
                // The last rows are fewer, so that files reach beyond the shape.
                [rows, ..] => {
                    let cut = rows / 2 + 1;
                    let (mut first, mut rest) = (whole.clone(), whole.clone());
                    first.lengths[0] = cut;
                    (rest.offsets[0], rest.lengths[0]) = (cut, rows - cut);
                    add(0, first);
                    add(1, rest);
                }
            }
        }
    }
    (ranks, expected)
}

/// Saves, and puts the files into a folder.
fn save(config: &SaveShardedStrategy, folder: &Path, ranks: Vec<Vec<ShardedTensor>>) {
    let store = store();
    let rank = |leaves| Rank {
        strategy: config.clone().into(),
        planner: Arc::new(DefaultSavePlanner::DEFAULT) as _,
        flat: flat(leaves),
    };
    let ranks = ranks.into_iter().map(rank).collect();
    for saved in save_on_ranks(&store, IfExists::Refuse, ranks) {
        saved.unwrap();
    }
    for (name, bytes) in files(&store) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

#[test]
#[ignore = "needs a Python with zarr and tensorstore, which RESHARD_ZARR_PYTHON names"]
fn needs_python_other_programs_read_what_reshard_wrote() {
    let python = std::env::var("RESHARD_ZARR_PYTHON").unwrap();
    for all in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (ranks, expected) = tensors(all);
        save(
            &ZarrConfig::default().into(),
            &folder.path().join("v2"),
            ranks,
        );
        save(
            &config(40).into(),
            &folder.path().join("v3"),
            tensors(all).0,
        );
        let text = serde_json::to_vec(&expected).unwrap();
        fs::write(folder.path().join("expected.json"), text).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/read.py");
        let out = Command::new(&python)
            .arg(script)
            .arg(folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{said}");
        println!("{}", String::from_utf8_lossy(&out.stdout));
    }
}
