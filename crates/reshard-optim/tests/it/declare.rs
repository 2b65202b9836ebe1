//! What is declared, and what is refused.

use crate::state::{dict, floats, model, optimizer, params, state};
use futures::{executor::block_on, future::join_all};
use reshard::{
    DType, Data, ErrorKind, LocalGroup, ShardedTensor, StateDict, Tensor, Value, ValueTree,
    model::{
        Dims, Layout, Leaf, LocalNonpersistent, ModelError, Sharded, ShardedTensorFactory, Swiglu,
        Tree,
    },
};
use reshard_optim::{
    OptimError, OptimTensor, ParamId, chained_optim_state, fp32_from_fp16_params,
    make_sharded_optimizer_tensor, optim_state_to_sharding_state, param_id_to_sharded_param_map,
    restore_optim_state, sharded_optim_state, take_common_step,
};
use std::collections::BTreeSet;

fn tensor(leaf: &Leaf) -> &ShardedTensor {
    match leaf {
        Leaf::Tensor(t) => t,
        other => panic!("not a tensor: {other:?}"),
    }
}

fn keys(state: &StateDict) -> Vec<String> {
    let key = |leaf: &&Leaf| match leaf {
        Leaf::Tensor(t) => Some(t.key.to_string()),
        Leaf::Factory(f) => Some(f.key.to_string()),
        _ => None,
    };
    let leaves = state.nested_values();
    leaves.iter().filter_map(key).collect()
}

#[test]
fn state_has_the_type_of_its_own_data_and_everything_else_of_the_parameter() {
    let mut model = model();
    model.visit_mut(&mut |_, leaf| {
        if let Leaf::Tensor(t) = leaf {
            *t = t.clone().with_replica_id([0, 3, 1]);
        }
    });
    let params = param_id_to_sharded_param_map(&model, [(ParamId(4), "w")]).unwrap();
    let state = Tensor::zeros("", DType::Float64, &[2, 2]).unwrap();
    let leaf =
        make_sharded_optimizer_tensor(params.get(ParamId(4)).unwrap(), state, "optimizer.state.m")
            .unwrap();
    let t = tensor(&leaf);
    assert_eq!(&*t.key, "optimizer.state.m.fc.w");
    assert_eq!((t.dtype, &t.global_shape), (DType::Float64, &[4, 2].into()));
    assert_eq!(t.global_offset, [2, 0].into());
    assert_eq!(t.replica_id, [0, 3, 1].into());
}

#[test]
fn frozen_parameters_do_not_shift_ids() {
    // Parameter 1 is frozen: it has a number, and no state. Number 3 belongs to one that this model does not declare.
    let params = params(&[(0, "b"), (1, "frozen"), (2, "w"), (3, "elsewhere")]);
    let w = Value::Tensor(floats(&[2, 2], &[0.; 4]));
    let b = Value::Tensor(floats(&[2], &[0.; 2]));
    let mut optim = optimizer(vec![(0, "m", b), (2, "m", w)]);
    sharded_optim_state(&mut optim, &params).unwrap();
    let at = |id: u64| {
        let leaf = optim.at(&["state".into(), id.into(), "m".into()]);
        tensor(leaf.unwrap().leaf().unwrap()).key.to_string()
    };
    assert_eq!(
        (at(0), at(2)),
        (
            "optimizer.state.m.fc.b".into(),
            "optimizer.state.m.fc.w".into()
        )
    );
}

#[test]
fn state_of_an_unknown_parameter_is_named_by_its_id() {
    let params = params(&[(0, "w")]);
    let stray = Value::Tensor(floats(&[2], &[0.; 2]));
    let error = sharded_optim_state(&mut optimizer(vec![(7, "m", stray)]), &params).unwrap_err();
    assert!(
        matches!(&error, OptimError::UnknownParam { id: ParamId(7), names } if names == &["m"])
    );
    assert_eq!(error.kind(), ErrorKind::Invalid);

    // An entry of which everything is excluded needs no parameter.
    let mut optim = optimizer(vec![(7, "step", Value::Int(3))]);
    optim_state_to_sharding_state(&mut optim, &params, &BTreeSet::from(["step"])).unwrap();
}

