//! Quantised tensors, known by the names of their scales.

use crate::{Metadata, TensorRef};
use reshard_model::DType;

/// Endings of the keys of quantised elements and of their scales, as the libraries for quantisation name them: DeepSeek,
/// compressed-tensors and fbgemm, GPTQ and AWQ, bitsandbytes, and MXFP4 of gpt-oss.
const PAIRS: [(&str, &str); 7] = [
    (".weight", ".weight_scale_inv"),
    (".weight", ".weight_scale"),
    (".weight_packed", ".weight_scale"),
    (".qweight", ".scales"),
    (".weight", ".SCB"),
    ("_blocks", "_scales"),
    (".weight", ".weight_scale_2"),
];

/// Returns the key of a tensor's scale, if the tensor is quantised. Its elements mean nothing without this scale.
///
/// ```
/// use reshard_model::{DType, Dims};
/// use reshard_plan::{Metadata, TensorProperties, scale_of};
///
/// let mut builder = Metadata::builder();
/// let shape = Dims::from([2]);
/// for (key, dtype) in [("a.weight", DType::Float8E4M3Fn), ("a.weight_scale", DType::Float32), ("b.weight", DType::Float32)] {
///     builder.add_tensor(key, dtype, &shape, TensorProperties::default())?;
/// }
/// let metadata = builder.finish(None)?;
/// let scale = |key: &str| scale_of(&metadata, &metadata.tensor(key).unwrap());
/// assert_eq!(scale("a.weight").as_deref(), Some("a.weight_scale"));
/// assert_eq!(scale("b.weight"), None);
/// # Ok::<(), reshard_plan::PlanError>(())
/// ```
pub fn scale_of(metadata: &Metadata, t: &TensorRef<'_>) -> Option<String> {
    // Other types have the numbers of a model.
    if t.dtype().size() != 1 && t.dtype() != DType::Int32 {
        return None;
    }
    PAIRS.iter().find_map(|(elements, scale)| {
        let scale = format!("{}{scale}", t.key().strip_suffix(elements)?);
        metadata.tensor(&scale).map(|_| scale)
    })
}
