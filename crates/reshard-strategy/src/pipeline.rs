//! The pipeline: decide, move, agree. It is written once, for every format that can say where an item goes.

mod exchange;
mod known;
mod load;
mod placement;
mod save;
mod structure;

pub(crate) use load::{judge, load_in, load_planned};
pub use save::PreparedSave;
pub(crate) use save::plan_branch;
