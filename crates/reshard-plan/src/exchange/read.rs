//! What ranks of a load read for each other.

use super::check::{ExchangeGroup, Routes, Ware};
use crate::{
    ChunkId, LoadPlan, Metadata, ObjectId, PlanError, ReadItem, Result, Selection, Stored,
};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeSet, fmt};

/// Something to read from a checkpoint, whatever its destination. If two ranks want the same data, their values are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Wanted {
    /// A part of a chunk.
    Chunk(Selection),
    /// An object.
    Object(ObjectId),
}

impl Wanted {
    /// The size of its elements in bytes. `None` for an object, because only the format knows its length.
    pub fn bytes(&self) -> Option<u64> {
        match self {
            Self::Chunk(s) => Some(s.elements().saturating_mul(s.dtype.size())),
            Self::Object(_) => None,
        }
    }

    /// Its key in the checkpoint. `None` if there is no such chunk or object.
    pub fn key<'m>(&self, metadata: &'m Metadata) -> Option<&'m str> {
        match self {
            Self::Chunk(s) => metadata.chunk(s.chunk).map(|(tensor, _)| tensor.key()),
            Self::Object(id) => metadata.object_key(*id),
        }
    }
}

/// For messages, which name the key separately.
impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chunk(Selection {
                chunk: ChunkId(id),
                region,
                ..
            }) => write!(f, "{region} of chunk {id}"),
            Self::Object(_) => f.write_str("the object"),
        }
    }
}

impl ReadItem {
    /// What it reads.
    ///
    /// # Errors
    /// As [`selection`](Self::selection); an object that is not stored.
    pub fn wanted(&self, metadata: &Metadata) -> Result<Wanted> {
        let unknown =
            || PlanError::invalid(&self.piece.key, "a plan reads it, but it is not stored");
        match self.stored {
            Stored::Chunk(_) => self
                .selection(metadata)?
                .map(Wanted::Chunk)
                .ok_or_else(unknown),
            Stored::Object(id) => metadata
                .object_key(id)
                .map(|_| Wanted::Object(id))
                .ok_or_else(unknown),
        }
    }
}

/// Something that a rank reads once and sends to other ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Serve {
    /// What it reads. If its own items want the same, they share this read.
    pub what: Wanted,
    /// The ranks that get it. The reading rank is not among them.
    pub to: Box<[u32]>,
}

impl Serve {
    /// Sends `what` to these ranks.
    pub fn new(what: Wanted, to: impl Into<Box<[u32]>>) -> Self {
        Self {
            what,
            to: to.into(),
        }
    }
}

/// Something that a rank gets from another rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Receive {
    /// The rank that reads it.
    pub from: u32,
    /// The items that want it, at least one.
    pub items: Vec<ReadItem>,
}

impl Receive {
    /// Gets from rank `from` what all of these items want.
    pub fn new(from: u32, items: Vec<ReadItem>) -> Self {
        Self { from, items }
    }
}

/// What a rank of a load reads for others, and gets from others. Ranks are counted in the whole group.
///
/// A planner makes it in [`create_global_plan`](crate::LoadPlanner::create_global_plan), which sees all plans. [`share_reads`](crate::share_reads) is the
/// simplest way. The pipeline carries it out: planners and strategies handle no buffers for it.
///
/// # Contract
/// - What one rank serves to another must be exactly what the other receives from it, in the same order. [`exchange_groups`] checks it.
/// - Received items are not among the items of the plan.
/// - [`finish_plan`](crate::LoadPlanner::finish_plan) must not change it, because the other ranks rely on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Exchange {
    /// What this rank reads for others, in the order of sending.
    pub serves: Vec<Serve>,
    /// What this rank gets from others. The entries of each sender are in its order of sending.
    pub receives: Vec<Receive>,
}

impl Exchange {
    /// Whether this rank takes part in no exchange.
    pub fn is_empty(&self) -> bool {
        self.serves.is_empty() && self.receives.is_empty()
    }
}

impl LoadPlan {
    /// All items that fill leaves of this rank: first those that it reads, then those that others read for it.
    pub fn all_items(&self) -> impl Iterator<Item = &ReadItem> {
        self.items
            .iter()
            .chain(self.exchange.receives.iter().flat_map(|r| &r.items))
    }
}

/// The group of each rank; `None` for a rank without an exchange.
///
/// # Errors
/// [`PlanError::Invalid`] with a key and the ranks, if what one rank serves is not what another one receives. Otherwise these ranks
/// would wait forever.
pub fn exchange_groups(
    plans: &[LoadPlan],
    metadata: &Metadata,
) -> Result<Vec<Option<ExchangeGroup>>> {
    let mut routes = Routes::new(plans.len());
    let ware = |what| Read { what, metadata };
    for (rank, plan) in (0u32..).zip(plans) {
        for serve in &plan.exchange.serves {
            check_receivers(rank, serve, &ware(Cow::Borrowed(&serve.what)))?;
            for &to in &serve.to {
                routes.give(rank, to, ware(Cow::Borrowed(&serve.what)))?;
            }
        }
        for receive in &plan.exchange.receives {
            let what = check_items(rank, receive, metadata)?;
            routes.take(rank, receive.from, ware(Cow::Owned(what)))?;
        }
    }
    routes.groups()
}

/// Something that is read for another rank.
struct Read<'p> {
    what: Cow<'p, Wanted>,
    metadata: &'p Metadata,
}

impl PartialEq for Read<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.what == other.what
    }
}

impl fmt::Display for Read<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.what.fmt(f)
    }
}

impl Ware for Read<'_> {
    fn key(&self) -> Option<&str> {
        self.what.key(self.metadata)
    }
}

fn check_receivers(rank: u32, serve: &Serve, ware: &Read<'_>) -> Result<()> {
    let fail = |says: String| Err(PlanError::invalid(ware.name(), says));
    if serve.to.is_empty() {
        return fail(format!("rank {rank} hands {} out to nobody", serve.what));
    }
    let mut seen = BTreeSet::new();
    for &to in &serve.to {
        if !seen.insert(to) {
            return fail(format!(
                "rank {rank} hands {} out to rank {to} twice",
                serve.what
            ));
        }
    }
    Ok(())
}

/// What all of the items want.
fn check_items(rank: u32, receive: &Receive, metadata: &Metadata) -> Result<Wanted> {
    let from = receive.from;
    let Some((first, rest)) = receive.items.split_first() else {
        let what = format!("rank {rank} waits for something from rank {from} that goes nowhere");
        return Err(PlanError::invalid("an exchange", what));
    };
    let what = first.wanted(metadata)?;
    for item in rest {
        let other = item.wanted(metadata)?;
        if other != what {
            let says =
                format!("rank {rank} puts {what} from rank {from} into an item that wants {other}");
            return Err(PlanError::invalid(&item.piece.key, says));
        }
    }
    Ok(what)
}
