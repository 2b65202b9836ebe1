//! Saves that go on while the caller changes its state.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;
mod queue;
mod saver;
mod stagers;
