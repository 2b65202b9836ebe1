//! Which tensors are quantised, and with which scales.

use reshard_model::{DType, Dims};
use reshard_plan::{ChunkId, Metadata, TensorRef, scale_of};
use reshard_storage::{Name, Store};
use reshard_strategy::{Result, read_small};
use serde::Deserialize;
use std::sync::Arc;

/// How a tensor is quantised.
#[derive(Clone, Debug)]
pub(super) enum Form {
    /// Float8 with a scale for each block of so many rows and columns.
    Blocks((u64, u64)),
    /// Groups of so many bytes, with two numbers in each.
    Groups(u64),
}

/// A quantised tensor.
#[derive(Clone, Debug)]
pub(super) struct Quantised {
    pub(super) form: Form,
    /// The shape of what it stands for.
    pub(super) shape: Dims,
    pub(super) elements: ChunkId,
    pub(super) scales: ChunkId,
}

/// The suffixes of elements and scales.
const BLOCKS: (&str, &str) = (".weight", ".weight_scale_inv");
const GROUPS: (&str, &str) = ("_blocks", "_scales");

/// The usual block.
const BLOCK: (u64, u64) = (128, 128);

/// The key of the other one of a pair.
fn other(key: &str, from: &str, to: &str) -> Option<String> {
    Some(format!("{}{to}", key.strip_suffix(from)?))
}

fn is_float8(dtype: DType) -> bool {
    dtype.is_float()
        && dtype.size() == 1
        && !matches!(dtype, DType::Float8E8M0Fnu | DType::Float4E2M1FnX2)
}

/// Whether a tensor has only the scales of another one.
pub(super) fn is_scale(metadata: &Metadata, t: &TensorRef<'_>, block: (u64, u64)) -> bool {
    [BLOCKS, GROUPS].into_iter().any(|(elements, scales)| {
        let of = other(t.key(), scales, elements);
        let of = of.and_then(|key| metadata.tensor(&key));
        of.is_some_and(|of| matches!(quantised(metadata, &of, block), Some(Ok(_))))
    })
}

/// Why a quantised tensor can't be read as what it stands for, if it has a scale of another kind than [`quantised`] applies.
pub(super) fn of_another_kind(metadata: &Metadata, t: &TensorRef<'_>) -> Option<String> {
    let scale = scale_of(metadata, t)?;
    let of_scale = metadata.tensor(&scale)?;
    Some(format!(
        "it is quantised as {} with its scale {} {} in {scale}, and this form of scales is not known",
        t.dtype(),
        of_scale.dtype(),
        of_scale.shape()
    ))
}

/// How a tensor is quantised, if it is.
///
/// # Errors
/// Why it can't be read as what it stands for.
pub(super) fn quantised(
    metadata: &Metadata,
    t: &TensorRef<'_>,
    block: (u64, u64),
) -> Option<Result<Quantised, String>> {
    let scales = |(from, to)| metadata.tensor(&other(t.key(), from, to)?);
    if let Some(scales) = scales(BLOCKS).filter(|_| is_float8(t.dtype())) {
        return Some(in_blocks(t, &scales, block));
    }
    let bytes = t.dtype() == DType::UInt8;
    let scales = scales(GROUPS).filter(|scales| bytes && scales.dtype() == DType::UInt8)?;
    Some(in_groups(t, &scales))
}

fn in_blocks(
    t: &TensorRef<'_>,
    scales: &TensorRef<'_>,
    block: (u64, u64),
) -> Result<Quantised, String> {
    let shape = t.shape();
    let fits = match (&*shape, &*scales.shape()) {
        ([rows, columns], [a, b]) => {
            (*a, *b) == (rows.div_ceil(block.0), columns.div_ceil(block.1))
        }
        _ => false,
    };
    if !fits || !scales.dtype().is_float() {
        return Err(format!(
            "its scales {} {} do not fit its shape {shape} in blocks of {} x {}",
            scales.dtype(),
            scales.shape(),
            block.0,
            block.1
        ));
    }
    Ok(Quantised {
        form: Form::Blocks(block),
        elements: whole(t)?,
        scales: whole(scales)?,
        shape,
    })
}

fn in_groups(t: &TensorRef<'_>, scales: &TensorRef<'_>) -> Result<Quantised, String> {
    let (shape, of_scales) = (t.shape(), scales.shape());
    let unfit = || format!("its scales {of_scales} do not fit its groups {shape}");
    let Some((&bytes, groups)) = shape.split_last() else {
        return Err(unfit());
    };
    if *groups != *of_scales || groups.is_empty() || bytes == 0 {
        return Err(unfit());
    }
    let mut stands_for = Dims::from(groups);
    if let Some(last) = stands_for.last_mut() {
        *last = last
            .checked_mul(bytes)
            .and_then(|n| n.checked_mul(2))
            .ok_or_else(unfit)?;
    }
    Ok(Quantised {
        form: Form::Groups(bytes),
        elements: whole(t)?,
        scales: whole(scales)?,
        shape: stands_for,
    })
}

/// The one chunk of a tensor.
fn whole(t: &TensorRef<'_>) -> Result<ChunkId, String> {
    let mut chunks = t.chunks();
    match (chunks.next(), chunks.next()) {
        (Some((id, _)), None) => Ok(id),
        _ => Err(format!("{} lies in pieces", t.key())),
    }
}

/// The `quantization_config` in the `config.json` of a model.
#[derive(Debug)]
pub(crate) struct Quantization {
    /// The rows and columns that share a scale.
    pub(crate) block: (u64, u64),
    /// Its `quant_method`, if there is a `quantization_config`.
    method: Option<String>,
}

impl Quantization {
    pub(crate) async fn of(store: &Arc<dyn Store>) -> Result<Self> {
        #[derive(Deserialize)]
        struct Config {
            quantization_config: Option<Found>,
        }
        #[derive(Deserialize)]
        struct Found {
            weight_block_size: Option<(u64, u64)>,
            quant_method: Option<String>,
        }
        let text = read_small(store, &Name::new("config.json")?).await?;
        let config = text.and_then(|text| serde_json::from_slice::<Config>(&text).ok());
        let found = config.and_then(|config| config.quantization_config);
        let block = found.as_ref().and_then(|found| found.weight_block_size);
        let method = found.map(|found| {
            found
                .quant_method
                .unwrap_or_else(|| "no quant_method".into())
        });
        Ok(Self {
            block: block.filter(|(a, b)| *a > 0 && *b > 0).unwrap_or(BLOCK),
            method,
        })
    }

    /// Says that `dequantize` has no effect, as the object of "does not support".
    pub(crate) fn not_known(&self) -> String {
        let found = match &self.method {
            Some(method) => {
                format!(
                    "`quantization_config` in config.json says {method}, but no tensor has a scale"
                )
            }
            None => "no tensor has a scale, and config.json has no `quantization_config`".into(),
        };
        format!(
            "`dequantize`, which would have no effect here ({found}; it knows float8 in blocks with `weight_scale_inv`, and MXFP4 in `_blocks` \
             and `_scales`; leave it out to read what is stored),"
        )
    }
}
