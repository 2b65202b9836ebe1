//! Planning of a save whose structure is that of the save before.

use crate::{measured::Measured, ranks::on_ranks};
use anyhow::Result;
use reshard::{Durability, KeptPlan, Phase, ShardedTensor, StateDict, Tensor, blocking};
use std::{path::Path, sync::Arc};

/// Two ranks, each with its rows of every tensor. The tensors are small, so that planning is nearly all there is to do. With `anew`
/// nothing is kept.
pub(crate) fn replan(tensors: u64, dir: &Path, anew: bool, iterations: usize) -> Result<Measured> {
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
            let save = reshard::save(&state, &url)
                .group(group)
                .durability(Durability::Process);
            let save = if anew { save } else { save.kept_plan(&kept) };
            let report = blocking::run(save)?;
            seconds.push(report.time(Phase::Plan).as_secs_f64());
            Ok((state, kept, seconds))
        },
        Ok,
    )?;
    let mut out = runs.measured(0);
    // The first run warms up, and plans. A run takes as long as its slowest rank.
    let slowest = |run: usize| states.iter().map(|(_, _, s)| s[run]).fold(0.0, f64::max);
    out.seconds = (1..=iterations).map(slowest).collect();
    // That is the CPU time of the whole save.
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
