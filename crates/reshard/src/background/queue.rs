use super::{
    call::Call,
    request::{AsyncRequest, Dropped},
    saver::all,
    verdict::{FINALIZE, Told, Verdict, decide},
};
use crate::{
    Error, Result, Save, SaveReport,
    ranks::Ranks,
    save::{ACT, PendingSave},
};
use reshard_comm::{Cause, Comm, CommError, ProcessGroup, Rank};
use reshard_model::ErrorKind;
use reshard_storage::wait;
use reshard_strategy::{
    AsyncStager, BlockingAsyncStager, KeptPlan, StrategyError, agree, with_sources,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

/// Megatron Core's `AsyncCallsQueue`: saves are written in the background, and committed in the training loop, first in, first
/// out, when all ranks have written.
///
/// It has a sub-group of its own and keeps the memory of its copies, and the plan of the last save ([`KeptPlan`]). All ranks call the same methods in the same order.
/// Dropping it with saves that are not finalized loses these: it says so in an error of `tracing`, breaks its sub-group, and
/// removes what was written. So does dropping the future of one of its methods, on one rank: a rank that is not in a step breaks it.
///
/// ```
/// use reshard::{AsyncCallsQueue, ShardedTensor, SingleProcess, StateDict, Tensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = dir.path().join("step-1").display().to_string();
/// # futures::executor::block_on(async {
/// let mut queue = AsyncCallsQueue::new(&SingleProcess).await?;
/// let mut state = StateDict::new();
/// state.insert("w", ShardedTensor::full("w", Tensor::from_vec(&[2], vec![1f32, 2.])?));
/// let mut request = queue.request(reshard::save(&state, &url)).await?;
/// request.add_finalize_fn(|saved| Ok(println!("{} bytes", saved.bytes())))?;
/// queue.schedule(request)?;
/// for _step in 0..3 {
///     // Train, and then:
///     queue.maybe_finalize(false).await?;
/// }
/// queue.close(false).await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok(())
/// # }
/// ```
pub struct AsyncCallsQueue {
    group: Arc<dyn ProcessGroup>,
    coordinator: Rank,
    deadline: Option<Duration>,
    stager: Arc<dyn AsyncStager>,
    /// The plan of the last save.
    kept_plan: Arc<KeptPlan>,
    in_flight: usize,
    /// The number of the next request.
    next: u64,
    /// Requests that all ranks know not to have ended: they are not finalized, failed or lost. Equal on all ranks.
    open: BTreeSet<u64>,
    calls: VecDeque<Call>,
    dropped: Dropped,
    /// Finalized where only the oldest had to make room.
    finalized: Vec<Finalized>,
}

/// A save that is committed on all ranks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finalized {
    /// The number that [`AsyncCallsQueue::schedule`] gave it.
    pub index: u64,
    /// Where it is.
    pub url: String,
    /// What it did.
    pub report: SaveReport,
}

impl fmt::Debug for AsyncCallsQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncCallsQueue")
            .field("group", &self.group)
            .field("stager", &self.stager)
            .field("in_flight", &self.in_flight)
            .field("unfinalized", &self.unfinalized())
            .finish_non_exhaustive()
    }
}

impl AsyncCallsQueue {
    /// Takes a sub-group of all ranks.
    ///
    /// # Collective
    /// Every rank of the group calls it.
    ///
    /// # Errors
    /// Those of the group.
    pub async fn new(group: &dyn ProcessGroup) -> Result<Self, CommError> {
        Ok(Self {
            group: all(Comm::new(group)).await?,
            coordinator: Rank(0),
            deadline: None,
            stager: Arc::new(BlockingAsyncStager::new()),
            kept_plan: Arc::default(),
            in_flight: 1,
            next: 0,
            open: BTreeSet::new(),
            calls: VecDeque::new(),
            dropped: Dropped::new(),
            finalized: Vec::new(),
        })
    }

