//! Planning of a save whose structure is that of the save before.

use crate::{measured::Measured, ranks::on_ranks};
use anyhow::Result;
use reshard::{
    Dialect, Durability, KeptPlan, LocalGroup, Phase, ShardedTensor, StateDict, Tensor, blocking,
    comm::Comm,
    model::{Flatten, split_ref},
    plan::DefaultSavePlanner,
    storage::{IfExists, Stores},
    strategy::{PipelineOptions, SaveCx, SaveShardedStrategy},
    torch_dist::TorchDistConfig,
};
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Instant};

/// Two ranks, each with its rows of every tensor. The tensors are small, so that planning is nearly all there is to do. With `anew`
/// nothing is kept. The time is that of planning by all ranks; with `phase` that of the whole phase, which also takes the state apart and
/// begins a transaction.
pub(crate) fn replan(
    tensors: u64,
    dir: &Path,
    (anew, phase): (bool, bool),
    iterations: usize,
) -> Result<Measured> {
    let (url, dir) = (dir.display().to_string(), dir.to_owned());
    let (runs, states) = on_ranks(
        2,
        iterations,
        move |rank| {
            let state = state(tensors, rank)?;
            Ok((state, Arc::new(KeptPlan::new()), Vec::new()))
        },
        move || drop(std::fs::remove_dir_all(&dir)),
        move |(state, kept, mut seconds), group| {
            let again = (!anew).then_some(&kept);
            seconds.push(match phase {
                true => {
                    let save = reshard::save(&state, &url)
                        .group(group)
                        .durability(Durability::Process);
                    let save = again
                        .into_iter()
                        .fold(save, |save, kept| save.kept_plan(kept));
                    blocking::run(save)?.time(Phase::Plan).as_secs_f64()
                }
                false => plan(&state, &url, group, again)?,
            });
            Ok((state, kept, seconds))
        },
        Ok,
    )?;
    let mut out = runs.measured(0);
    // The first run warms up, and plans. A run takes as long as its slowest rank.
    let slowest = |run: usize| states.iter().map(|s| s.2[run]).fold(0.0, f64::max);
    out.seconds = (1..=iterations).map(slowest).collect();
    // That is the CPU time of whole saves.
    out.cpu.clear();
    Ok(out)
}

fn state(tensors: u64, rank: u64) -> Result<StateDict> {
    let mut state = StateDict::new();
    for k in 0..tensors {
        let key = format!("decoder.layers.{k}.self_attention.linear_qkv.weight");
        let local = Tensor::from_vec(&[4, 8], vec![k as f32; 32])?;
        let piece = ShardedTensor::from_rank_offsets(&key, local, &[(0, rank, 2)])?;
        state.insert(key.as_str(), piece);
    }
    Ok(state)
}

/// Plans a save, and drops the plan. Returns how many seconds planning took.
fn plan(
    state: &StateDict,
    url: &str,
    group: &LocalGroup,
    kept: Option<&Arc<KeptPlan>>,
) -> Result<f64> {
    let comm = Comm::new(group);
    let flat = split_ref(state, Dialect::Megatron, Flatten::default())?.flat;
    let strategy = SaveShardedStrategy::new(TorchDistConfig::new());
    blocking::run(async {
        let store = Stores::linked()?.open(url)?;
        let begun = store.begin("replan", IfExists::Refuse).await?;
        let (options, groups) = (PipelineOptions::default(), BTreeMap::new());
        let planner = Arc::new(DefaultSavePlanner::DEFAULT);
        let mut cx = SaveCx::new(&options, comm, &groups, begun, url, planner);
        cx.kept_plan = kept.cloned();
        let start = Instant::now();
        drop(strategy.prepare(flat, &cx).await?);
        let seconds = start.elapsed().as_secs_f64();
        comm.agree("rollback", Ok(())).await?;
        if comm.is_coordinator() {
            cx.transaction.rollback().await?;
        }
        comm.agree("rollback", Ok(())).await?;
        Ok(seconds)
    })
}
