//! The global plan of a large save, timed: dedup, metadata and validation in one.
//!
//! `cargo run --release -p reshard-plan --example plan_bench -- RANKS ITEMS REPLICAS` makes RANKS plans of ITEMS bfloat16
//! chunks each, every tensor cut into RANKS / REPLICAS blocks of rows, and prints seconds.
#![expect(clippy::print_stdout, reason = "this is what it is for")]

use reshard_model::{DType, Region};
use reshard_plan::{
    DefaultSavePlanner, PlanError, SavePlan, SavePlanner, TensorProperties, TensorWrite, WriteItem,
    WriteKind,
};
use std::time::Instant;

fn main() -> Result<(), PlanError> {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u64>().ok());
    let mut arg = |default| args.next().flatten().unwrap_or(default);
    let (ranks, items, replicas) = (arg(1024), arg(1000), arg(8));
    let shards = (ranks / replicas.max(1)).max(1);
    let item = |rank: u64, k: u64| WriteItem {
        key: format!("layers.{k}.w").into(),
        source: k as u32,
        kind: WriteKind::Tensor(TensorWrite {
            dtype: DType::BFloat16,
            global_shape: [shards * 4, 1024].into(),
            region: Region::new([rank % shards * 4, 0], [4, 1024]),
            properties: TensorProperties::default(),
            original_shape: None,
        }),
    };
    let plans: Vec<SavePlan> = (0..ranks)
        .map(|r| SavePlan::new((0..items).map(|k| item(r, k)).collect()))
        .collect();

    let start = Instant::now();
    let (plans, metadata) = DefaultSavePlanner::DCP.create_global_plan(plans)?;
    let seconds = start.elapsed().as_secs_f64();

    let kept: usize = plans.iter().map(|p| p.items.len()).sum();
    let chunks = metadata.chunk_count();
    println!("ranks={ranks} items={items} replicas={replicas} kept={kept} chunks={chunks}");
    println!("global_plan_seconds={seconds:.4}");
    Ok(())
}
