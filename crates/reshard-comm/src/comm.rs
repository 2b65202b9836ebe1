use crate::{
    Cause, CommError, Guard, ProcessGroup, Rank, Result, SingleProcess,
    group::joined,
    step::{self, Patience},
    wire::{self, Outcome},
};
use bytes::Bytes;
use reshard_model::ErrorKind;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

/// How long a step waits for the other ranks by default: 30 minutes. [`Comm::with_deadline`] changes it.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30 * 60);

/// After how long a step warns of the ranks for which it waits, by default: 30 seconds. [`Comm::with_quiet`] changes it.
pub const DEFAULT_QUIET: Duration = Duration::from_secs(30);

/// reshard's protocol over a [`ProcessGroup`]: steps that all ranks take together, with one error protocol.
///
/// In each step every rank hands in its part, or the [`Cause`] why it has none. The coordinator looks at all parts, and
/// its answer goes to all ranks. The traffic is one gather and one broadcast or scatter. Only
/// [`all_to_all`](Self::all_to_all) has no coordinator: there each rank hears from every other rank.
///
/// # Contract
/// - A rank that fails still takes the step and hands in its cause; it must not leave before.
/// - If any rank failed, nothing is decided, and all ranks get the same [`CommError::Ranks`]. The same happens if the
///   decision itself fails or panics; then the cause comes from the coordinator. The group stays usable.
/// - If a rank panics, drops the future of a step, takes a different step, or does not answer within the deadline, the
///   group is broken for good, and all ranks learn why. See also [`guard`](Self::guard).
///
/// # Collective
/// Every rank takes the same steps in the same order, with the same coordinator. The names of steps are compared.
///
/// # Cancellation
/// Dropping the future of a step breaks the group.
#[derive(Clone, Copy, Debug)]
pub struct Comm<'g> {
    group: &'g dyn ProcessGroup,
    coordinator: Rank,
    patience: Patience,
}

impl Comm<'static> {
    /// For a job of one process, without a group.
    pub fn single() -> Self {
        Self::new(&SingleProcess)
    }
}

impl<'g> Comm<'g> {
    /// Over `group`, with rank 0 as coordinator.
    pub fn new(group: &'g dyn ProcessGroup) -> Self {
        Self {
            group,
            coordinator: Rank(0),
            patience: Patience {
                deadline: DEFAULT_DEADLINE,
                quiet: DEFAULT_QUIET,
            },
        }
    }

    /// Makes another rank of the group the coordinator. All ranks must name the same rank.
    #[must_use]
    pub fn with_coordinator(self, coordinator: Rank) -> Self {
        Self {
            coordinator,
            ..self
        }
    }

