//! For tests: ranks on threads and in processes, the contract suite of [`ProcessGroup`](crate::ProcessGroup), a group
//! that injects faults, and one whose ranks share no memory.
//!
//! ```
//! use reshard_comm::{LocalGroup, ProcessGroup, testkit};
//! use std::sync::Arc;
//!
//! testkit::process_group_contract(|size| {
//!     LocalGroup::new(size).into_iter().map(|group| Arc::new(group) as Arc<dyn ProcessGroup>).collect()
//! });
//! ```
//!
//! For a group that needs real processes, write a program that starts itself again as each rank ([`Job`]), or that `mpirun`
//! starts. Each process makes its group and calls [`process_group_contract_of_rank`]; all processes get the same verdict.

#![expect(clippy::panic, reason = "tests fail by panicking")]

mod apart;
mod contract;
mod fault;
mod job;

pub use apart::Apart;
pub use contract::{process_group_contract, process_group_contract_of_rank};
pub use fault::{Fault, FaultGroup};
pub use job::{Ended, Job};

use futures_executor::block_on;
use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

/// A rank that takes longer than this hangs.
const HANGS: Duration = Duration::from_secs(60);

/// Runs `rank` for each of `groups` on a thread of its own, and returns what they return, in the same order.
///
/// # Panics
/// As the first rank that panics does, and if a rank hangs for a minute.
pub fn on_ranks<G, T, F>(groups: Vec<G>, rank: impl Fn(G) -> F + Send + Sync + 'static) -> Vec<T>
where
    G: Send + 'static,
    T: Send + 'static,
    F: Future<Output = T>,
{
    let outcomes = try_on_ranks(groups, rank);
    outcomes
        .into_iter()
        .map(|outcome| outcome.unwrap_or_else(|panic| resume_unwind(panic)))
        .collect()
}

/// Like [`on_ranks`], for ranks that are meant to panic.
///
/// # Panics
/// If a rank hangs for a minute.
pub fn try_on_ranks<G, T, F>(
    groups: Vec<G>,
    rank: impl Fn(G) -> F + Send + Sync + 'static,
) -> Vec<thread::Result<T>>
where
    G: Send + 'static,
    T: Send + 'static,
    F: Future<Output = T>,
{
    let (rank, deadline) = (Arc::new(rank), Instant::now() + HANGS);
    let running: Vec<_> = groups
        .into_iter()
        .map(|group| {
            let (rank, (done, outcome)) = (Arc::clone(&rank), mpsc::sync_channel(1));
            thread::spawn(move || {
                done.send(catch_unwind(AssertUnwindSafe(|| block_on(rank(group)))))
            });
            outcome
        })
        .collect();
    let outcomes = running.into_iter().enumerate().map(|(rank, outcome)| {
        let left = deadline.saturating_duration_since(Instant::now());
        outcome
            .recv_timeout(left)
            .unwrap_or_else(|_| panic!("rank {rank} hangs"))
    });
    outcomes.collect()
}
