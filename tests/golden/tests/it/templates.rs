//! Whole checkpoints loaded into templates that are made of what the checkpoints say of themselves.

use crate::load;
use futures::executor::block_on;
use reshard::{
    Cast, Checkpoint, Dialect, Region, ShardedObject, ShardedTensor, StateDict, StrictHandling,
    Tensor, Value, ValueTree,
    model::{Leaf, Path, Payload, Tree, local_chunk, unflatten},
    plan::PlannerData,
};
use reshard_golden::{Fixture, chain, compare_tensor, fixtures};
use std::collections::BTreeMap;

/// Where everything lies in the nested state, by key.
pub(crate) fn paths(checkpoint: &Checkpoint) -> BTreeMap<String, Path> {
    let stored = match checkpoint.metadata().planner_data() {
        Some(PlannerData::Paths(paths)) => Some(paths),
        _ => None,
    };
    let path = |key: &str| match stored.and_then(|p| p.get(key)) {
        Some(path) => path.clone(),
        None => Path(vec![key.into()]),
    };
    checkpoint
        .metadata()
        .entries()
        .map(|e| (e.key().to_owned(), path(e.key())))
        .collect()
}

/// The nested state dict with `leaf` of each key.
pub(crate) fn template(
    paths: &BTreeMap<String, Path>,
    mut leaf: impl FnMut(&str) -> Tree<Leaf>,
) -> StateDict {
    let keys = unflatten(
        paths
            .iter()
            .map(|(key, path)| (path.clone(), Value::from(key.as_str()))),
    )
    .unwrap();
    replace(keys, &mut |v| match v.as_str() {
        Some(key) => leaf(key),
        // What fills a hole in a list.
        None => Tree::Leaf(Leaf::Value(v)),
    })
}

fn replace(tree: ValueTree, leaf: &mut impl FnMut(Value) -> Tree<Leaf>) -> StateDict {
    match tree {
        Tree::Leaf(v) => leaf(v),
        Tree::Dict(d) => Tree::Dict(d.into_iter().map(|(k, v)| (k, replace(v, leaf))).collect()),
        Tree::List(v) => Tree::List(v.into_iter().map(|v| replace(v, leaf)).collect()),
    }
}

pub(crate) fn object(checkpoint: &Checkpoint, key: &str) -> Tree<Leaf> {
    match checkpoint.dialect() {
        Dialect::Megatron => ShardedObject::empty_from_unique_key(key).unwrap().into(),
        _ => ShardedObject::item(key, Payload::None).into(),
    }
}

/// Differences between what was loaded and what is in the checkpoint.
pub(crate) fn differences(
    f: &Fixture,
    checkpoint: &Checkpoint,
    paths: &BTreeMap<String, Path>,
    state: &ValueTree,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (key, path) in paths {
        let got = state.at(&path.0);
        if let Some(facts) = f.expected.tensors.get(key) {
            let what = match got.and_then(|t| t.leaf()?.as_tensor()) {
                Some(t) => compare_tensor(facts, t),
                None => Some(format!("loaded as {got:?}")),
            };
            wrong.extend(what.map(|what| format!("{f}: {key}: {what}")));
            continue;
        }
        let wraps = checkpoint.dialect() == Dialect::Megatron && f.expected.wraps_objects();
        let stored = match block_on(checkpoint.object(key)).unwrap() {
            Value::List(mut v) if wraps && v.len() == 1 => v.remove(0),
            v => v,
        };
        if got.cloned().map(Value::from) != Some(stored.clone()) {
            wrong.push(format!(
                "{f}: object {key}: stored {stored:?}, loaded {got:?}"
            ));
        }
    }
    let common = block_on(checkpoint.common()).unwrap();
    if let Tree::Dict(common) = common {
        for (key, value) in common {
            if state.at(std::slice::from_ref(&key)) != Some(&value) {
                wrong.push(format!("{f}: common state {key} was not loaded"));
            }
        }
    }
    wrong
}

