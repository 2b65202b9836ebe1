//! What PyTorch's helpers saved: ours load it, and save the same keys and values again, on other ranks too.

use super::toy::{Held, ToyModel, ToyOptimizer};
use futures::{executor::block_on, future::join_all};
use reshard::{Checkpoint, Dialect, LocalGroup, StateDict, Tensor, Value, ValueTree, model::Leaf};
use reshard_comm::Comm;
use reshard_model::testkit::fixture;
use reshard_optim::{
    OptimizerState, StateDictOptions, get_optimizer_state_dict, get_state_dict,
    set_optimizer_state_dict, set_state_dict, unflatten_optimizer_state_dict,
};
use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};
use std::{collections::BTreeMap, fs};

/// Checkpoints of a model and an optimizer by name.
const BY_NAME: [&str; 6] = [
    "v2.3.1/adam_dsd",
    "v2.4.1/adam_dsd",
    "v2.14.0/adam_dsd",
    "fsdp2_adam_w4",
    "hsdp_w4",
    "fsdp2_flat_optim_w2",
];

/// A checkpoint, and what is known of it. `None` if the fixtures are of another folder, which lacks it.
fn found(name: &str) -> Option<(Checkpoint, Json)> {
    let folder = fixture(&format!("dcp/{name}"))?;
    let expected = fs::read(folder.join("expected.json")).unwrap();
    let expected = serde_json::from_slice(&expected).unwrap();
    Some((open(&folder.join("ckpt").display().to_string()), expected))
}

fn open(url: &str) -> Checkpoint {
    block_on(Checkpoint::open(url)).unwrap()
}

