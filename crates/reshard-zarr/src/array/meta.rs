//! The metadata of arrays and groups: `.zarray` and `.zmetadata` of Zarr v2, `zarr.json` of v3.
//!
//! Parsing is pure. The text may come from anybody: lengths are checked before memory is taken, and the parser of JSON bounds the
//! depth. An array of which something is not known (a dtype, a codec, a grid) is [`Refused`](reshard_strategy::Refused) by its name, so that only this array is
//! refused.

mod chain;
mod codec;
mod dtype;
mod fill;
mod json;
mod keys;
mod types;
mod v2;
mod v3;
mod without;

pub(crate) use json::{MAX_TEXT, shown, takes, too_long};
pub(crate) use keys::ChunkKeys;
pub(crate) use types::{ArrayMeta, Codec, Encoding, Node, Numbers, Recoded, Sharding, Stored, Sum};
pub(crate) use v2::{no_attributes, parse_zarray, parse_zmetadata};
pub(crate) use v3::parse_zarr_json;
pub(crate) use without::without_nodes;

#[cfg(test)]
mod tests;
