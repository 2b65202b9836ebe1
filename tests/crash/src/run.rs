//! A training run that saves step after step and removes old checkpoints.

use crate::{Form, part};
use anyhow::{Result, anyhow};
use reshard::{Durability, LocalGroup, ProcessGroup};
use reshard_manager::{Saver, Verify};
use std::{ops::RangeInclusive, path::Path};

/// How it is saved.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// How many ranks there are, in threads.
    pub ranks: u32,
    /// What a checkpoint looks like.
    pub form: Form,
    /// How many checkpoints stay.
    pub keep: u64,
}

/// Saves these steps. `said` hears `begin N` before a step is saved, `saved N` after it, and `noted N` when somebody else has put a file into its folder.
///
/// # Errors
/// What a save says. A warning is an error here.
pub fn train(
    dir: &Path,
    steps: RangeInclusive<u64>,
    run: Run,
    said: impl Fn(String) + Sync,
) -> Result<()> {
    std::thread::scope(|scope| {
        let said = &said;
        let threads: Vec<_> = LocalGroup::new(run.ranks)
            .into_iter()
            .map(|group| {
                let steps = steps.clone();
                scope.spawn(move || train_on_rank(&group, dir, steps, run, said))
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().map_err(|_| anyhow!("a rank panicked"))?)
    })
}

fn train_on_rank(
    group: &dyn ProcessGroup,
    dir: &Path,
    steps: RangeInclusive<u64>,
    run: Run,
    said: &(impl Fn(String) + Sync),
) -> Result<()> {
    let saver = Saver::new(dir)
        .keep(run.keep)
        .verify(Verify::Quick)
        .blocking();
    let is_first = group.rank().0 == 0;
    for step in steps {
        if is_first {
            said(format!("begin {step}"));
        }
        let state = part(step, group.rank().0.into(), run.ranks.into())?;
        // A killed process leaves the page cache as it is; fsync would only make the test slow.
        let saved = saver.save(step, &state, |save| {
            run.form
                .of(save.group(group))
                .durability(Durability::Process)
        })?;
        if let Some(warning) = saved.warnings.first() {
            return Err(anyhow!("{warning}"));
        }
        if is_first {
            said(format!("saved {step}"));
            std::fs::write(dir.join(format!("step-{step}/README")), step.to_string())?;
            said(format!("noted {step}"));
        }
    }
    Ok(())
}
