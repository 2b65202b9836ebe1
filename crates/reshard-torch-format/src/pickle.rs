//! Reads and writes pickles without executing anything.
//!
//! [`Reader`] and [`Op`] are the instructions. [`run`] is an interpreter that never runs code. It builds what its [`Build`] makes of the
//! instructions. [`Graph`] is a builder that keeps a whole pickle as inert nodes. [`Emitter`] writes pickles with the same opcodes and
//! memo numbers as CPython.

mod build;
mod emit;
mod graph;
mod machine;
mod memo;
pub(crate) mod names;
mod op;
mod text;

pub use build::{Build, Built, Items, Refusal};
pub use emit::Emitter;
pub use graph::{Call, Graph, How, Id, Name, Node};
pub use machine::run;
pub use op::{Op, Reader, Trouble};
