//! Checks that the exchanges of all ranks fit together, and finds which ranks communicate with which.

use crate::{PlanError, Result};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// A group of ranks that exchange data with each other, directly or through other ranks of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExchangeGroup {
    /// The lowest rank of the group. It identifies the group.
    pub first: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// The maximal number of other ranks to which one rank sends, or from which it receives.
    pub most_peers: u32,
}

/// Something that goes from one rank to another. For messages, it prints itself without its key.
pub(super) trait Ware: PartialEq + fmt::Display {
    /// Its key in the checkpoint. `None` if nothing there has a key for it.
    fn key(&self) -> Option<&str>;

    /// Its key, for messages.
    fn name(&self) -> &str {
        self.key().unwrap_or("an exchange")
    }
}

/// What all ranks plan to give to each other, and to take from each other.
pub(super) struct Routes<W> {
    ranks: usize,
    /// By giver and taker.
    routes: BTreeMap<(u32, u32), Route<W>>,
}

/// What goes from one rank to another, as the giver plans it and as the taker plans it.
struct Route<W> {
    given: Vec<W>,
    taken: Vec<W>,
}

impl<W: Ware> Routes<W> {
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            ranks,
            routes: BTreeMap::new(),
        }
    }

    fn route(&mut self, from: u32, to: u32) -> &mut Route<W> {
        self.routes.entry((from, to)).or_insert_with(|| Route {
            given: Vec::new(),
            taken: Vec::new(),
        })
    }

    /// The next thing that `rank` gives to `to`.
    pub(super) fn give(&mut self, rank: u32, to: u32, ware: W) -> Result<()> {
        let whom = match to {
            to if to as usize >= self.ranks => format!("rank {to} of {}", self.ranks),
            to if to == rank => "itself".into(),
            _ => {
                self.route(rank, to).given.push(ware);
                return Ok(());
            }
        };
        Err(PlanError::invalid(
            ware.name(),
            format!("rank {rank} hands {ware} out to {whom}"),
        ))
    }

    /// The next thing that `rank` takes from `from`.
    pub(super) fn take(&mut self, rank: u32, from: u32, ware: W) -> Result<()> {
        if from as usize >= self.ranks || from == rank {
            let what = format!(
                "rank {rank} waits for it from rank {from} of {}",
                self.ranks
            );
            return Err(PlanError::invalid(ware.name(), what));
        }
        self.route(from, rank).taken.push(ware);
        Ok(())
    }

    /// The group of each rank; `None` for a rank without an exchange.
    ///
    /// # Errors
    /// [`PlanError::Invalid`] with a key and the ranks, if what one rank gives is not what another one takes.
    pub(super) fn groups(self) -> Result<Vec<Option<ExchangeGroup>>> {
        for (&(from, to), route) in &self.routes {
            route.check(from, to)?;
        }
        let routes: Vec<(u32, u32)> = self.routes.into_keys().collect();
        Ok(groups(self.ranks, &routes))
    }
}

impl<W: Ware> Route<W> {
    fn check(&self, from: u32, to: u32) -> Result<()> {
        let n = self.given.len().max(self.taken.len());
        let Some(i) = (0..n).find(|i| self.given.get(*i) != self.taken.get(*i)) else {
            return Ok(());
        };
        let (ware, what) = match (self.given.get(i), self.taken.get(i)) {
            (Some(given), None) => {
                let to = format!("rank {to}, which does not wait for it");
                (given, format!("rank {from} hands {given} out to {to}"))
            }
            (None, Some(taken)) => {
                let from = format!("rank {from}, which does not hand it out");
                (taken, format!("rank {to} waits for {taken} from {from}"))
            }
            (Some(given), Some(taken)) => {
                let key = given.key().unwrap_or_default();
                let from = format!("rank {from}, which hands out {given} of {key}");
                (taken, format!("rank {to} waits for {taken} from {from}"))
            }
            (None, None) => return Ok(()),
        };
        Err(PlanError::invalid(ware.name(), what))
    }
}

/// Ranks that are joined by routes.
fn groups(ranks: usize, routes: &[(u32, u32)]) -> Vec<Option<ExchangeGroup>> {
    if routes.is_empty() {
        return vec![None; ranks];
    }
    // The lowest rank of a group is its root; a rank points to itself or to a lower one.
    let mut above: Vec<u32> = (0u32..).take(ranks).collect();
    fn root(above: &mut [u32], mut rank: u32) -> u32 {
        while above[rank as usize] != rank {
            let up = above[above[rank as usize] as usize];
            above[rank as usize] = up;
            rank = up;
        }
        rank
    }
    let (mut gives, mut takes) = (vec![0u32; ranks], vec![0u32; ranks]);
    for &(from, to) in routes {
        gives[from as usize] += 1;
        takes[to as usize] += 1;
        let (a, b) = (root(&mut above, from), root(&mut above, to));
        above[a.max(b) as usize] = a.min(b);
    }
    let mut found: BTreeMap<u32, ExchangeGroup> = BTreeMap::new();
    for rank in (0u32..).take(ranks) {
        let peers = gives[rank as usize].max(takes[rank as usize]);
        if peers > 0 {
            let first = root(&mut above, rank);
            let group = found.entry(first).or_insert(ExchangeGroup {
                first,
                ranks: 0,
                most_peers: 0,
            });
            group.ranks += 1;
            group.most_peers = group.most_peers.max(peers);
        }
    }
    (0u32..)
        .take(ranks)
        .map(|rank| found.get(&root(&mut above, rank)).copied())
        .collect()
}
