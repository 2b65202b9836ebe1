//! A sharding policy's call and the check of its answer, without files or ranks.

use crate::measured::{Measured, cpu, peak};
use anyhow::{Context, Result};
use reshard::{
    DType, Region,
    model::Dims,
    policy::{Content, Limits, MIB, MaxShardSize, Overhead, Piece, decide},
};
use std::time::Instant;

/// Pieces of 256 ranks: rows of matrices, 256 KiB to 4 MiB each, and some small vectors, in shards of half a gibibyte. With
/// `cut`, in shards of a size at which nearly every matrix is cut.
pub(crate) fn policy(pieces: u32, cut: bool, iterations: usize) -> Result<Measured> {
    const RANKS: u32 = 256;
    let keys: Vec<String> = (0..pieces)
        .map(|i| format!("layers.{}.weight_{}", i / 16, i % 16))
        .collect();
    let shape = |i: u32| -> Dims {
        if i % 16 < 12 {
            [u64::from(i % 16 + 1) << 16, 1024].into()
        } else {
            [8192].into()
        }
    };
    let boxes: Vec<(Dims, Region)> = (0..pieces)
        .map(|i| {
            let shape = shape(i);
            let mut part = Region::whole(&shape);
            let rank = u64::from(i / pieces.div_ceil(RANKS));
            part.lengths[0] /= u64::from(RANKS);
            part.offsets[0] = part.lengths[0] * rank;
            (shape, part)
        })
        .collect();
    let all: Vec<Piece<'_>> = (0..pieces)
        .zip(&keys)
        .zip(&boxes)
        .map(|((i, key), (shape, region))| {
            let dtype = if i % 2 == 0 {
                DType::BFloat16
            } else {
                DType::Float32
            };
            Piece {
                key,
                name: key,
                content: Content::Tensor(dtype),
                global_shape: shape,
                region,
                task: i / pieces.div_ceil(RANKS),
                device: "cpu",
                owner: key.rsplit_once('.').map_or("", |(owner, _)| owner),
                tag: None,
                bytes: region.volume().unwrap_or(0) * dtype.size(),
                whole: false,
                overhead: Overhead::default(),
            }
        })
        .collect();
    let policy = MaxShardSize::new(if cut { 4 * MIB } else { 512 * MIB });
    let mut out = Measured::default();
    for _ in 0..iterations.max(1) {
        let (start, used) = (Instant::now(), cpu());
        let sharding = decide(&policy, &all, Limits::default()).context("the policy failed")?;
        out.seconds.push(start.elapsed().as_secs_f64());
        out.cpu.push(cpu() - used);
        (out.needed, out.read) = (sharding.metrics.shards, sharding.metrics.slices);
    }
    // The pieces, too.
    out.grown = peak();
    out.peak = out.grown;
    Ok(out)
}
