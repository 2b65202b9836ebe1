//! Modules that are made of modules, and plain state in simple parallelism.

use crate::state::floats;
use futures::{executor::block_on, future::join_all};
use reshard::{
    LocalGroup, StateDict, Tensor, Value, ValueTree,
    model::{BoxError, Leaf},
};
use reshard_optim::{Module, ShardPlace, Sharded};
use std::{cell::RefCell, rc::Rc};

/// Rows are cut; the bias is the same on all ranks.
struct Linear {
    weight: Tensor,
    bias: Tensor,
    seen: Rc<RefCell<Vec<Vec<f32>>>>,
}

impl Sharded for Linear {
    fn sharded_state_dict(&self, prefix: &str, place: &ShardPlace) -> Result<StateDict, BoxError> {
        let mut plain = ValueTree::new();
        plain.insert("weight", Value::Tensor(self.weight.clone()));
        plain.insert("bias", Value::Tensor(self.bias.clone()));
        Ok(StateDict::from_plain(
            plain,
            prefix,
            place,
            &[("weight", 0)],
        )?)
    }

    fn load_state_dict(&mut self, mut state: ValueTree) -> Result<(), BoxError> {
        let mut take = |name: &str| {
            let loaded = state
                .remove(name)
                .and_then(|t| t.into_leaf()?.into_tensor());
            loaded.ok_or_else(|| format!("{name} was not loaded"))
        };
        (self.weight, self.bias) = (take("weight")?, take("bias")?);
        self.seen.borrow_mut().push(self.weight.to_vec().unwrap());
        Ok(())
    }
}

fn linear(first: f32, rows: u64, seen: &Rc<RefCell<Vec<Vec<f32>>>>) -> Linear {
    let values: Vec<f32> = (0..rows * 2).map(|i| first + i as f32).collect();
    Linear {
        weight: floats(&[rows, 2], &values),
        bias: floats(&[1], &[first]),
        seen: Rc::clone(seen),
    }
}

/// Two layers in a block; tensor-parallel rank `rank` of `of` has its rows of 4.
fn block(rank: u64, of: u64, fill: bool, seen: &Rc<RefCell<Vec<Vec<f32>>>>) -> Module<'static> {
    let rows = 4 / of;
    let first = if fill {
        (rank * rows * 2) as f32
    } else {
        -1000.
    };
    Module::new().with("a", linear(first, rows, seen)).with(
        "inner",
        Module::new().with("b", linear(first + 100., rows, seen)),
    )
}

#[test]
fn a_model_of_modules_is_saved_on_two_ranks_and_loaded_on_four() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("saved").display().to_string();
    let seen = Rc::default();
    let states: Vec<StateDict> = (0..2)
        .map(|rank| {
            let place = ShardPlace::new().tensor_parallel(rank, 2);
            let model = block(rank.into(), 2, true, &seen);
            let state = model.sharded_state_dict("model.", &place).unwrap();
            replicated_bias(state)
        })
        .collect();
    let groups = LocalGroup::new(2);
    let saves = groups.iter().zip(&states).map(|(group, state)| {
        let save = reshard::save(state, &url).group(group);
        async move { save.await }
    });
    for saved in block_on(join_all(saves)) {
        saved.unwrap();
    }

    let seen = Rc::default();
    let groups = LocalGroup::new(4);
    let mut models: Vec<Module<'_>> = (0..4).map(|rank| block(rank, 4, false, &seen)).collect();
    let loads = groups
        .iter()
        .zip(&models)
        .enumerate()
        .map(|(rank, (group, model))| {
            let place = ShardPlace::new().tensor_parallel(rank as u32, 4);
            let template = owned(model.sharded_state_dict("model.", &place).unwrap());
            let load = reshard::load(template, &url).group(group);
            async move { load.await }
        });
    let loaded = block_on(join_all(loads));
    for (model, state) in models.iter_mut().zip(loaded) {
        model.load_state_dict(state.unwrap()).unwrap();
    }
    let row = |first: f32| vec![first, first + 1.];
    let want: Vec<Vec<f32>> = (0..4)
        .flat_map(|rank| [row(2. * rank as f32), row(100. + 2. * rank as f32)])
        .collect();
    assert_eq!(*seen.borrow(), want);
}

/// All ranks must have the same bias; here it has the first row's number.
fn replicated_bias(mut state: StateDict) -> StateDict {
    state.visit_mut(&mut |_, leaf| {
        if let Leaf::Tensor(t) = leaf
            && t.key.ends_with("bias")
        {
            *t = t.clone().with_data(floats(&[1], &[7.]));
        }
    });
    state
}

/// A template that the load allocates, because the model keeps its handles.
pub(crate) fn owned(mut state: StateDict) -> StateDict {
    state.visit_mut(&mut |_, leaf| {
        if let Leaf::Tensor(t) = leaf {
            *t = t.without_data();
        }
    });
    state
}

#[test]
fn an_error_of_a_module_has_its_prefix() {
    struct Broken;
    impl Sharded for Broken {
        fn sharded_state_dict(&self, _: &str, _: &ShardPlace) -> Result<StateDict, BoxError> {
            Err("no memory".into())
        }
        fn load_state_dict(&mut self, _: ValueTree) -> Result<(), BoxError> {
            Err("no memory".into())
        }
    }
    let model = Module::new().with("outer", Module::new().with("inner", Broken));
    let error = model
        .sharded_state_dict("m.", &ShardPlace::new())
        .unwrap_err();
    assert_eq!(error.to_string(), "module m.outer. failed");
    let inner = error.source().unwrap();
    assert_eq!(inner.to_string(), "module m.outer.inner. failed");
    assert_eq!(inner.source().unwrap().to_string(), "no memory");
}

#[test]
fn state_that_no_child_takes_is_an_error() {
    let seen = Rc::default();
    let mut model = Module::new().with("a", linear(0., 1, &seen));
    let mut part = ValueTree::new();
    part.insert("weight", Value::Tensor(floats(&[1, 2], &[0.; 2])));
    part.insert("bias", Value::Tensor(floats(&[1], &[0.])));
    let mut state = ValueTree::new();
    state.insert_tree("a", part);
    state.insert("b", Value::Int(1));
    let error = model.load_state_dict(state).unwrap_err();
    assert_eq!(error.to_string(), "no child takes the state of b");
}

#[test]
fn two_children_of_one_name_are_refused() {
    let seen = Rc::default();
    let model = Module::new()
        .with("a", linear(0., 1, &seen))
        .with("a", linear(0., 1, &seen));
    let error = model
        .sharded_state_dict("", &ShardPlace::new())
        .unwrap_err();
    assert!(
        error.to_string().contains("two children are named a."),
        "{error}"
    );
}
