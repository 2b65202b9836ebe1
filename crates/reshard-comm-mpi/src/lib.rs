//! Groups of the ranks of an MPI job.

mod builder;
mod error;
mod group;
mod peer;
mod raw;
mod wire;
mod worker;

pub use builder::Builder;
pub use error::{MpiError, Result};
pub use group::MpiGroup;
