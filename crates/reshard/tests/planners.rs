//! Planners that bring what the state has not.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{
    Dialect, StateDict, Value, blocking,
    blocking::Checkpoint,
    model::{FlatStateDict, Payload},
    plan::{Result, SaveContext, SavePlan, SavePlanner, WriteData, WriteItem},
};

/// Adds an object, whose source is the place behind the last leaf.
#[derive(Debug)]
struct Adds;

impl SavePlanner for Adds {
    fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
        let mut plan = self.base().create_local_plan(state, cx)?;
        let like = plan.items.iter().find(|item| item.tensor().is_none()).unwrap().clone();
        plan.items.push(WriteItem { key: "added".into(), source: state.len() as u32, ..like });
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
    blocking::run(reshard::save(&state, &url).dialect(Dialect::Dcp).planner(Adds)).unwrap();
    let saved = Checkpoint::open(&url).unwrap();
    assert_eq!(saved.object("added").unwrap(), Value::from(7));
    assert_eq!(saved.object("own").unwrap(), Value::from("text"));
}