#[test]
fn excluded_names_are_whole_names() {
    // Megatron asks whether a name is a part of the text "step", which is true of these.
    let params = params(&[(1, "b")]);
    let both = dict(vec![
        ("s".into(), Value::Tensor(floats(&[2], &[0.; 2]))),
        ("step".into(), Value::Int(3)),
    ]);
    let mut optim = state(dict(vec![(
        "state".into(),
        dict(vec![(Value::Int(1), both)]),
    )]));
    optim_state_to_sharding_state(&mut optim, &params, &BTreeSet::from(["step"])).unwrap();
    assert_eq!(keys(&optim), ["optimizer.state.s.fc.b"]);
}

#[test]
fn a_state_of_another_shape_is_refused_with_its_id_and_key() {
    let params = params(&[(0, "w")]);
    let flat = Value::Tensor(floats(&[4], &[0.; 4]));
    let error = sharded_optim_state(&mut optimizer(vec![(0, "m", flat)]), &params).unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("optimizer.state.m.fc.w") && said.contains("param id 0"),
        "{said}"
    );
    assert!(said.contains("[4]") && said.contains("[2, 2]"), "{said}");
}

#[test]
fn what_is_no_tensor_is_refused_with_its_id_and_key() {
    let params = params(&[(0, "w")]);
    let error = sharded_optim_state(&mut optimizer(vec![(0, "m", Value::Int(1))]), &params);
    let said = error.unwrap_err().to_string();
    assert!(
        said.contains("optimizer.state.m.fc.w") && said.contains("is a int"),
        "{said}"
    );
}

#[test]
fn the_step_of_all_parameters_is_stored_once_and_comes_back_to_each() {
    let params = params(&[(0, "b"), (1, "w")]);
    let mut optim = optimizer(vec![(0, "step", Value::Int(9)), (1, "step", Value::Int(9))]);
    sharded_optim_state(&mut optim, &params).unwrap();
    let common = optim.at(&["state".into(), "common_step".into()]).unwrap();
    assert!(matches!(common.leaf(), Some(Leaf::Value(Value::Int(9)))));
    assert!(
        optim
            .at(&["state".into(), 0.into(), "step".into()])
            .is_none()
    );

    let mut loaded: ValueTree = optim.map(&mut |leaf| match leaf {
        Leaf::Value(v) => v,
        Leaf::Local(local) => Value::Local(local),
        other => panic!("{other:?}"),
    });
    restore_optim_state(&mut loaded).unwrap();
    for id in [0, 1] {
        let step = loaded
            .at(&["state".into(), id.into(), "step".into()])
            .unwrap();
        assert_eq!(step.leaf(), Some(&Value::Int(9)));
    }
    assert!(loaded.at(&["state".into(), "common_step".into()]).is_none());
    let params = loaded
        .at(&["param_groups".into(), 0.into(), "params".into()])
        .unwrap();
    assert_eq!(
        params.leaf(),
        Some(&Value::List(vec![Value::Int(0), Value::Int(1)]))
    );
}

#[test]
fn a_step_of_zero_is_not_stored() {
    for zero in [
        Value::Int(0),
        Value::Float(0.),
        Value::Tensor(floats(&[], &[0.])),
    ] {
        let params = params(&[(0, "b")]);
        let mut optim = optimizer(vec![(0, "step", zero)]);
        sharded_optim_state(&mut optim, &params).unwrap();
        assert!(optim.at(&["state".into(), "common_step".into()]).is_none());
    }
}

