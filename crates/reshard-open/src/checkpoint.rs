//! An open checkpoint: its contents, any part of them, and its files.

mod entry_points;
mod files;
mod handle;
mod objects;
mod open;
mod sample;
mod tensors;
mod ties;
mod whole;

pub use entry_points::{
    is_distributed_checkpoint, load_common, load_content_metadata, load_metadata,
    load_plain_tensors, load_plain_tensors_and_common, load_sharded_metadata,
    load_tensors_metadata,
};
pub use handle::Checkpoint;
pub use sample::Sample;
pub use tensors::{Handle, StoredChunk, TensorHandle};
pub use ties::Tie;
