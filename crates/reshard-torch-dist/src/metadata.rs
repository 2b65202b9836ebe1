//! The pickle of a `.metadata` file, both ways.

pub(crate) mod build;
pub(crate) mod fields;
mod ints;
mod names;
mod slots;
mod spelling;
mod texts;
pub(crate) mod worth;
mod write;

pub(crate) use write::{StorageMeta, write};
