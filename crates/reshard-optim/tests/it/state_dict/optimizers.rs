//! State of several optimizers, of some submodules, and of frozen parameters.

use super::toy::{Held, ToyModel, ToyOptimizer};
use futures::executor::block_on;
use reshard::{
    DType, Tensor, Value, ValueTree,
    model::{Leaf, StateDict, Step, Tree},
};
use reshard_optim::{
    IncompatibleKeys, OptimError, OptimizerState, StateDictOptions, get_optimizer_state_dict,
    set_optimizer_state_dict,
};

/// `net.a` and `head.b`, whole.
fn model() -> ToyModel {
    ToyModel {
        params: vec![
            Held::zeros("net.a", 0, DType::Float32, &[2]),
            Held::zeros("head.b", 1, DType::Float32, &[3]),
        ],
        ..ToyModel::default()
    }
}

/// An optimizer of these parameters, all of whose state is `fill`, as is its `lr`.
fn filled(model: &ToyModel, ids: &[u64], fill: f32) -> ToyOptimizer {
    let mut optimizer = ToyOptimizer::of(model, &[ids]);
    optimizer.state.retain(|id, _| ids.contains(id));
    for (_, value) in optimizer.state.values_mut().flatten() {
        let shape = value.as_tensor().unwrap().shape().clone();
        let count = shape.volume().unwrap() as usize;
        *value = Tensor::from_vec(&shape, vec![fill; count]).unwrap().into();
    }
    optimizer.groups[0].options = vec![("lr".into(), Value::Float(f64::from(fill)))];
    optimizer
}

/// What stands in the state of a parameter and in the options of its group.
fn averages(optimizer: &ToyOptimizer, id: u64) -> (Vec<f32>, Option<&Value>) {
    let (name, avg) = &optimizer.state[&id][1];
    assert_eq!(&**name, "exp_avg");
    let avg = avg.as_tensor().unwrap().to_vec().unwrap();
    (avg, optimizer.groups[0].options.first().map(|(_, lr)| lr))
}

fn plain(state: StateDict) -> ValueTree {
    state.map(&mut |leaf| match leaf {
        Leaf::Value(v) => v,
        other => panic!("{other:?}"),
    })
}

fn names(state: &StateDict) -> Vec<String> {
    match state {
        Tree::Dict(dict) => dict.keys().map(ToString::to_string).collect(),
        other => panic!("{other:?}"),
    }
}

fn get(
    model: &ToyModel,
    optimizers: &[&ToyOptimizer],
    options: &StateDictOptions<'_>,
) -> StateDict {
    let all: Vec<&dyn OptimizerState> = optimizers.iter().map(|o| *o as _).collect();
    block_on(get_optimizer_state_dict(model, &all, options)).unwrap()
}

#[test]
fn several_optimizers_have_one_dict_and_each_gets_its_own_part_again() {
    let model = model();
    let (first, second) = (filled(&model, &[0], 0.5), filled(&model, &[1], 0.25));
    for flatten_optimizer_state_dict in [false, true] {
        let options = StateDictOptions {
            flatten_optimizer_state_dict,
            ..StateDictOptions::default()
        };
        let state = get(&model, &[&first, &second], &options);
        if !flatten_optimizer_state_dict {
            assert_eq!(names(state.get("state").unwrap()), ["net.a", "head.b"]);
            let Some(Tree::List(groups)) = state.get("param_groups") else {
                panic!("{state:?}")
            };
            assert_eq!(groups.len(), 2);
        }
        // The order in which optimizers are given need not be that of the save.
        let mut ours = [filled(&model, &[1], 0.), filled(&model, &[0], 0.)];
        let [b, a] = &mut ours;
        let mut all: [&mut dyn OptimizerState; 2] = [b, a];
        let set = set_optimizer_state_dict(&model, &mut all, plain(state), &options);
        assert_eq!(block_on(set).unwrap(), IncompatibleKeys::default());
        assert_eq!(averages(&ours[1], 0), (vec![0.5; 2], Some(&0.5.into())));
        assert_eq!(averages(&ours[0], 1), (vec![0.25; 3], Some(&0.25.into())));
    }
}

#[test]
fn an_optimizer_has_the_state_of_the_chosen_submodules_alone() {
    let model = model();
    let optimizer = filled(&model, &[0, 1], 0.5);
    for (keep_submodule_prefixes, name) in [(true, "net.a"), (false, "a")] {
        let options = StateDictOptions {
            submodules: vec!["net".into()],
            keep_submodule_prefixes,
            ..StateDictOptions::default()
        };
        let state = get(&model, &[&optimizer], &options);
        assert_eq!(names(state.get("state").unwrap()), [name]);
        let params = state.at(&["param_groups".into(), 0u64.into(), "params".into()]);
        let Some(Tree::Leaf(Leaf::Value(params))) = params else {
            panic!("{params:?}")
        };
        assert_eq!(*params, Value::List(vec![name.into()]));

        // What lies elsewhere keeps its state, and is not missed.
        let mut ours = filled(&model, &[0, 1], 0.);
        let keys = block_on(set_optimizer_state_dict(
            &model,
            &mut [&mut ours],
            plain(state),
            &options,
        ));
        assert_eq!(keys.unwrap(), IncompatibleKeys::default());
        assert_eq!(averages(&ours, 0).0, [0.5; 2]);
        assert_eq!(averages(&ours, 1).0, [0.; 3]);
    }
}

#[test]
fn a_frozen_parameter_gets_its_state_and_does_not_miss_it_if_there_is_none() {
    let trained = model();
    let saved = filled(&trained, &[0, 1], 0.5);
    let mut frozen = model();
    frozen.params[1].trained = false;
    for ignore_frozen_params in [false, true] {
        let options = StateDictOptions {
            ignore_frozen_params,
            ..StateDictOptions::default()
        };
        let set = |state: &StateDict| {
            let mut ours = filled(&frozen, &[0, 1], 0.);
            let keys = block_on(set_optimizer_state_dict(
                &frozen,
                &mut [&mut ours],
                plain(state.clone()),
                &options,
            ));
            keys.map(|keys| (keys, ours))
        };
        let without = |state: &StateDict, name: &str| {
            let mut state = state.clone();
            if let Tree::Dict(all) = &mut state
                && let Some(Tree::Dict(of)) = all.get_mut(&Step::from("state"))
            {
                assert!(of.shift_remove(&Step::from(name)).is_some());
            }
            state
        };
        let state = get(&frozen, &[&saved], &options);
        let (keys, ours) = set(&state).unwrap();
        assert_eq!(keys, IncompatibleKeys::default());
        assert_eq!(averages(&ours, 1).0, [0.5; 3], "{ignore_frozen_params}");

        let (keys, ours) = set(&without(&state, "head.b")).unwrap();
        assert_eq!(keys, IncompatibleKeys::default());
        assert_eq!(averages(&ours, 0).0, [0.5; 2]);
        assert_eq!(averages(&ours, 1).0, [0.; 3]);

        // A parameter that is trained misses it.
        let error = set(&without(&state, "net.a")).unwrap_err();
        let OptimError::Incompatible { missing, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(missing, ["state.net.a"]);
    }
}
