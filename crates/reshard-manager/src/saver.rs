//! Saves the checkpoints of a run.

use crate::{
    Error, Result, Saved, Step, StepPattern, Verify, blocking,
    keep::Keep,
    removal::{Damaged, Outcome, retain},
    settings::Settings,
};
use reshard::{
    ProcessGroup, Save, SaveReport, StateDict,
    comm::{Cause, Comm},
    strategy::StrategyError,
};
use std::{path::Path, time::Duration};

/// The steps that all ranks take together, beside those of a save.
const CHECK: &str = "check";
const RETAIN: &str = "retain";
const LATEST: &str = "latest";

/// As [`prune`](crate::prune()) waits.
const DAY: Duration = Duration::from_hours(24);

/// Saves the checkpoints of a run into one directory, each in a folder with the name of its step, and removes old ones.
///
/// Each rank of a job has one, with the same settings. One saver at a time saves to a directory.
#[derive(Debug)]
pub struct Saver {
    pub(crate) settings: Settings,
    damaged: Damaged,
}

impl Saver {
    /// A saver for a directory, given by its path or URL. It need not exist. By default every step is [due](Self::is_due), all checkpoints stay, and the
    /// name of one is `step-{n}`.
    pub fn new(dir: impl AsRef<Path>) -> Self {
        let settings = Settings {
            dir: reshard::place_text(dir),
            pattern: StepPattern::default(),
            every: 1,
            keep: Keep::default(),
            verify: Verify::default(),
            unfinished_after: DAY,
            owner: "reshard-manager".into(),
            registry: None,
            stores: None,
        };
        Self {
            settings,
            damaged: Damaged::default(),
        }
    }

    /// How many checkpoints stay: 1 or more. The new one is one of them. Without this all stay.
    pub fn keep(mut self, newest: u64) -> Self {
        self.settings.keep.newest = Some(newest);
        self
    }

    /// Keeps all checkpoints whose step is a multiple of this, too. They do not count for [`keep`](Self::keep).
    pub fn keep_every(mut self, every: u64) -> Self {
        self.settings.keep.every = Some(every);
        self
    }

    /// The same for programs without an executor.
    pub fn blocking(self) -> blocking::Saver {
        blocking::Saver(self)
    }

    /// Where the checkpoint of a step lies, or will lie.
    pub fn url(&self, step: u64) -> String {
        self.settings.url(step)
    }

    /// Whether a step is one to be saved: a multiple of [`every`](Self::every), and not 0. If `every` is 0, each step is due, so that its save says what is
    /// wrong.
    pub fn is_due(&self, step: u64) -> bool {
        step > 0 && step.is_multiple_of(self.settings.every.max(1))
    }

    /// The newest checkpoint of the run that opens, whoever wrote it. `None` if there is none, also if the directory does not exist yet.
    ///
    /// # Errors
    /// As [`crate::Steps::latest`].
    pub async fn latest(&self) -> Result<Option<Step>> {
        match self.settings.steps().latest().await {
            Err(e) if e.is_no_checkpoint() => Ok(None),
            found => Ok(found?),
        }
    }

    /// The same for all ranks of a group: rank 0 looks, so that all go on from the same checkpoint.
    ///
    /// # Collective
    /// Every rank calls it. If a rank fails, all ranks get an error.
    ///
    /// # Errors
    /// As [`latest`](Self::latest); a rank is lost.
    pub async fn latest_in(&self, group: &dyn ProcessGroup) -> Result<Option<Step>> {
        let comm = Comm::new(group);
        let guard = comm.guard("a search for the latest checkpoint");
        let told = match self.agree_on_settings(None, &comm).await {
            Ok(()) => {
                let found = match comm.is_coordinator() {
                    true => Some(self.latest().await),
                    false => None,
                };
                self.tell(&comm, LATEST, found).await
            }
            Err(e) => Err(e),
        };
        guard.done();
        told
    }

