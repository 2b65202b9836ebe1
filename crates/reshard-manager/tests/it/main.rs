//! The saver, with real saves.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod buckets;
mod faults;
mod groups;
mod saver;
mod states;
