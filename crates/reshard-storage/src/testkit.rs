//! For tests, of this crate and of others: the contract that every [`Store`](crate::Store) keeps, two stores in
//! memory, a wrapper that injects faults, and a log of what is done to local files.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod contract;
mod fault;
mod memory;
mod target;
mod versioned;

pub use contract::store_contract;
pub use fault::{Fault, FaultStore, Op};
pub use memory::MemoryStore;
pub use target::Target;
pub use versioned::VersionedStore;

pub use crate::action_log::{Action, ActionLog};
