use super::{
    ending::{Ending, Unseen},
    handle::{SaveHandle, event},
    worker::{Job, finish, spawn},
};
use crate::{Error, Result, Save, ranks::Ranks};
use futures_channel::oneshot;
use futures_util::future::Shared;
use reshard_comm::{Comm, CommError, ProcessGroup};
use reshard_storage::wait;
use reshard_strategy::{AsyncStager, BlockingAsyncStager, KeptPlan};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Saves in the background, as DCP's `async_save` does: a thread writes and commits, while the training loop uses its group
/// for other things.
///
/// It has sub-groups of its own. It keeps the memory of its copies, so the second save of a structure allocates nothing, and its plan
/// ([`KeptPlan`]), so a structure that is known is not planned again. Every rank starts the same saves in the same order.
///
/// Dropping it blocks the thread until all its saves have ended, and a save ends when all ranks have written. Ranks that are tasks of one
/// thread would wait for each other forever: await [`close`](Self::close) first.
///
/// ```
/// use reshard::{AsyncSaver, ShardedTensor, SingleProcess, StateDict, Tensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = dir.path().join("step-1").display().to_string();
/// # futures::executor::block_on(async {
/// let mut saver = AsyncSaver::new(&SingleProcess).await?;
/// let mut weights = vec![0f32; 1024];
/// let mut state = StateDict::new();
/// state.insert("w", ShardedTensor::full("w", Tensor::from_vec(&[1024], weights.clone())?));
/// let saving = saver.start(reshard::save(&state, &url)).await?;
/// // Training goes on, and may change its state.
/// weights.fill(1.);
/// let report = saving.finish().await?;
/// # assert_eq!(report.bytes() / 1000, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok(())
/// # }
/// ```
pub struct AsyncSaver {
    /// For planning, which the thread of the caller does.
    planning: Arc<dyn ProcessGroup>,
    /// For committing, which the threads of saves do, one after the other.
    committing: Arc<dyn ProcessGroup>,
    stager: Arc<dyn AsyncStager>,
    /// The plan of the last save. `None` for a single save.
    kept_plan: Option<Arc<KeptPlan>>,
    in_flight: usize,
    flights: VecDeque<Flight>,
    unseen: Unseen,
}

/// A save that may not have ended.
struct Flight {
    ending: Arc<Ending>,
    ended: Shared<oneshot::Receiver<()>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for AsyncSaver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncSaver")
            .field("group", &self.planning)
            .field("stager", &self.stager)
            .field("in_flight", &self.in_flight)
            .finish_non_exhaustive()
    }
}

impl AsyncSaver {
    /// Takes two sub-groups of all ranks: one for planning, one for committing.
    ///
    /// # Collective
    /// Every rank of the group calls it.
    ///
    /// # Errors
    /// Those of the group.
    pub async fn new(group: &dyn ProcessGroup) -> Result<Self, CommError> {
        let mut saver = Self::over(Comm::new(group)).await?;
        saver.kept_plan = Some(Arc::default());
        Ok(saver)
    }

    async fn over(comm: Comm<'_>) -> Result<Self, CommError> {
        Ok(Self {
            planning: all(comm).await?,
            committing: all(comm).await?,
            stager: Arc::new(BlockingAsyncStager::new()),
            kept_plan: None,
            in_flight: 1,
            flights: VecDeque::new(),
            unseen: Unseen::default(),
        })
    }

    /// Sets another stager. The default is a [`BlockingAsyncStager`].
    #[must_use]
    pub fn with_stager(mut self, stager: impl AsyncStager + 'static) -> Self {
        self.stager = Arc::new(stager);
        self
    }

    /// Sets how many saves may be unfinished at a time; at least 1, which is the default. Each has copies of its own. A start
    /// that would exceed it waits for the oldest ([`SaveHandle::waited`]).
    #[must_use]
    pub fn with_in_flight(mut self, saves: usize) -> Self {
        self.in_flight = saves.max(1);
        self
    }

