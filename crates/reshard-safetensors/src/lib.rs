//! safetensors as checkpoints.
//!
//! A checkpoint is a `.safetensors` file, or a folder of such files: with the index that Hugging Face's `transformers` and `diffusers`
//! write, or with the sharded files of PyTorch DCP's `HuggingFaceStorageWriter`. `docs/formats/safetensors.md` describes every byte.
//!
//! - The save and load strategies `("safetensors", 1)` register themselves if a program links and names this crate.
//!   [`SafetensorsConfig`] and [`SafetensorsLoadConfig`] are their settings.
//! - A save writes what `transformers` writes, from any number of ranks at once, and adds one file with checksums ([`RECORD`]). Each file
//!   has one writing rank, which gets the other ranks' pieces while it writes.
//! - A read of a region reads the bytes of that region.
//! - The format holds only tensors. A leaf that is no tensor is refused by its key, or kept beside the tensors in a file that only reshard
//!   reads ([`SafetensorsConfig::keep_objects`]).

mod config;
mod header;
mod index;
mod names;
mod open;
mod overhead;
mod place;
mod planner;
mod quantized;
mod reader;
mod record;
mod save;
mod settings;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
mod texts;
mod torchao;
mod writer;

pub use config::SafetensorsLoadConfig;
pub use names::{INDEX, NAME, OBJECTS, RECORD};
pub use settings::SafetensorsConfig;
