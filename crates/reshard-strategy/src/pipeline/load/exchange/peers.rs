//! The ranks that exchange data with each other.

use crate::Result;
use bytes::Bytes;
use reshard_comm::{Comm, CommError, ProcessGroup, Rank};
use reshard_plan::ExchangeGroup;
use std::sync::Arc;

/// The name of the steps of an exchange.
pub(super) const STEP: &str = "exchange";

/// The first byte of a part: whether its rank has more to send.
pub(super) const MORE: Bytes = Bytes::from_static(&[1]);
pub(super) const NO_MORE: Bytes = Bytes::from_static(&[0]);

/// The ranks of this rank's exchange group, including itself.
#[derive(Debug)]
pub(in crate::pipeline::load) struct Peers {
    /// The sub-group. `None` if the exchange group is the whole group.
    part: Option<Arc<dyn ProcessGroup>>,
    most_peers: u32,
}

impl Peers {
    /// Makes the group of this rank's peers. `None` if this rank takes part in no exchange.
    ///
    /// # Collective
    /// Every rank of the whole group calls it, with its group.
    pub(in crate::pipeline::load) async fn of(
        group: Option<ExchangeGroup>,
        whole: &Comm<'_>,
    ) -> Result<Option<Self>> {
        // Either one exchange group has all ranks, or none has. So either all ranks call `split`, or none does.
        let all = group.filter(|group| group.ranks == whole.size());
        if let Some(ExchangeGroup { most_peers, .. }) = all {
            return Ok(Some(Self { part: None, most_peers }));
        }
        let part = whole.split(STEP, group.map(|group| group.first)).await?;
        Ok(group.zip(part).map(|(group, part)| Self { part: Some(part), most_peers: group.most_peers }))
    }

    /// A `Comm` over these ranks only.
    pub(super) fn comm<'g>(&'g self, whole: &Comm<'g>) -> Comm<'g> {
        match &self.part {
            Some(part) => Comm::new(&**part).with_deadline(whole.deadline()),
            None => *whole,
        }
    }

    /// All peers tell each other their rank in the whole group, and how much memory they may use. The smallest memory counts.
    pub(super) async fn meet(&self, whole: &Comm<'_>, memory: u64) -> Result<Table, CommError> {
        let mine = (whole.rank(), memory);
        let all = self.comm(whole).all_gather(STEP, Ok(mine)).await;
        let all: Vec<(Rank, u64)> = all?;
        let memory = all.iter().map(|(_, memory)| *memory).min().unwrap_or(memory);
        let ranks = all.into_iter().map(|(rank, _)| rank).collect();
        Ok(Table { ranks, memory, most_peers: self.most_peers.max(1) })
    }
}

/// What all peers know about each other.
#[derive(Debug)]
pub(super) struct Table {
    /// Their ranks in the whole group, indexed by their numbers among the peers.
    ranks: Vec<Rank>,
    memory: u64,
    most_peers: u32,
}

/// An upper bound for what comes before the bytes of a part: the head of its message, and the byte that says whether there is more.
const HEAD: u64 = 64;
/// The least number of bytes from one rank to another in a round, however little memory there is.
const LEAST: u64 = 256;

impl Table {
    /// How many peers there are.
    pub(super) fn len(&self) -> usize {
        self.ranks.len()
    }

    /// The number of a rank of the whole group among the peers.
    pub(super) fn number(&self, rank: u32) -> Option<usize> {
        // A sub-group keeps the order of the whole group, so the ranks are sorted.
        self.ranks.binary_search(&Rank(rank)).ok()
    }

    pub(super) fn rank(&self, peer: usize) -> u32 {
        self.ranks.get(peer).map_or(u32::MAX, |rank| rank.0)
    }

    /// The most bytes that one rank sends to another in a round. So at most a quarter of the memory holds sent data, and a
    /// quarter received data.
    pub(super) fn quota(&self) -> u64 {
        (self.memory / 4 / u64::from(self.most_peers)).saturating_sub(HEAD).max(LEAST)
    }

    /// The most bytes that are read but not yet sent.
    pub(super) fn window(&self) -> u64 {
        self.memory / 2
    }

    /// Translates an error of the sub-group, which has its own rank numbers, for the whole group.
    pub(super) fn named(&self, e: CommError) -> CommError {
        match e {
            CommError::Deadline { step, seconds, silent } => {
                let whole = |rank: Rank| self.ranks.get(rank.index()).copied().unwrap_or(rank);
                CommError::Deadline { step, seconds, silent: silent.into_iter().map(whole).collect() }
            }
            CommError::Broken(mut cause) if !self.is_whole() => {
                let ranks = Rank::list(&self.ranks);
                cause.message =
                    format!("in an exchange of {ranks}, by place in this list: {}", cause.message);
                CommError::Broken(cause)
            }
            other => other,
        }
    }

    fn is_whole(&self) -> bool {
        self.ranks.iter().enumerate().all(|(i, rank)| rank.index() == i)
    }
}
