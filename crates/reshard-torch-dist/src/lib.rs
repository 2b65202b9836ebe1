//! The `torch_dist` format, which PyTorch's `torch.distributed.checkpoint` (DCP) and Megatron Core write.
//!
//! A checkpoint is a directory. Its `__{rank}_{n}.distcp` files are sequences of complete `torch.save` archives. Its pickle `.metadata`
//! says where each archive lies. `docs/formats/torch_dist.md` describes every byte. What Megatron Core adds is in reshard-megatron.
//!
//! - The save and load strategies `("torch_dist", 1)` register themselves if a program links and names this crate. [`TorchDistConfig`]
//!   and [`TorchDistLoadConfig`] are their settings.
//! - They read what every PyTorch since 2.1 and every generation of Megatron Core wrote. By default they write what all of them load
//!   ([`Flavour`]).
//! - Keys may be anything that PyTorch allows. reshard spells a lone surrogate as Python's `repr` shows it (`\ud800`).
//! - Pickles are never executed. Only the bytes of the wanted regions are read. Checksums are checked.

mod blob;
mod buckets;
mod config;
mod flavour;
mod limits;
mod lost;
mod metadata;
mod names;
mod object;
mod open;
mod producer;
mod reader;
mod table;
mod transform;
mod writer;

pub use config::{ArchiveEra, Strides, TorchDistConfig, TorchDistLoadConfig};
pub use flavour::Flavour;
pub use names::{METADATA, NAME, OwnFile, own_file};
pub use table::parse_metadata;
