//! The pickle of a `.metadata` file, both ways.

pub(crate) mod build;
mod ints;
mod names;
mod slots;
mod spelling;
mod texts;
pub(crate) mod worth;
mod write;

pub(crate) use texts::Text;
pub(crate) use write::write;
