//! Archives of `torch.save` and pickles, read and written without executing anything.
mod error;
mod limits;

pub mod archive;
pub mod pickle;
mod tensor;

pub use error::{Error, Result};
pub use limits::Limits;
pub use tensor::{Location, StorageRef, TensorRef};
