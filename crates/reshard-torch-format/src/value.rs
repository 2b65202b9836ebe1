//! Python values in archives and pickles: `Value` from bytes, and bytes from `Value`.

mod read;
mod tree;
mod write;

pub use tree::{EncodedTree, Part, PartDict, PartTree, Stored, encode_tree};
pub use write::{Encoded, encode};

pub(crate) use read::{Decoder, made};