    /// Sets another stager. The default is a [`BlockingAsyncStager`].
    #[must_use]
    pub fn with_stager(mut self, stager: impl AsyncStager + 'static) -> Self {
        self.stager = Arc::new(stager);
        self
    }

    /// Sets how many requests may be unfinalized at a time; at least 1, which is the default. A request that would exceed it
    /// finalizes the oldest first.
    #[must_use]
    pub fn with_in_flight(mut self, saves: usize) -> Self {
        self.in_flight = saves.max(1);
        self
    }

    /// Sets the rank that decides and commits, in all saves of this queue. The default is 0.
    #[must_use]
    pub fn with_coordinator(mut self, coordinator: Rank) -> Self {
        self.coordinator = coordinator;
        self
    }

    /// Sets how long a step waits for the other ranks, in all saves of this queue. The default is 30 minutes.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Plans and stages a save. When it returns, the caller may change its state. The group, coordinator and deadline of the
    /// save are those of this queue.
    ///
    /// # Collective
    /// Every rank calls it, in the same order of saves.
    ///
    /// # Errors
    /// Those of planning, as [`save`](crate::save), on all ranks. An unfinished asynchronous save to the same URL. The failure
    /// of an older save that had to be finalized, or that is not scheduled; then nothing was planned. If staging fails, finalization
    /// tells all ranks.
    pub async fn request(&mut self, save: Save<'_>) -> Result<AsyncRequest> {
        while self.open.len() >= self.in_flight {
            let oldest = self.finalize(true).await?;
            let oldest = oldest.ok_or_else(|| self.unscheduled())?;
            self.finalized.push(oldest);
        }
        let group = Arc::clone(&self.group);
        let kept = Some(&self.kept_plan);
        let (mut save, stager) = save.in_background(&*group, &self.stager, kept);
        (save.ranks.coordinator, save.ranks.deadline) = (self.coordinator, self.deadline);
        let comm = save.ranks.comm();
        let guard = comm.guard("requesting a save");
        let planned = save.plan(&comm).await;
        let pending = match planned {
            Ok(pending) => Ok(pending.staged(&*stager, true).await),
            Err(e) => Err(e),
        };
        guard.done();
        let request = AsyncRequest {
            number: self.next,
            pending: Some(pending?),
            finalize_fns: Vec::new(),
            frozen: false,
            dropped: self.dropped.clone(),
        };
        self.open.insert(self.next);
        self.next += 1;
        Ok(request)
    }

    /// Freezes a request, and begins to write it on a thread of its own. Returns the index of the call: 0, 1, 2, … in
    /// the order of requests.
    ///
    /// Every rank schedules the same requests in the same order.
    ///
    /// # Errors
    /// Another rank has dropped its request, as an earlier finalization told; nothing is written. The request is of another
    /// queue, where it counts as dropped.
    pub fn schedule(&mut self, mut request: AsyncRequest) -> Result<u64> {
        if !request.dropped.is(&self.dropped) {
            let what = StrategyError::Invalid(
                "the request was made by another queue; schedule it there".into(),
            );
            return Err(Error::new(ACT, request.url(), what));
        }
        let Some(pending) = request.pending.take() else {
            let what = StrategyError::Internal("a request has lost its save".into());
            return Err(Error::new(ACT, "", what));
        };
        let url = pending.url().to_owned();
        if !self.open.contains(&request.number) {
            wait(pending.abandon());
            let what = StrategyError::Invalid("another rank has dropped its request".into());
            return Err(Error::new(ACT, &url, what));
        }
        let functions = std::mem::take(&mut request.finalize_fns);
        let call = Call::start(request.number, functions, pending);
        self.calls.push_back(call);
        Ok(request.number)
    }

