//! The sending side of an exchange: what this rank reads for others.

use crate::{
    LoadCx, ReadCx, ReadObject, Result, StorageReader, StrategyError, Traffic, encode_object,
    pipeline::{
        exchange::{Outgoing, Table, not_a_peer},
        load::{
            lend::Place,
            transfer::{goes_straight, put, reclaimed, scratch},
        },
    },
};
use bytes::Bytes;
use reshard_model::{Payload, Tensor};
use reshard_plan::{LoadPlan, ObjectId, Selection, Serve, Wanted};
use std::{
    collections::{BTreeMap, VecDeque},
    iter::Peekable,
    slice,
    sync::Arc,
};

/// What this rank still has to read and to send.
pub(super) struct Giver<'p> {
    serves: Peekable<std::iter::Enumerate<slice::Iter<'p, Serve>>>,
    /// This rank's own items that want what it serves.
    own: BTreeMap<usize, Vec<Place<'p>>>,
    /// Data that are read, but not yet sent to all.
    ready: VecDeque<Ready>,
    /// The objects that were read.
    pub(super) objects: BTreeMap<ObjectId, Payload>,
    table: Arc<Table>,
}

struct Ready {
    bytes: Bytes,
    /// The receivers, by their numbers among the peers.
    to: Vec<usize>,
}

impl<'p> Giver<'p> {
    pub(super) fn new(
        plan: &'p LoadPlan,
        own: BTreeMap<usize, Vec<Place<'p>>>,
        table: Arc<Table>,
    ) -> Result<Self> {
        let serves = plan.exchange.serves.iter().enumerate().peekable();
        Ok(Self {
            serves,
            own,
            ready: VecDeque::new(),
            objects: BTreeMap::new(),
            table,
        })
    }

    /// The part of each peer in this round.
    pub(super) async fn round(
        &mut self,
        from: &dyn StorageReader,
        how: &ReadCx<'_>,
        cx: &LoadCx<'_>,
        totals: &mut Traffic,
    ) -> Result<Outgoing> {
        self.read(from, how, cx, totals).await?;
        // Each peer gets at most the quota. All receivers of the same data advance together, so these are kept only once.
        let mut blocks: Vec<Vec<Bytes>> = vec![Vec::new(); self.table.len()];
        let mut left = vec![self.table.quota(); self.table.len()];
        for ready in &mut self.ready {
            let n = ready
                .to
                .iter()
                .map(|&to| left[to])
                .min()
                .unwrap_or(0)
                .min(ready.bytes.len() as u64);
            let block = ready.bytes.split_to(n as usize);
            for &to in &ready.to {
                // The stream is in order: until this is sent as a whole, nothing after it may go to this peer.
                left[to] = if ready.bytes.is_empty() {
                    left[to] - n
                } else {
                    0
                };
                if !block.is_empty() {
                    blocks[to].push(block.clone());
                }
            }
        }
        self.ready.retain(|ready| !ready.bytes.is_empty());
        let more = self.serves.peek().is_some() || !self.ready.is_empty();
        Ok(Outgoing {
            parts: blocks,
            more,
        })
    }

    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// Reads the next data, as long as there is memory for them.
    async fn read(
        &mut self,
        from: &dyn StorageReader,
        how: &ReadCx<'_>,
        cx: &LoadCx<'_>,
        totals: &mut Traffic,
    ) -> Result<()> {
        let mut held: u64 = self
            .ready
            .iter()
            .map(|ready| ready.bytes.len() as u64)
            .sum();
        // It is better to read much at a time than a little in each round, because formats read neighbouring chunks together.
        if held > self.table.window() / 2 {
            return Ok(());
        }
        // Takes as many items as fit into the window, but at least one, so that a large item does not block the exchange.
        let mut next = Vec::new();
        while let Some((n, serve)) = self.serves.peek().copied() {
            let bytes = size(&serve.what, from);
            if held > 0 && held.saturating_add(bytes) > self.table.window() {
                break;
            }
            held = held.saturating_add(bytes);
            next.push((n, serve));
            self.serves.next();
        }
        // Tensors and objects are different calls of a format: one call for all of each kind.
        let selections = next.iter().filter_map(|(_, serve)| match &serve.what {
            Wanted::Chunk(selection) => Some(selection),
            Wanted::Object(_) => None,
        });
        let objects = next.iter().filter_map(|(_, serve)| match serve.what {
            Wanted::Object(object) => Some(ReadObject { object }),
            Wanted::Chunk(_) => None,
        });
        let mut tensors = read_tensors(selections.collect(), from, how, totals)
            .await?
            .into_iter();
        let objects: Vec<ReadObject> = objects.collect();
        let mut payloads = match objects.is_empty() {
            true => Vec::new(),
            false => from.read_objects(&objects, how).await?,
        }
        .into_iter();
        // In the order of the plan, which is the order of the streams. This rank's own items are filled at once, so that the
        // data need not be kept for them.
        for (n, serve) in next {
            let lacking =
                || StrategyError::Internal("a format read less than it was asked for".into());
            let bytes = match &serve.what {
                Wanted::Chunk(selection) => {
                    let tensor = tensors.next().ok_or_else(lacking)?;
                    let own = self.own.remove(&n).unwrap_or_default();
                    own.into_iter()
                        .try_for_each(|place| keep(place, &tensor, selection, cx))?;
                    tensor.to_bytes()
                }
                Wanted::Object(id) => {
                    let payload = payloads.next().ok_or_else(lacking)?;
                    self.objects.insert(*id, payload.clone());
                    let key = from.metadata().object_key(*id).unwrap_or_default();
                    let object = encode_object(&*from.codec(), key, payload)?;
                    let length = (object.len() as u64).to_le_bytes();
                    [&length[..], &object].concat().into()
                }
            };
            let to = serve
                .to
                .iter()
                .map(|to| self.table.number(*to).ok_or_else(not_a_peer));
            self.ready.push_back(Ready {
                bytes,
                to: to.collect::<Result<_>>()?,
            });
        }
        Ok(())
    }
}

