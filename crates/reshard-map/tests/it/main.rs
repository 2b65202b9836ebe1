//! What maps do, and the laws that hold for all of them.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod additions;
mod laws;
mod memory;
mod page;
mod refused;
mod rules;
mod shipped;