fn each(mut check: impl FnMut(&Fixture, &Checkpoint) -> Vec<String>) {
    let (mut count, mut wrong) = (0, Vec::new());
    for f in fixtures().iter().filter(|f| f.expected.sound) {
        count += 1;
        match block_on(Checkpoint::open(&f.url())) {
            Ok(checkpoint) => wrong.extend(check(f, &checkpoint)),
            Err(e) => wrong.push(format!("{f}: {}", chain(&e))),
        }
    }
    println!("{count} checkpoints loaded");
    assert!(count > 0, "no checkpoint was loaded");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_template_of_all_keys_is_filled() {
    each(|f, checkpoint| {
        let paths = paths(checkpoint);
        let template = template(&paths, |key| match checkpoint.tensor(key) {
            Ok(t) => ShardedTensor::template(key, t.dtype(), t.shape()).into(),
            Err(_) => object(checkpoint, key),
        });
        match block_on(async {
            reshard::load(template, checkpoint.url())
                .strict(StrictHandling::RaiseAll)
                .await
        }) {
            Ok(state) => differences(f, checkpoint, &paths, &state),
            Err(e) => vec![format!("{f}: {}", chain(&e))],
        }
    });
}

/// As a program has it that knows nothing of shards: nested dicts and lists of its own tensors and values.
#[test]
fn buffers_of_a_plain_nested_template_are_filled_in_place() {
    each(|f, checkpoint| {
        if checkpoint.dialect() == Dialect::Megatron {
            return Vec::new();
        }
        let paths = paths(checkpoint);
        let mut buffers = BTreeMap::new();
        let template = template(&paths, |key| match checkpoint.tensor(key) {
            Ok(t) => {
                let own = Tensor::zeros(key, t.dtype(), t.shape()).unwrap();
                buffers.insert(key.to_owned(), own.buffer_id());
                Tree::Leaf(Leaf::Value(Value::Tensor(own)))
            }
            // What the program had before, of the kind that it will get.
            Err(_) => Tree::Leaf(Leaf::Value(block_on(checkpoint.object(key)).unwrap())),
        });
        match block_on(async { reshard::load(template, checkpoint.url()).await }) {
            Ok(state) => {
                let mut wrong = differences(f, checkpoint, &paths, &state);
                for (key, buffer) in buffers {
                    let got = state
                        .at(&paths[&key].0)
                        .and_then(|t| Some(t.leaf()?.as_tensor()?.buffer_id()));
                    if got != Some(buffer) {
                        wrong.push(format!("{f}: {key} was not loaded in place"));
                    }
                }
                wrong
            }
            Err(e) => vec![format!("{f}: {}", chain(&e))],
        }
    });
}

#[test]
fn three_ranks_load_rows_and_columns_of_everything() {
    const RANKS: u64 = 3;
    each(|f, checkpoint| {
        let mut wrong = Vec::new();
        for axis in [0, 1] {
            let piece = |key: &str, rank: u64| {
                let t = checkpoint.tensor(key).unwrap();
                let mut region = Region::whole(t.shape());
                if let Some(&extent) = t.shape().get(axis) {
                    (region.offsets[axis], region.lengths[axis]) = local_chunk(extent, RANKS, rank);
                }
                ShardedTensor::region_of(key, t.dtype(), t.shape(), region)
            };
            let templates: Vec<StateDict> = (0..RANKS)
                .map(|rank| {
                    let mut state = StateDict::new();
                    for t in checkpoint.tensors() {
                        state.insert(t.key(), piece(t.key(), rank));
                    }
                    state
                })
                .collect();
            let loaded: Result<Vec<ValueTree>, _> = load(templates, checkpoint.url(), Cast::Never)
                .into_iter()
                .collect();
            let loaded = match loaded {
                Ok(loaded) => loaded,
                Err(e) => {
                    wrong.push(format!("{f}: {}", chain(&e)));
                    continue;
                }
            };
            for t in checkpoint.tensors() {
                for (rank, state) in loaded.iter().enumerate() {
                    let got = state.get(t.key()).and_then(|t| t.leaf()?.as_tensor());
                    let want = block_on(t.read(..))
                        .unwrap()
                        .narrow(&piece(t.key(), rank as u64).region());
                    if got != Some(&want) {
                        wrong.push(format!(
                            "{f}: {}, axis {axis}, rank {rank}: {got:?}",
                            t.key()
                        ));
                    }
                }
            }
        }
        wrong
    });
}
