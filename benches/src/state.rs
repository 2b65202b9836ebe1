//! The states that are saved and loaded: a Llama-like model with its moments, and many small tensors.

use anyhow::{Context, Result};
use half::bf16;
use reshard::{
    DType, Region, ShardedTensor, StateDict, Tensor,
    model::{Dims, LentBuffer},
};
use std::ops::Range;

const D: u64 = 2048;
const F: u64 = 5504;
const LAYER: [(&str, &[u64]); 9] = [
    ("q", &[D, D]),
    ("k", &[D, D]),
    ("v", &[D, D]),
    ("o", &[D, D]),
    ("gate", &[F, D]),
    ("up", &[F, D]),
    ("down", &[D, F]),
    ("n1", &[D]),
    ("n2", &[D]),
];

/// One of the largest tensors.
pub(crate) const LARGEST: &str = "layers.0.gate.exp_avg";

/// Its bytes.
pub(crate) const LARGEST_BYTES: u64 = F * D * 4;

/// What part of each tensor a rank holds or wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Cut {
    /// An equal part of the rows.
    Rows,
    /// An equal part of the columns (rows of vectors).
    Columns,
    /// All of it, as each other rank does.
    Whole,
    /// All elements of its columns, as a flattened range of them.
    FlattenedColumns,
    /// A part of the elements of the whole tensor, as a flattened range.
    FlattenedRange,
}

impl Cut {
    /// The leaf of rank `rank`, whose elements are all 1.
    fn leaf(
        self,
        key: &str,
        dtype: DType,
        shape: &[u64],
        rank: u64,
        parts: u64,
    ) -> Result<ShardedTensor> {
        let last = shape.len() - 1;
        let mut local = Dims::from(shape);
        let (leaf, elements) = match self {
            Self::Rows | Self::Columns | Self::Whole => {
                // A tensor with one axis has no columns, so it is cut along its rows.
                let axis = if self == Self::Columns { last } else { 0 };
                let mut region = Region::whole(shape);
                if self != Self::Whole {
                    region.lengths[axis] /= parts;
                    region.offsets[axis] = region.lengths[axis] * rank;
                }
                let elements = region.lengths.clone();
                let leaf = ShardedTensor::region_of(key, dtype, shape, region);
                let replica = if self == Self::Whole { rank } else { 0 };
                (leaf.with_replica_id(replica as u32), elements)
            }
            Self::FlattenedColumns => {
                local[last] /= parts;
                let leaf = ShardedTensor::declare(key, dtype, &local, &[(last, rank, parts)], 0)?;
                let all = local.iter().product();
                (flattened(leaf, 0..all), [all].into())
            }
            Self::FlattenedRange => {
                let leaf = ShardedTensor::declare(key, dtype, &local, &[], 0)?;
                let all: u64 = shape.iter().product();
                let range = all * rank / parts..all * (rank + 1) / parts;
                let elements = [range.end - range.start].into();
                (flattened(leaf, range), elements)
            }
        };
        Ok(leaf.with_data(ones(dtype, &elements)?))
    }
}

fn flattened(leaf: ShardedTensor, range: Range<u64>) -> ShardedTensor {
    ShardedTensor {
        flattened_range: Some(range),
        ..leaf
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum State {
    /// bf16 weights and fp32 moments of Llama-like layers.
    Llama,
    /// Tensors of 64 KiB, each on one rank.
    Small,
    /// One tensor, all of it on rank 0: one chunk.
    One,
    /// One of the largest tensors of the layers, all of it on rank 0.
    Largest,
}

/// Every element is 1, so that memory is touched and wrong values show. The memory is the library's own, which begins at a line of the
/// processor's cache, as torch's does.
fn ones(dtype: DType, shape: &Dims) -> Result<Tensor> {
    match dtype {
        DType::BFloat16 => filled(dtype, shape, &bf16::ONE.to_le_bytes()),
        _ => filled(dtype, shape, &1f32.to_le_bytes()),
    }
}

fn filled(dtype: DType, shape: &Dims, one: &[u8]) -> Result<Tensor> {
    written(Tensor::zeros("ones", dtype, shape)?, |memory| {
        for element in memory.chunks_exact_mut(one.len()) {
            element.copy_from_slice(one);
        }
    })
}

/// Lets somebody write into the memory of a contiguous tensor, which nobody else has.
pub(crate) fn written(tensor: Tensor, write: impl FnOnce(&mut [u8])) -> Result<Tensor> {
    let layout = tensor.layout().clone();
    let (lent, views) = LentBuffer::new("memory", vec![tensor]).map_err(|(e, _)| e)?;
    let whole = Region::whole(layout.shape());
    let into = lent
        .regions_mut(&[(&views[0], whole)])?
        .pop()
        .context("one region was asked for")?;
    let mut memory = into.strided_copy(&layout)?;
    let (_, run) = memory.take_runs(1).pop().context("there is one run")?;
    write(run);
    drop(memory);
    lent.reclaim(views)
        .ok()
        .and_then(|mut tensors| tensors.pop())
        .context("a region is left")
}

fn layers(gb: f64) -> u64 {
    let elements: u64 = LAYER.iter().map(|(_, s)| s.iter().product::<u64>()).sum();
    ((gb * 1e9 / (elements * 10) as f64) as u64).max(1)
}

impl State {
    /// Bytes of all ranks together.
    pub(crate) fn nbytes(self, gb: f64) -> u64 {
        let elements: u64 = LAYER.iter().map(|(_, s)| s.iter().product::<u64>()).sum();
        match self {
            Self::Llama => layers(gb) * elements * 10,
            Self::Small => (gb * 1e9) as u64 / 65536 * 65536,
            Self::One => Self::rows(gb) * D * 4,
            Self::Largest => LARGEST_BYTES,
        }
    }

    /// Rows of the one tensor.
    fn rows(gb: f64) -> u64 {
        (gb * 1e9) as u64 / (D * 4)
    }

    /// What rank `rank` of `world` holds, when each tensor is cut into `parts` of which it takes part `rank`.
    pub(crate) fn build(
        self,
        gb: f64,
        rank: u64,
        world: u64,
        cut: Cut,
        parts: u64,
    ) -> Result<StateDict> {
        let mut out = StateDict::new();
        match self {
            Self::Llama => {
                for layer in 0..layers(gb) {
                    for (name, shape) in LAYER {
                        for (kind, dtype) in [
                            ("w", DType::BFloat16),
                            ("exp_avg", DType::Float32),
                            ("exp_avg_sq", DType::Float32),
                        ] {
                            let key = format!("layers.{layer}.{name}.{kind}");
                            let leaf = cut.leaf(&key, dtype, shape, rank, parts)?;
                            out.insert(key, leaf);
                        }
                    }
                }
            }
            Self::Small => {
                // Small tensors are dealt out whole, each to one rank.
                for i in (0..(gb * 1e9) as u64 / 65536).filter(|i| i % world == rank) {
                    let key = format!("t{i}");
                    let data = ones(DType::Float32, &[128, 128].into())?;
                    out.insert(key.as_str(), ShardedTensor::full(&key, data));
                }
            }
            Self::One if rank == 0 => {
                let data = ones(DType::Float32, &[Self::rows(gb), D].into())?;
                out.insert("one", ShardedTensor::full("one", data));
            }
            Self::Largest if rank == 0 => {
                let data = ones(DType::Float32, &[F, D].into())?;
                out.insert(LARGEST, ShardedTensor::full(LARGEST, data));
            }
            Self::One | Self::Largest => {}
        }
        Ok(out)
    }
}
