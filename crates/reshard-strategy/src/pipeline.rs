//! The pipeline: decide, move, agree. It is written once, for every format that can say where an item goes.

mod exchange;
mod known;
mod load;
mod placement;
mod save;
mod structure;

pub(crate) use load::load_planned;
pub use load::{OpenFormat, PlannedLoad};
pub use save::Planned;
