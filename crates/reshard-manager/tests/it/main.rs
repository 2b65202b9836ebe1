//! The saver, with real saves.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod buckets;
mod faults;
mod groups;
mod prune;
mod prune_files;
mod run_steps;
mod saver;
mod states;
