//! Refuses casts of quantised tensors, whose elements mean nothing without their scales.

use crate::{ConvertError, Result, cast::is_cast};
use reshard::{Checkpoint, DType, plan::scale_of, storage::Name, strategy::read_small};
use serde_json::Value as Json;

/// Fails if a tensor is cast that has a scale, or is of float8 in a model with a `quantization_config`. `casts` says whether the
/// conversion casts the tensor of this key and type.
pub(crate) async fn check(source: &Checkpoint, casts: impl Fn(&str, DType) -> bool) -> Result<()> {
    let metadata = source.metadata();
    let cast = metadata.tensors().filter(|t| casts(t.key(), t.dtype()));
    let mut unscaled = None;
    for t in cast {
        if let Some(scale) = scale_of(metadata, &t) {
            let found = format!("its scale is in {scale}");
            return Err(quantized(t.key(), t.dtype(), found));
        }
        if t.dtype().is_float() && t.dtype().size() == 1 {
            unscaled = unscaled.or(Some((t.key(), t.dtype())));
        }
    }
    // Float8 of a model that is not quantised is a type like any other.
    let Some((key, dtype)) = unscaled else {
        return Ok(());
    };
    match config(source).await? {
        Some(found) => Err(quantized(key, dtype, found)),
        None => Ok(()),
    }
}

/// Whether a conversion with this element type casts a tensor.
pub(crate) fn is_cast_to(to: Option<DType>, from: DType) -> bool {
    to.is_some_and(|to| is_cast(from, to))
}

fn quantized(key: &str, from: DType, found: String) -> ConvertError {
    ConvertError::Quantized {
        key: key.into(),
        from,
        found,
    }
}

/// Returns what the description of a model of transformers says about quantisation.
async fn config(source: &Checkpoint) -> Result<Option<String>> {
    let name = Name::new("config.json").map_err(|e| ConvertError::Destination(e.into()))?;
    let text = read_small(source.store(), &name).await;
    let text = text.map_err(ConvertError::Destination)?;
    let Some(text) = text else {
        return Ok(None);
    };
    let Ok(config) = serde_json::from_slice::<Json>(&text) else {
        return Ok(Some(
            "config.json is no JSON, and may have a `quantization_config`".into(),
        ));
    };
    let found = config.get("quantization_config");
    Ok(found.filter(|found| !found.is_null()).map(|found| {
        let method = found.get("quant_method").and_then(Json::as_str);
        let method = method.unwrap_or("no quant_method");
        format!("config.json has a `quantization_config` ({method})")
    }))
}
