//! Planners that bring what the state has not.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{
    Dialect, ShardedObject, ShardedTensor, StateDict, Tensor, Value, blocking,
    blocking::Checkpoint,
    model::{FlatStateDict, Payload, Sharded},
    plan::{Result, SaveContext, SavePlan, SavePlanner, WriteData, WriteItem},
};

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
