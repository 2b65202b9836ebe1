//! Saves whose work is shared: Megatron's distribution, the same checkpoint, failures, what is kept.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod failures;
mod kept;
mod laws;
mod megatron;
mod ranks;
