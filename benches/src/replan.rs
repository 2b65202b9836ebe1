//! Planning of a save whose structure is that of the save before.

use crate::{measured::Measured, ranks::on_ranks};
use anyhow::Result;
use async_trait::async_trait;
use reshard::{
    BackendVersion, Durability, KeptPlan, Phase, ShardedTensor, StateDict, Tensor, blocking,
    model::FlatStateDict,
    strategy::{self, PreparedSave, SaveCx, SaveShardedConfig, SaveShardedStrategy},
    torch_dist::TorchDistConfig,
};
use serde::{Deserialize, Serialize};
use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

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
            Ok((
                state,
                Arc::new(KeptPlan::new()),
                Timed::default(),
                Vec::new(),
            ))
        },
        move || drop(std::fs::remove_dir_all(&dir)),
        move |(state, kept, timed, mut seconds), group| {
            let save = reshard::save(&state, &url)
                .group(group)
                .strategy(timed.clone())
                .durability(Durability::Process);
            let save = if anew { save } else { save.kept_plan(&kept) };
            let report = blocking::run(save)?;
            seconds.push(match phase {
                true => report.time(Phase::Plan).as_secs_f64(),
                false => *timed.0.lock().unwrap_or_else(PoisonError::into_inner),
            });
            Ok((state, kept, timed, seconds))
        },
        Ok,
    )?;
    let mut out = runs.measured(0);
    // The first run warms up, and plans. A run takes as long as its slowest rank.
    let slowest = |run: usize| states.iter().map(|s| s.3[run]).fold(0.0, f64::max);
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

/// `torch_dist`, and how many seconds it has planned last.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Timed(#[serde(skip)] Arc<Mutex<f64>>);

#[typetag::serde(name = "bench_timed")]
impl SaveShardedConfig for Timed {
    fn build(&self) -> strategy::Result<Arc<dyn SaveShardedStrategy>> {
        Ok(Arc::new(Strategy {
            base: TorchDistConfig::new().build()?,
            seconds: Arc::clone(&self.0),
        }))
    }
}

#[derive(Debug)]
struct Strategy {
    base: Arc<dyn SaveShardedStrategy>,
    seconds: Arc<Mutex<f64>>,
}

#[async_trait]
impl SaveShardedStrategy for Strategy {
    fn key(&self) -> BackendVersion {
        self.base.key()
    }

    fn can_handle_sharded_objects(&self) -> bool {
        self.base.can_handle_sharded_objects()
    }

    async fn prepare(
        &self,
        state: FlatStateDict,
        cx: &SaveCx<'_>,
    ) -> strategy::Result<Box<dyn PreparedSave>> {
        let start = Instant::now();
        let prepared = self.base.prepare(state, cx).await;
        let mut seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        *seconds = start.elapsed().as_secs_f64();
        prepared
    }
}
