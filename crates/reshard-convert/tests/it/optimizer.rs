//! The state of Megatron Core's distributed optimizer in all its forms, rewritten by parameter.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod forms;
mod model;
mod real;
mod refused;
