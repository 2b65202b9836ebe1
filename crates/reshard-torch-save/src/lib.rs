//! Files of `torch.save` as checkpoints.
//!
//! The format `("torch_save", 1)`: one file `.pt`, `.pth` or `.bin`, as `torch.save` writes a state dict; or a folder of such files with
//! `pytorch_model.bin.index.json`, as transformers writes models. It reads every layout of these files: zip archives, and the older ones.
//! Regions of tensors are read without the rest. It writes zip archives that `torch.load(weights_only=True)` loads.
//!
//! A key is the path of a leaf in the file, as DCP's flattening joins it. So a conversion between such a file and `torch_dist` gives what
//! PyTorch's `torch_save_to_dcp` and `dcp_to_torch_save` give. A leaf whose key is not its path, such as a piece of a tensor or a leaf that a
//! planner has renamed, is stored under its key. No tensor is gathered in memory: the pieces of all ranks stream into the file.
//!
//! A file has no room for the properties of tensors other than `requires_grad`.
//!
//! ```
//! use reshard_strategy::{BackendVersion, Registry};
//! use reshard_torch_save as _; // linked, and so registered
//!
//! let registry = Registry::linked().unwrap();
//! assert!(registry.load_sharded(&BackendVersion::new("torch_save", 1)).is_ok());
//! ```

mod chosen;
mod config;
mod dicts;
mod error;
mod file;
mod index;
mod modules;
mod names;
mod open;
mod overhead;
mod planner;
mod ranks;
mod reader;
mod save;
mod subclasses;
mod table;
mod told;
mod tree;
mod writer;

#[cfg(feature = "testkit")]
pub mod testkit;

pub use config::{TorchSaveConfig, TorchSaveLoadConfig};
pub use names::NAME;
pub use ranks::{RANK_FILES, RankFilesLoadConfig};
