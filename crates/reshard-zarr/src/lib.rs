//! Zarr arrays as checkpoints.
//!
//! A checkpoint is a directory with an array for each tensor. Megatron Core wrote such directories until 0.15. `docs/formats/zarr.md`
//! describes every byte.
//!
//! - The save and load strategies `("zarr", 1)` register themselves if a program links and names this crate. [`ZarrConfig`] and
//!   [`ZarrLoadConfig`] are their settings.
//! - They write what Megatron Core 0.4 to 0.15 writes, and add one file with checksums ([`RECORD`]).
//! - A chunk that pieces of several ranks touch has one writing rank, which gets the others' parts while files are written. There are no
//!   lock files.

mod array;
mod config;
mod form;
mod grid;
mod names;
mod open;
mod planner;
mod reader;
mod receipt;
mod record;
mod save;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
mod writer;
mod zarr3;
mod zarray;

pub use config::{Zarr3Config, Zarr3LoadConfig, ZarrConfig, ZarrLoadConfig};
pub use names::{NAME, RECORD};
