//! A planner of your own around the default one: optimizer state is left out of what is saved.
//!
//! `cargo run -p reshard --example planner`

#![expect(clippy::print_stdout, reason = "an example, which a test runs")]

use reshard::{
    model::FlatStateDict,
    plan::{DefaultSavePlanner, Result, SaveContext, SavePlan, SavePlanner},
    prelude::*,
};

#[derive(Debug)]
struct WithoutOptimizer(DefaultSavePlanner);

impl SavePlanner for WithoutOptimizer {
    // What is not said here is done as there.
    fn base(&self) -> &dyn SavePlanner {
        &self.0
    }

    fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
        let mut plan = self.0.create_local_plan(state, cx)?;
        plan.items
            .retain(|item| !item.key.starts_with("optimizer."));
        Ok(plan)
    }
}

pub(crate) fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let url = dir.path().join("ckpt").display().to_string();
    let mut state = StateDict::new();
    for key in ["model.weight", "optimizer.exp_avg"] {
        state.insert(
            key,
            ShardedTensor::full(key, Tensor::zeros(key, DType::Float32, &[4])?),
        );
    }
    let planner = WithoutOptimizer(DefaultSavePlanner::DCP);
    blocking::run(save(&state, &url).dialect(Dialect::Dcp).planner(planner))?;

    let checkpoint = blocking::Checkpoint::open(&url)?;
    let keys: Vec<_> = checkpoint.tensors().map(|t| t.key().to_owned()).collect();
    println!("saved {keys:?}");
    assert_eq!(keys, ["model.weight"]);
    Ok(())
}
