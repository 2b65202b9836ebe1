//! What TensorFlow restored from its checkpoints, in parts of all kinds: reads of the same regions give the same elements.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use reshard::{
    DType, ErrorKind, Region, ShardedTensor, StateDict,
    blocking::{self, Checkpoint},
};
use reshard_golden::root;
use std::fs;

type Json = serde_json::Value;

/// A checkpoint, and what TensorFlow said of it.
fn fixture(name: &str) -> (Checkpoint, Json) {
    let folder = root().join("tf/checkpoints").join(name);
    let expected = fs::read(folder.join("expected.json")).unwrap();
    let stem = fs::read_dir(&folder).unwrap().find_map(|e| {
        let file = e.unwrap().file_name().into_string().unwrap();
        Some(file.strip_suffix(".index")?.to_owned())
    });
    let url = folder.join(stem.unwrap()).display().to_string();
    (
        Checkpoint::open(&url).unwrap(),
        serde_json::from_slice(&expected).unwrap(),
    )
}

/// The numbers in nested lists, and the length of each level.
fn flat(json: &Json, numbers: &mut Vec<f32>) -> Vec<u64> {
    let Some(all) = json.as_array() else {
        numbers.push(json.as_f64().unwrap() as f32);
        return Vec::new();
    };
    let mut inner = Vec::new();
    for part in all {
        inner = flat(part, numbers);
    }
    [&[all.len() as u64][..], &inner].concat()
}

/// The parts of a variable of this shape, one behind the other along the axis in which they are shorter than it.
fn regions(shape: &[u64], parts: &[Vec<u64>]) -> Vec<Region> {
    let axis = (0..shape.len()).find(|axis| parts[0][*axis] < shape[*axis]);
    let (axis, mut at) = (axis.unwrap_or(0), 0);
    let region = |part: &Vec<u64>| {
        let mut region = Region::new(vec![0; shape.len()], part.clone());
        region.offsets[axis] = at;
        at += part[axis];
        region
    };
    let regions: Vec<Region> = parts.iter().map(region).collect();
    assert_eq!(at, shape[axis]);
    regions
}

#[test]
fn parts_of_partitioned_variables_have_the_elements_that_tensorflow_restored() {
    let (found, expected) = fixture("v1_partitioned");
    let mut restored = Vec::new();
    for restore in expected["restores"].as_array().unwrap() {
        let (how, variable) = (&restore["how"], restore["variable"].as_str().unwrap());
        let Some(parts) = restore["parts"].as_array() else {
            let result = restore["result"].as_str().unwrap();
            // A part is no variable of its own.
            assert_eq!(
                found.tensor(variable).is_err(),
                result.starts_with("NotFoundError"),
                "{how}"
            );
            continue;
        };
        let tensor = found.tensor(variable).unwrap();
        let mut elements = Vec::new();
        let shapes: Vec<Vec<u64>> = parts
            .iter()
            .map(|part| {
                let mut numbers = Vec::new();
                let shape = flat(part, &mut numbers);
                elements.push(numbers);
                shape
            })
            .collect();
        for (region, want) in regions(tensor.shape(), &shapes).into_iter().zip(elements) {
            let read = tensor.read(region).unwrap();
            let read = match read.dtype() {
                DType::Float16 => read.cast(DType::Float32).unwrap(),
                _ => read,
            };
            assert_eq!(read.to_vec::<f32>().unwrap(), want, "{how}");
        }
        restored.push((how.as_str().unwrap(), parts.len()));
    }
    assert_eq!(
        restored,
        [
            ("3 parts", 3),
            ("13 parts", 13),
            ("2 parts along the other axis", 2),
            ("not partitioned", 1),
            ("other full shape, not partitioned", 1),
            ("float16, the same parts", 3),
            ("saved whole, 2 parts", 2),
        ]
    );
}

#[test]
fn sharded_variables_are_loaded_in_the_rows_in_which_tensorflow_restored_them() {
    const KEY: &str = "emb/.ATTRIBUTES/VARIABLE_VALUE";
    for name in ["1", "2", "3", "3_max_shard_40", "5"] {
        let (found, expected) = fixture(&format!("sharded_variable_{name}"));
        let whole = found.tensor(KEY).unwrap().read(..).unwrap();
        let (mut restored, mut refused) = (0, 0);
        for (rows, result) in expected["restores"].as_object().unwrap() {
            // A variable that is not sharded has all rows.
            let rows: Vec<u64> = match &**rows {
                "plain tf.Variable" => vec![13],
                rows => rows.split(',').map(|n| n.parse().unwrap()).collect(),
            };
            let shape = [rows.iter().sum(), 4];
            let parts: Vec<Vec<u64>> = rows.iter().map(|rows| vec![*rows, 4]).collect();
            let regions = regions(&shape, &parts);
            let mut template = StateDict::new();
            for (n, region) in (0u64..).zip(&regions) {
                let leaf = ShardedTensor::region_of(KEY, DType::Float32, &shape, region.clone());
                template.insert(n, leaf);
            }
            let loaded = blocking::run(reshard::load(template, found.url()));
            let result = result.as_str().unwrap();
            if !result.starts_with("ok") {
                let error = loaded.map(drop).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Invalid, "{name}: {error}");
                refused += 1;
                continue;
            }
            let loaded = loaded.unwrap();
            for (n, region) in (0u64..).zip(&regions) {
                let part = loaded.at(&[n.into()]).and_then(|v| v.leaf()?.as_tensor());
                let want = whole.narrow(region);
                assert_eq!(
                    part.unwrap().to_bytes(),
                    want.to_bytes(),
                    "{name}: {rows:?}"
                );
            }
            restored += 1;
        }
        assert_eq!((restored, refused), (7, 1), "{name}");
    }
}

/// Its callback left a tensor out, so TensorFlow does not find it.
#[test]
fn what_tensorflow_did_not_find_is_not_there() {
    let (found, expected) = fixture("custom_invalid_is_not_rejected");
    let said = expected["tf_restore"].as_str().unwrap();
    let key = said.strip_prefix("NotFoundError: Key ").unwrap();
    let key = key.split(' ').next().unwrap();
    assert_eq!(found.tensor(key).unwrap_err().kind(), ErrorKind::NotFound);
}
