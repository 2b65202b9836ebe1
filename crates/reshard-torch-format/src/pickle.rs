//! Pickles, both ways, without executing anything.
//!
//! [`Reader`] and [`Op`] are the instructions. [`run`] is a closed machine that interprets them and builds whatever its
//! [`Build`] makes of them; [`Graph`] is the builder that keeps all of a pickle as inert nodes. [`Emitter`] writes pickles
//! with the opcodes and memo numbers that CPython chooses.

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