#[test]
fn unequal_steps_are_refused_with_both_ids_and_nothing_changes() {
    let float = |f: f32| Value::Tensor(floats(&[], &[f]));
    let mut optim = optimizer(vec![(3, "step", float(8.)), (5, "step", float(9.))]);
    let said = take_common_step(&mut optim).unwrap_err().to_string();
    assert!(
        said.contains("8 for param id 3") && said.contains("9 for param id 5"),
        "{said}"
    );
    assert!(
        optim
            .at(&["state".into(), 3.into(), "step".into()])
            .is_some()
    );
}

#[test]
fn params_of_groups_are_local_even_after_a_second_call() {
    let params = params(&[]);
    let mut optim = optimizer(vec![]);
    for _ in 0..2 {
        sharded_optim_state(&mut optim, &params).unwrap();
        let leaf = optim
            .at(&["param_groups".into(), 0.into(), "params".into()])
            .unwrap();
        let Some(Leaf::Local(LocalNonpersistent(params))) = leaf.leaf() else {
            panic!("{leaf:?}");
        };
        let want = Value::List(vec![Value::Int(0), Value::Int(1)]);
        assert_eq!(params.downcast_ref::<Value>(), Some(&want));
    }
}

#[test]
fn two_parameters_can_not_share_an_id_and_the_first_id_of_one_counts() {
    let model = model();
    let twice = [(ParamId(0), "w"), (ParamId(0), "b")];
    let error = param_id_to_sharded_param_map(&model, twice).unwrap_err();
    assert!(matches!(error, OptimError::SameId { id: ParamId(0), .. }));

    let tied = [(ParamId(2), "w"), (ParamId(5), "w")];
    let params = param_id_to_sharded_param_map(&model, tied).unwrap();
    let ids: Vec<u64> = params.iter().map(|p| p.id().0).collect();
    assert_eq!(ids, [2]);
}

#[test]
fn a_name_with_dots_is_found_and_an_ambiguous_one_is_refused() {
    let leaf = || ShardedTensor::full("w", floats(&[1], &[0.]));
    let mut model = StateDict::new();
    model.insert("a.w", leaf());
    assert!(
        param_id_to_sharded_param_map(&model, [(ParamId(0), "a.w")])
            .unwrap()
            .get(ParamId(0))
            .is_some()
    );
    let mut inner = StateDict::new();
    inner.insert("w", leaf());
    model.insert_tree("a", inner);
    let error = param_id_to_sharded_param_map(&model, [(ParamId(0), "a.w")]).unwrap_err();
    assert!(matches!(error, OptimError::SameName { .. }));
}

fn swiglu(form: Swiglu) -> StateDict {
    let local = floats(&[4, 2], &[1., 2., 3., 4., 5., 6., 7., 8.]);
    let whole = ShardedTensor::from_rank_offsets("fc1", local, &[(0, 1, 2)]).unwrap();
    let mut model = StateDict::new();
    model.insert("fc1", ShardedTensorFactory::swiglu(whole, form).unwrap());
    model
}

fn built(leaf: Leaf) -> Vec<ShardedTensor> {
    let Leaf::Factory(f) = leaf else {
        panic!("{leaf:?}")
    };
    let parts = f.build().unwrap().into_nested_values();
    parts
        .into_iter()
        .map(|part| match part {
            Sharded::Tensor(t) => t,
            Sharded::Object(o) => panic!("{o:?}"),
        })
        .collect()
}

