//! The saver, with real saves.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod buckets;
mod faults;
mod groups;
mod saver;
mod states;
