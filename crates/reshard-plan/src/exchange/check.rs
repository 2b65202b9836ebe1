//! Checks that the exchanges of all ranks fit together, and finds which ranks communicate with which.

use super::{Receive, Serve, Wanted};
use crate::{LoadPlan, Metadata, PlanError, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

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

/// The group of each rank; `None` for a rank without an exchange.
///
/// # Errors
/// [`PlanError::Invalid`] with a key and the ranks, if what one rank serves is not what another one receives. Otherwise these ranks
/// would wait forever.
pub fn exchange_groups(plans: &[LoadPlan], metadata: &Metadata) -> Result<Vec<Option<ExchangeGroup>>> {
    let mut routes: BTreeMap<(u32, u32), Route<'_>> = BTreeMap::new();
    for (rank, plan) in (0u32..).zip(plans) {
        let ranks = plans.len();
        for serve in &plan.exchange.serves {
            check_receivers(rank, serve, ranks, metadata)?;
            for &to in &serve.to {
                routes.entry((rank, to)).or_default().given.push(&serve.what);
            }
        }
        for receive in &plan.exchange.receives {
            let what = check_items(rank, receive, ranks, metadata)?;
            routes.entry((receive.from, rank)).or_default().taken.push(what);
        }
    }
    for (&(from, to), route) in &routes {
        route.check(from, to, metadata)?;
    }
    let routes: Vec<(u32, u32)> = routes.into_keys().collect();
    Ok(groups(plans.len(), &routes))
}

/// What goes from one rank to another, as the sender plans it and as the receiver plans it.
#[derive(Default)]
struct Route<'p> {
    given: Vec<&'p Wanted>,
    taken: Vec<Wanted>,
}

impl Route<'_> {
    fn check(&self, from: u32, to: u32, metadata: &Metadata) -> Result<()> {
        let n = self.given.len().max(self.taken.len());
        let differs = |i: &usize| self.given.get(*i).copied() != self.taken.get(*i);
        let Some(i) = (0..n).find(differs) else { return Ok(()) };
        match (self.given.get(i).copied(), self.taken.get(i)) {
            (Some(given), None) => {
                let what = format!("rank {from} hands {given} out to rank {to}, which does not wait for it");
                Err(invalid(given, metadata, what))
            }
            (None, Some(taken)) => {
                let what =
                    format!("rank {to} waits for {taken} from rank {from}, which does not hand it out");
                Err(invalid(taken, metadata, what))
            }
            (Some(given), Some(taken)) => {
                let key = given.key(metadata).unwrap_or_default();
                let what =
                    format!("rank {to} waits for {taken} from rank {from}, which hands out {given} of {key}");
                Err(invalid(taken, metadata, what))
            }
            (None, None) => Ok(()),
        }
    }
}

fn invalid(what: &Wanted, metadata: &Metadata, says: String) -> PlanError {
    PlanError::invalid(what.key(metadata).unwrap_or("an exchange"), says)
}

fn check_receivers(rank: u32, serve: &Serve, ranks: usize, metadata: &Metadata) -> Result<()> {
    let fail = |says: String| Err(invalid(&serve.what, metadata, says));
    if serve.to.is_empty() {
        return fail(format!("rank {rank} hands {} out to nobody", serve.what));
    }
    let mut seen = BTreeSet::new();
    for &to in &serve.to {
        if to as usize >= ranks {
            return fail(format!("rank {rank} hands {} out to rank {to} of {ranks}", serve.what));
        }
        if to == rank {
            return fail(format!("rank {rank} hands {} out to itself", serve.what));
        }
        if !seen.insert(to) {
            return fail(format!("rank {rank} hands {} out to rank {to} twice", serve.what));
        }
    }
    Ok(())
}

/// What all of the items want.
fn check_items(rank: u32, receive: &Receive, ranks: usize, metadata: &Metadata) -> Result<Wanted> {
    let from = receive.from;
    let Some((first, rest)) = receive.items.split_first() else {
        let what = format!("rank {rank} waits for something from rank {from} that goes nowhere");
        return Err(PlanError::invalid("an exchange", what));
    };
    if from as usize >= ranks || from == rank {
        let what = format!("rank {rank} waits for it from rank {from} of {ranks}");
        return Err(PlanError::invalid(&first.piece.key, what));
    }
    let what = first.wanted(metadata)?;
    for item in rest {
        let other = item.wanted(metadata)?;
        if other != what {
            let says = format!("rank {rank} puts {what} from rank {from} into an item that wants {other}");
            return Err(PlanError::invalid(&item.piece.key, says));
        }
    }
    Ok(what)
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
            let group = found.entry(first).or_insert(ExchangeGroup { first, ranks: 0, most_peers: 0 });
            group.ranks += 1;
            group.most_peers = group.most_peers.max(peers);
        }
    }
    (0u32..).take(ranks).map(|rank| found.get(&root(&mut above, rank)).copied()).collect()
}
