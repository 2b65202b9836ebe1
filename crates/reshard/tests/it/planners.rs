//! Planners that bring what the state has not.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{
    Dialect, ShardedObject, ShardedTensor, StateDict, Tensor, Value, blocking,
    blocking::Checkpoint,
    model::{FlatStateDict, Payload, Sharded},
    plan::{
        LoadPlanner, PlanError, ReadItem, Result, SaveContext, SavePlan, SavePlanner, WriteData,
        WriteItem,
    },
};
use std::sync::{Arc, Mutex};

/// Adds an object, whose source is the place behind the last leaf.
#[derive(Debug)]
struct Adds;

impl SavePlanner for Adds {
    fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
        let mut plan = self.base().create_local_plan(state, cx)?;
        let like = plan
            .items
            .iter()
            .find(|item| item.tensor().is_none())
            .unwrap()
            .clone();
        plan.items.push(WriteItem {
            key: "added".into(),
            source: state.len() as u32,
            ..like
        });
        Ok(plan)
    }

    fn lookup_object(&self, item: &WriteItem, state: &FlatStateDict) -> Result<WriteData> {
        if item.source as usize == state.len() {
            return Ok(WriteData::Object(Payload::Value(Value::from(7))));
        }
        self.base().lookup_object(item, state)
    }
}

#[test]
fn a_planner_may_add_an_item_that_no_leaf_stands_for() {
    let home = tempfile::tempdir().unwrap();
    let url = home.path().join("step").display().to_string();
    let mut state = StateDict::new();
    state.insert("own", "text");
    blocking::run(
        reshard::save(&state, &url)
            .dialect(Dialect::Dcp)
            .planner(Adds),
    )
    .unwrap();
    let saved = Checkpoint::open(&url).unwrap();
    assert_eq!(saved.object("added").unwrap(), Value::from(7));
    assert_eq!(saved.object("own").unwrap(), Value::from("text"));
}

/// Where keys are renamed.
#[derive(Debug)]
enum Renames {
    Items,
    Leaves,
}

/// Gives `a` and `b` each other's names, and all others a prefix.
fn renamed(key: &str) -> Box<str> {
    match key {
        "model.a" => "model.b".into(),
        "model.b" => "model.a".into(),
        other => format!("module.{other}").into(),
    }
}

impl SavePlanner for Renames {
    fn set_up(&self, state: &mut FlatStateDict, _: &SaveContext<'_>) -> Result<()> {
        if let Self::Leaves = self {
            for leaf in state.values_mut() {
                let (Sharded::Tensor(ShardedTensor { key, .. })
                | Sharded::Object(ShardedObject { key, .. })) = leaf;
                *key = renamed(key);
            }
        }
        Ok(())
    }

    fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
        let mut plan = self.base().create_local_plan(state, cx)?;
        if let Self::Items = self {
            plan.items
                .iter_mut()
                .for_each(|item| item.key = renamed(&item.key));
        }
        Ok(plan)
    }
}

#[test]
fn paths_go_with_keys_that_a_planner_renames() {
    let tensor = |n: f32| Tensor::from_vec(&[2], vec![n, n]).unwrap();
    let mut model = StateDict::new();
    model.insert("a", tensor(1.0));
    model.insert("b", tensor(2.0));
    model.insert("steps", 7);
    // A list, and a dict with int keys: a flat state does not tell them apart.
    let mut numbered = StateDict::new();
    numbered.insert(0, tensor(3.0));
    let list = StateDict::List(
        [4.0, 5.0]
            .map(|n| StateDict::Leaf(Value::Tensor(tensor(n)).into()))
            .into(),
    );
    let mut state = StateDict::new();
    state.insert_tree("model", model);
    state.insert_tree("list", list);
    state.insert_tree("numbered", numbered);
    let home = tempfile::tempdir().unwrap();
    let url = |name: &str| home.path().join(name).display().to_string();
    blocking::run(reshard::save(&state, url("as it is")).dialect(Dialect::Dcp)).unwrap();
    let expected = Checkpoint::open(url("as it is")).unwrap().state().unwrap();
    for planner in [Renames::Items, Renames::Leaves] {
        let url = url(&format!("{planner:?}"));
        blocking::run(
            reshard::save(&state, &url)
                .dialect(Dialect::Dcp)
                .planner(planner),
        )
        .unwrap();
        let saved = Checkpoint::open(&url).unwrap();
        let mut keys: Vec<_> = saved.tensors().map(|t| t.key().to_owned()).collect();
        keys.sort();
        assert_eq!(
            keys,
            [
                "model.a",
                "model.b",
                "module.list.0",
                "module.list.1",
                "module.numbered.0"
            ]
        );
        assert_eq!(saved.state().unwrap(), expected, "{url}");
    }
}

/// The key of a tensor, and its elements.
type Commit = (String, Vec<f32>);

/// Keeps what it is given at the end of a load, and fails at a negative number.
#[derive(Clone, Debug, Default)]
struct Commits(Arc<Mutex<Vec<Commit>>>);

impl LoadPlanner for Commits {
    fn commit_tensor(&self, item: &ReadItem, tensor: &ShardedTensor) -> Result<()> {
        let elements = tensor.data.host().unwrap().to_vec::<f32>().unwrap();
        if elements.iter().any(|e| *e < 0.0) {
            return Err(PlanError::planner("a negative number"));
        }
        let key = item.piece.key.to_string();
        self.0.lock().unwrap().push((key, elements));
        Ok(())
    }
}

#[test]
fn a_planner_gets_the_filled_tensors_at_the_end_of_a_load() {
    let home = tempfile::tempdir().unwrap();
    let full = |key: &str, numbers: &[f32]| {
        let shape = [numbers.len() as u64];
        ShardedTensor::full(key, Tensor::from_vec(&shape, numbers.to_vec()).unwrap())
    };
    let load = |last: f32| {
        let url = home
            .path()
            .join(format!("step{last}"))
            .display()
            .to_string();
        let (mut state, mut template) = (StateDict::new(), StateDict::new());
        for (key, numbers) in [("v", vec![3.0]), ("w", vec![1.0, last])] {
            state.insert(key, full(key, &numbers));
            template.insert(key, full(key, &vec![0.0; numbers.len()]));
        }
        blocking::run(reshard::save(&state, &url)).unwrap();
        let planner = Commits::default();
        let loaded = blocking::run(reshard::load(template, &url).planner(planner.clone()));
        let mut committed = planner.0.lock().unwrap().clone();
        committed.sort_by(|a, b| a.0.cmp(&b.0));
        (loaded.map(drop).map_err(|e| e.to_string()), committed)
    };
    let (loaded, committed) = load(2.0);
    assert_eq!(loaded, Ok(()));
    let all = [("v".to_owned(), vec![3.0]), ("w".into(), vec![1.0, 2.0])];
    assert_eq!(committed, all);
    let (loaded, _) = load(-2.0);
    assert!(loaded.unwrap_err().contains("a negative number"));
}