    /// Plans and stages a save. When it returns, the caller may change its state, unless it has a stager that copies in the
    /// background ([`SaveHandle::staged`]). The save's own group is ignored; its coordinator is counted in the group of this
    /// saver.
    ///
    /// # Collective
    /// Every rank calls it, in the same order of saves.
    ///
    /// # Cancellation
    /// If you drop the future on one rank, that breaks the saver, and counts as a failure of this rank. So does a panic of the stager or
    /// of a planner. Earlier saves that are not committed yet may fail, too, since they are committed in the same sub-group.
    ///
    /// # Errors
    /// Those of planning, as [`save`](crate::save), on all ranks; then the saver can go on. An unfinished asynchronous save to
    /// the same URL. If staging fails, [`SaveHandle::finish`] tells all ranks.
    pub async fn start(&mut self, save: Save<'_>) -> Result<SaveHandle> {
        let planning = Arc::clone(&self.planning);
        let guard = Comm::new(&*planning).guard("starting a save");
        let waited = self.wait_for_room(&save.options.url).await;

        let kept = self.kept_plan.as_ref();
        let (save, stager) = save.in_background(&*planning, &self.stager, kept);
        let comm = save.ranks.comm();
        let (coordinator, deadline) = (save.ranks.coordinator, save.ranks.deadline);
        let quiet = save.ranks.quiet;
        let pending = match save.plan(&comm).await {
            Ok(pending) => pending,
            Err(e) => {
                guard.done();
                return Err(e);
            }
        };
        // From here on other ranks may wait for this one where they commit.
        let committing = Comm::new(&*self.committing);
        let until_written = committing.guard("starting a save");
        let waits = stager.should_synchronize_after_execute();
        let pending = pending.staged(&*stager, waits).await;
        let stager = (!waits).then_some(stager);
        guard.done();

        let (staged_sender, staged) = event();
        let (ended_sender, ended) = event();
        let ending = Ending::new(&self.unseen);
        let url = pending.url().to_owned();
        let job = Job {
            pending,
            stager,
            staged: staged_sender,
            // A save of a saver runs to its end.
            stop: None,
        };
        // Saves are committed in the order in which they were started, because all ranks use one group for it.
        let before = self.flights.back().map(|flight| flight.ended.clone());
        let (committing, of_thread) = (Arc::clone(&self.committing), Arc::clone(&ending));
        let thread = spawn(job, move |pending| {
            let ranks = Ranks {
                group: &*committing,
                groups: BTreeMap::new(),
                coordinator,
                deadline,
                quiet,
            };
            if let Some(before) = before {
                // A thread that has panicked has ended, too.
                wait(before).ok();
            }
            of_thread.set(finish(pending, &ranks.comm()));
            ended_sender.send(()).ok();
        });
        until_written.done();
        self.flights.push_back(Flight {
            ending: Arc::clone(&ending),
            ended: ended.clone(),
            thread,
        });
        Ok(SaveHandle {
            url,
            staged,
            ending,
            ended,
            waited,
            saver: None,
        })
    }

    /// Waits until there is room for another save.
    async fn wait_for_room(&mut self, url: &str) -> Duration {
        let begun = Instant::now();
        self.flights.retain(|flight| !flight.ending.has_ended());
        while self.flights.len() >= self.in_flight {
            // It counts until it has ended, also if nobody waits any longer.
            self.wait_for_oldest().await;
        }
        let waited = begun.elapsed();
        if waited.as_millis() > 0 {
            let seconds = waited.as_secs_f64();
            tracing::info!(seconds, url, "a save has waited for an earlier one");
        }
        waited
    }

    async fn wait_for_oldest(&mut self) {
        if let Some(oldest) = self.flights.front() {
            oldest.ended.clone().await.ok();
            self.flights.pop_front();
        }
    }

    /// How many saves have not ended on this rank.
    pub fn unfinished(&self) -> usize {
        let open = |flight: &&Flight| !flight.ending.has_ended();
        self.flights.iter().filter(open).count()
    }

    /// Waits until all saves have ended.
    ///
    /// # Errors
    /// The first error of a save whose handle was dropped, before or after it failed.
    pub async fn close(mut self) -> Result<()> {
        while !self.flights.is_empty() {
            self.wait_for_oldest().await;
        }
        self.unseen.take().map_or(Ok(()), Err)
    }
}

impl Drop for AsyncSaver {
    fn drop(&mut self) {
        for flight in self.flights.drain(..) {
            // A panic was told on its own thread.
            drop(flight.thread.map(JoinHandle::join));
        }
    }
}

/// A sub-group of all ranks.
pub(super) async fn all(comm: Comm<'_>) -> Result<Arc<dyn ProcessGroup>, CommError> {
    let lost = || CommError::OutOfStep("a sub-group of all ranks lacks this one".into());
    comm.split("split", Some(0)).await?.ok_or_else(lost)
}

impl<'a> Save<'a> {
    /// This save, of this group, while the caller goes on; and what copies its data.
    pub(super) fn in_background<'g>(
        mut self,
        group: &'g dyn ProcessGroup,
        stager: &Arc<dyn AsyncStager>,
        kept_plan: Option<&Arc<KeptPlan>>,
    ) -> (Save<'g>, Arc<dyn AsyncStager>)
    where
        'a: 'g,
    {
        let own = self.options.stager.take();
        let stager = own.unwrap_or_else(|| Arc::clone(stager));
        let stager = self.options.staging.over(stager);
        let mut save: Save<'g> = self;
        save.options.asynchronous = true;
        let kept = &mut save.options.kept_plan;
        *kept = kept.take().or_else(|| kept_plan.cloned());
        save.ranks.group = group;
        (save, stager)
    }

    /// Plans and stages the save, and goes on in the background. From then on the caller may change its state. This is a save
    /// of an [`AsyncSaver`] for it alone: use one saver for all saves of a job, since it keeps its sub-groups and its memory.
    ///
    /// Dropping the handle blocks the thread until the save has ended, as dropping an [`AsyncSaver`] does.
    ///
    /// # Collective
    /// Every rank of the group awaits it.
    ///
    /// # Errors
    /// As [`AsyncSaver::start`].
    pub async fn start(self) -> Result<SaveHandle> {
        let saver = AsyncSaver::over(self.ranks.comm()).await;
        let mut saver = saver.map_err(|e| Error::new(crate::save::ACT, &self.options.url, e))?;
        let mut handle = saver.start(self).await?;
        handle.saver = Some(saver);
        Ok(handle)
    }
}
