//! Reads and writes pickles without executing anything.
//!
//! [`Reader`] and [`Op`] are the instructions. [`run`] is an interpreter that never runs code. It builds what its [`Build`] makes of the
//! instructions. [`Graph`] is a builder that keeps a whole pickle as inert nodes. [`Emitter`] writes pickles with the same opcodes and
//! memo numbers as CPython. [`verdict`] judges a class or function by the table that is also the allow-list of reading, and [`scan`] lists
//! those of any pickle.

mod build;
mod emit;
mod globals;
mod graph;
mod machine;
mod memo;
pub(crate) mod names;
mod op;
mod scan;
mod text;

pub use build::{Build, Built, Items, Refusal};
pub use emit::Emitter;
pub use globals::{Verdict, verdict};
pub use graph::{Call, Graph, How, Id, Name, Node};
pub use machine::run;
pub use op::{Op, Reader, Trouble};
pub use scan::{Scan, ScannedGlobal, scan};

pub(crate) use globals::is_allowed;