    /// Commits the calls that all ranks have written, first in, first out, and calls their functions. With `blocking` it waits
    /// for all calls. If no request is open, ranks do not talk.
    ///
    /// # Collective
    /// Every rank calls it.
    ///
    /// # Errors
    /// The failure of a call, on all ranks; the queue goes on with the next one when you call it again. A rank dropped its
    /// request. Ranks scheduled different calls.
    pub async fn maybe_finalize(&mut self, blocking: bool) -> Result<Vec<Finalized>> {
        self.sweep().await;
        while !self.open.is_empty() {
            match self.finalize(blocking).await? {
                Some(one) => self.finalized.push(one),
                None => break,
            }
        }
        Ok(std::mem::take(&mut self.finalized))
    }

    /// How many scheduled calls are not finalized.
    pub fn unfinalized(&self) -> usize {
        self.calls.len()
    }

    /// Finalizes all calls, also after one has failed. With `abort`, nothing is finalized instead: no new bytes are written, and
    /// what was written is removed. What a thread is writing at that moment it completes, so memory and callbacks of a save may be in use
    /// a little longer.
    ///
    /// # Collective
    /// Every rank calls it.
    ///
    /// # Errors
    /// The first failure, as of [`maybe_finalize`](Self::maybe_finalize). A request is not scheduled; it is lost.
    pub async fn close(mut self, abort: bool) -> Result<Vec<Finalized>> {
        let failed = if abort {
            None
        } else {
            self.finalize_all().await
        };
        let stopped = self.stop().await;
        match failed {
            Some(e) => Err(e),
            None => {
                stopped.map_err(|e| Error::new("closing a queue of saves", "", e))?;
                Ok(std::mem::take(&mut self.finalized))
            }
        }
    }

    /// Finalizes all that is scheduled. Returns the first failure.
    async fn finalize_all(&mut self) -> Option<Error> {
        let mut first = None;
        while !self.open.is_empty() {
            let open = self.open.len();
            let failed = match self.finalize(true).await {
                Ok(Some(one)) => {
                    self.finalized.push(one);
                    continue;
                }
                Ok(None) => self.unscheduled(),
                Err(e) => e,
            };
            first.get_or_insert(failed);
            // It would fail in the same way again.
            if self.open.len() == open {
                break;
            }
        }
        first
    }

    /// Gives up all that is not finalized.
    async fn stop(&mut self) -> Result<(), CommError> {
        self.sweep().await;
        if self.open.is_empty() {
            return Ok(());
        }
        self.open.clear();
        let mut pendings = Vec::new();
        for call in std::mem::take(&mut self.calls) {
            pendings.extend(call.stop().await);
        }
        pendings.extend(self.dropped.close().into_iter().map(|(_, pending)| pending));
        let group = Arc::clone(&self.group);
        give_up(&self.ranks_of(&group).comm(), pendings).await
    }

    /// What to do about requests that nobody has scheduled.
    fn unscheduled(&self) -> Error {
        let what = format!(
            "{} of at most {} unfinalized requests are not scheduled on any rank; schedule each request before you make more than that, \
             and before you close the queue",
            self.open.len(),
            self.in_flight
        );
        Error::new("finalizing saves", "", StrategyError::Invalid(what))
    }

    /// Removes what dropped requests have left, of which all ranks know already that they are lost.
    async fn sweep(&self) {
        for (_, pending) in self.dropped.take(|number| !self.open.contains(&number)) {
            pending.abandon().await;
        }
    }

