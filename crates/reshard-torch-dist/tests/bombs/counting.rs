//! Memory that a test takes.

use reshard_model::testkit::CountingAllocator;
use std::sync::{Mutex, PoisonError};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Tests that count take turns, so that nothing else allocates meanwhile.
static TURN: Mutex<()> = Mutex::new(());

/// The result, and the most bytes that were allocated meanwhile beyond those before.
pub(crate) fn peak_of<T>(what: impl FnOnce() -> T) -> (T, usize) {
    ALLOCATOR.peak_of(what)
}

pub(crate) fn turn() -> impl Drop {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
