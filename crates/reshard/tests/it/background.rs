//! Saves that go on while the caller changes its state.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;
mod failed;
mod queue;
mod requests;
mod saver;
mod stagers;
mod store;
