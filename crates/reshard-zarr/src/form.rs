//! What differs between the two versions of Zarr that are written.

use crate::{
    array::meta::ChunkKeys,
    described::Described,
    names::{NAME, RECORD, ZARRAY},
    zarr3, zarray,
};
use reshard_model::{DType, Dims};
use reshard_plan::AnnotationKind;
use reshard_strategy::{BackendVersion, Capabilities};

/// The version of Zarr that a save writes, with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As Megatron Core writes it.
    V2,
    /// Each file is a shard, whose inner chunks have about so many bytes.
    V3 { inner: u64 },
}

impl Form {
    pub(crate) fn key(self) -> BackendVersion {
        let name = match self {
            Self::V2 => NAME,
            Self::V3 { .. } => zarr3::NAME,
        };
        BackendVersion::new(name, 1)
    }

    /// What it can represent.
    pub(crate) fn capabilities(self) -> Capabilities {
        Capabilities {
            dtypes: match self {
                Self::V2 => |dtype| zarray::spelling(dtype).is_some(),
                Self::V3 { .. } => |dtype| zarr3::spelling(dtype).is_some(),
            },
            annotations: match self {
                Self::V2 => |_, _| &[AnnotationKind::Attribute],
                Self::V3 { .. } => {
                    |_, _| &[AnnotationKind::Attribute, AnnotationKind::DimensionNames]
                }
            },
            no_sharded_objects: Some("save tensors only, or in Megatron Core's dialect"),
            no_rank_local: Some("ranks may share a chunk"),
            ..Capabilities::DEFAULT
        }
    }

    /// How a type is spelled. `None` if this version of Zarr has no name for it.
    pub(crate) fn spelling(self, dtype: DType) -> Option<&'static str> {
        match self {
            Self::V2 => zarray::spelling(dtype),
            Self::V3 { .. } => zarr3::spelling(dtype),
        }
    }

    /// The format record.
    pub(crate) fn record(self) -> &'static str {
        match self {
            Self::V2 => RECORD,
            Self::V3 { .. } => zarr3::RECORD,
        }
    }

    /// How files of chunks are named.
    pub(crate) fn keys(self) -> ChunkKeys {
        match self {
            Self::V2 => ChunkKeys::DOTS,
            Self::V3 { .. } => ChunkKeys::SLASHES,
        }
    }

    /// The file that describes an array.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::V2 => ZARRAY,
            Self::V3 { .. } => zarr3::ZARR_JSON,
        }
    }

    /// What that file says of an array whose files have the shape `chunk`.
    pub(crate) fn described(self, shape: Dims, chunk: Dims, dtype: DType) -> Described {
        let inner = match self {
            Self::V2 => None,
            Self::V3 { inner } => Some(zarr3::inner(&chunk, dtype.size(), inner)),
        };
        Described {
            shape,
            chunk,
            inner,
            dtype,
        }
    }

    /// The bytes of an inner chunk of a file of the shape `chunk`. `None` if files have no inner chunks.
    pub(crate) fn inner_bytes(self, chunk: &[u64], size: u64) -> Option<u64> {
        match self {
            Self::V2 => None,
            Self::V3 { inner } => {
                let inner = zarr3::inner(chunk, size, inner);
                inner.volume().and_then(|n| n.checked_mul(size))
            }
        }
    }
}
