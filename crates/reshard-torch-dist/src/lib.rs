//! Floor 3 of reshard: the `torch_dist` format, which PyTorch's `torch.distributed.checkpoint` (DCP) and Megatron Core write.
//!
//! A checkpoint is a directory of `__{rank}_{n}.distcp` files, each a row of complete `torch.save` archives, and of a pickle
//! `.metadata` that says where each lies. `docs/formats/torch_dist.md` describes every byte. What Megatron Core adds is in
//! reshard-megatron.
//!
//! - Save and load strategies `("torch_dist", 1)`; they register themselves where this crate is linked and named.
//!   [`TorchDistConfig`] and [`TorchDistLoadConfig`] are their settings.
//! - Reads what every PyTorch since 2.1 and every generation of Megatron Core wrote, and by default writes what all of them
//!   load ([`Flavour`]).
//! - Keys are what PyTorch allows: a lone surrogate is spelled in reshard's keys as Python's `repr` shows it (`\ud800`).
//! - Nothing of a pickle is executed; only the bytes of the wanted regions are read; checksums are checked.

mod blob;
mod config;
mod flavour;
mod limits;
mod lost;
mod metadata;
mod names;
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
pub use writer::TorchDistWriter;
