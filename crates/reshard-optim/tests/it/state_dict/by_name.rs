//! One implementation of `ModelState` serves PyTorch's helpers and modules of Megatron Core's kind.

use super::toy::{Held, ToyModel};
use crate::{modules::owned, state::floats};
use futures::{executor::block_on, future::join_all};
use reshard::{DType, LocalGroup, Value, ValueTree, model::Leaf};
use reshard_optim::{ByName, Module, ShardPlace, Sharded};

/// Rows of a weight on each rank, and a scale that all ranks have.
fn model(rank: u64, ranks: u64, fill: bool) -> ToyModel {
    let mut weight = Held::zeros("fc.weight", 0, DType::Float32, &[4, 2]).of_rank(rank, ranks);
    let mut scale = Held::zeros("fc.scale", 1, DType::Float32, &[2]);
    if fill {
        let first = weight.region().offsets[0] as f32 * 2.;
        let shape = weight.local.shape().to_vec();
        let values: Vec<f32> = (0..shape.iter().product::<u64>())
            .map(|i| first + i as f32)
            .collect();
        weight.local = floats(&shape, &values);
        scale.local = floats(&[2], &[0.5, 0.25]);
    }
    ToyModel {
        params: vec![weight, scale],
        ..ToyModel::default()
    }
}

fn module<'a>(model: ToyModel) -> Module<'a> {
    Module::new().with("decoder", ByName(model))
}

#[test]
fn a_model_by_names_is_a_module() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("saved").display().to_string();
    let groups = LocalGroup::new(2);
    let saves = groups.iter().enumerate().map(|(rank, group)| {
        let place = ShardPlace::new().data_parallel(rank as u32);
        let model = module(model(rank as u64, 2, true));
        let state = model.sharded_state_dict("m.", &place).unwrap();
        let url = &url;
        async move { reshard::save(&state, url).group(group).await }
    });
    for saved in block_on(join_all(saves)) {
        saved.unwrap();
    }

    let mut loaded = ByName(model(0, 1, false));
    let place = ShardPlace::new();
    let template = owned(loaded.sharded_state_dict("m.decoder.", &place).unwrap());
    let mut keys: Vec<String> = Vec::new();
    for leaf in template.nested_values() {
        if let Leaf::Tensor(t) = leaf {
            keys.push(t.key.to_string());
        }
    }
    assert_eq!(keys, ["m.decoder.fc.weight", "m.decoder.fc.scale"]);
    let state = block_on(async { reshard::load(template, &url).await }).unwrap();
    loaded.load_state_dict(state).unwrap();
    let values = |i: usize| loaded.0.params[i].local.to_vec::<f32>().unwrap();
    assert_eq!(values(0), [0., 1., 2., 3., 4., 5., 6., 7.]);
    assert_eq!(values(1), [0.5, 0.25]);
}

#[test]
fn a_module_by_names_refuses_what_it_does_not_have() {
    let mut module = ByName(model(0, 1, false));
    let mut state = ValueTree::new();
    state.insert("fc.weight", Value::Tensor(floats(&[4, 2], &[0.; 8])));
    state.insert("fc.other", Value::Int(1));
    let error = module.load_state_dict(state).unwrap_err().to_string();
    assert!(
        error.contains("fc.scale") && error.contains("fc.other"),
        "{error}"
    );
}
