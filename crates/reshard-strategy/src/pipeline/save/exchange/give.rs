//! The giving side of an exchange: the items of this rank that others write.

use super::{
    super::resolve::Source,
    wire::{Ask, HEAD, Piece, Stream},
};
use crate::{
    Blocks, Result, StrategyError,
    pipeline::exchange::{Table, not_a_peer},
};
use bytes::Bytes;
use reshard_plan::{SavePlan, WriteItem};
use reshard_storage::StorageError;
use std::sync::Arc;

/// What this rank gives to each peer.
pub(super) struct Giver {
    source: Arc<Source>,
    peers: Vec<Peer>,
    /// The most bytes that go to one peer in a round.
    quota: u64,
}

#[derive(Default)]
struct Peer {
    items: Vec<Given>,
    /// What it has asked for in the last round.
    ask: Ask,
}

struct Given {
    item: WriteItem,
    attempt: u32,
    state: State,
}

enum State {
    /// Nobody has asked for it yet.
    Waits,
    /// Blocks that are still to be made, and the rest of the last block.
    Open(Blocks, Bytes),
    Sent,
}

impl Giver {
    pub(super) fn new(plan: &SavePlan, source: Arc<Source>, table: &Table) -> Result<Self> {
        let mut peers: Vec<Peer> = Vec::new();
        peers.resize_with(table.len(), Peer::default);
        for give in &plan.exchange.gives {
            let peer = table
                .number(give.to)
                .and_then(|n| peers.get_mut(n))
                .ok_or_else(not_a_peer)?;
            peer.items.push(Given {
                item: give.item.clone(),
                attempt: 0,
                state: State::Waits,
            });
        }
        Ok(Self {
            source,
            peers,
            quota: table.quota(),
        })
    }

    /// Takes what a peer asks for.
    pub(super) fn asked(&mut self, peer: usize, ask: Ask) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.ask = ask;
        }
    }

    /// The pieces for each peer in this round.
    pub(super) fn round(&mut self) -> Result<Vec<Vec<Bytes>>> {
        let (source, quota) = (&*self.source, self.quota);
        self.peers
            .iter_mut()
            .map(|peer| peer.round(source, quota))
            .collect()
    }
}

impl Peer {
    fn round(&mut self, source: &Source, quota: u64) -> Result<Vec<Bytes>> {
        let Ask { credit, items } = std::mem::take(&mut self.ask);
        let mut left = credit.min(quota);
        let mut out = Vec::new();
        for Stream { item: n, attempt } in items {
            let none = || {
                StrategyError::Internal(format!("a rank asks for item {n}, which it is not given"))
            };
            let given = self.items.get_mut(n as usize).ok_or_else(none)?;
            if given.attempt != attempt {
                (given.attempt, given.state) = (attempt, State::Waits);
            }
            while left > HEAD
                && let Some((last, bytes)) = given.next(left - HEAD, source)?
            {
                left -= HEAD + bytes.len() as u64;
                Piece {
                    stream: Stream { item: n, attempt },
                    last,
                    bytes,
                }
                .push(&mut out);
            }
        }
        Ok(out)
    }
}

impl Given {
    /// The next bytes, at most so many, and whether they are the last ones. `None` if all are sent.
    fn next(&mut self, most: u64, source: &Source) -> Result<Option<(bool, Bytes)>> {
        if let State::Waits = self.state {
            self.state = State::Open(source.blocks(&self.item)?, Bytes::new());
        }
        let State::Open(blocks, rest) = &mut self.state else {
            return Ok(None);
        };
        while rest.is_empty() {
            match blocks.next() {
                Some(block) => *rest = block.map_err(|e| unreadable(&self.item, e))?,
                None => {
                    self.state = State::Sent;
                    return Ok(Some((true, Bytes::new())));
                }
            }
        }
        let most = usize::try_from(most)
            .unwrap_or(usize::MAX)
            .min(u32::MAX as usize);
        let n = rest.len().min(most);
        Ok(Some((false, rest.split_to(n))))
    }
}

/// As a store says it of a source that it writes.
fn unreadable(item: &WriteItem, e: std::io::Error) -> StrategyError {
    let (key, path) = (&item.key, "an exchange");
    match e.downcast::<StorageError>() {
        Ok(e) => e.into(),
        Err(e) => StrategyError::Invalid(format!(
            "{key}: what is given to another rank in {path} can't be read: {e}"
        )),
    }
}