/// The bytes that it takes in memory: exact for a tensor, about right for an object.
fn size(what: &Wanted, from: &dyn StorageReader) -> u64 {
    match what {
        Wanted::Chunk(_) => what.bytes().unwrap_or(0),
        Wanted::Object(id) => from
            .locate_object(*id)
            .iter()
            .map(|part| part.length())
            .sum(),
    }
}

/// Reads selections into temporary memory, all in one call.
async fn read_tensors(
    selections: Vec<&Selection>,
    from: &dyn StorageReader,
    how: &ReadCx<'_>,
    totals: &mut Traffic,
) -> Result<Vec<Tensor>> {
    if selections.is_empty() {
        return Ok(Vec::new());
    }
    let (mut reads, mut waiting) = (Vec::new(), Vec::new());
    for selection in selections {
        let key = from
            .metadata()
            .chunk(selection.chunk)
            .map_or("", |(tensor, _)| tensor.key());
        let (read, lent, views) = scratch(key, selection.clone(), &selection.region.lengths)?;
        reads.push(read);
        waiting.push((lent, views));
    }
    *totals += from.read_tensors(reads, how).await?;
    waiting
        .into_iter()
        .map(|(lent, views)| reclaimed(lent, views))
        .collect()
}

/// Puts data that this rank serves into its own leaf.
fn keep(place: Place<'_>, read: &Tensor, selection: &Selection, cx: &LoadCx<'_>) -> Result<()> {
    let Place { item, dtype, into } = place;
    if goes_straight(item, selection.dtype, dtype, cx)? {
        return Ok(into.fill(&read.to_bytes())?);
    }
    // The leaf may lack axes that it prepends.
    let read = read.view(into.shape())?;
    put(item, read, dtype, into, cx)
}
