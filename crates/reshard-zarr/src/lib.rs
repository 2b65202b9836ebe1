//! Zarr arrays as checkpoints.
//!
//! A checkpoint is a directory with an array for each tensor. Megatron Core wrote such directories until 0.15. `docs/formats/zarr.md`
//! describes every byte.
//!
//! - The save and load strategies `("zarr", 1)` register themselves if a program links and names this crate. [`ZarrConfig`] and
//!   [`ZarrLoadConfig`] are their settings.
//! - They write what Megatron Core 0.4 to 0.15 writes, and add one file with checksums ([`RECORD`]).
//! - The strategies `("zarr3", 1)` write groups of Zarr v3 arrays with shards, which zarr-python 3 and TensorStore open. [`Zarr3Config`] and
//!   [`Zarr3LoadConfig`] are their settings; `docs/formats/zarr3.md` describes the bytes.
//! - Both load strategies read every folder of Zarr arrays, v2 and v3, that zarr-python or TensorStore wrote. What is not known is refused by
//!   name, for its array alone.
//! - A chunk that pieces of several ranks touch has one writing rank, which gets the others' parts while files are written. There are no
//!   lock files.

mod array;
mod config;
mod described;
mod grid;
mod names;
mod open;
mod place;
mod planner;
mod reader;
mod receipt;
mod record;
mod stated;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
mod undescribed;
mod version;
mod writer;
mod zarr3;
mod zarray;

pub use config::{Zarr3Config, Zarr3LoadConfig, ZarrConfig, ZarrLoadConfig};
pub use names::{NAME, RECORD};
