//! The receiving side of an exchange: what other ranks read for this rank, and where it goes.

use super::give::squeezed;
use crate::{
    LoadCx, Result, StorageReader, StrategyError,
    pipeline::{
        exchange::{Table, not_a_peer, unplanned},
        load::{
            device::Devices,
            lend::{Place, stored},
            transfer::put,
        },
    },
};
use bytes::Bytes;
use reshard_model::{DType, Layout, Payload, RegionMut, StridedCopy, Tensor};
use reshard_plan::{LoadPlan, ObjectId, ReadItem, Selection, Wanted};
use reshard_storage::Progress;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

/// What will come from each peer, in order.
pub(super) struct Taker<'p> {
    waiting: Vec<VecDeque<Coming<'p>>>,
    objects: BTreeMap<ObjectId, Payload>,
    devices: &'p Devices,
    progress: &'p Progress,
}

enum Coming<'p> {
    Tensor {
        key: &'p str,
        at: u64,
        bytes: u64,
        /// How many bytes its places take.
        wanted: u64,
        sinks: Vec<Sink<'p>>,
    },
    /// Its length comes first.
    Object {
        key: &'p str,
        id: ObjectId,
        length: Vec<u8>,
        bytes: Vec<u8>,
    },
}

/// Where the elements of a tensor go.
enum Sink<'p> {
    Leaf(StridedCopy),
    /// A leaf on a device, which gets its elements while the next ones come.
    Device(Arc<Mutex<StridedCopy>>),
    /// Into temporary memory, because all elements are needed for a transform or cast.
    Memory {
        item: &'p ReadItem,
        stored: DType,
        /// Where its elements lie in what comes.
        layout: Layout,
        dtype: DType,
        into: RegionMut,
        bytes: Vec<u8>,
    },
}

const LENGTH: usize = size_of::<u64>();

