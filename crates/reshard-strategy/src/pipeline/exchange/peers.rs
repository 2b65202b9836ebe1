//! The ranks that exchange data with each other.

use crate::Result;
use reshard_comm::{Cause, Comm, CommError, ProcessGroup, Rank};
use reshard_model::ErrorKind;
use reshard_plan::ExchangeGroup;
use std::{sync::Arc, time::Duration};

/// The name of the steps of an exchange.
pub(super) const STEP: &str = "exchange";

/// The ranks that exchange data, as one of them sees them.
#[derive(Clone, Copy)]
pub(in crate::pipeline) struct Meeting<'g> {
    /// Over these ranks only.
    pub(in crate::pipeline) comm: Comm<'g>,
    /// The number of this rank in the whole group.
    pub(in crate::pipeline) rank: Rank,
    pub(in crate::pipeline) most_peers: u32,
    /// How many bytes this rank may hold.
    pub(in crate::pipeline) memory: u64,
    /// What this rank lends to peers that share memory with it, by number in this process.
    pub(in crate::pipeline) lends: Option<u64>,
}

/// The ranks of this rank's exchange group, including itself.
#[derive(Debug)]
pub(in crate::pipeline) struct Peers {
    /// The sub-group. `None` if the exchange group is the whole group.
    part: Option<Arc<dyn ProcessGroup>>,
    most_peers: u32,
}

impl Peers {
    /// Makes the group of this rank's peers. `None` if this rank takes part in no exchange.
    ///
    /// # Collective
    /// Every rank of the whole group calls it, with its group.
    pub(in crate::pipeline) async fn of(
        group: Option<ExchangeGroup>,
        whole: &Comm<'_>,
    ) -> Result<Option<Self>> {
        // Either one exchange group has all ranks, or none has. So either all ranks call `split`, or none does.
        let all = group.filter(|group| group.ranks == whole.size());
        if let Some(ExchangeGroup { most_peers, .. }) = all {
            return Ok(Some(Self {
                part: None,
                most_peers,
            }));
        }
        let part = whole.split(STEP, group.map(|group| group.first)).await?;
        Ok(group.zip(part).map(|(group, part)| Self {
            part: Some(part),
            most_peers: group.most_peers,
        }))
    }

    /// The meeting of these ranks.
    pub(in crate::pipeline) fn meeting<'g>(&'g self, whole: &Comm<'g>, memory: u64) -> Meeting<'g> {
        let comm = match &self.part {
            Some(part) => Comm::new(&**part)
                .with_deadline(whole.deadline())
                .with_quiet(whole.quiet()),
            None => *whole,
        };
        Meeting {
            comm,
            rank: whole.rank(),
            most_peers: self.most_peers,
            memory,
            lends: None,
        }
    }
}

/// [`Peers`] of an exchange that is carried out later, on any thread, beside the steps of the whole group. Ranks that will wait for this
/// one in the exchange learn it if this one never comes.
#[derive(Debug)]
pub(in crate::pipeline) struct Apart {
    part: Arc<dyn ProcessGroup>,
    rank: Rank,
    most_peers: u32,
    deadline: Duration,
    memory: u64,
    /// Why the ranks wait for this one in vain.
    cause: Option<Cause>,
}

impl Apart {
    /// Makes a group of its own for this rank's peers. `None` if this rank takes part in no exchange.
    ///
    /// # Collective
    /// Every rank of the whole group calls it, with its group.
    pub(in crate::pipeline) async fn of(
        group: Option<ExchangeGroup>,
        whole: &Comm<'_>,
        memory: u64,
    ) -> Result<Option<Self>> {
        let part = whole.split(STEP, group.map(|group| group.first)).await?;
        let cause = Cause::new(
            ErrorKind::Internal,
            format!("rank {} has left the exchange", whole.rank()),
        );
        Ok(group.zip(part).map(|(group, part)| Self {
            part,
            rank: whole.rank(),
            most_peers: group.most_peers,
            deadline: whole.deadline(),
            memory,
            cause: Some(cause),
        }))
    }

