//! Saving: told by a builder, set up on each rank, begun together, written, committed.

mod begin;
mod builder;
mod options;
mod pending;
mod run;
mod set_up;

pub use builder::{Save, save};

pub(crate) use options::SaveOptions;
pub(crate) use pending::{ACT, PendingSave};
