//! For tests, of this crate and of others: the contract that every [`Store`](crate::Store) keeps, a store in memory, a
//! wrapper that injects faults, and a log of what is done to local files.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod contract;
mod fault;
mod memory;
mod target;

pub use contract::store_contract;
pub use fault::{Fault, FaultStore, Op};
pub use memory::MemoryStore;
pub use target::Target;

pub use crate::action_log::{Action, ActionLog};
