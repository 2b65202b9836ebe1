//! Ranges of flattened chunks, saved and loaded by ranks that share the work.

use crate::ranks::layered;
use crate::ranks::{Loader, groups, load, store_as};
use reshard::{DType, Region, ShardedTensor, StateDict, Tensor, Value, ValueTree};
use serde_json::{Value as Json, json};

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

const BACKENDS: [&str; 3] = ["torch_dist", "zarr", "zarr3"];

/// Saved by two ranks in 3 cells of rows, each in a range for each rank.
fn saved(backend: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let state = |rank: u64| {
        let mut state = StateDict::new();
        for at in 0..3 {
            let (leaf, data) = leaf(0, at, 3, (rank, 2));
            state.insert(at.to_string(), leaf.with_data(data));
        }
        state
    };
    store_as(backend, vec![state(0), state(1)], &url);
    (dir, url)
}

/// How ranks read for each other.
const WAYS: [&str; 4] = ["broadcast", "gather_rounds", "gather_object", "two_stage"];

fn settings(way: &str, backend: &str) -> Json {
    let base = json!({ "format": backend });
    match way {
        "alone" => base,
        "two_stage" => layered(json!({ "type": "two_stage" }), &base),
        exchange => layered(
            json!({ "type": "fully_parallel", "exchange": exchange }),
            &base,
        ),
    }
}

/// Bytes that each of three ranks needs from storage. Of half of the rows, each wants a third, or all want the same one.
fn needed(way: &str, backend: &str, url: &str, same: bool) -> Vec<u64> {
    let settings = settings(way, backend);
    let loaders = groups(3).into_iter().zip(0..).map(|(group, rank)| {
        let mut template = StateDict::new();
        let third = if same { 1 } else { rank };
        template.insert("t", leaf(0, 1, 2, (third, 3)).0);
        Loader::new(group, template, &settings)
    });
    let loaded = load(loaders.collect(), url).into_iter();
    loaded.map(|l| l.unwrap().1.totals.needed).collect()
}

/// However many ranks want a range, its elements are read once. In two stages the first rank reads all ranges of a chunk.
#[test]
fn elements_of_flattened_ranges_are_read_once_for_all_ranks() {
    const THIRD: u64 = 20 * 4;
    for backend in BACKENDS {
        let (_dir, url) = saved(backend);
        let needed = |way, same| needed(way, backend, &url, same);
        assert_eq!(needed("alone", true), [THIRD; 3], "{backend}");
        for way in WAYS {
            let read: u64 = needed(way, true).iter().sum();
            assert_eq!(read, THIRD, "{backend}, {way}");
        }
        assert_eq!(needed("two_stage", true), [THIRD, 0, 0], "{backend}");
        assert_eq!(needed("two_stage", false), [3 * THIRD, 0, 0], "{backend}");
    }
}

#[test]
fn ranks_that_read_for_each_other_fill_flattened_ranges_of_any_grid() {
    let all = BACKENDS.map(|backend| (backend, saved(backend)));
    for (way, (backend, (_dir, url))) in WAYS.iter().flat_map(|w| all.iter().map(move |b| (w, b))) {
        let (exchange, settings) = (format!("{way} of {backend}"), settings(way, backend));
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
        let loaded = load(loaders.collect(), url);
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
