//! The native part of the Python package `reshard`. Its Python part is in `python/reshard`; `docs/python.md` describes the package.
//!
//! Python describes memory by its address and strides, and names keys and regions. This crate reads into that memory and writes from it, without
//! the interpreter's lock, and turns errors into the classes of `reshard._errors`.

mod error;
mod group;
mod job;
mod memory;
mod module;
mod program;
mod source;
mod state;
mod value;
mod version;
mod wait;
