//! What the description of an array says that reshard wrote. Its text can be made again from that, without reading it.

use crate::{
    names::{ZARR_JSON, ZARRAY},
    zarr3, zarray,
};
use bytes::Bytes;
use reshard_model::{DType, Dims};
use serde::{Deserialize, Serialize};

/// An array, as its `.zarray` or its `zarr.json` describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Described {
    pub(crate) shape: Dims,
    /// The shape of what a file holds.
    pub(crate) chunk: Dims,
    /// The shape of an inner chunk. None in Zarr v2, which has no shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inner: Option<Dims>,
    pub(crate) dtype: DType,
}

impl Described {
    /// The name of its file.
    pub(crate) fn file(&self) -> &'static str {
        match self.inner {
            None => ZARRAY,
            Some(_) => ZARR_JSON,
        }
    }

    /// The text of its file. `None` if this version of Zarr has no name for its type.
    pub(crate) fn text(&self) -> Option<serde_json::Result<Bytes>> {
        let (shape, chunk) = (&self.shape, &self.chunk);
        Some(match &self.inner {
            None => zarray::text(shape, chunk, zarray::spelling(self.dtype)?),
            Some(inner) => {
                let name = zarr3::spelling(self.dtype)?;
                zarr3::array(shape, chunk, inner, self.dtype, name)
            }
        })
    }
}
