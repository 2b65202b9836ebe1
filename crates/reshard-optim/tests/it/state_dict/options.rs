//! What each option does, and what is refused.

use super::toy::{Held, ToyModel, ToyOptimizer, on_ranks};
use futures::executor::block_on;
use reshard::{
    DType, Tensor, Value, ValueTree,
    model::{Leaf, StateDict, Tree},
};
use reshard_optim::{
    IncompatibleKeys, OptimError, StateDictOptions, get_model_state_dict, get_optimizer_state_dict,
    get_state_dict, set_model_state_dict, set_optimizer_state_dict,
};
use std::sync::Arc;

/// `a` of 5 rows and `b` of 3 on `ranks` ranks, with a plain buffer.
fn model(rank: u64, ranks: u64) -> ToyModel {
    let numbered = |name: &str, id, rows: u64| {
        let values: Vec<f32> = (0..rows * 2).map(|i| i as f32 + 100. * id as f32).collect();
        let mut held = Held::zeros(name, id, DType::Float32, &[rows, 2]);
        held.local = Tensor::from_vec(&[rows, 2], values).unwrap();
        held.of_rank(rank, ranks)
    };
    ToyModel {
        prefix: String::new(),
        params: vec![numbered("a", 0, 5), numbered("b", 1, 3)],
        buffers: vec![Held::zeros("c", 9, DType::Int64, &[2])],
    }
}

fn names(state: &StateDict) -> Vec<String> {
    let Tree::Dict(d) = state else {
        panic!("no dict")
    };
    d.keys().map(ToString::to_string).collect()
}

