//! Python values in archives and pickles: `Value` from bytes, and bytes from `Value`.

mod read;
mod write;

pub use write::{Encoded, encode};

pub(crate) use read::Decoder;
