//! TensorFlow's V2 checkpoints, which TensorFlow calls tensor bundles.
//!
//! A checkpoint with the prefix `dir/ckpt-1` is a sorted table `dir/ckpt-1.index`, which says where each tensor lies, and data files
//! `dir/ckpt-1.data-00000-of-00002`. `docs/formats/tensor_bundle.md` describes every byte.
//!
//! - The save and load strategies `("tensor_bundle", 2)` register themselves if a program links and names this crate. [`TensorBundleConfig`]
//!   and [`TensorBundleLoadConfig`] are their settings.
//! - A tensor that a sharding policy or the ranks of a save cut is one name with slices. `tf.train.load_checkpoint`, `tf.train.Checkpoint.read`
//!   and the Saver of TensorFlow 1 load what is written, and so does every load here, with any split.
//! - String tensors and elements of types that reshard does not have are objects. They survive a round trip to the byte.
//! - [`ObjectGraph`] says which object of a program has which tensor. It is kept, given, or made from names ([`ObjectGraphSource`]).
//! - What TensorFlow has no place for is noted in a file beside the index, which TensorFlow ignores.

mod config;
mod crc;
mod dtype;
mod entry;
mod graph;
mod index;
mod names;
mod object;
mod open;
mod ordered_code;
mod reader;
mod record;
mod settings;
mod state_file;
mod strings;
mod table;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
mod variant;
mod varint;
mod writer;

pub use config::{TensorBundleConfig, TensorBundleLoadConfig};
pub use graph::{OBJECT_GRAPH, ObjectGraph, ObjectNode};
pub use settings::ObjectGraphSource;
pub use state_file::CheckpointState;
