//! Single Zarr arrays and groups, v2 and v3: what their metadata say, and what their chunks hold.

pub(crate) mod decode;
pub(crate) mod find;
pub(crate) mod meta;
pub(crate) mod shard;
