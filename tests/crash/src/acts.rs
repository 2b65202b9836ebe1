//! What ranks in processes do while one of them is killed. They set no deadline: the transport itself has to notice.

use crate::{COLUMNS, Form, ROWS, TENSORS, key, save_on_rank, state, step_of, template};
use anyhow::{Result, ensure};
use reshard::{
    DType, Dialect, Durability, ProcessGroup, Region, Save, ShardedTensor, StateDict, Tensor,
    blocking,
    plan::{
        DefaultLoadPlanner, Demand, LoadContext, LoadPlan, LoadPlanner, PlanError, share_reads,
    },
};
use reshard_parallel::{FullyParallelLoad, FullyParallelSave};
use std::path::Path;

/// One rank's part in something.
#[derive(Clone, Copy, Debug)]
pub struct Act {
    /// Its name, by which `reshard-rank` knows it.
    pub name: &'static str,
    /// Whether it replaces what lies there by another step.
    pub saves: bool,
    /// Does it, on one rank: saves this step, or loads it.
    pub run: fn(&dyn ProcessGroup, &Path, u64) -> Result<()>,
}

/// All of them. A line more, and it is killed like the others.
pub const ACTS: &[Act] = &[
    Act {
        name: "save",
        saves: true,
        run: |group, dir, step| save_on_rank(group, dir, step, true, Dialect::Megatron),
    },
    Act {
        name: "save-dcp",
        saves: true,
        run: |group, dir, step| save_on_rank(group, dir, step, true, Dialect::Dcp),
    },
    Act {
        name: "save-parallel",
        saves: true,
        run: save_parallel,
    },
    Act {
        name: "save-zarr",
        saves: true,
        run: |group, dir, step| save_on_rank(group, dir, step, true, Form::Zarr),
    },
    Act {
        name: "save-zarr-exchange",
        saves: true,
        run: |group, dir, step| save_uneven(group, dir, step, Form::Zarr),
    },
    Act {
        name: "save-zarr3-exchange",
        saves: true,
        run: |group, dir, step| save_uneven(group, dir, step, Form::Zarr3),
    },
    Act {
        name: "save-async",
        saves: true,
        run: save_async,
    },
    Act {
        name: "save-queue",
        saves: true,
        run: save_queue,
    },
    Act {
        name: "load",
        saves: false,
        run: load,
    },
    Act {
        name: "load-exchange",
        saves: false,
        run: load_exchange,
    },
    Act {
        name: "load-parallel",
        saves: false,
        run: load_parallel,
    },
];

/// In the background, with a thread that commits.
fn save_async(group: &dyn ProcessGroup, dir: &Path, step: u64) -> Result<()> {
    let (url, state) = (
        dir.display().to_string(),
        state(step, group.rank().0.into())?,
    );
    let mut saver = blocking::AsyncSaver::new(group)?;
    let handle = saver.start(overwriting(&state, &url))?;
    drop(state);
    handle.finish()?;
    Ok(())
}

/// In the background, committed by the caller.
fn save_queue(group: &dyn ProcessGroup, dir: &Path, step: u64) -> Result<()> {
    let (url, state) = (
        dir.display().to_string(),
        state(step, group.rank().0.into())?,
    );
    let mut queue = blocking::AsyncCallsQueue::new(group)?;
    let request = queue.request(overwriting(&state, &url))?;
    drop(state);
    queue.schedule(request)?;
    queue.close(false)?;
    Ok(())
}

fn overwriting<'a>(state: &'a StateDict, url: &'a str) -> Save<'a> {
    reshard::save(state, url)
        .overwrite(true)
        .durability(Durability::Process)
}

/// All ranks want everything, each reads a part of it, and hands it to the others.
fn load_parallel(group: &dyn ProcessGroup, dir: &Path, step: u64) -> Result<()> {
    let url = dir.display().to_string();
    let load = reshard::load(template(), &url)
        .group(group)
        .exchange_memory(64 << 10)
        .strategy(
            FullyParallelLoad::new().around(reshard::torch_dist::TorchDistLoadConfig::default()),
        );
    let loaded = blocking::run(load).map_err(|e| e.into_parts().0)?;
    ensure!(step_of(&loaded)? == step, "another step was loaded");
    Ok(())
}

