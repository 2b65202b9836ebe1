//! The formats `zarr` and `zarr3`: what differs between the two versions of Zarr.

use crate::{
    array::meta::ChunkKeys,
    described::Described,
    names::{NAME, RECORD, ZARR_JSON, ZARRAY, ZMETADATA, split},
    zarr3, zarray,
};
use reshard_model::{DType, Dims};
use reshard_plan::AnnotationKind;
use reshard_strategy::{Capabilities, Detection, FormatInfo, OwnFile};

/// A version of Zarr as a format. Both formats read folders with arrays of either version. They differ in the version that they write, and
/// by which they recognise a folder.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) info: FormatInfo,
    /// What a save in this version can represent.
    pub(crate) capabilities: Capabilities,
    /// The file in which reshard notes what zarr has no place for.
    pub(crate) record: &'static str,
    /// The file that describes an array.
    pub(crate) description: &'static str,
    /// How files of chunks are named.
    pub(crate) keys: ChunkKeys,
    /// The name of an element type. `None` for types that have none.
    pub(crate) spelling: fn(DType) -> Option<&'static str>,
}

/// Files directly in a folder of Zarr v2. TensorStore makes none of them.
const TOP: [&str; 4] = [RECORD, ".zgroup", ZMETADATA, ZARRAY];

const OF_BOTH: Capabilities = Capabilities {
    no_sharded_objects: Some("save tensors only, or in Megatron Core's dialect"),
    no_rank_local: Some("ranks may share a chunk"),
    ..Capabilities::DEFAULT
};

/// As Megatron Core writes it.
pub(crate) static V2: Version = Version {
    info: FormatInfo {
        backend: NAME,
        loads_objects: false,
        own_file: |name| (name == RECORD).then_some(OwnFile::Record),
        detect: Some(|top| {
            let is_array = |name: &str| TOP.contains(&name) || split(name).1 == ZARRAY;
            let is_v2 = || !top.names().any(is_v3) && top.names().any(is_array);
            detected(top.has(RECORD) || is_v2())
        }),
        probes: &TOP,
        probes_in_folders: &[ZARRAY],
        ..FormatInfo::NEW
    },
    capabilities: Capabilities {
        dtypes: |dtype| zarray::spelling(dtype).is_some(),
        annotations: |_, _| &[AnnotationKind::Attribute],
        ..OF_BOTH
    },
    record: RECORD,
    description: ZARRAY,
    keys: ChunkKeys::DOTS,
    spelling: zarray::spelling,
};

/// Each file is a shard.
pub(crate) static V3: Version = Version {
    info: FormatInfo {
        backend: zarr3::NAME,
        loads_objects: false,
        own_file: |name| (name == zarr3::RECORD).then_some(OwnFile::Record),
        detect: Some(|top| {
            let is_v3 = || top.names().any(is_v3) && !top.has(RECORD);
            detected(top.has(zarr3::RECORD) || is_v3())
        }),
        probes: &[zarr3::RECORD, ZARR_JSON],
        probes_in_folders: &[ZARR_JSON],
        ..FormatInfo::NEW
    },
    capabilities: Capabilities {
        dtypes: |dtype| zarr3::spelling(dtype).is_some(),
        annotations: |_, _| &[AnnotationKind::Attribute, AnnotationKind::DimensionNames],
        ..OF_BOTH
    },
    record: zarr3::RECORD,
    description: ZARR_JSON,
    keys: ChunkKeys::SLASHES,
    spelling: zarr3::spelling,
};

fn is_v3(path: &str) -> bool {
    split(path).1 == ZARR_JSON
}

fn detected(is: bool) -> Detection {
    match is {
        true => Detection::Yes,
        false => Detection::No,
    }
}

impl Version {
    pub(crate) fn is_v3(&self) -> bool {
        self.description == ZARR_JSON
    }
}

/// The version of Zarr that a save writes, with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    V2,
    /// Inner chunks of shards have about so many bytes.
    V3 {
        inner: u64,
    },
}

impl Form {
    pub(crate) fn version(self) -> &'static Version {
        match self {
            Self::V2 => &V2,
            Self::V3 { .. } => &V3,
        }
    }

    /// What the description of an array says whose files have the shape `chunk`.
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
