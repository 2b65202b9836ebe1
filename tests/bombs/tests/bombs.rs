//! Every command on every bomb ends on its own: within 10 seconds of CPU time (100 in a build for tests) and 1.5 GB of address
//! space, without a signal, with an exit code of the program, and with a message that explains what is wrong.
//!
//! One in three bombs gets one command, and each pickle is tried in one place of a checkpoint. With `RESHARD_THOROUGH=1`,
//! which `cargo xtask nightly` sets, all commands run on all bombs. `RESHARD_BOMBS=a1,b2` chooses bombs whose names begin so,
//! and `RESHARD_COMMANDS=ls,digest` chooses commands; what is chosen by name gets all commands.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard_bombs::{Bomb, bombs, run};

fn every_command_ends_on(bombs: Vec<Bomb>) {
    run::all(env!("CARGO_BIN_EXE_reshard-bombed"), &bombs).unwrap();
}

#[test]
fn every_command_ends_on_metadata() {
    every_command_ends_on(bombs::metadata());
}

#[test]
fn every_command_ends_on_chunks() {
    every_command_ends_on(bombs::chunks());
}

#[test]
fn every_command_ends_on_keys() {
    every_command_ends_on(bombs::keys());
}

#[test]
fn every_command_ends_on_objects() {
    every_command_ends_on(bombs::objects());
}

#[test]
fn every_command_ends_on_common_state() {
    every_command_ends_on(bombs::common());
}

#[test]
fn every_command_ends_on_bare_common_state() {
    every_command_ends_on(bombs::bare());
}

#[test]
fn every_command_ends_on_files_of_torch_save() {
    every_command_ends_on(bombs::saved());
}

#[test]
fn every_command_ends_on_pickles_of_tensors() {
    every_command_ends_on(bombs::in_tensors());
}

#[test]
fn every_command_ends_on_tensors() {
    every_command_ends_on(bombs::tensors());
}

#[test]
fn every_command_ends_on_archives() {
    every_command_ends_on(bombs::archives());
}

#[test]
fn every_command_ends_on_faults() {
    every_command_ends_on(bombs::faults());
}

#[test]
fn every_command_ends_on_files() {
    every_command_ends_on(bombs::files());
}

#[test]
fn every_command_ends_on_what_is_many() {
    every_command_ends_on(bombs::many());
}

#[test]
fn every_command_ends_on_what_unpacks_to_much() {
    every_command_ends_on(bombs::packed());
}

#[test]
fn every_command_ends_on_conversions_that_are_spread_thin() {
    every_command_ends_on(bombs::spread());
}

#[test]
fn every_command_ends_on_folders_of_zarr_arrays() {
    every_command_ends_on(bombs::zarr());
}

#[test]
fn every_command_ends_on_flattened_tensors() {
    every_command_ends_on(bombs::flat());
}

#[test]
fn every_command_ends_on_mapping_files() {
    every_command_ends_on(bombs::maps());
}

#[test]
fn every_command_ends_on_files_of_safetensors() {
    every_command_ends_on(bombs::safetensors());
}

#[test]
fn every_command_ends_on_checkpoints_of_tensorflow() {
    every_command_ends_on(bombs::tensor_bundle());
}

const LISTS: [fn() -> Vec<Bomb>; 20] = [
    bombs::metadata,
    bombs::chunks,
    bombs::keys,
    bombs::objects,
    bombs::common,
    bombs::bare,
    bombs::saved,
    bombs::in_tensors,
    bombs::tensors,
    bombs::archives,
    bombs::faults,
    bombs::files,
    bombs::many,
    bombs::packed,
    bombs::spread,
    bombs::zarr,
    bombs::flat,
    bombs::maps,
    bombs::safetensors,
    bombs::tensor_bundle,
];

#[test]
fn bombs_that_are_left_to_the_night_or_chosen_by_name_exist() {
    let all: Vec<Bomb> = LISTS.iter().flat_map(|list| list()).collect();
    let chosen = std::env::var("RESHARD_BOMBS").unwrap_or_default();
    let chosen = chosen.split(',').filter(|name| !name.is_empty());
    for name in run::AT_NIGHT.iter().copied().chain(chosen) {
        assert!(
            all.iter().any(|bomb| bomb.name.starts_with(name)),
            "no bomb has the name {name}"
        );
    }
}
