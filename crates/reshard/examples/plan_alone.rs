//! Plans a save of 1,000 ranks, without their data, without ranks and without I/O, and prints what each rank would write.
//!
//! `cargo run -p reshard --example plan_alone`
//!
//! It uses two crates only: reshard-model, which declares, and reshard-plan, which plans.

#![expect(clippy::print_stdout, reason = "an example, which a test runs")]

use reshard_model::{DType, DeviceMesh, Dialect, Placement, ShardedTensor, StateDict, split};
use reshard_plan::{DefaultSavePlanner, SaveContext, SavePlan, SavePlanner};

/// 25 data-parallel copies of a model that 40 ranks share.
const COPIES: u32 = 25;
const SHARE: u32 = 40;
const LAYERS: u32 = 8;
const HIDDEN: u64 = 4096;

/// What rank `rank` declares. Matrices are cut; norms are the same on all ranks.
fn declare(mesh: &DeviceMesh, rank: u32) -> Result<StateDict, reshard_model::ModelError> {
    let mut state = StateDict::new();
    let cut = |axis| [Placement::Replicate, Placement::Shard(axis)];
    let whole = [Placement::Replicate; 2];
    for layer in 0..LAYERS {
        for (name, shape, placements) in [
            ("attn.qkv", &[3 * HIDDEN, HIDDEN][..], cut(0)),
            ("attn.out", &[HIDDEN, HIDDEN], cut(1)),
            ("mlp.up", &[4 * HIDDEN, HIDDEN], cut(0)),
            ("mlp.down", &[HIDDEN, 4 * HIDDEN], cut(1)),
            ("norm", &[HIDDEN], whole),
        ] {
            let key = format!("layers.{layer}.{name}");
            state.insert_pieces(ShardedTensor::declare_mesh(
                &key,
                DType::BFloat16,
                mesh,
                &placements,
                shape,
                rank,
            )?);
        }
    }
    Ok(state)
}

/// The plan of every rank.
pub(crate) fn plan() -> Result<Vec<SavePlan>, Box<dyn std::error::Error>> {
    // PyTorch's planner: all copies are offered, and the copy of each piece is written where the least is written so far.
    let planner = DefaultSavePlanner::DCP;
    let mesh = DeviceMesh::of(&[("dp", COPIES.into()), ("tp", SHARE.into())])?;
    let mut offers = Vec::new();
    for rank in 0..COPIES * SHARE {
        let flat = split(declare(&mesh, rank)?, Dialect::Dcp)?.flat;
        offers.push(planner.create_local_plan(&flat, &SaveContext::new(rank, rank == 0))?);
    }
    let (plans, metadata) = planner.create_global_plan(offers)?;
    println!(
        "{} tensors in {} chunks",
        metadata.tensors().count(),
        metadata.tensors().map(|t| t.chunks().len()).sum::<usize>()
    );
    Ok(plans)
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let plans = plan()?;
    let bytes: Vec<u64> = plans.iter().map(SavePlan::bytes).collect();
    // Ranks that follow each other and write the same number of bytes share a line.
    let mut from = 0;
    for run in bytes.chunk_by(|a, b| a == b) {
        let last = from + run.len() - 1;
        println!("ranks {from} to {last}, each: {} bytes", run[0]);
        from += run.len();
    }
    let total: u64 = bytes.iter().sum();
    let most = bytes.iter().max().copied().unwrap_or_default();
    println!(
        "{total} bytes in all; the busiest rank writes {most}, {:.2} times the mean",
        most as f64 * bytes.len() as f64 / total as f64
    );

    // Each element of each tensor is written once.
    let layer = (3 + 1 + 4 + 4) * HIDDEN * HIDDEN + HIDDEN;
    assert_eq!(total, u64::from(LAYERS) * layer * 2);
    assert_eq!(bytes.len(), 1000);
    Ok(())
}
