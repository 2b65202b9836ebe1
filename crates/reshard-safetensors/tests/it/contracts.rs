//! The suites that every strategy has to pass.

use reshard_model::testkit::one_in;
use reshard_plan::{DefaultLoadPlanner, DefaultSavePlanner};
use reshard_safetensors::{SafetensorsConfig, SafetensorsLoadConfig};
use reshard_strategy::testkit;

/// Each form with and without objects; a change tries one in two. The samples of the suites have a complex128, which the format
/// lacks.
fn forms() -> impl Iterator<Item = SafetensorsConfig> {
    let all = SafetensorsConfig::default().with_types_as_bytes(true);
    let forms = [
        all.clone(),
        all.clone().with_max_shard_size(700),
        all.with_sharded(true),
    ];
    let with_objects = forms.clone().map(|form| form.with_keep_objects(true));
    forms.into_iter().chain(with_objects).step_by(one_in(2))
}

#[test]
fn the_strategies_keep_their_contract() {
    for save in forms() {
        testkit::save_load_contract(&save, &SafetensorsLoadConfig::default());
    }
}

#[test]
fn nothing_of_the_metadata_is_lost() {
    for save in forms() {
        testkit::metadata_contract(&save, &SafetensorsLoadConfig::default());
    }
}

#[test]
fn planners_work_with_the_format() {
    let load = SafetensorsLoadConfig::default();
    for save in forms() {
        testkit::save_planner_contract(|| DefaultSavePlanner::DEFAULT, &save, &load);
        testkit::load_planner_contract(|| DefaultLoadPlanner::DEFAULT, &save, &load);
    }
}