    /// Sets how long each step waits for the other ranks, counted from this rank's call.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.patience.deadline = deadline;
        self
    }

    /// Sets after how long a step warns of the ranks for which it waits, as events of [`WAITING_EVENTS`](crate::WAITING_EVENTS). It warns again when it has
    /// waited twice as long, and so on.
    #[must_use]
    pub fn with_quiet(mut self, quiet: Duration) -> Self {
        self.patience.quiet = quiet;
        self
    }

    /// How long each step waits: [`DEFAULT_DEADLINE`], or the value set by [`with_deadline`](Self::with_deadline).
    pub fn deadline(&self) -> Duration {
        self.patience.deadline
    }

    /// After how long each step warns: [`DEFAULT_QUIET`], or the value set by [`with_quiet`](Self::with_quiet).
    pub fn quiet(&self) -> Duration {
        self.patience.quiet
    }

    /// The group underneath.
    pub fn group(&self) -> &'g dyn ProcessGroup {
        self.group
    }

    /// The number of this process in the group.
    pub fn rank(&self) -> Rank {
        self.group.rank()
    }

    /// How many ranks the group has.
    pub fn size(&self) -> u32 {
        self.group.size()
    }

    /// The rank that decides.
    pub fn coordinator(&self) -> Rank {
        self.coordinator
    }

    /// Whether this rank is the coordinator.
    pub fn is_coordinator(&self) -> bool {
        self.rank() == self.coordinator
    }

    /// Guards local work between two steps. If the guard is dropped before it is [`done`](Guard::done), because of a
    /// panic or a dropped future, the other ranks learn it at once.
    pub fn guard(&self, what: &'static str) -> Guard<'g> {
        Guard::new(self.group, what)
    }

    /// All ranks get all parts, in the order of ranks. If a rank failed, all ranks learn which one and why.
    ///
    /// # Errors
    /// Those of [`Comm`]'s contract.
    pub async fn all_gather<T>(self, step: &'static str, part: Result<T, Cause>) -> Result<Vec<T>>
    where
        T: Serialize + DeserializeOwned + Send,
    {
        if self.is_alone() {
            return self.decide_alone(step, part, Ok);
        }
        self.run(step, async {
            let answer = self.meet(step, part, |bodies, out| {
                bodies.iter().for_each(|body| out.extend_from_slice(body));
                Ok(())
            });
            self.read(step, &answer.await?, self.size())
        })
        .await
    }

    /// All ranks learn that every rank succeeded, or which ranks failed and why.
    ///
    /// # Errors
    /// Those of [`Comm`]'s contract.
    pub async fn agree(self, step: &'static str, outcome: Result<(), Cause>) -> Result<()> {
        self.all_reduce(step, outcome, |_| Ok(())).await
    }

    /// The coordinator makes a decision from all parts, in the order of ranks. All ranks get this decision.
    ///
    /// # Errors
    /// Those of [`Comm`]'s contract. `decide` runs only on the coordinator, and only if no rank failed.
    pub async fn all_reduce<T, U>(
        self,
        step: &'static str,
        part: Result<T, Cause>,
        decide: impl FnOnce(Vec<T>) -> Result<U, Cause> + Send,
    ) -> Result<U>
    where
        T: Serialize + DeserializeOwned + Send,
        U: Serialize + DeserializeOwned,
    {
        if self.is_alone() {
            return self.decide_alone(step, part, decide);
        }
        self.run(step, async {
            let answer = self.meet(step, part, |bodies, out| {
                wire::encode(&decide(wire::decode_each(bodies)?)?, out)
            });
            self.read_one(step, &answer.await?)
        })
        .await
    }

    /// The coordinator makes a decision from all parts, in the order of ranks. Rank `r` gets element `r` of it.
    ///
    /// # Errors
    /// Those of [`Comm`]'s contract. `decide` runs only on the coordinator, and only if no rank failed. If the decision
    /// has not exactly one element per rank, the coordinator has failed.
    pub async fn reduce_scatter<T, U>(
        self,
        step: &'static str,
        part: Result<T, Cause>,
        decide: impl FnOnce(Vec<T>) -> Result<Vec<U>, Cause> + Send,
    ) -> Result<U>
    where
        T: Serialize + DeserializeOwned + Send,
        U: Serialize + DeserializeOwned + Send,
    {
        let decide = |parts| one_per_rank(self.size(), decide(parts)?);
        if self.is_alone() {
            let mut all = self.decide_alone(step, part, decide)?;
            return all
                .pop()
                .ok_or_else(|| self.broken(step, "nothing was decided for it"));
        }
        self.run(step, async {
            let mut each = None;
            let verdict = self.meet(step, part, |bodies, _| {
                let decided = decide(wire::decode_each(bodies)?)?;
                each = Some(
                    decided
                        .iter()
                        .map(wire::encoded)
                        .collect::<Result<_, Cause>>()?,
                );
                Ok(())
            });
            verdict.await?;
            let mine = self.group.scatter(each, self.coordinator).await?;
            self.read_one(step, &mine)
        })
        .await
    }

    /// All ranks get the value of the coordinator.
    ///
    /// The other ranks pass `None`, or `Some(Err(_))` if they failed. A value that they pass is ignored.
    ///
    /// # Errors
    /// Those of [`Comm`]'s contract. A coordinator that passes `None` has failed.
    pub async fn broadcast<T>(
        self,
        step: &'static str,
        value: Option<Result<T, Cause>>,
    ) -> Result<T>
    where
        T: Serialize + DeserializeOwned + Send,
    {
        let (mut value, part) = match value {
            Some(Err(cause)) => (None, Err(cause)),
            Some(Ok(value)) => (Some(value), Ok(())),
            None => (None, Ok(())),
        };
        // Only the coordinator's closure runs, so only its value is sent.
        self.all_reduce(step, part, |_| {
            value.take().ok_or_else(|| {
                Cause::new(
                    ErrorKind::Internal,
                    "the coordinator has no value to broadcast",
                )
            })
        })
        .await
    }

    /// Every rank sends bytes to each rank, including itself, and gets what each rank sent to it, in the order of ranks.
    /// `to[r]` has the blocks of the part for rank `r`, which arrives in one piece. Blocks are copied once.
    ///
    /// This is one collective without a coordinator: each rank hears from every rank whether it succeeded.
    ///
    /// # Errors
    /// Those of [`Comm`]'s contract. A rank that does not hand in exactly one part per rank has failed.
    pub async fn all_to_all(
        self,
        step: &'static str,
        to: Result<Vec<Vec<Bytes>>, Cause>,
    ) -> Result<Vec<Bytes>> {
        let got = self.all_to_all_blocks(step, to).await?;
        Ok(got.into_iter().map(joined).collect())
    }

    /// As [`all_to_all`](Self::all_to_all). Parts arrive in any number of blocks. If the ranks
    /// [share memory](ProcessGroup::shares_memory), nothing is copied.
    ///
    /// # Errors
    /// As [`all_to_all`](Self::all_to_all).
    pub async fn all_to_all_blocks(
        self,
        step: &'static str,
        to: Result<Vec<Vec<Bytes>>, Cause>,
    ) -> Result<Vec<Vec<Bytes>>> {
        let (me, size) = (self.rank(), self.size());
        let to = to.and_then(|to| one_per_rank(size, to));
        if size == 1 {
            return self.decide_alone(step, to, |to| Ok(to.into_iter().flatten().collect()));
        }
        self.run(step, async move {
            let parts = match to {
                Ok(to) => {
                    let head = wire::pack(step, me, |_| Ok(()))?;
                    let mut parts = to;
                    parts
                        .iter_mut()
                        .for_each(|part| part.insert(0, head.clone()));
                    parts
                }
                Err(cause) => {
                    let failed = || Outcome::Failed(BTreeMap::from([(me, cause.clone())]));
                    let message = wire::pack(step, me, |_| Err(failed()))?;
                    vec![vec![message]; size as usize]
                }
            };
            let mut heard = self.group.all_to_all_blocks(parts).await?;
            let heads: Vec<Bytes> = heard.iter_mut().map(wire::first_block).collect();
            let bodies = self.hear(step, &heads).map_err(|outcome| match outcome {
                // All ranks see the same heads, so all of them get the same result.
                Outcome::Failed(causes) => CommError::Ranks { step, causes },
                Outcome::OutOfStep(why) => CommError::OutOfStep(why),
                Outcome::Done => self.broken(step, "it received nothing"),
            })?;
            for (part, body) in heard.iter_mut().zip(bodies) {
                if let Some(first) = part.first_mut() {
                    *first = body;
                }
                part.retain(|block| !block.is_empty());
            }
            Ok(heard)
        })
        .await
    }

    /// Splits the group into one sub-group for each `color`. A rank that passes `None` is in no sub-group. The ranks of
    /// a sub-group keep their order.
    ///
    /// A sub-group can break without breaking the whole group. After steps in sub-groups, call [`agree`](Self::agree) on
    /// the whole group, so that no rank continues after another one failed.
    ///
    /// # Errors
    /// Those of [`Comm`]'s contract. No rank can hand in a cause here, so call `agree` before.
    pub async fn split(
        self,
        step: &'static str,
        color: Option<u32>,
    ) -> Result<Option<Arc<dyn ProcessGroup>>> {
        self.run(step, async { self.group.split(color, self.rank().0).await })
            .await
    }

    async fn run<T>(
        &self,
        step: &'static str,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        step::run(self.group, step, self.patience, work).await
    }

    /// Hands in `part`. The coordinator looks at all parts and writes its `answer` for all ranks.
    async fn meet<T: Serialize>(
        &self,
        step: &'static str,
        part: Result<T, Cause>,
        answer: impl FnOnce(&[Bytes], &mut Vec<u8>) -> Result<(), Cause> + Send,
    ) -> Result<Bytes> {
        let (me, root) = (self.rank(), self.coordinator);
        let failed = |cause| Outcome::Failed(BTreeMap::from([(me, cause)]));
        let mine = wire::pack(step, me, |out| {
            part.and_then(|part| wire::encode(&part, out))
                .map_err(failed)
        });
        let answer = match self.group.gather(mine?, root).await? {
            None => None,
            Some(parts) => Some(wire::pack(step, me, |out| {
                let bodies = self.hear(step, &parts)?;
                catch(|| answer(&bodies, out)).map_err(failed)
            })?),
        };
        let answer = self.group.broadcast(answer, root).await?;
        match wire::unpack(&answer) {
            Ok((head, body)) => match head.outcome {
                Outcome::Done if head.step == step => Ok(body),
                Outcome::Done => Err(CommError::OutOfStep(differ(&[
                    (root, head.step.as_str()),
                    (me, step),
                ]))),
                Outcome::Failed(causes) => Err(CommError::Ranks { step, causes }),
                Outcome::OutOfStep(why) => Err(CommError::OutOfStep(why)),
            },
            Err(why) => Err(CommError::OutOfStep(format!("rank {root} {why}"))),
        }
    }

    /// On the coordinator: the bodies of all messages, if every rank succeeded and is in this step.
    fn hear(&self, step: &str, messages: &[Bytes]) -> Result<Vec<Bytes>, Outcome> {
        let (mut steps, mut bodies, mut causes) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (rank, message) in messages
            .iter()
            .enumerate()
            .map(|(i, message)| (Rank::at(i), message))
        {
            let (head, body) = wire::unpack(message)
                .map_err(|why| Outcome::OutOfStep(format!("rank {rank} {why}")))?;
            steps.push((rank, head.step));
            match head.outcome {
                Outcome::Done => bodies.push(body),
                Outcome::Failed(why) => causes.extend(why),
                Outcome::OutOfStep(why) => return Err(Outcome::OutOfStep(why)),
            }
        }
        if steps.iter().any(|(_, theirs)| theirs != step) {
            return Err(Outcome::OutOfStep(differ(&steps)));
        }
        if causes.is_empty() {
            Ok(bodies)
        } else {
            Err(Outcome::Failed(causes))
        }
    }

    fn is_alone(&self) -> bool {
        self.size() == 1 && self.is_coordinator()
    }

    /// A step in a group of one rank: the same rules, but nothing is sent.
    fn decide_alone<T, U>(
        &self,
        step: &'static str,
        part: Result<T, Cause>,
        decide: impl FnOnce(Vec<T>) -> Result<U, Cause>,
    ) -> Result<U> {
        part.and_then(|part| catch(|| decide(vec![part])))
            .map_err(|cause| CommError::Ranks {
                step,
                causes: BTreeMap::from([(self.rank(), cause)]),
            })
    }

    fn read<T: DeserializeOwned>(&self, step: &str, body: &[u8], count: u32) -> Result<Vec<T>> {
        wire::decode(body, count as usize).map_err(|cause| self.broken(step, cause))
    }

    fn read_one<T: DeserializeOwned>(&self, step: &str, body: &[u8]) -> Result<T> {
        self.read(step, body, 1)?
            .pop()
            .ok_or_else(|| self.broken(step, "it received nothing"))
    }

    /// This rank fails where the others believe that all ranks succeeded. Only breaking the group can tell them.
    fn broken(&self, step: &str, why: impl std::fmt::Display) -> CommError {
        let message = format!("rank {} failed in step `{step}`: {why}", self.rank());
        CommError::Broken(Cause::new(ErrorKind::Internal, message))
    }
}

/// Turns a panic into an ordinary cause.
fn catch<T>(decide: impl FnOnce() -> Result<T, Cause>) -> Result<T, Cause> {
    // After a panic nobody reads the state that `decide` may have left half done.
    catch_unwind(AssertUnwindSafe(decide)).unwrap_or_else(|panic| Err(Cause::from_panic(&*panic)))
}

fn one_per_rank<U>(size: u32, decided: Vec<U>) -> Result<Vec<U>, Cause> {
    if decided.len() == size as usize {
        return Ok(decided);
    }
    let message = format!("{} parts were decided for {size} ranks", decided.len());
    Err(Cause::new(ErrorKind::Internal, message))
}

/// ``ranks 0, 2 in `plan`; rank 1 in `write` ``
fn differ(steps: &[(Rank, impl AsRef<str>)]) -> String {
    let mut by_step = BTreeMap::<&str, Vec<Rank>>::new();
    for (rank, step) in steps {
        by_step.entry(step.as_ref()).or_default().push(*rank);
    }
    let parts = by_step
        .iter()
        .map(|(step, ranks)| format!("{} in `{step}`", crate::rank::Ranks(ranks)));
    parts.collect::<Vec<_>>().join("; ")
}
