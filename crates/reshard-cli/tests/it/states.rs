//! Checkpoints that tests look at.

use futures::{executor::block_on, future::join_all};
use reshard::{
    Dialect, LocalGroup, Region, ShardedObject, ShardedTensor, StateDict, Tensor, Value,
    model::{Construct, Opaque},
};
use std::future::IntoFuture;
use tempfile::TempDir;

/// A directory that is removed at the end, and a checkpoint in it.
pub(crate) struct Saved {
    _dir: TempDir,
    pub(crate) url: String,
}

impl Saved {
    /// What `make` puts at a new place.
    pub(crate) fn made(make: impl FnOnce(&str)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("ckpt").display().to_string();
        make(&url);
        Self { _dir: dir, url }
    }

    pub(crate) fn path(&self, file: &str) -> std::path::PathBuf {
        std::path::Path::new(&self.url).join(file)
    }

    /// A place beside it.
    pub(crate) fn beside(&self, name: &str) -> String {
        self._dir.path().join(name).display().to_string()
    }
}

pub(crate) fn save(states: &[StateDict], dialect: Dialect) -> Saved {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let groups = LocalGroup::new(states.len() as u32);
    let ranks = states.iter().zip(&groups);
    let saves = ranks.map(|(state, group)| {
        reshard::save(state, &url)
            .group(group)
            .dialect(dialect)
            .into_future()
    });
    let all = block_on(join_all(saves));
    all.into_iter().for_each(|r| drop(r.unwrap()));
    Saved { _dir: dir, url }
}

fn tensor<T: reshard::model::Element>(shape: &[u64], v: Vec<T>) -> Tensor {
    Tensor::from_vec(shape, v).unwrap()
}

/// Two ranks, Megatron's dialect: a tensor cut by rows, a replicated one, a scalar, an empty one, objects, common state.
pub(crate) fn megatron() -> Saved {
    let of_rank = |rank: u64| {
        let mut state = StateDict::new();
        let rows = if rank == 0 { 3 } else { 2 };
        let region = Region::new([3 * rank, 0], [rows, 4]);
        let first = 12.0 * rank as f32;
        let data = (0..rows * 4).map(|i| first + i as f32).collect();
        let leaf =
            ShardedTensor::region_of("layer.weight", reshard::DType::Float32, &[5, 4], region);
        state.insert("w", leaf.with_data(tensor(&[rows, 4], data)));
        state.insert(
            "norm",
            ShardedTensor::replicated("norm", tensor(&[3], vec![1i64, 2, 3]), rank as u32),
        );
        state.insert(
            "scale",
            ShardedTensor::replicated("scale", tensor(&[], vec![0.5f64]), rank as u32),
        );
        state.insert(
            "none",
            ShardedTensor::replicated("none", tensor::<u8>(&[0, 4], vec![]), rank as u32),
        );
        let rng = ShardedObject::new("rng_state", Value::Int(7 + rank as i64), &[2], &[rank], 0);
        state.insert("rng", rng.unwrap());
        state.insert("iteration", 1000);
        state.insert("args", arguments());
        state.insert("odd", odd());
        state
    };
    save(&[of_rank(0), of_rank(1)], Dialect::Megatron)
}

/// As argparse leaves it.
fn arguments() -> Value {
    let fields = [
        ("tensor_model_parallel_size", 2),
        ("pipeline_model_parallel_size", 1),
    ];
    let state = Value::Dict(
        fields
            .into_iter()
            .map(|(k, v)| (k.into(), v.into()))
            .collect(),
    );
    Value::Opaque(Box::new(Opaque {
        module: "argparse".into(),
        name: "Namespace".into(),
        construct: Construct::NewObj(vec![]),
        state: Some(state),
        items: vec![],
        pairs: vec![],
    }))
}

/// What JSON has no words for.
fn odd() -> Value {
    Value::Tuple(vec![
        Value::Float(f64::NAN),
        Value::Bytes(vec![1u8, 2].into()),
        Value::Set(vec!["a".into()]),
    ])
}

/// One rank, PyTorch's dialect, nested, with an empty dict.
pub(crate) fn dcp() -> Saved {
    dcp_with(&["a", "b"])
}

/// The same, with these names in its list.
pub(crate) fn dcp_with(names: &[&str]) -> Saved {
    let mut model = StateDict::new();
    model.insert(
        "weight",
        Value::Tensor(tensor(&[5, 2], (0..10i32).collect())),
    );
    model.insert(
        "bias",
        Value::Tensor(tensor(&[1, 6], vec![1u8, 2, 3, 4, 5, 6])),
    );
    let mut optim = StateDict::new();
    optim.insert("lr", 0.1);
    optim.insert_tree("state", StateDict::new());
    let mut state = StateDict::new();
    state.insert_tree("model", model);
    state.insert_tree("optim", optim);
    let names = names.iter().map(|name| Value::from(*name));
    state.insert("names", Value::List(names.collect()));
    save(&[state], Dialect::Dcp)
}
