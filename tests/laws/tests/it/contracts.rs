//! `torch_dist` keeps the contracts that strategies of third parties keep, in all its settings.

use reshard::{
    model::FlatStateDict,
    plan::{DefaultLoadPlanner, DefaultSavePlanner, Result, SaveContext, SavePlan, SavePlanner},
    strategy::testkit::{
        load_planner_contract, metadata_contract, save_load_contract, save_planner_contract,
    },
    torch_dist::{ArchiveEra, Strides, TorchDistConfig, TorchDistLoadConfig},
};

#[test]
fn torch_dist_keeps_the_contract_of_strategies() {
    save_load_contract(&TorchDistConfig::new(), &TorchDistLoadConfig::default());
    metadata_contract(&TorchDistConfig::new(), &TorchDistLoadConfig::default());
}

#[test]
fn torch_dist_keeps_it_in_all_its_settings() {
    for config in [
        TorchDistConfig::new().with_files_per_rank(3),
        TorchDistConfig::new().with_file_per_item(true),
        TorchDistConfig::new()
            .with_archive(ArchiveEra::Torch26)
            .with_strides(Strides::Keep),
    ] {
        save_load_contract(&config, &TorchDistLoadConfig::default());
    }
}

#[test]
fn the_default_planners_keep_the_contract_of_planners() {
    let (save, load) = (TorchDistConfig::new(), TorchDistLoadConfig::default());
    save_planner_contract(|| DefaultSavePlanner::DEFAULT, &save, &load);
    save_planner_contract(|| DefaultSavePlanner::DCP, &save, &load);
    load_planner_contract(|| DefaultLoadPlanner::DEFAULT, &save, &load);
}

/// Plans in another order each time.
#[derive(Debug)]
struct Moody(bool);

impl SavePlanner for Moody {
    fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
        let mut plan = self.base().create_local_plan(state, cx)?;
        if self.0 {
            plan.items.reverse();
        }
        Ok(plan)
    }
}

#[test]
fn a_rule_of_planners_that_is_broken_is_named_with_the_place_where_it_is_written() {
    let (save, load) = (TorchDistConfig::new(), TorchDistLoadConfig::default());
    let made = std::cell::Cell::new(false);
    let make = || Moody(made.replace(!made.get()));
    let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        save_planner_contract(make, &save, &load);
    }));
    let text = *broken.unwrap_err().downcast::<String>().unwrap();
    let begins = "the planner breaks the rule `plans.depend_on_their_input_alone`, which is written at `SavePlanner`: ";
    assert!(text.starts_with(begins), "{text}");
}