fn sha256(tensor: &Tensor) -> String {
    let digest = Sha256::digest(tensor.to_bytes());
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

/// A value of which Python said this: a number, a bool, `None` or a tuple of them.
fn parsed(repr: &str) -> Value {
    match repr {
        "None" => Value::None,
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        _ => match repr.strip_prefix('(').and_then(|r| r.strip_suffix(')')) {
            Some(all) => Value::Tuple(all.split(", ").map(parsed).collect()),
            None => match repr.parse() {
                Ok(int) => Value::Int(int),
                Err(_) => Value::Float(repr.parse().unwrap()),
            },
        },
    }
}

/// The object that PyTorch 2.3 stored of all groups, as later versions store it: an object for each option.
fn by_option(objects: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let [(key, Value::List(groups))] = &objects.iter().collect::<Vec<_>>()[..] else {
        panic!("{objects:?}")
    };
    let options = groups.iter().enumerate().flat_map(|(i, group)| {
        let Value::Dict(options) = group else {
            panic!("{group:?}")
        };
        let key = move |name: &Value| format!("{key}.{i}.{}", name.as_str().unwrap());
        options.iter().map(move |(n, v)| (key(n), v.clone()))
    });
    options.collect()
}

/// The digest of each tensor under `model.` and `optim.`; the values of the objects there.
fn contents(checkpoint: &Checkpoint) -> (BTreeMap<String, String>, BTreeMap<String, Value>) {
    let ours = |key: &str| key.starts_with("model.") || key.starts_with("optim.");
    let tensors = checkpoint.tensors().filter(|t| ours(t.key())).map(|t| {
        let read: Tensor = block_on(t.read(..)).unwrap();
        (t.key().to_owned(), sha256(&read))
    });
    let objects = checkpoint.metadata().entries().filter_map(|e| match e {
        reshard::plan::Entry::Object(_, key) if ours(key) => {
            let value = block_on(checkpoint.object(key)).unwrap();
            Some((key.to_owned(), value))
        }
        _ => None,
    });
    (tensors.collect(), objects.collect())
}

/// A model with the shapes of a checkpoint and zeros in place of its values, and the groups of its optimizer.
fn blank(
    checkpoint: &Checkpoint,
    state: &ValueTree,
    rank: u64,
    ranks: u64,
) -> (ToyModel, Vec<Vec<u64>>) {
    let grouped = names_of_groups(state);
    let mut model = ToyModel::default();
    for t in checkpoint.tensors() {
        let Some(name) = t.key().strip_prefix("model.") else {
            continue;
        };
        let id = model.params.len() as u64;
        let held = Held::zeros(name, id, t.dtype(), t.shape());
        match grouped.iter().flatten().any(|n| n == name) {
            true if ranks > 1 => model.params.push(held.of_rank(rank, ranks)),
            true => model.params.push(held),
            false => model.buffers.push(held),
        }
    }
    let id = |name: &String| model.params.iter().find(|p| p.name == *name).unwrap().id;
    let groups = grouped.iter().map(|g| g.iter().map(id).collect()).collect();
    (model, groups)
}

/// The names of the parameters of each group. A dict of one level has no groups: then there is one.
fn names_of_groups(state: &ValueTree) -> Vec<Vec<String>> {
    let optim = state.get("optim").unwrap();
    let Some(groups) = optim.get("param_groups") else {
        let mut names = Vec::new();
        optim.visit(&mut |path, _| {
            let key = path[0].to_string();
            let lr = key
                .strip_prefix("param_groups.")
                .and_then(|k| k.strip_suffix(".lr"));
            names.extend(lr.map(ToOwned::to_owned));
        });
        return vec![names];
    };
    let Value::List(groups) = Value::from(groups.clone()) else {
        panic!("groups are a list")
    };
    let names = |g: &Value| {
        let params = g.get("params").unwrap().as_seq().unwrap().iter();
        params.map(|p| p.as_str().unwrap().to_owned()).collect()
    };
    groups.iter().map(names).collect()
}

/// Saves the state of ranks and opens what they saved.
fn saved(states: &[StateDict], dir: &std::path::Path) -> Checkpoint {
    let url = dir.display().to_string();
    let groups = LocalGroup::new(states.len() as u32);
    block_on(join_all(groups.iter().zip(states).map(|(group, state)| {
        let save = reshard::save(state, &url)
            .group(group)
            .dialect(Dialect::Dcp);
        async { save.await.unwrap() }
    })));
    open(&url)
}

#[test]
fn what_pytorch_saved_is_loaded_and_saved_again_with_the_same_keys_and_values_on_any_number_of_ranks()
 {
    for name in BY_NAME {
        let Some((source, expected)) = found(name) else {
            continue;
        };
        let state = block_on(source.state()).unwrap();
        let flat = name.contains("flat");
        for ranks in [1, 3] {
            let states: Vec<StateDict> = (0..ranks)
                .map(|rank| {
                    let (mut model, groups) = blank(&source, &state, rank, ranks);
                    let groups: Vec<&[u64]> = groups.iter().map(Vec::as_slice).collect();
                    let mut optimizer = ToyOptimizer::of(&model, &groups);
                    // The dict is whole, and each rank takes its part of it.
                    let options = StateDictOptions {
                        full_state_dict: true,
                        comm: Comm::single(),
                        ..StateDictOptions::default()
                    };
                    let part = |part: &str| state.get(part).unwrap().clone();
                    let keys = block_on(set_state_dict(
                        &mut model,
                        &mut [&mut optimizer],
                        part("model"),
                        part("optim"),
                        &options,
                    ))
                    .unwrap_or_else(|e| panic!("{name}: {e}"));
                    assert_eq!(keys, Default::default(), "{name}");
                    let options = StateDictOptions {
                        flatten_optimizer_state_dict: flat,
                        ..StateDictOptions::default()
                    };
                    let dicts = block_on(get_state_dict(&model, &[&optimizer], &options)).unwrap();
                    dicts.into_state_dict("model", "optim")
                })
                .collect();
            let dir = tempfile::tempdir().unwrap();
            let again = saved(&states, &dir.path().join("ckpt"));
            let ((tensors, objects), (old_tensors, old_objects)) =
                (contents(&again), contents(&source));
            assert_eq!(tensors, old_tensors, "{name} on {ranks} ranks");
            // PyTorch 2.3 stored all groups as one object.
            let old_objects = match name.starts_with("v2.3") {
                true => by_option(&old_objects),
                false => old_objects,
            };
            assert_eq!(objects, old_objects, "{name} on {ranks} ranks");
            // And they are what PyTorch's program said.
            for (key, digest) in &tensors {
                let said = &expected["tensors"][key]["sha256"];
                assert_eq!(said, digest, "{name}: {key}");
            }
        }
    }
}

#[test]
fn state_by_number_gets_the_names_of_the_parameters() {
    for (name, first) in [("adam_raw", "exp_avg"), ("sgd_momentum", "momentum_buffer")] {
        let Some((source, expected)) = found(name) else {
            continue;
        };
        let state = block_on(source.state()).unwrap();
        let names = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight"];
        let mut model = ToyModel::default();
        for t in source.tensors() {
            let Some(name) = t.key().strip_prefix("model.") else {
                continue;
            };
            let id = names.iter().position(|n| *n == name);
            let mut held = Held::zeros(name, id.unwrap_or(0) as u64, t.dtype(), t.shape());
            held.local = block_on(t.read(..)).unwrap();
            match id {
                Some(_) => model.params.push(held),
                None => model.buffers.push(held),
            }
        }
        // The optimizer has what its own state dict has.
        let mut optimizer = ToyOptimizer::of(&model, &[&[0, 1, 2, 3, 4]]);
        for id in 0..5u64 {
            let path = [
                "optim".into(),
                "state".into(),
                id.to_string().as_str().into(),
            ];
            let Value::Dict(entries) = Value::from(state.at(&path).unwrap().clone()) else {
                panic!("{name}: no state of {id}")
            };
            let entries = entries
                .into_iter()
                .map(|(n, v)| (n.as_str().unwrap().into(), v));
            optimizer.state.insert(id, entries.collect());
        }
        let dicts = block_on(get_state_dict(&model, &[&optimizer], &Default::default())).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let again = saved(
            &[dicts.into_state_dict("model", "optim")],
            &dir.path().join("ckpt"),
        );
        let (tensors, _) = contents(&again);
        let renamed = |(key, t): (&String, &Json)| {
            let digest = t["sha256"].as_str().unwrap().to_owned();
            let mut key = key.clone();
            for (id, fqn) in names.iter().enumerate() {
                let old = format!("optim.state.{id}.");
                if let Some(rest) = key.strip_prefix(&old) {
                    key = format!("optim.state.{fqn}.{rest}");
                    break;
                }
            }
            (key, digest)
        };
        let wanted: BTreeMap<String, String> = expected["tensors"]
            .as_object()
            .unwrap()
            .iter()
            .map(renamed)
            .collect();
        assert_eq!(tensors, wanted, "{name}");
        assert!(tensors.contains_key(&format!("optim.state.2.weight.{first}")));
    }
}

#[test]
fn a_dict_of_one_level_is_loaded_as_one_with_groups_and_back() {
    let Some((flat, expected)) = found("adam_dsd_flat") else {
        return;
    };
    let state = block_on(flat.state()).unwrap();
    let optim = state.get("optim").unwrap().clone();
    let names = names_of_groups(&state);
    let nested = unflatten_optimizer_state_dict(optim.clone(), &names).unwrap();
    let path = ["state".into(), "1.weight".into(), "exp_avg".into()];
    assert!(nested.at(&path).is_some());

    let mut loaded = Vec::new();
    for form in [optim, nested] {
        let model = ToyModel {
            params: (0..)
                .zip(&names[0])
                .map(|(id, name)| {
                    let key = format!("optim.state.{name}.exp_avg");
                    let t = flat.tensor(&key).unwrap();
                    Held::zeros(name, id, t.dtype(), t.shape())
                })
                .collect(),
            ..ToyModel::default()
        };
        let ids: Vec<u64> = model.params.iter().map(|p| p.id).collect();
        // In other groups than those that were saved: one level does not know of groups.
        let (first, rest) = ids.split_at(2);
        let mut optimizer = ToyOptimizer::of(&model, &[rest, first]);
        let options = StateDictOptions::default();
        let mut optimizers: [&mut dyn OptimizerState; 1] = [&mut optimizer];
        let keys = block_on(set_optimizer_state_dict(
            &model,
            &mut optimizers,
            form,
            &options,
        ));
        assert_eq!(keys.unwrap(), Default::default());
        for group in optimizer.param_groups() {
            let lr = group.options.iter().find(|(n, _)| &**n == "lr").unwrap();
            assert_eq!(lr.1, Value::Float(0.001));
        }
        let options = StateDictOptions {
            flatten_optimizer_state_dict: true,
            ..StateDictOptions::default()
        };
        let dict = block_on(get_optimizer_state_dict(&model, &[&optimizer], &options)).unwrap();
        let mut values = BTreeMap::new();
        dict.visit(&mut |path, leaf| {
            let [key] = path else { panic!("{path:?}") };
            let Leaf::Value(value) = leaf else {
                panic!("{leaf:?}")
            };
            values.insert(format!("optim.{key}"), value.clone());
        });
        loaded.push(values);
    }
    assert_eq!(loaded[0], loaded[1]);
    // And they are what PyTorch's program said, none left out.
    let parts = ["tensors", "bytes"].map(|part| expected[part].as_object().unwrap());
    let said: BTreeMap<&String, &Json> = parts.into_iter().flatten().collect();
    let of_optimizer = said.keys().filter(|key| key.starts_with("optim."));
    assert!(loaded[0].keys().eq(of_optimizer.copied()), "{said:?}");
    for (key, value) in &loaded[0] {
        match value {
            Value::Tensor(t) => assert_eq!(said[key]["sha256"], sha256(t), "{key}"),
            value => {
                let said = said[key]["repr"].as_str().unwrap();
                assert_eq!(*value, parsed(said), "{key}");
            }
        }
    }
}