#[test]
fn a_factory_of_the_model_builds_the_state_as_it_built_the_parameter() {
    for (form, names) in [
        (
            Swiglu::OneKey,
            ["optimizer.state.m.fc1", "optimizer.state.m.fc1"],
        ),
        (
            Swiglu::TwoKeys,
            ["optimizer.state.m.fc1_w", "optimizer.state.m.fc1_v"],
        ),
    ] {
        let params = param_id_to_sharded_param_map(&swiglu(form), [(ParamId(0), "fc1")]).unwrap();
        let param = params.get(ParamId(0)).unwrap();
        let state = Tensor::from_vec(&[4, 2], vec![0.5f64; 8]).unwrap();
        let parts =
            built(make_sharded_optimizer_tensor(param, state, "optimizer.state.m").unwrap());
        let got: Vec<&str> = parts.iter().map(|t| &*t.key).collect();
        assert_eq!(got, names);
        assert!(
            parts
                .iter()
                .all(|t| t.dtype == DType::Float64 && t.local_shape == [2, 2].into())
        );

        // A template has its own type, too.
        let template = OptimTensor::template(DType::Float64, &[4, 2]);
        let parts =
            built(make_sharded_optimizer_tensor(param, template, "optimizer.state.m").unwrap());
        assert!(parts.iter().all(|t| t.dtype == DType::Float64));

        let wrong = floats(&[8], &[0.; 8]);
        let error = make_sharded_optimizer_tensor(param, wrong, "optimizer.state.m").unwrap_err();
        assert!(matches!(error, OptimError::Shape { .. }), "{error}");
    }
}

#[test]
fn a_factory_cuts_a_flattened_range_of_the_state() {
    let params =
        param_id_to_sharded_param_map(&swiglu(Swiglu::OneKey), [(ParamId(0), "fc1")]).unwrap();
    let range = OptimTensor::from(floats(&[4], &[1., 2., 3., 4.])).flattened(2..6);
    let parts =
        built(make_sharded_optimizer_tensor(params.get(ParamId(0)).unwrap(), range, "o").unwrap());
    let got: Vec<_> = parts
        .iter()
        .map(|t| (t.global_offset[0], t.flattened_range.clone().unwrap()))
        .collect();
    assert_eq!(got, [(2, 2..4), (6, 0..2)]);
}

#[test]
fn a_flattened_range_of_a_plain_parameter_is_declared_with_it() {
    let params = params(&[(0, "w")]);
    let range = OptimTensor::from(floats(&[3], &[1., 2., 3.])).flattened(1..4);
    let leaf = make_sharded_optimizer_tensor(params.get(ParamId(0)).unwrap(), range, "o").unwrap();
    assert_eq!(tensor(&leaf).flattened_range, Some(1..4));
    assert_eq!(tensor(&leaf).local_shape, [2, 2].into());
}

#[test]
fn what_is_both_transposed_and_flattened_is_refused_with_the_reason() {
    // The rows of this view are columns in memory.
    let memory = floats(&[2, 3], &[1., 2., 3., 4., 5., 6.]);
    let transposed = Layout::new(4, 0, Dims::from([3, 2]), Dims::from([1, 3])).unwrap();
    let view = memory.view_as(DType::Float32, transposed).unwrap();
    let mut model = StateDict::new();
    model.insert("w", ShardedTensor::full("w", view.clone()));
    let params = param_id_to_sharded_param_map(&model, [(ParamId(6), "w")]).unwrap();
    let param = params.get(ParamId(6)).unwrap();

    let range = OptimTensor::from(floats(&[2], &[0.; 2])).flattened(0..2);
    let error = make_sharded_optimizer_tensor(param, range, "optimizer.state.m").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let said = error.to_string();
    assert!(
        said.contains("optimizer.state.m.w") && said.contains("param id 6"),
        "{said}"
    );
    assert!(said.contains("transposed and flattened"), "{said}");

    // Unflattened it may be transposed.
    make_sharded_optimizer_tensor(param, view, "optimizer.state.m").unwrap();
}

