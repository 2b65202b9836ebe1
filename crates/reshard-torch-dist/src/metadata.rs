//! The pickle of a `.metadata` file, both ways.

pub(crate) mod build;
mod names;
mod write;

pub(crate) use write::write;