fn floats(state: &StateDict, name: &str) -> Vec<f32> {
    match state.get(name).and_then(Tree::leaf) {
        Some(Leaf::Value(Value::Tensor(t))) => t.to_vec().unwrap(),
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn whole_tensors_come_together_on_all_ranks_or_on_the_coordinator_alone() {
    for cpu_offload in [false, true] {
        let states = on_ranks(3, async |rank, comm| {
            let options = StateDictOptions {
                full_state_dict: true,
                cpu_offload,
                comm,
                ..StateDictOptions::default()
            };
            let model = model(rank, 3);
            let optimizer = ToyOptimizer::of(&model, &[&[0, 1]]);
            get_state_dict(&model, &[&optimizer], &options)
                .await
                .unwrap()
        });
        for (rank, state) in states.iter().enumerate() {
            if cpu_offload && rank > 0 {
                assert_eq!(names(&state.model), [""; 0]);
                assert_eq!(names(&state.optim), [""; 0]);
                continue;
            }
            let wanted: Vec<f32> = (0..10).map(|i| i as f32).collect();
            assert_eq!(floats(&state.model, "a"), wanted);
            assert_eq!(
                floats(&state.model, "b"),
                [100., 101., 102., 103., 104., 105.]
            );
            let avg = state
                .optim
                .at(&["state".into(), "b".into(), "exp_avg".into()]);
            let Some(Tree::Leaf(Leaf::Value(Value::Tensor(avg)))) = avg else {
                panic!("{avg:?}")
            };
            assert_eq!(**avg.shape(), [3, 2]);
        }
    }
}

#[test]
fn the_coordinator_s_dict_reaches_all_ranks_and_each_gets_its_part() {
    let whole = on_ranks(1, async |_, comm| {
        let options = StateDictOptions {
            full_state_dict: true,
            comm,
            ..StateDictOptions::default()
        };
        let model = model(0, 1);
        let mut optimizer = ToyOptimizer::of(&model, &[&[0, 1]]);
        optimizer.groups[0]
            .options
            .push(("betas".into(), Value::Tuple(vec![0.9.into(), 0.99.into()])));
        get_state_dict(&model, &[&optimizer], &options)
            .await
            .unwrap()
    });
    let plain = |state: &StateDict| -> ValueTree {
        let value = |leaf: Leaf| match leaf {
            Leaf::Value(v) => v,
            other => panic!("{other:?}"),
        };
        state.clone().map(&mut |leaf| value(leaf))
    };
    let loaded = on_ranks(3, async |rank, comm| {
        let options = StateDictOptions {
            full_state_dict: true,
            broadcast_from_rank0: true,
            comm,
            ..StateDictOptions::default()
        };
        let mut to = model(rank, 3);
        for p in &mut to.params {
            p.local = Tensor::zeros("", p.dtype, p.local.shape()).unwrap();
        }
        let mut optimizer = ToyOptimizer::of(&to, &[&[0, 1]]);
        let dict = |state: &StateDict| {
            if rank == 0 {
                plain(state)
            } else {
                ValueTree::new()
            }
        };
        let keys = set_model_state_dict(&mut to, dict(&whole[0].model), &options)
            .await
            .unwrap();
        assert_eq!(keys, IncompatibleKeys::default());
        let dict = dict(&whole[0].optim);
        let keys = set_optimizer_state_dict(&to, &mut [&mut optimizer], dict, &options)
            .await
            .unwrap();
        assert_eq!(keys, IncompatibleKeys::default());
        (to, optimizer)
    });
    for (rank, (got, optimizer)) in loaded.iter().enumerate() {
        for (got, wanted) in got.params.iter().zip(&model(rank as u64, 3).params) {
            assert_eq!(
                got.local.to_bytes(),
                wanted.local.to_bytes(),
                "{} on {rank}",
                got.name
            );
        }
        let betas = optimizer.groups[0]
            .options
            .iter()
            .find(|(n, _)| &**n == "betas")
            .unwrap();
        assert_eq!(betas.1, Value::Tuple(vec![0.9.into(), 0.99.into()]));
        let (name, avg) = &optimizer.state[&0][1];
        assert_eq!(
            (&**name, avg.as_tensor().unwrap().shape()),
            ("exp_avg", got.params[0].local.shape())
        );
    }
}

#[test]
fn a_broadcast_of_what_is_not_full_is_refused() {
    let options = StateDictOptions {
        broadcast_from_rank0: true,
        ..StateDictOptions::default()
    };
    let mut to = model(0, 1);
    let error = block_on(set_model_state_dict(&mut to, ValueTree::new(), &options)).unwrap_err();
    assert!(matches!(error, OptimError::Options(_)), "{error}");
}

#[test]
fn a_rank_whose_model_contradicts_itself_fails_with_all_others() {
    let errors = on_ranks(3, async |rank, comm| {
        let options = StateDictOptions {
            full_state_dict: true,
            comm,
            ..StateDictOptions::default()
        };
        let mut model = model(rank, 3);
        if rank == 1 {
            model.params[1].name = "a".into();
        }
        get_model_state_dict(&model, &options)
            .await
            .unwrap_err()
            .to_string()
    });
    for error in errors {
        assert!(
            error.contains("rank 1") && error.contains("two leaves"),
            "{error}"
        );
    }
}

#[test]
fn a_tensor_of_which_no_rank_has_a_part_is_named() {
    let errors = on_ranks(2, async |rank, comm| {
        let options = StateDictOptions {
            full_state_dict: true,
            comm,
            ..StateDictOptions::default()
        };
        // As if there were a third rank.
        get_model_state_dict(&model(rank, 3), &options)
            .await
            .unwrap_err()
            .to_string()
    });
    for error in errors {
        assert!(
            error.contains("a: the ranks have 32 bytes of 40"),
            "{error}"
        );
    }
}

#[test]
fn differences_are_listed_whole_and_nothing_is_loaded() {
    let mut to = model(0, 1);
    let before = to.params[0].local.to_bytes();
    let mut dict = ValueTree::new();
    dict.insert("a", Tensor::zeros("", DType::Float32, &[5, 2]).unwrap());
    dict.insert("y", 1i64);
    dict.insert("x", 1i64);
    let error = block_on(set_model_state_dict(
        &mut to,
        dict.clone(),
        &StateDictOptions::default(),
    ))
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the model and its state dict differ; missing: b, c; unexpected: x, y; set `strict` to false to load the rest"
    );
    assert_eq!(to.params[0].local.to_bytes(), before);

    let options = StateDictOptions {
        strict: false,
        ..StateDictOptions::default()
    };
    let keys = block_on(set_model_state_dict(&mut to, dict, &options)).unwrap();
    assert_eq!(keys.missing_keys, ["b", "c"]);
    assert_eq!(keys.unexpected_keys, ["x", "y"]);
    assert!(to.params[0].local.to_bytes().iter().all(|b| *b == 0));
}

#[test]
fn differences_of_an_optimizer_are_listed_whole() {
    let model = model(0, 1);
    let other = ToyModel {
        params: vec![
            model.params[0].clone(),
            Held::zeros("z", 1, DType::Float32, &[3, 2]),
        ],
        ..ToyModel::default()
    };
    let dict = block_on(get_optimizer_state_dict(
        &other,
        &[&ToyOptimizer::of(&other, &[&[0, 1]])],
        &StateDictOptions::default(),
    ))
    .unwrap()
    .map(&mut |leaf| match leaf {
        Leaf::Value(v) => v,
        Leaf::Tensor(t) => t.data.host().unwrap().clone().into(),
        other => panic!("{other:?}"),
    });
    let mut optimizer = ToyOptimizer::of(&model, &[&[0, 1]]);
    let options = StateDictOptions::default();
    let error = block_on(set_optimizer_state_dict(
        &model,
        &mut [&mut optimizer],
        dict,
        &options,
    ))
    .unwrap_err();
    let OptimError::Incompatible {
        missing,
        unexpected,
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(missing, ["param_groups.b", "state.b"]);
    assert_eq!(unexpected, ["param_groups.z", "state.z"]);
}

#[test]
fn frozen_parameters_are_left_out_and_not_missed_but_keep_their_state() {
    let mut model = model(0, 1);
    model.params[1].trained = false;
    let options = StateDictOptions {
        ignore_frozen_params: true,
        ..StateDictOptions::default()
    };
    let optimizer = ToyOptimizer::of(&model, &[&[0, 1]]);
    let dicts = block_on(get_state_dict(&model, &[&optimizer], &options)).unwrap();
    assert_eq!(names(&dicts.model), ["a", "c"]);
    assert!(
        dicts
            .optim
            .at(&["state".into(), "b".into(), "exp_avg".into()])
            .is_some()
    );

    let mut dict = ValueTree::new();
    dict.insert("a", Tensor::zeros("", DType::Float32, &[5, 2]).unwrap());
    dict.insert("c", Tensor::zeros("", DType::Int64, &[2]).unwrap());
    let keys = block_on(set_model_state_dict(&mut model, dict, &options)).unwrap();
    assert_eq!(keys, IncompatibleKeys::default());
}

#[test]
fn names_of_wrappers_and_submodules_are_as_the_options_say() {
    let mut wrapped = model(0, 1);
    wrapped.prefix = "module._orig_mod.net._fsdp_wrapped_module.".into();
    let get = |options: StateDictOptions<'_>| {
        names(&block_on(get_model_state_dict(&wrapped, &options)).unwrap())
    };
    assert_eq!(
        get(StateDictOptions::default()),
        ["net.a", "net.b", "net.c"]
    );
    let kept = StateDictOptions {
        keep_module_prefix: true,
        ..StateDictOptions::default()
    };
    assert_eq!(get(kept), ["module.net.a", "module.net.b", "module.net.c"]);
    let cut = StateDictOptions {
        submodules: vec!["net".into()],
        keep_submodule_prefixes: false,
        ..StateDictOptions::default()
    };
    assert_eq!(get(cut), ["a", "b", "c"]);
    let renamed = StateDictOptions {
        fqn_modifiers: Some(Arc::new(|name| name.replace("net", "model"))),
        ..StateDictOptions::default()
    };
    assert_eq!(get(renamed), ["model.a", "model.b", "model.c"]);

    // A load goes to the model's own names.
    let mut dict = ValueTree::new();
    dict.insert("net.a", Tensor::zeros("", DType::Float32, &[5, 2]).unwrap());
    let options = StateDictOptions {
        strict: false,
        ..StateDictOptions::default()
    };
    block_on(set_model_state_dict(&mut wrapped, dict, &options)).unwrap();
    assert!(wrapped.params[0].local.to_bytes().iter().all(|b| *b == 0));
}

#[test]
fn tied_weights_are_in_the_model_twice_and_have_state_once() {
    let mut model = model(0, 1);
    let mut head = model.params[0].clone();
    head.name = "head".into();
    model.params.push(head);
    let optimizer = ToyOptimizer::of(&model, &[&[0, 1]]);
    let dicts = block_on(get_state_dict(
        &model,
        &[&optimizer],
        &StateDictOptions::default(),
    ))
    .unwrap();
    assert_eq!(names(&dicts.model), ["a", "b", "head", "c"]);
    assert_eq!(names(dicts.optim.get("state").unwrap()), ["a", "b"]);
}