#[test]
fn what_a_factory_refuses_is_known_at_declaration() {
    // It stores its tensor transposed, so it can't take a range.
    let data = floats(&[2, 2], &[0.; 4]);
    let build = |f: &ShardedTensorFactory| match &f.flattened_range {
        None => Ok(Tree::List(Vec::new())),
        Some(range) => Err(ModelError::Structure {
            path: f.key.to_string(),
            what: format!(
                "elements {}..{} of a transposed tensor are no range",
                range.start, range.end
            ),
        }),
    };
    let factory = ShardedTensorFactory::new("w", data, build, |_, _| Ok(Value::None));
    let mut model = StateDict::new();
    model.insert("w", factory);
    let params = param_id_to_sharded_param_map(&model, [(ParamId(0), "w")]).unwrap();
    let param = params.get(ParamId(0)).unwrap();
    make_sharded_optimizer_tensor(param, floats(&[2, 2], &[0.; 4]), "o").unwrap();
    let range = OptimTensor::from(floats(&[1], &[0.])).flattened(1..2);
    let error = make_sharded_optimizer_tensor(param, range, "o").unwrap_err();
    assert_eq!(
        error.to_string(),
        "at o.w: elements 1..2 of a transposed tensor are no range"
    );
}

#[test]
fn the_common_step_is_taken_out_of_each_parameter() {
    let mut optim = optimizer(vec![(0, "step", Value::Int(9)), (4, "step", Value::Int(9))]);
    assert_eq!(take_common_step(&mut optim).unwrap(), Some(Value::Int(9)));
    assert_eq!(take_common_step(&mut optim).unwrap(), None);
}

#[test]
fn a_part_of_a_larger_tensor_is_not_transposed() {
    let memory = floats(&[2, 4], &[0.; 8]);
    let part = memory.narrow(&reshard::Region::new([0, 1], [2, 2]));
    let mut model = StateDict::new();
    model.insert("w", ShardedTensor::full("w", part));
    let params = param_id_to_sharded_param_map(&model, [(ParamId(0), "w")]).unwrap();
    let range = OptimTensor::from(floats(&[2], &[0.; 2])).flattened(1..3);
    make_sharded_optimizer_tensor(params.get(ParamId(0)).unwrap(), range, "o").unwrap();
}

#[test]
fn several_optimizers_are_one_dict_with_prefixes_and_a_single_one_stays() {
    let child = || {
        let params = params(&[(0, "b")]);
        let b = Value::Tensor(floats(&[2], &[0.; 2]));
        let mut optim = optimizer(vec![(0, "m", b)]);
        sharded_optim_state(&mut optim, &params).unwrap();
        optim
    };
    assert_eq!(
        keys(&chained_optim_state(vec![child()], true)),
        ["optimizer.state.m.fc.b"]
    );
    let two = chained_optim_state(vec![child(), child()], true);
    assert_eq!(
        keys(&two),
        [
            "chained_0.optimizer.state.m.fc.b",
            "chained_1.optimizer.state.m.fc.b"
        ]
    );
    assert!(matches!(&two, Tree::Dict(d) if d.keys().eq([&0.into(), &1.into()])));
    let bare = chained_optim_state(vec![child(), child()], false);
    assert!(
        keys(&bare)
            .iter()
            .all(|key| key == "optimizer.state.m.fc.b")
    );
}

#[test]
fn the_float32_copies_lie_beside_the_state() {
    let params = params(&[(0, "b"), (1, "w")]);
    let groups = vec![
        vec![(ParamId(1), floats(&[2, 2], &[0.; 4]))],
        vec![(ParamId(0), floats(&[2], &[0.; 2]))],
    ];
    let state = fp32_from_fp16_params(groups, &params).unwrap();
    assert_eq!(
        keys(&state),
        [
            "optimizer.state.fp32_param.fc.w",
            "optimizer.state.fp32_param.fc.b"
        ]
    );
    let Tree::List(groups) = &state else {
        panic!("{state:?}")
    };
    assert!(matches!(&groups[0], Tree::List(g) if g.len() == 1));
    let stray = vec![vec![(ParamId(9), floats(&[1], &[0.]))]];
    let error = fp32_from_fp16_params(stray, &params).unwrap_err();
    assert!(matches!(
        error,
        OptimError::UnknownParam { id: ParamId(9), .. }
    ));
    let template = tensor_of(&state).without_data();
    assert!(matches!(template.data, Data::None));
}