impl<'p> Taker<'p> {
    /// What is `lent` does not come: the peer fills it.
    pub(super) fn new(
        plan: &'p LoadPlan,
        (mut received, lent): (BTreeMap<usize, Vec<Place<'p>>>, Option<&BTreeSet<usize>>),
        table: &Table,
        (from, cx): (&dyn StorageReader, &LoadCx<'_>),
        (devices, progress): (&'p Devices, &'p Progress),
    ) -> Result<Self> {
        let mut waiting: Vec<VecDeque<Coming<'p>>> = Vec::new();
        waiting.resize_with(table.len(), VecDeque::new);

        // A peer sends in the order of this plan, so one queue for each peer tells what its next bytes are.
        for (n, receive) in plan.exchange.receives.iter().enumerate() {
            if lent.is_some_and(|lent| lent.contains(&n)) {
                continue;
            }
            let peer = table.number(receive.from).ok_or_else(not_a_peer)?;
            let first = receive.items.first().ok_or_else(not_a_peer)?;
            let key = &*first.piece.key;

            // All items of a receive want the same data, so the first one tells what comes.
            let coming = match first.wanted(from.metadata())? {
                Wanted::Object(id) => Coming::Object {
                    key,
                    id,
                    length: Vec::new(),
                    bytes: Vec::new(),
                },
                Wanted::Chunk(selection) => {
                    // Who shares memory gets all of what the other has read.
                    let of = receive.of.clone().filter(|_| table.shares_memory());
                    let mut comes = selection;
                    comes.region = of.unwrap_or(comes.region);
                    let places = received.remove(&n).unwrap_or_default();
                    let wanted = stored(&places, comes.dtype);
                    // Who shares memory gets handles at once, so nothing comes meanwhile.
                    let later = !table.shares_memory();
                    let sinks = places
                        .into_iter()
                        .map(|place| Sink::new(place, &comes, later, cx));
                    let bytes = comes.bytes();
                    Coming::Tensor {
                        key,
                        at: 0,
                        bytes,
                        wanted,
                        sinks: sinks.collect::<Result<_>>()?,
                    }
                }
            };
            waiting[peer].push_back(coming);
        }
        Ok(Self {
            waiting,
            objects: BTreeMap::new(),
            devices,
            progress,
        })
    }

    /// Takes the next bytes of a peer.
    pub(super) fn take(
        &mut self,
        peer: usize,
        mut part: Bytes,
        from: &dyn StorageReader,
        cx: &LoadCx<'_>,
    ) -> Result<()> {
        let Some(queue) = self.waiting.get_mut(peer) else {
            return Err(unplanned());
        };
        loop {
            // An entry that has no bytes is complete before any bytes come.
            while let Some(coming) = queue.pop_front_if(|coming| coming.is_whole()) {
                if let Some(wanted) = coming.finish(&mut self.objects, from, cx)? {
                    self.progress.add(wanted);
                }
            }
            if part.is_empty() {
                return Ok(());
            }
            queue
                .front_mut()
                .ok_or_else(unplanned)?
                .take(&mut part, self.devices)?;
        }
    }

    /// Returns the objects. Fails if something has not come.
    pub(super) fn done(self, table: &Table) -> Result<BTreeMap<ObjectId, Payload>> {
        for (peer, queue) in self.waiting.iter().enumerate() {
            if let Some(Coming::Tensor { key, .. } | Coming::Object { key, .. }) = queue.front() {
                let what = format!(
                    "{key}: rank {} has sent less of it than was planned",
                    table.rank(peer)
                );
                return Err(StrategyError::Internal(what));
            }
        }
        Ok(self.objects)
    }
}

impl Coming<'_> {
    fn is_whole(&self) -> bool {
        match self {
            Self::Tensor { at, bytes, .. } => at == bytes,
            Self::Object { length, bytes, .. } => announced(length) == Some(bytes.len() as u64),
        }
    }

    /// Takes the bytes that it still needs from the front of a part.
    fn take(&mut self, part: &mut Bytes, devices: &Devices) -> Result<()> {
        let mut split =
            |n: u64| part.split_to(part.len().min(usize::try_from(n).unwrap_or(usize::MAX)));
        match self {
            Self::Tensor {
                at, bytes, sinks, ..
            } => {
                let block = split(*bytes - *at);
                for sink in sinks {
                    match sink {
                        Sink::Leaf(copy) => copy.feed(*at, &block),
                        Sink::Device(copy) => feed_later(copy, *at, &block, devices)?,
                        Sink::Memory { bytes, .. } => bytes.extend_from_slice(&block),
                    }
                }
                *at += block.len() as u64;
            }
            Self::Object { length, bytes, .. } => match announced(length) {
                None => length.extend_from_slice(&split((LENGTH - length.len()) as u64)),
                Some(n) => bytes.extend_from_slice(&split(n - bytes.len() as u64)),
            },
        }
        Ok(())
    }

    /// Returns how many bytes of a tensor its places have.
    fn finish(
        self,
        objects: &mut BTreeMap<ObjectId, Payload>,
        from: &dyn StorageReader,
        cx: &LoadCx<'_>,
    ) -> Result<Option<u64>> {
        match self {
            Self::Tensor { sinks, wanted, .. } => {
                sinks.into_iter().try_for_each(|sink| sink.finish(cx))?;
                Ok(Some(wanted))
            }
            Self::Object { id, bytes, .. } => {
                let payload = Payload::Encoded {
                    codec: from.codec().name(),
                    bytes: bytes.into(),
                };
                objects.insert(id, payload);
                Ok(None)
            }
        }
    }
}

/// The length of an object, once the length itself has come.
fn announced(length: &[u8]) -> Option<u64> {
    length.try_into().ok().map(u64::from_le_bytes)
}

impl<'p> Sink<'p> {
    /// For an item that takes what comes, or a part of it.
    fn new(mut place: Place<'p>, comes: &Selection, later: bool, cx: &LoadCx<'_>) -> Result<Self> {
        let straight = place.goes_straight(comes.dtype, cx)?;
        let Place {
            item, dtype, into, ..
        } = place;
        let (stored, key) = (comes.dtype, &item.piece.key);
        let dense = Layout::contiguous(stored.size(), &comes.region.lengths);
        let dense =
            dense.ok_or_else(|| StrategyError::Invalid(format!("{key}: it is too large")))?;
        let part = dense.narrow(&item.stored_region.within(&comes.region));
        let layout = squeezed(&part, into.shape(), key)?;
        if !straight {
            return Ok(Self::Memory {
                item,
                stored,
                layout,
                dtype,
                into,
                bytes: Vec::new(),
            });
        }
        let later = later && into.is_on_device();
        let copy = into.strided_copy(&layout)?;
        Ok(match later {
            true => Self::Device(Arc::new(Mutex::new(copy))),
            false => Self::Leaf(copy),
        })
    }

    fn finish(self, cx: &LoadCx<'_>) -> Result<()> {
        match self {
            Self::Leaf(_) | Self::Device(_) => Ok(()),
            Self::Memory {
                item,
                stored,
                layout,
                dtype,
                into,
                bytes,
            } => {
                let all = Tensor::with_layout(stored, layout, Arc::new(Bytes::from(bytes)))?;
                let read = Tensor::new(stored, into.shape(), all.to_bytes())?;
                put(item, read, dtype, into, cx)
            }
        }
    }
}

/// Copies a block to a device while the next ones come. What waits is a copy of its own, because a block may hold the memory of all that came
/// with it.
fn feed_later(
    copy: &Arc<Mutex<StridedCopy>>,
    mut at: u64,
    block: &Bytes,
    devices: &Devices,
) -> Result<()> {
    for piece in block.chunks(devices.block()) {
        let (copy, mine) = (Arc::clone(copy), piece.to_vec());
        devices.later(piece.len() as u64, move || {
            let mut copy = copy.lock().unwrap_or_else(PoisonError::into_inner);
            copy.feed(at, &mine);
            Ok(())
        })?;
        at += piece.len() as u64;
    }
    Ok(())
}
