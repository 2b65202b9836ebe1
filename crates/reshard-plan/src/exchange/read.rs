//! What ranks of a load read for each other.

use super::check::{ExchangeGroup, Routes, Ware};
use crate::{
    ChunkId, LoadPlan, Metadata, ObjectId, PlanError, ReadItem, Result, Selection, Stored,
};
use reshard_model::Region;
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
            Self::Chunk(s) => Some(s.bytes()),
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
        let wanted = match self.stored {
            Stored::Chunk(_) => self.selection(metadata)?.map(Wanted::Chunk),
            Stored::Object(id) => metadata.object_key(id).map(|_| Wanted::Object(id)),
        };
        let unknown = "a plan reads it, but it is not stored";
        wanted.ok_or_else(|| PlanError::invalid(&self.piece.key, unknown))
    }
}

/// Something that a rank reads once and sends to other ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Serve {
    /// What it reads. Own items of this rank that want it, or a part of it, share this read.
    pub what: Wanted,
    /// The ranks that get it. The reading rank is not among them.
    pub to: Box<[u32]>,
    /// The part that each of these ranks gets, as a region of the chunk. Empty if each of them gets all of it. With parts, a rank may get
    /// several of them.
    pub parts: Box<[Region]>,
}

impl Serve {
    /// Sends `what` to these ranks.
    pub fn new(what: Wanted, to: impl Into<Box<[u32]>>) -> Self {
        Self {
            what,
            to: to.into(),
            parts: Box::default(),
        }
    }

    /// Sends parts of a chunk to these ranks.
    pub fn parts(what: Selection, to: impl IntoIterator<Item = (u32, Region)>) -> Self {
        let (to, parts): (Vec<u32>, Vec<Region>) = to.into_iter().unzip();
        Self {
            what: Wanted::Chunk(what),
            to: to.into(),
            parts: parts.into(),
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
    /// The region of the chunk that this rank reads, if it sends parts of it.
    pub of: Option<Region>,
}

impl Receive {
    /// Gets from rank `from` what all of these items want.
    pub fn new(from: u32, items: Vec<ReadItem>) -> Self {
        Self {
            from,
            items,
            of: None,
        }
    }

    /// Sets the region of which this is a part.
    #[must_use]
    pub fn part_of(self, region: Region) -> Self {
        Self {
            of: Some(region),
            ..self
        }
    }
}

/// How ranks hand on what they have read: Megatron Core's `exchange_algo`. The result is the same; rounds and memory differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExchangeAlgo {
    /// Each rank hands on as many items in a round as fit into its memory for exchanges. It is the fastest.
    #[default]
    Broadcast,
    /// Each rank hands on one item in a round, in pieces if it is large. It has the most rounds, and takes the least memory.
    GatherRounds,
    /// Each rank reads all that it hands on, and then there is one round. The memory has no bound.
    GatherObject,
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
    /// How it is handed on. It is the same on all ranks.
    pub algo: ExchangeAlgo,
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
    let mut algo = None;
    for (rank, plan) in (0u32..).zip(plans) {
        let exchange = &plan.exchange;
        if !exchange.is_empty() && *algo.get_or_insert(exchange.algo) != exchange.algo {
            let what = format!("rank {rank} hands data on in another way than a rank before it");
            return Err(PlanError::invalid("an exchange", what));
        }
        for serve in &exchange.serves {
            for (to, ware) in wares(rank, serve, metadata)? {
                routes.give(rank, to, ware)?;
            }
        }
        for receive in &exchange.receives {
            let what = Cow::Owned(check_items(rank, receive, metadata)?);
            let of = receive.of.as_ref();
            routes.take(rank, receive.from, Read { what, of, metadata })?;
        }
    }
    routes.groups()
}

/// Something that is read for another rank.
struct Read<'p> {
    what: Cow<'p, Wanted>,
    /// The region of which it is a part.
    of: Option<&'p Region>,
    metadata: &'p Metadata,
}

impl PartialEq for Read<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.what == other.what && self.of == other.of
    }
}

impl fmt::Display for Read<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of {
            None => self.what.fmt(f),
            Some(of) => write!(f, "{}, read with {of},", self.what),
        }
    }
}

impl Ware for Read<'_> {
    fn key(&self) -> Option<&str> {
        self.what.key(self.metadata)
    }
}

/// What each receiver gets.
fn wares<'p>(rank: u32, serve: &'p Serve, metadata: &'p Metadata) -> Result<Vec<(u32, Read<'p>)>> {
    let whole = || Read {
        what: Cow::Borrowed(&serve.what),
        of: None,
        metadata,
    };
    let fail = |says: String| {
        let says = format!("rank {rank} hands {} out {says}", serve.what);
        Err(PlanError::invalid(whole().name(), says))
    };
    if serve.to.is_empty() {
        return fail("to nobody".into());
    }
    let mut seen = BTreeSet::new();
    if serve.parts.is_empty() {
        if let Some(to) = serve.to.iter().find(|to| !seen.insert((**to, None))) {
            return fail(format!("to rank {to} twice"));
        }
        return Ok(serve.to.iter().map(|to| (*to, whole())).collect());
    }
    let Wanted::Chunk(of) = &serve.what else {
        return fail("in parts".into());
    };
    if serve.parts.len() != serve.to.len() {
        let (parts, ranks) = (serve.parts.len(), serve.to.len());
        return fail(format!("in {parts} parts to {ranks} ranks"));
    }
    let mut out = Vec::with_capacity(serve.to.len());
    for (&to, part) in serve.to.iter().zip(&serve.parts) {
        if !of.region.contains(part) {
            return fail(format!("to rank {to}, of which {part} is no part"));
        }
        if !seen.insert((to, Some(part))) {
            return fail(format!("to rank {to} twice"));
        }
        let what = Wanted::Chunk(Selection {
            region: part.clone(),
            ..of.clone()
        });
        let read = Read {
            what: Cow::Owned(what),
            of: Some(&of.region),
            metadata,
        };
        out.push((to, read));
    }
    Ok(out)
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
    let outside = match (&what, &receive.of) {
        (_, None) => false,
        (Wanted::Chunk(part), Some(of)) => !of.contains(&part.region),
        (Wanted::Object(_), Some(_)) => true,
    };
    if outside {
        let says = format!(
            "rank {rank} waits for {what} from rank {from}, which is no part of what that reads"
        );
        return Err(PlanError::invalid(&first.piece.key, says));
    }
    Ok(what)
}
