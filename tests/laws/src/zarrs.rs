//! The formats of Zarr arrays.

use proptest::prelude::*;
use reshard::{
    DType,
    strategy::SaveShardedStrategy,
    zarr::{Zarr3Config, ZarrConfig},
};

/// One of them.
#[derive(Clone, Copy, Debug)]
pub enum Zarr {
    /// Megatron Core's.
    V2,
    /// Shards whose inner chunks have about so many bytes.
    V3(u64),
}

impl Zarr {
    /// The settings of a save.
    pub fn config(self) -> SaveShardedStrategy {
        match self {
            Self::V2 => ZarrConfig::default().into(),
            Self::V3(inner) => Zarr3Config::default().with_inner_chunk(inner).into(),
        }
    }

    /// A type for which both have a name, of the same size where there is one.
    pub fn named(dtype: DType) -> DType {
        match dtype {
            DType::Complex32 | DType::BComplex32 => DType::Float32,
            DType::Float8E8M0Fnu | DType::Float4E2M1FnX2 => DType::UInt8,
            other => other,
        }
    }
}

/// Any of them.
pub fn zarrs() -> impl Strategy<Value = Zarr> {
    prop_oneof![
        2 => Just(Zarr::V2),
        1 => Just(Zarr::V3(16)),
        1 => Just(Zarr::V3(4 << 20)),
    ]
}
