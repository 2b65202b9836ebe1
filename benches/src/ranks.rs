//! Runs of ranks that are threads, and what they measure.

use crate::measured::{Measured, cpu, peak};
use crate::state::State;
use anyhow::{Result, anyhow};
use reshard::{Data, LocalGroup, StateDict, model::Leaf};
use std::{
    path::PathBuf,
    sync::{Arc, Barrier},
    time::Instant,
};

/// Of what, where, and how often.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    pub(crate) state: State,
    pub(crate) gb: f64,
    pub(crate) dir: PathBuf,
    pub(crate) iterations: usize,
}

/// What a few runs took.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    pub(crate) seconds: Vec<f64>,
    pub(crate) cpu: Vec<f64>,
}

pub(crate) fn nbytes(state: &StateDict) -> u64 {
    let mut sum = 0;
    state.visit(&mut |_, leaf| {
        if let Leaf::Tensor(t) = leaf
            && let Data::Host(h) = &t.data
        {
            sum += h.nbytes();
        }
    });
    sum
}

impl Runs {
    /// With how many bytes each run has to do.
    pub(crate) fn measured(self, bytes: u64) -> Measured {
        let Self { seconds, cpu } = self;
        Measured {
            seconds,
            cpu,
            bytes,
            ..Measured::default()
        }
    }

    /// Also with the memory that this process took beside a state of so many bytes.
    pub(crate) fn measured_with_memory(self, bytes: u64) -> Measured {
        let peak = peak();
        Measured {
            peak,
            grown: peak.saturating_sub(bytes),
            ..self.measured(bytes)
        }
    }
}

/// Runs `work` on a thread a rank; each run starts and ends at a barrier. `before` runs on rank 0 alone, and
/// `after` makes the next state of what `work` gives; both off the clock.
pub(crate) fn on_ranks<S: Send + 'static, T>(
    world: u64,
    iterations: usize,
    build: impl Fn(u64) -> Result<S> + Send + Sync + Clone + 'static,
    before: impl Fn() + Send + Sync + Clone + 'static,
    work: impl Fn(S, &LocalGroup) -> Result<T> + Send + Sync + Clone + 'static,
    after: impl Fn(T) -> Result<S> + Send + Sync + Clone + 'static,
) -> Result<(Runs, Vec<S>)> {
    let barrier = Arc::new(Barrier::new(world as usize));
    let threads: Vec<_> = LocalGroup::new(world as u32)
        .into_iter()
        .enumerate()
        .map(|(rank, group)| {
            let (build, before, barrier) = (build.clone(), before.clone(), Arc::clone(&barrier));
            let (work, after) = (work.clone(), after.clone());
            std::thread::spawn(move || -> Result<(Runs, S)> {
                // A rank that fails still comes to every barrier, where the others wait for it. It leaves the group, so that
                // they don't wait for it there either.
                let mut state = build(rank as u64);
                let mut group = Some(group);
                let mut runs = Runs::default();
                for _ in 0..=iterations {
                    // Between the two barriers nobody works, so what `before` does is in nobody's time.
                    barrier.wait();
                    if rank == 0 {
                        before();
                    }
                    barrier.wait();
                    let (start, used) = (Instant::now(), cpu());
                    let done = match (state, &group) {
                        (Ok(state), Some(group)) => work(state, group),
                        (Ok(_), None) => Err(anyhow!("a rank that failed has no group")),
                        (Err(e), _) => Err(e),
                    };
                    if done.is_err() {
                        group = None;
                    }
                    barrier.wait();
                    runs.seconds.push(start.elapsed().as_secs_f64());
                    runs.cpu.push(cpu() - used);
                    state = done.and_then(&after);
                }
                let state = state?;
                // The first run warms up.
                Ok((
                    Runs {
                        seconds: runs.seconds.split_off(1),
                        cpu: runs.cpu.split_off(1),
                    },
                    state,
                ))
            })
        })
        .collect();
    let mut all = Vec::new();
    for t in threads {
        all.push(t.join().map_err(|_| anyhow!("a rank panicked"))??);
    }

    // A run takes as long as its slowest rank. The CPU time is that of the process, so any rank's will do.
    let slowest = |i: usize| {
        all.iter()
            .map(|(runs, _)| runs.seconds[i])
            .fold(0.0, f64::max)
    };
    let seconds = (0..iterations).map(slowest).collect();
    let cpu = all
        .first()
        .map(|(runs, _)| runs.cpu.clone())
        .unwrap_or_default();
    Ok((
        Runs { seconds, cpu },
        all.into_iter().map(|(_, s)| s).collect(),
    ))
}
