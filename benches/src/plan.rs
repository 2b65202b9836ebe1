//! Planning and metadata, without files or ranks.

use crate::measured::{Measured, cpu, peak};
use anyhow::{Context, Result};
use reshard::{
    DType, Region,
    plan::{
        DefaultSavePlanner, SavePlan, SavePlanner, TensorProperties, TensorWrite, WriteItem,
        WriteKind,
    },
};
use std::{path::Path, time::Instant};

/// Every rank holds rows of every tensor, and `replicas` ranks hold the same ones.
pub(crate) fn plan(ranks: u32, items: u32, replicas: u32) -> Result<Measured> {
    let shards = ranks / replicas;
    let shape = [u64::from(shards) * 4, 1024];
    let plans = (0..ranks).map(|r| {
        let item = |k| WriteItem {
            key: format!("layers.{k}.w").into(),
            source: k,
            kind: WriteKind::Tensor(TensorWrite {
                dtype: DType::BFloat16,
                global_shape: shape.into(),
                region: Region::new([u64::from(r % shards) * 4, 0], [4, 1024]),
                properties: TensorProperties::default(),
                original_shape: None,
            }),
        };
        SavePlan::new((0..items).map(item).collect())
    });
    let plans: Vec<SavePlan> = plans.collect();
    let before = peak();
    let (start, used) = (Instant::now(), cpu());
    let (plans, metadata) = DefaultSavePlanner::DCP.create_global_plan(plans)?;
    let (seconds, cpu) = (vec![start.elapsed().as_secs_f64()], vec![cpu() - used]);
    drop((plans, metadata));
    Ok(Measured {
        seconds,
        cpu,
        grown: peak().saturating_sub(before),
        ..Measured::default()
    })
}

/// Reads a `.metadata` as a checkpoint's opening does. Its memory is all that this takes, the file's own bytes too.
pub(crate) fn parse(file: &Path, iterations: usize) -> Result<Measured> {
    let mut out = Measured::default();
    let before = peak();
    for _ in 0..iterations {
        let (start, used) = (Instant::now(), cpu());
        let bytes = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        out.bytes = bytes.len() as u64;
        let (_, chunks, _) = reshard::torch_dist::parse_metadata(bytes)?;
        out.seconds.push(start.elapsed().as_secs_f64());
        out.cpu.push(cpu() - used);
        if out.grown == 0 {
            (out.grown, out.needed) = (peak().saturating_sub(before), chunks as u64);
        }
    }
    out.peak = peak();
    Ok(out)
}