    /// Saves a step, due or not. Then it removes older checkpoints, and what killed saves have left of steps whose checkpoint is not of others. `options` sets the options of the save: the group, the strategy, and so on. The
    /// registry and the stores are those of this saver.
    ///
    /// ```
    /// use futures::{executor::block_on, future::try_join_all};
    /// use reshard::{LocalGroup, ShardedTensor, StateDict, Tensor};
    /// use reshard_manager::{Result, Saver};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let run = dir.path();
    /// let rank = |rank: u64, group: LocalGroup| async move {
    ///     let saver = Saver::new(run).keep(1);
    ///     for step in [1, 2] {
    ///         let row = Tensor::from_vec(&[1, 2], vec![step as f32; 2]).unwrap();
    ///         let mut state = StateDict::new();
    ///         state.insert_piece(ShardedTensor::from_rank_offsets("w", row, &[(0, rank, 2)]).unwrap());
    ///         let saved = saver.save(step, &state, |save| save.group(&group)).await?;
    ///         // All ranks learn it.
    ///         assert_eq!(saved.removed, if step == 2 { vec![1] } else { vec![] });
    ///     }
    ///     Result::<_>::Ok(())
    /// };
    /// block_on(try_join_all((0..).zip(LocalGroup::new(2)).map(|(r, group)| rank(r, group))))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Collective
    /// Every rank of the group awaits it, with the same step and equal settings of the saver, which are compared first (`options`). Beside the steps of a save there
    /// are `check`, before it, in which the coordinator looks for newer checkpoints, and `retain`, after it, in which all ranks learn what was verified and removed. The deadline of the save
    /// holds for these, too: with [`Verify::Full`] ranks wait while the coordinator reads the whole checkpoint.
    ///
    /// # Cancellation
    /// As [`reshard::save`]. When the save is committed, older checkpoints may stay; the next save removes them.
    ///
    /// # Errors
    /// - Before anything is saved: a setting has no meaning ([`Error::Invalid`]), the directory has a newer checkpoint ([`Error::Newer`]), the ranks
    ///   save different steps or have savers with different settings, or the save is to a single file, which has no room for the note of its owner.
    /// - As [`reshard::save`]: an existing checkpoint of this step is replaced only with [`overwrite`](Save::overwrite).
    /// - The new checkpoint is damaged ([`Error::Damaged`]).
    ///
    /// A failed removal is no error: see [`Saved::warnings`].
    pub async fn save<'a>(
        &self,
        step: u64,
        state: &'a StateDict,
        options: impl FnOnce(Save<'a>) -> Save<'a>,
    ) -> Result<Saved> {
        let save = options(reshard::save(state, self.url(step)));
        let save = self.settings.noted(step, save);
        let comm = save.comm();
        let guard = comm.guard("a save of a run");
        let saved = match self.check(step, &comm).await {
            Ok(()) => match save.await {
                Ok(report) => self.retain(step, report, &comm).await,
                Err(e) => Err(e.into()),
            },
            Err(e) => Err(e),
        };
        guard.done();
        saved
    }

    /// Fails on all ranks if their savers have different settings, or save different steps.
    async fn agree_on_settings(&self, step: Option<u64>, comm: &Comm<'_>) -> Result<()> {
        if comm.size() == 1 {
            return Ok(());
        }
        let options = self.settings.agreed_options(step);
        options.agree(comm).await.map_err(|e| match e {
            StrategyError::Comm(e) => e.into(),
            e => Error::Invalid(e.to_string()),
        })
    }

    /// Whether the step may be saved.
    async fn check(&self, step: u64, comm: &Comm<'_>) -> Result<()> {
        self.agree_on_settings(Some(step), comm).await?;
        let mine = match self.settings.check() {
            Ok(()) if comm.is_coordinator() => self.may_save(step).await,
            checked => checked,
        };
        // A rank that is alone keeps its own error.
        if comm.size() == 1 {
            return mine;
        }
        Ok(comm.agree(CHECK, mine.map_err(|e| cause(&e))).await?)
    }

    /// Whether the directory can have the checkpoint of this step.
    async fn may_save(&self, step: u64) -> Result<()> {
        self.settings.check_removal()?;
        let steps = match self.settings.steps().await {
            Err(e) if e.is_no_checkpoint() => Vec::new(),
            steps => steps?,
        };
        match steps.last().filter(|newest| newest.number > step) {
            None => Ok(()),
            Some(newest) => Err(Error::Newer {
                step,
                newest: newest.number,
                dir: self.settings.dir.clone(),
            }),
        }
    }

    /// The coordinator verifies the new checkpoint and removes older ones. All ranks learn what it did.
    async fn retain(&self, step: u64, report: SaveReport, comm: &Comm<'_>) -> Result<Saved> {
        let outcome = match comm.is_coordinator() {
            true => Some(Ok(retain(&self.settings, step, &self.damaged).await)),
            false => None,
        };
        let Outcome {
            removed,
            warnings,
            damage,
        } = self.tell(comm, RETAIN, outcome).await?;
        let url = self.url(step);
        match damage {
            Some(damage) => Err(Error::Damaged { url, damage }),
            None => Ok(Saved {
                step,
                url,
                report,
                removed,
                warnings,
            }),
        }
    }

    /// All ranks get what the coordinator has found.
    async fn tell<T: serde::Serialize + serde::de::DeserializeOwned + Send>(
        &self,
        comm: &Comm<'_>,
        name: &'static str,
        found: Option<Result<T>>,
    ) -> Result<T> {
        match found {
            Some(found) if comm.size() == 1 => found,
            found => {
                let found = found.map(|found| found.map_err(|e| cause(&e)));
                Ok(comm.broadcast(name, found).await?)
            }
        }
    }
}

fn cause(e: &Error) -> Cause {
    Cause::from_error(e.kind(), e)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/ranks.md");

    #[test]
    fn the_page_shows_the_settings_on_which_ranks_must_agree() {
        let options = Saver::new("x").settings.agreed_options(None);
        let rows = options.names().skip(1); // the version
        let rows: String = rows
            .map(|name| format!("| `{name}` | must agree |\n"))
            .chain(["registry", "stores"].map(|name| format!("| `{name}` | may differ |\n")))
            .collect();
        let table = format!("| setting | save |\n| --- | --- |\n{rows}\n");
        assert!(
            PAGE.contains(&table),
            "docs/ranks.md must have this table:\n{table}"
        );
    }
}
