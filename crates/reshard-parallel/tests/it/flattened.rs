//! Ranges of flattened chunks, saved and loaded by ranks that share the work.

use crate::ranks::{Loader, groups, load, plain, store};
use reshard::{DType, Region, ShardedTensor, StateDict, Tensor, Value, ValueTree};
use serde_json::json;

const SHAPE: [u64; 2] = [12, 10];

fn whole() -> Tensor {
    Tensor::from_vec(&SHAPE, (0..120).map(|i| i as f32).collect()).unwrap()
}

/// The cell `at` of `cells` along an axis, and a range of it.
fn leaf(axis: usize, at: u64, cells: u64, part: (u64, u64)) -> (ShardedTensor, Tensor) {
    let mut region = Region::whole(&SHAPE);
    region.lengths[axis] /= cells;
    region.offsets[axis] = at * region.lengths[axis];
    let offsets = [(axis, at, cells)];
    let leaf = ShardedTensor::declare("w", DType::Float32, &region.lengths, &offsets, 0).unwrap();
    let n = region.lengths.volume().unwrap();
    let (from, to) = (n * part.0 / part.1, n * (part.0 + 1) / part.1);
    let elements = whole().narrow(&region).to_vec::<f32>().unwrap();
    let data = Tensor::from_vec(&[to - from], elements[from as usize..to as usize].to_vec());
    let leaf = ShardedTensor {
        flattened_range: Some(from..to),
        ..leaf
    };
    (leaf, data.unwrap())
}

#[test]
fn ranks_that_read_for_each_other_fill_flattened_ranges_of_any_grid() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    // 3 cells of rows, each in a range for each of 2 ranks.
    let state = |rank: u64| {
        let mut state = StateDict::new();
        for at in 0..3 {
            let (leaf, data) = leaf(0, at, 3, (rank, 2));
            state.insert(at.to_string(), leaf.with_data(data));
        }
        state
    };
    store(vec![state(0), state(1)], &url);
    for exchange in ["broadcast", "gather_rounds", "gather_object", "two_stage"] {
        let settings = match exchange {
            "two_stage" => json!({ "type": "two_stage", "base": plain() }),
            exchange => json!({ "type": "fully_parallel", "exchange": exchange, "base": plain() }),
        };
        // Ranks 0 and 1 want the same range, others a range of columns, and all of it.
        let wants = |rank: u64| match rank {
            0 | 1 => leaf(0, 1, 2, (1, 3)),
            2 => leaf(1, 2, 5, (0, 1)),
            _ => (
                ShardedTensor::template("w", DType::Float32, &SHAPE),
                whole(),
            ),
        };
        let loaders = groups(4).into_iter().zip(0..).map(|(group, rank)| {
            let mut template = StateDict::new();
            template.insert("t", wants(rank).0);
            Loader::new(group, template, &settings)
        });
        let loaded = load(loaders.collect(), &url);
        for (rank, loaded) in loaded.into_iter().enumerate() {
            let (tree, _) = loaded.unwrap();
            let got = match tree.get("t") {
                Some(ValueTree::Leaf(Value::Tensor(t))) => t.clone(),
                other => unreachable!("{other:?}"),
            };
            let (_, expected) = wants(rank as u64);
            assert_eq!(got.shape(), expected.shape(), "{exchange}, rank {rank}");
            assert_eq!(
                got.to_bytes(),
                expected.to_bytes(),
                "{exchange}, rank {rank}"
            );
        }
    }
}