    fn ranks_of<'g>(&self, group: &'g Arc<dyn ProcessGroup>) -> Ranks<'g> {
        Ranks {
            group: &**group,
            groups: BTreeMap::new(),
            coordinator: self.coordinator,
            deadline: self.deadline,
            quiet: None,
        }
    }

    /// Finalizes the oldest call, if all ranks have written it.
    async fn finalize(&mut self, blocking: bool) -> Result<Option<Finalized>> {
        let group = Arc::clone(&self.group);
        let comm = self.ranks_of(&group).comm();
        let guard = comm.guard("finalizing a save");
        let finalized = self.finalize_over(&comm, blocking).await;
        guard.done();
        finalized
    }

    async fn finalize_over(
        &mut self,
        comm: &Comm<'_>,
        blocking: bool,
    ) -> Result<Option<Finalized>> {
        let mut written = false;
        if let Some(oldest) = self.calls.front_mut() {
            if blocking {
                oldest.wait().await;
            }
            written = oldest.is_written();
        }
        let of = |call: &Call| (call.index, call.url.clone());
        let told = Told {
            oldest: self.calls.front().map(of),
            written,
            dropped: self.dropped.list(|number| self.open.contains(&number)),
        };
        let url = told
            .oldest
            .as_ref()
            .map_or(String::new(), |(.., url)| url.clone());
        let fail = |e: StrategyError| Error::new("finalizing", &url, e);
        let verdict = comm
            .all_reduce(FINALIZE, Ok(told), |all: Vec<Told>| decide(&all))
            .await
            .map_err(|e| fail(e.into()))?;
        match verdict {
            Verdict::Wait => Ok(None),
            Verdict::Lost(numbers, why) => {
                self.forget(comm, &numbers).await;
                let causes = BTreeMap::from([(comm.coordinator(), why)]);
                Err(fail(
                    CommError::Ranks {
                        step: FINALIZE,
                        causes,
                    }
                    .into(),
                ))
            }
            Verdict::Finalize => {
                let lost = || fail(StrategyError::Internal("a call is gone".into()));
                let mut call = self.calls.pop_front().ok_or_else(lost)?;
                self.open.remove(&call.index);
                let pending = call.take().ok_or_else(lost)?;
                let report = pending.finish(comm).await?;
                let mut functions = std::mem::take(&mut call.finalize_fns).into_iter();
                let called = functions.try_for_each(|f| f(&report));
                let called = called.map_err(|e| {
                    let e = with_sources(e.to_string(), &*e);
                    let what = "the checkpoint is committed, but a finalization function failed";
                    StrategyError::Invalid(format!("{what}: {e}"))
                });
                agree(comm, FINALIZE, called).await.map_err(fail)?;
                Ok(Some(Finalized {
                    index: call.index,
                    url: call.url,
                    report,
                }))
            }
        }
    }

    /// Gives up requests that are lost on some rank.
    async fn forget(&mut self, comm: &Comm<'_>, numbers: &[u64]) {
        let lost: BTreeSet<u64> = numbers.iter().copied().collect();
        self.open.retain(|number| !lost.contains(number));
        let calls = std::mem::take(&mut self.calls).into_iter();
        let (stopped, calls) = calls.partition(|call| lost.contains(&call.index));
        self.calls = calls;
        let stopped: VecDeque<Call> = stopped;
        let mut pendings = Vec::new();
        for call in stopped {
            pendings.extend(call.stop().await);
        }
        give_up(comm, pendings).await.ok();
        self.sweep().await;
    }
}

/// Removes what saves have written that no rank is writing any more.
async fn give_up(comm: &Comm<'_>, pendings: Vec<PendingSave>) -> Result<(), CommError> {
    // The coordinator removes files, so no rank may still write any.
    let told = comm.agree("give up", Ok(())).await;
    for pending in pendings {
        pending.abandon().await;
    }
    told
}

impl Drop for AsyncCallsQueue {
    fn drop(&mut self) {
        let mut pendings: Vec<PendingSave> = Vec::new();
        for call in std::mem::take(&mut self.calls) {
            tracing::error!(
                url = call.url,
                "a queue was dropped before this save was finalized: it is lost"
            );
            pendings.extend(wait(call.stop()));
        }
        pendings.extend(self.dropped.close().into_iter().map(|(_, pending)| pending));
        if !self.open.is_empty() {
            let rank = self.group.rank();
            let what = format!("rank {rank} dropped its queue of saves that are not finalized");
            self.group.abort(Cause::new(ErrorKind::Invalid, what));
        }
        for pending in pendings {
            wait(pending.abandon());
        }
    }
}
