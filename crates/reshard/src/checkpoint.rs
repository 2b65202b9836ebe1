//! An open checkpoint: its contents, any part of them, and its files.

mod files;
mod handle;
mod objects;
mod open;
mod tensors;
mod whole;

pub use handle::Checkpoint;
pub use open::OpenOptions;
pub use tensors::{StoredChunk, TensorHandle};
pub use whole::{load_common, load_metadata, load_plain_tensors};