    pub(in crate::pipeline) fn meeting(&self) -> Meeting<'_> {
        let comm = Comm::new(&*self.part).with_deadline(self.deadline);
        Meeting {
            comm,
            rank: self.rank,
            most_peers: self.most_peers,
            memory: self.memory,
            lends: None,
        }
    }

    /// The exchange is over, and the peers know how it ended.
    pub(in crate::pipeline) fn done(mut self) {
        self.cause = None;
    }

    /// This rank does not come to the exchange.
    pub(in crate::pipeline) fn give_up(mut self, cause: Cause) {
        self.cause = Some(cause);
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        if let Some(cause) = self.cause.take() {
            self.part.abort(cause);
        }
    }
}

/// What all peers know about each other.
#[derive(Debug)]
pub(in crate::pipeline) struct Table {
    /// Their ranks in the whole group, indexed by their numbers among the peers.
    ranks: Vec<Rank>,
    memory: u64,
    most_peers: u32,
    shares_memory: bool,
    /// By number among the peers.
    lent: Vec<Option<u64>>,
}

/// An upper bound for what comes before the bytes of a part: the head of its message, and the byte that says whether there is more.
const HEAD: u64 = 64;
/// The least number of bytes from one rank to another in a round, however little memory there is.
const LEAST: u64 = 256;

impl Table {
    /// All peers tell each other their rank in the whole group, and how much memory they may use. The smallest memory counts.
    pub(in crate::pipeline) async fn meet(meeting: Meeting<'_>) -> Result<Self, CommError> {
        let Meeting {
            comm,
            rank,
            most_peers,
            memory,
            lends,
        } = meeting;
        let shares = comm.group().shares_memory();
        let mine = (rank, memory, shares, lends);
        let all: Vec<(Rank, u64, bool, Option<u64>)> = comm.all_gather(STEP, Ok(mine)).await?;
        let memory = all.iter().map(|(_, memory, ..)| *memory).min();
        Ok(Self {
            memory: memory.unwrap_or(0),
            most_peers: most_peers.max(1),
            shares_memory: all.iter().all(|(_, _, shares, _)| *shares),
            lent: all.iter().map(|(.., lends)| *lends).collect(),
            ranks: all.into_iter().map(|(rank, ..)| rank).collect(),
        })
    }

    /// How many peers there are.
    pub(in crate::pipeline) fn len(&self) -> usize {
        self.ranks.len()
    }

    /// The number of a rank of the whole group among the peers.
    pub(in crate::pipeline) fn number(&self, rank: u32) -> Option<usize> {
        // A sub-group keeps the order of the whole group, so the ranks are sorted.
        self.ranks.binary_search(&Rank(rank)).ok()
    }

    pub(in crate::pipeline) fn rank(&self, peer: usize) -> u32 {
        self.ranks.get(peer).map_or(u32::MAX, |rank| rank.0)
    }

    /// What a peer lends to the others, by number in this process.
    pub(in crate::pipeline) fn lent(&self, peer: usize) -> Option<u64> {
        self.lent.get(peer).copied().flatten()
    }

    /// Whether the peers get handles on what was read, instead of copies.
    pub(in crate::pipeline) fn shares_memory(&self) -> bool {
        self.shares_memory
    }

    /// The most bytes that one rank sends to another in a round. So at most a quarter of the memory holds sent data, and a
    /// quarter received data.
    pub(in crate::pipeline) fn quota(&self) -> u64 {
        (self.memory / 4 / u64::from(self.most_peers))
            .saturating_sub(HEAD)
            .max(LEAST)
    }

    /// The most bytes that wait: in a load those that are read but not yet sent, in a save those that came but are not yet written.
    pub(in crate::pipeline) fn window(&self) -> u64 {
        self.memory / 2
    }

    /// Translates an error of the sub-group, which has its own rank numbers, for the whole group.
    pub(super) fn named(&self, e: CommError) -> CommError {
        match e {
            CommError::Deadline {
                step,
                seconds,
                silent,
            } => {
                let whole = |rank: Rank| self.ranks.get(rank.index()).copied().unwrap_or(rank);
                CommError::Deadline {
                    step,
                    seconds,
                    silent: silent.into_iter().map(whole).collect(),
                }
            }
            CommError::Broken(mut cause) if !self.is_whole() => {
                let ranks = Rank::list(&self.ranks);
                cause.message = format!(
                    "in an exchange of {ranks} (ranks in this message are positions in that list): {}",
                    cause.message
                );
                CommError::Broken(cause)
            }
            other => other,
        }
    }

    fn is_whole(&self) -> bool {
        self.ranks
            .iter()
            .enumerate()
            .all(|(i, rank)| rank.index() == i)
    }
}
