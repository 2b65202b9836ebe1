//! `torch_dist` keeps the contracts that strategies of third parties keep, in all its settings.

use reshard::{
    plan::{DefaultLoadPlanner, DefaultSavePlanner},
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