fn tensor_of(state: &StateDict) -> ShardedTensor {
    tensor(state.nested_values()[0]).clone()
}

#[test]
fn what_does_not_have_the_form_of_an_optimizer_is_refused_with_its_path() {
    let params = params(&[(0, "b")]);
    let list = Value::List(vec![]);
    for (bad, path) in [
        (dict(vec![("state".into(), list.clone())]), "state"),
        (
            dict(vec![(
                "state".into(),
                dict(vec![(Value::Int(0), Value::Int(1))]),
            )]),
            "state.0",
        ),
        (
            dict(vec![("param_groups".into(), Value::Int(1))]),
            "param_groups",
        ),
        (
            dict(vec![("param_groups".into(), Value::List(vec![list]))]),
            "param_groups.0",
        ),
    ] {
        let error = optim_state_to_sharding_state(&mut state(bad), &params, &BTreeSet::new());
        let said = error.unwrap_err().to_string();
        assert!(said.starts_with(&format!("at {path}:")), "{said}");
    }
}

/// The rows of a tensor-parallel rank, `[w | v]`: of 8 rows `w` and 8 rows `v`, whose numbers are all different.
fn gated(rank: u64, of: u64) -> Tensor {
    let rows = 8 / of;
    let row = |i: u64| [i as f32 * 2., i as f32 * 2. + 1.];
    let half = |first: u64| (first..first + rows).flat_map(row).collect::<Vec<f32>>();
    Tensor::from_vec(
        &[rows * 2, 2],
        [half(rank * rows), half(8 + rank * rows)].concat(),
    )
    .unwrap()
}

/// The momentum of a gated linear unit of which tensor-parallel rank `rank` has its part.
fn momentum_of_gated(rank: u64, of: u64, form: Swiglu, data: Option<Tensor>) -> StateDict {
    let whole =
        ShardedTensor::declare("fc1", DType::BFloat16, &[16 / of, 2], &[(0, rank, of)], 0).unwrap();
    let mut model = StateDict::new();
    model.insert("fc1", ShardedTensorFactory::swiglu(whole, form).unwrap());
    let params = param_id_to_sharded_param_map(&model, [(ParamId(0), "fc1")]).unwrap();
    let state = match data {
        Some(data) => OptimTensor::from(data),
        None => OptimTensor::template(DType::Float32, &[16 / of, 2]),
    };
    let leaf =
        make_sharded_optimizer_tensor(params.get(ParamId(0)).unwrap(), state, "optimizer.state.m");
    let mut out = StateDict::new();
    out.insert("m", leaf.unwrap());
    out
}

#[test]
fn state_of_a_gated_linear_unit_is_saved_on_two_ranks_and_loaded_on_one_and_four() {
    for form in [Swiglu::OneKey, Swiglu::TwoKeys] {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("saved").display().to_string();
        let states: Vec<StateDict> = (0..2)
            .map(|rank| momentum_of_gated(rank, 2, form, Some(gated(rank, 2))))
            .collect();
        let groups = LocalGroup::new(2);
        let saves = groups.iter().zip(&states).map(|(group, state)| {
            let save = reshard::save(state, &url).group(group);
            async move { save.await }
        });
        for saved in block_on(join_all(saves)) {
            saved.unwrap();
        }
        for of in [1, 4] {
            for rank in 0..of {
                let template = momentum_of_gated(rank, of, form, None);
                let loaded = reshard::blocking::load(template, &url).unwrap();
                let got = loaded
                    .get("m")
                    .unwrap()
                    .leaf()
                    .unwrap()
                    .as_tensor()
                    .unwrap();
                assert_eq!(
                    got.to_vec::<f32>().unwrap(),
                    gated(rank, of).to_vec::<f32>().unwrap(),
                    "{form:?}: {rank} of {of}"
                );
            }
        }
    }
}
