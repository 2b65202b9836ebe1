//! What ranks of a load read for each other.

mod check;
mod share;

use crate::{ChunkId, LoadPlan, Metadata, ObjectId, PlanError, ReadItem, Result, Selection, Stored};
use serde::{Deserialize, Serialize};
use std::fmt;

pub use check::{ExchangeGroup, exchange_groups};
pub use share::{Demand, share_reads};

/// What can be read of a checkpoint, wherever it goes: two ranks that want the same of it have equal values of this.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Wanted {
    /// A part of a chunk.
    Chunk(Selection),
    /// An object.
    Object(ObjectId),
}

impl Wanted {
    /// Bytes of its elements; `None` for an object, whose length only the format knows.
    pub fn bytes(&self) -> Option<u64> {
        match self {
            Self::Chunk(s) => Some(s.elements().saturating_mul(s.dtype.size())),
            Self::Object(_) => None,
        }
    }

    /// Its key in the checkpoint; `None` when there is no such chunk or object.
    pub fn key<'m>(&self, metadata: &'m Metadata) -> Option<&'m str> {
        match self {
            Self::Chunk(s) => metadata.chunk(s.chunk).map(|(tensor, _)| tensor.key()),
            Self::Object(id) => metadata.object_key(*id),
        }
    }
}

/// For messages that name the key beside it.
impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chunk(Selection { chunk: ChunkId(id), region, .. }) => write!(f, "{region} of chunk {id}"),
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
        let unknown = || PlanError::invalid(&self.piece.key, "it is to be read, and is not stored");
        match self.stored {
            Stored::Chunk(_) => self.selection(metadata)?.map(Wanted::Chunk).ok_or_else(unknown),
            Stored::Object(id) => metadata.object_key(id).map(|_| Wanted::Object(id)).ok_or_else(unknown),
        }
    }
}

/// What a rank reads once and hands out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Serve {
    /// What it reads. If items of its own want the same, it is read once for them, too.
    pub what: Wanted,
    /// The ranks that get it, others than the one that reads.
    pub to: Box<[u32]>,
}

impl Serve {
    /// Hands `what` out to these ranks.
    pub fn new(what: Wanted, to: impl Into<Box<[u32]>>) -> Self {
        Self { what, to: to.into() }
    }
}

/// What a rank gets from another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Receive {
    /// Who reads it.
    pub from: u32,
    /// Where it goes: items that want the same, at least one.
    pub items: Vec<ReadItem>,
}

impl Receive {
    /// What rank `from` reads, for all of these items.
    pub fn new(from: u32, items: Vec<ReadItem>) -> Self {
        Self { from, items }
    }
}

/// What a rank of a load reads for others, and gets from others; ranks are those of the whole group.
///
/// It is made by [`create_global_plan`](crate::LoadPlanner::create_global_plan), where all plans are in view, most simply by
/// [`share_reads`]. The pipeline carries it out: no planner and no strategy handles a buffer for it.
///
/// # Contract
/// - What one rank hands out to another one is what that one gets from it, in the same order: [`exchange_groups`] checks it.
/// - What is received is not among the plan's items.
/// - [`finish_plan`](crate::LoadPlanner::finish_plan) leaves it as it is, since the other ranks count on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Exchange {
    /// What it reads for others, in the order in which it is handed out.
    pub serves: Vec<Serve>,
    /// What it gets from others; from each rank in the order in which that hands it out.
    pub receives: Vec<Receive>,
}

impl Exchange {
    /// Whether this rank has no part in any exchange.
    pub fn is_empty(&self) -> bool {
        self.serves.is_empty() && self.receives.is_empty()
    }
}

impl LoadPlan {
    /// All items that fill leaves of this rank: those that it reads, then those that others read for it.
    pub fn all_items(&self) -> impl Iterator<Item = &ReadItem> {
        self.items.iter().chain(self.exchange.receives.iter().flat_map(|r| &r.items))
    }
}
