//! Ready parts for formats that store each item as one range of a file, and an index with the range and the CRC-32 of each item.
//!
//! A writer returns [`ItemIndex::layout`] from `layout`, and stores [`ItemIndex::of`] in `finish`. [`IndexReader`] reads such a
//! checkpoint. `tests/example-strategy` is a whole format made so.

mod extent;
mod index;
mod reader;

pub use index::{ItemIndex, ItemPlace, TensorIndex};
pub use reader::IndexReader;
