//! Names of the Python classes of a `.metadata` file.

use reshard_model::DType;
use reshard_torch_format::pickle::{Verdict, verdict};

pub(crate) const MD: &str = "torch.distributed.checkpoint.metadata";
pub(crate) const SH: &str = "torch.distributed._shard.sharded_tensor.metadata";
pub(crate) const FS: &str = "torch.distributed.checkpoint.filesystem";
const MCORE: &str = "megatron.core.dist_checkpointing.strategies.torch";

/// No element type has a longer name.
const LONGEST_DTYPE: usize = 64;

/// A class or function that a `.metadata` file names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Metadata,
    /// Megatron Core 0.15's subclass.
    MCoreMetadata,
    TensorStorageMetadata,
    BytesStorageMetadata,
    /// `true`: of the old module, which torch 2.1 and 2.2 wrote, and which all versions read.
    TensorProperties(bool),
    ChunkStorageMetadata,
    MetadataIndex,
    StorageInfo,
    StorageMeta,
    Size,
    DType(DType),
    GetLayout,
    MemFormat,
    /// A class of `pathlib`.
    Path,
    /// Anything else: kept inert.
    Other,
}

impl Class {
    pub(crate) fn of(module: &str, name: &str) -> Self {
        // Nothing is interpreted that the table of globals does not allow.
        if verdict(module, name) != Verdict::Allowed {
            return Self::Other;
        }
        match (module, name) {
            (MD, "Metadata") => Self::Metadata,
            (MCORE, "MCoreMetadata") => Self::MCoreMetadata,
            (MD, "TensorStorageMetadata") => Self::TensorStorageMetadata,
            (MD, "BytesStorageMetadata") => Self::BytesStorageMetadata,
            (MD, "TensorProperties") => Self::TensorProperties(false),
            (SH, "TensorProperties") => Self::TensorProperties(true),
            (MD, "ChunkStorageMetadata") => Self::ChunkStorageMetadata,
            (MD, "MetadataIndex") => Self::MetadataIndex,
            (FS, "_StorageInfo") => Self::StorageInfo,
            (MD, "StorageMeta") => Self::StorageMeta,
            ("torch", "Size") => Self::Size,
            ("torch.serialization", "_get_layout") => Self::GetLayout,
            (MD, "_MEM_FORMAT_ENCODING") | (SH, "MEM_FORMAT_ENCODING") => Self::MemFormat,
            (
                "pathlib" | "pathlib._local",
                "PosixPath" | "WindowsPath" | "PurePosixPath" | "PureWindowsPath" | "Path",
            ) => Self::Path,
            ("torch", name) if name.len() <= LONGEST_DTYPE => {
                name.parse().map_or(Self::Other, Self::DType)
            }
            _ => Self::Other,
        }
    }
}
