//! Saves and loads whose work is shared: Megatron's distribution, the same checkpoint and state, failures, what is kept.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod contracts;
mod crossed;
mod failures;
mod flattened;
mod kept;
mod laws;
mod layers;
mod lending;
mod loads;
mod loads_fail;
mod megatron;
mod one_reader;
mod ranks;
mod strict;
mod two_stage;
