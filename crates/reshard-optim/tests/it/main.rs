//! Tests of reshard-optim through its public interface.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod declare;
mod fixtures;
mod formats;
mod modules;
mod state;
mod state_dict;
