//! Leaves of one rank that hold the same piece.

use super::Offer;
use crate::{DuplicatePieces, Fault, PlanError, Problem, Problems, Result, flat::as_stored};
use indexmap::IndexMap;
use reshard_model::{Data, Dims, FlatStateDict, Path, Sharded, ShardedTensor, Tensor};
use std::{borrow::Cow, sync::Arc};

/// The leaves of this rank that were offered so far, by key and offset.
pub(super) struct Offered<'s> {
    rank: u32,
    main_only: bool,
    seen: IndexMap<(Cow<'s, str>, Dims), (&'s Path, &'s Sharded)>,
    problems: Vec<Problem>,
}

impl<'s> Offered<'s> {
    pub(super) fn new(rank: u32, offer: Offer, state: &FlatStateDict) -> Self {
        let seen = IndexMap::with_capacity(state.len());
        Self {
            rank,
            main_only: offer == Offer::MainReplica,
            seen,
            problems: Vec::new(),
        }
    }

    /// Whether a leaf is the first that holds its piece. If two leaves of one piece contradict each other, this is recorded.
    pub(super) fn first(&mut self, path: &'s Path, leaf: &'s Sharded) -> Result<bool> {
        // Pieces are identified by key and offset. An empty piece is never written, so it can't clash.
        let piece = match leaf {
            Sharded::Tensor(t) => match as_stored(t)?.region {
                region if region.is_empty() => return Ok(true),
                region => (leaf.unique_key(), region.offsets),
            },
            Sharded::Object(_) => (leaf.unique_key(), Dims::default()),
        };
        let (other_path, other) = match self.seen.entry(piece) {
            indexmap::map::Entry::Vacant(v) => {
                v.insert((path, leaf));
                return Ok(true);
            }
            indexmap::map::Entry::Occupied(o) => *o.get(),
        };
        // Which duplicates are judged here. Others are left to the global plan or to the format.
        let region = match (other, leaf) {
            // The format makes a list of the leaves of one cell.
            (Sharded::Object(a), Sharded::Object(b)) if !a.is_item() && !b.is_item() => {
                return Ok(false);
            }
            (Sharded::Object(_), Sharded::Object(_)) => None,
            (Sharded::Tensor(a), Sharded::Tensor(b)) if alike(a, b) => Some(a.region()),
            // They contradict each other in another way. The global plan will report it.
            _ => return Ok(true),
        };
        // Equal contents are harmless if every replica is offered. Two main replicas are always an error.
        let why = match (self.main_only, equal(other, leaf)?) {
            (true, _) => DuplicatePieces::BothMain,
            (false, Some(true)) => return Ok(false),
            (false, Some(false)) => DuplicatePieces::Differ,
            (false, None) => DuplicatePieces::Unknown,
        };
        let fault = Fault::DuplicatePieces {
            region,
            rank: self.rank,
            paths: [other_path.to_string(), path.to_string()],
            why,
        };
        self.problems.push(fault.of(leaf.key()));
        Ok(false)
    }

    pub(super) fn done(self) -> Result<()> {
        if self.problems.is_empty() {
            Ok(())
        } else {
            Err(PlanError::Save(Problems(self.problems)))
        }
    }
}

/// Whether two pieces are the same box of the same tensor.
fn alike(a: &ShardedTensor, b: &ShardedTensor) -> bool {
    a.dtype == b.dtype
        && a.global_shape == b.global_shape
        && a.region() == b.region()
        && a.flattened_range == b.flattened_range
}

/// Whether two leaves hold the same; `None` when it would take reading them from elsewhere.
fn equal(a: &Sharded, b: &Sharded) -> Result<Option<bool>> {
    let (a, b) = match (a, b) {
        (Sharded::Tensor(a), Sharded::Tensor(b)) => (a, b),
        (Sharded::Object(a), Sharded::Object(b)) => return Ok(Some(a.data == b.data)),
        _ => return Ok(Some(false)),
    };
    let host = |t: &ShardedTensor| -> Result<Option<Tensor>> {
        Ok(match &t.data {
            Data::Host(h) => Some(h.clone()),
            Data::Device(d) => Some(d.to_host(&t.key)?),
            Data::None | Data::Lazy(_) => None,
        })
    };
    Ok(match (&a.data, &b.data) {
        (Data::None, Data::None) => Some(true),
        (Data::Lazy(a), Data::Lazy(b)) => Arc::ptr_eq(a, b).then_some(true),
        (Data::Device(a), Data::Device(b))
            if Arc::ptr_eq(a.buffer(), b.buffer()) && a.layout() == b.layout() =>
        {
            Some(true)
        }
        _ => match (host(a)?, host(b)?) {
            (Some(a), Some(b)) => Some(same_elements(&a, &b)),
            _ => None,
        },
    })
}

/// By blocks: they may be large, and not row-major.
fn same_elements(a: &Tensor, b: &Tensor) -> bool {
    (a.same_buffer(b) && a.layout() == b.layout())
        || (a.nbytes() == b.nbytes() && a.blocks(1 << 20).eq(b.blocks(1 << 20)))
}
