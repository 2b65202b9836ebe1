//! State dicts for tests.

use reshard::{ShardedTensor, StateDict, Tensor, Value, ValueTree, model::Leaf};
use reshard_optim::{ParamId, ShardedParams, param_id_to_sharded_param_map};

pub(crate) fn dict(entries: Vec<(Value, Value)>) -> Value {
    Value::Dict(entries)
}

pub(crate) fn floats(shape: &[u64], values: &[f32]) -> Tensor {
    Tensor::from_vec(shape, values.to_vec()).unwrap()
}

/// A plain value as a state dict.
pub(crate) fn state(value: Value) -> StateDict {
    ValueTree::from(value).map(&mut Leaf::Value)
}

/// Rows 2..4 of 4 of a matrix of two columns under the key `fc.w`, and a bias.
pub(crate) fn model() -> StateDict {
    let mut model = StateDict::new();
    let w = floats(&[2, 2], &[1., 2., 3., 4.]);
    model.insert(
        "w",
        ShardedTensor::from_rank_offsets("fc.w", w, &[(0, 1, 2)]).unwrap(),
    );
    model.insert("b", ShardedTensor::full("fc.b", floats(&[2], &[5., 6.])));
    model
}

pub(crate) fn params(ids: &[(u64, &str)]) -> ShardedParams {
    let ids = ids.iter().map(|(id, name)| (ParamId(*id), *name));
    param_id_to_sharded_param_map(&model(), ids).unwrap()
}

/// PyTorch's form, with one named value per parameter.
pub(crate) fn optimizer(state_of: Vec<(i64, &str, Value)>) -> StateDict {
    let entries = state_of
        .into_iter()
        .map(|(id, name, value)| (Value::Int(id), dict(vec![(name.into(), value)])))
        .collect();
    let group = dict(vec![
        ("lr".into(), Value::Float(0.5)),
        (
            "params".into(),
            Value::List(vec![Value::Int(0), Value::Int(1)]),
        ),
    ]);
    state(dict(vec![
        ("state".into(), dict(entries)),
        ("param_groups".into(), Value::List(vec![group])),
    ]))
}