/// All ranks have all tensors, and share the writing.
fn save_parallel(group: &dyn ProcessGroup, dir: &Path, step: u64) -> Result<()> {
    let mut state = StateDict::new();
    for i in 0..TENSORS {
        let data = vec![(step * 100 + i) as f32; (ROWS * COLUMNS) as usize];
        let tensor = ShardedTensor::full(&key(i), Tensor::from_vec(&[ROWS, COLUMNS], data)?);
        state.insert(key(i), tensor.with_replica_id(group.rank().0));
    }
    state.insert("step", i64::try_from(step)?);
    let url = dir.display().to_string();
    let save = reshard::save(&state, &url)
        .group(group)
        .overwrite(true)
        .strategy(FullyParallelSave::new().around(reshard::torch_dist::TorchDistConfig::default()));
    blocking::run(save.durability(Durability::Process))?;
    Ok(())
}

/// Ranks have other rows than the chunks of arrays, so they write for each other.
fn save_uneven(group: &dyn ProcessGroup, dir: &Path, step: u64, form: Form) -> Result<()> {
    const ENDS: [u64; 5] = [0, 10, 30, 45, ROWS];
    let rank = group.rank().index();
    let (from, to) = (ENDS[rank], ENDS[rank + 1]);
    let mut state = StateDict::new();
    for i in 0..TENSORS {
        let data = vec![(step * 100 + i) as f32; ((to - from) * COLUMNS) as usize];
        let data = Tensor::from_vec(&[to - from, COLUMNS], data)?;
        let rows = Region::new([from, 0], [to - from, COLUMNS]);
        let leaf = ShardedTensor::region_of(&key(i), DType::Float32, &[ROWS, COLUMNS], rows);
        state.insert(key(i), leaf.with_data(data));
    }
    state.insert("step", i64::try_from(step)?);
    let url = dir.display().to_string();
    // Rounds are many, so that a kill meets one.
    let save = reshard::save(&state, &url)
        .group(group)
        .overwrite(true)
        .exchange_memory(8 << 10);
    blocking::run(form.of(save).durability(Durability::Process))?;
    Ok(())
}

/// All ranks want everything, and each reads it.
fn load(group: &dyn ProcessGroup, dir: &Path, step: u64) -> Result<()> {
    let url = dir.display().to_string();
    let loaded = reshard::load(template(), &url).group(group);
    let loaded = blocking::run(loaded).map_err(|e| e.into_parts().0)?;
    ensure!(step_of(&loaded)? == step, "another step was loaded");
    Ok(())
}

/// All ranks want everything, and share the reading.
fn load_exchange(group: &dyn ProcessGroup, dir: &Path, step: u64) -> Result<()> {
    let url = dir.display().to_string();
    let load = reshard::load(template(), &url).group(group);
    // Rounds are many, so that a kill meets one.
    let load = load.planner(InTurn).exchange_memory(8 << 10);
    let loaded = blocking::run(load).map_err(|e| e.into_parts().0)?;
    ensure!(step_of(&loaded)? == step, "another step was loaded");
    Ok(())
}

/// Each chunk is read by one of the ranks that want it, in turn.
#[derive(Debug)]
struct InTurn;

impl LoadPlanner for InTurn {
    fn create_global_plan(
        &self,
        plans: Vec<LoadPlan>,
        cx: &LoadContext<'_>,
    ) -> Result<Vec<LoadPlan>, PlanError> {
        let plans = DefaultLoadPlanner::DEFAULT.create_global_plan(plans, cx)?;
        let turns = |all: &[Demand]| {
            let turn = |(i, demand): (usize, &Demand)| demand.ranks[i % demand.ranks.len()];
            all.iter().enumerate().map(turn).collect()
        };
        share_reads(plans, cx.metadata, |_| Some(0), turns)
    }
}
