//! The sending side of an exchange: what this rank reads for others.

mod deliver;
mod fetch;

use super::lending::{Borrowed, are_straight, joined, reads, unless_closed};
use crate::{
    LoadCx, ReadCx, ReadTensor, Result, StorageReader, StrategyError, Traffic, encode_object,
    pipeline::{
        exchange::{Outgoing, Table, not_a_peer},
        load::{
            device::Devices,
            lend::{Place, stored},
            transfer::put,
        },
    },
};
use bytes::Bytes;
use deliver::{Delivery, Ready};
use fetch::{Fetch, Fetched};
use reshard_comm::Timer;
use reshard_model::{Layout, Payload, Tensor};
use reshard_plan::{ExchangeAlgo, LoadPlan, ObjectId, Selection, Serve, Wanted};
use reshard_storage::Progress;
use std::{
    collections::{BTreeMap, VecDeque},
    future::poll_fn,
    iter::Peekable,
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
    vec,
};

type Filling<'c> = Pin<Box<dyn Future<Output = Result<Traffic>> + Send + 'c>>;

/// So long peers wait for a rank that fills their leaves, before all of them meet.
const LONGEST_TURN: Duration = Duration::from_secs(10);

/// What this rank still has to read and to send.
pub(super) struct Giver<'p, 'c> {
    serves: Peekable<vec::IntoIter<Serving<'p>>>,
    /// Fills the leaves of peers that have lent them, and this rank's own with them.
    filling: Option<Filling<'c>>,
    /// What came of that, if it ended while this rank waited for its peers.
    filled: Option<Result<Traffic>>,
    /// The bytes of this rank's own items among that.
    own_filled: u64,
    algo: ExchangeAlgo,
    has_parts: bool,
    /// This rank's own items that want what it serves, or parts of it.
    own: BTreeMap<usize, Vec<Place<'p>>>,
    /// What is being read, with what it is.
    reading: Option<(Vec<Serving<'p>>, Fetch<'c>)>,
    /// Data that are read, but not yet sent to all.
    ready: VecDeque<Ready>,
    /// The bytes that were handed over in the last round, and that peers may still look at.
    lent: u64,
    /// The objects that were read.
    pub(super) objects: BTreeMap<ObjectId, Payload>,
    table: Arc<Table>,
    from: &'c dyn StorageReader,
    how: &'c ReadCx<'c>,
    cx: &'c LoadCx<'c>,
    devices: &'c Devices,
    /// Of this rank's own items.
    progress: &'c Progress,
    pub(super) totals: Traffic,
    /// How long reads took.
    pub(super) took: Duration,
}

/// Something that is read into memory, because somebody needs it there.
struct Serving<'p> {
    /// Its position in the plan's serves.
    n: usize,
    serve: &'p Serve,
    /// To whom it is sent, by position among those who get it.
    to: Vec<usize>,
    /// Where it is copied instead.
    lent: Vec<ReadTensor>,
}

impl<'p, 'c> Giver<'p, 'c> {
    pub(super) fn new(
        plan: &'p LoadPlan,
        mut own: BTreeMap<usize, Vec<Place<'p>>>,
        table: Arc<Table>,
        (from, how, cx): (&'c dyn StorageReader, &'c ReadCx<'c>, &'c LoadCx<'c>),
        (devices, progress): (&'c Devices, &'c Progress),
    ) -> Result<Self> {
        let me = cx.comm.rank().0;
        let mut borrowed: Vec<Borrowed> = (0..table.len())
            .map(|peer| Borrowed::from(table.lent(peer), table.rank(peer), me))
            .collect();
        let (mut serves, mut straight, mut own_filled) = (Vec::new(), Vec::new(), 0);
        for (n, serve) in plan.exchange.serves.iter().enumerate() {
            let (mut to, mut lent) = (Vec::new(), Vec::new());
            for (i, rank) in serve.to.iter().enumerate() {
                let peer = table.number(*rank).ok_or_else(not_a_peer)?;
                match borrowed.get_mut(peer).and_then(Borrowed::next) {
                    Some(places) => lent.extend(places),
                    None => to.push(i),
                }
            }
            let is_lent = to.is_empty() && table.shares_memory();
            if is_lent && let Wanted::Chunk(what) = &serve.what {
                // Its own items go the same way, if all of them can.
                let places = own.entry(n).or_default();
                if are_straight(places, from, cx)? {
                    own_filled += stored(places, what.dtype);
                    lent.extend(reads(std::mem::take(places), from)?);
                    let (joined, is_all) = joined(lent, what);
                    if is_all {
                        straight.extend(joined);
                        continue;
                    }
                    lent = joined;
                }
            }
            serves.push(Serving { n, serve, to, lent });
        }
        let filling: Option<Filling<'c>> = match straight.is_empty() {
            true => None,
            false => {
                let read = from.read_tensors(straight, how);
                Some(Box::pin(unless_closed(borrowed, read)))
            }
        };
        Ok(Self {
            serves: serves.into_iter().peekable(),
            filling,
            filled: None,
            own_filled,
            algo: plan.exchange.algo,
            has_parts: plan.exchange.serves.iter().any(|s| !s.parts.is_empty()),
            own,
            reading: None,
            ready: VecDeque::new(),
            lent: 0,
            objects: BTreeMap::new(),
            table,
            from,
            how,
            cx,
            devices,
            progress,
            totals: Traffic::default(),
            took: Duration::ZERO,
        })
    }

    /// Fills the leaves of peers that have lent them, for a while: peers wait for this rank, and have a deadline. `true` if it is done.
    async fn fill_lent(&mut self) -> Result<bool> {
        if let Some(filling) = &mut self.filling {
            let begun = Instant::now();
            let mut turn = Timer::after(LONGEST_TURN.min(self.cx.comm.deadline() / 4));
            let filled = poll_fn(|cx| match filling.as_mut().poll(cx) {
                Poll::Ready(filled) => Poll::Ready(Ok(Some(filled))),
                Poll::Pending => Pin::new(&mut turn).poll(cx).map_ok(|()| None),
            });
            let filled = filled.await?;
            self.took += begun.elapsed();
            match filled {
                Some(_) => self.filled = filled,
                None => return Ok(false),
            }
        }
        if let Some(filled) = self.filled.take() {
            self.filling = None;
            self.totals += filled?;
            self.progress.add(std::mem::take(&mut self.own_filled));
        }
        Ok(true)
    }

    /// The part of each peer in this round.
    pub(super) async fn round(&mut self) -> Result<Outgoing> {
        if !self.fill_lent().await? {
            let parts = self.deliver();
            return Ok(Outgoing { parts, more: true });
        }
        loop {
            if self
                .reading
                .as_ref()
                .is_some_and(|(_, read)| read.is_done())
            {
                self.finish_read().await?;
            }
            self.start_read()?;
            if !self.ready.is_empty() || self.reading.is_none() {
                break;
            }
            self.finish_read().await?;
        }
        let parts = self.deliver();
        let rest = self.serves.peek().is_some() || self.reading.is_some();
        Ok(Outgoing {
            parts,
            more: rest || !self.ready.is_empty(),
        })
    }

    /// Goes on reading. It may be dropped at any time.
    pub(super) async fn read_on(&mut self) {
        if let Some(filling) = &mut self.filling
            && self.filled.is_none()
        {
            let begun = Instant::now();
            let filled = filling.await;
            self.filling = None;
            self.filled = Some(filled);
            self.took += begun.elapsed();
        }
        if let Some((_, read)) = &mut self.reading {
            read.go_on().await;
        }
    }

    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// What each peer gets now. Each gets at most the quota; if memory is shared, all that is ready.
    fn deliver(&mut self) -> Vec<Vec<Bytes>> {
        let mut blocks: Vec<Vec<Bytes>> = vec![Vec::new(); self.table.len()];
        let quota = match self.algo {
            ExchangeAlgo::GatherObject => u64::MAX,
            // Parts are copied once more, before they are joined.
            _ if self.has_parts => self.table.quota() / 2,
            _ => self.table.quota(),
        };
        // `None` behind something that is not sent as a whole, because a stream is in order.
        let mut left = vec![Some(quota); self.table.len()];
        self.lent = 0;
        for ready in &mut self.ready {
            if self.table.shares_memory() {
                self.lent += ready.bytes();
            }
            ready.deliver(&mut left, &mut blocks);
        }
        self.ready.retain(|ready| !ready.is_delivered());
        blocks
    }

    /// Starts to read the next data, as long as there is memory for them.
    fn start_read(&mut self) -> Result<()> {
        let waits = !self.ready.is_empty() && self.algo == ExchangeAlgo::GatherRounds;
        if self.reading.is_some() || waits {
            return Ok(());
        }
        let held: u64 = self.ready.iter().map(Ready::bytes).sum::<u64>() + self.lent;
        // It is better to read much at a time than a little in each round, because formats read neighbouring chunks together. But
        // while the first part is sent, the next one is read.
        let (batch, most) = match self.algo {
            ExchangeAlgo::Broadcast => (self.table.window() / 4, self.table.window()),
            ExchangeAlgo::GatherRounds => (0, self.table.window()),
            ExchangeAlgo::GatherObject => (u64::MAX, u64::MAX),
        };
        // At least one item, so that a large item does not block the exchange.
        let (mut next, mut bytes) = (Vec::new(), 0u64);
        while let Some(serving) = self.serves.peek() {
            let more = bytes.saturating_add(size(&serving.serve.what, self.from));
            let full = !next.is_empty() && more > batch;
            if full || (held > 0 && held.saturating_add(more) > most) {
                break;
            }
            bytes = more;
            next.extend(self.serves.next());
        }
        if next.is_empty() {
            return Ok(());
        }
        let what = next.iter().map(|serving| &serving.serve.what);
        let read = Fetch::start(what, self.from, self.how)?;
        self.reading = Some((next, read));
        Ok(())
    }

    /// Waits for what is being read. It is in the order of the plan, which is the order of the streams. This rank's own items are
    /// filled at once, so that the data need not be kept for them.
    async fn finish_read(&mut self) -> Result<()> {
        let Some((serves, mut read)) = self.reading.take() else {
            return Ok(());
        };
        let Fetched {
            tensors,
            payloads,
            traffic,
            took,
        } = read.finished().await?;
        self.took += took;
        self.totals += traffic;
        let (mut tensors, mut payloads) = (tensors.into_iter(), payloads.into_iter());
        for Serving { n, serve, to, lent } in serves {
            let lacking =
                || StrategyError::Internal("a format read less than it was asked for".into());
            let (tensor, bytes) = match &serve.what {
                Wanted::Chunk(selection) => {
                    let tensor = tensors.next().ok_or_else(lacking)?;
                    let own = self.own.remove(&n).unwrap_or_default();
                    let mine = stored(&own, selection.dtype);
                    own.into_iter()
                        .try_for_each(|place| self.keep(place, &tensor, selection))?;
                    self.progress.add(mine);
                    lent.into_iter()
                        .try_for_each(|read| copy(read, &tensor, selection, self.from))?;
                    let bytes = tensor.to_bytes();
                    (Some(tensor), bytes)
                }
                Wanted::Object(id) => {
                    let payload = payloads.next().ok_or_else(lacking)?;
                    self.objects.insert(*id, payload.clone());
                    let key = self.from.metadata().object_key(*id).unwrap_or_default();
                    let object = encode_object(&*self.from.codec(), key, payload)?;
                    let length = (object.len() as u64).to_le_bytes();
                    (None, [&length[..], &object].concat().into())
                }
            };
            let deliveries = self.deliveries(serve, &to, tensor.as_ref())?;
            self.ready.push_back(Ready::new(bytes, deliveries));
        }
        Ok(())
    }

    /// Puts data that this rank serves, or a part of them, into its own leaf.
    fn keep(&self, mut place: Place<'_>, read: &Tensor, of: &Selection) -> Result<()> {
        let straight = place.goes_straight(of.dtype, self.cx)?;
        let Place {
            item, dtype, into, ..
        } = place;
        let part = read.narrow(&item.stored_region.within(&of.region));
        let layout = squeezed(part.layout(), into.shape(), &item.piece.key)?;
        if !straight {
            let part = Tensor::new(of.dtype, into.shape(), part.to_bytes())?;
            return put(item, part, dtype, into, self.cx);
        }
        // A device gets them while they are sent. Who shares memory sends nothing.
        if into.is_on_device() && !self.table.shares_memory() {
            let all = read.clone();
            let fill = move || Ok(into.fill_from(&all, &layout)?);
            return self.devices.later(read.nbytes(), fill);
        }
        Ok(into.fill_from(read, &layout)?)
    }

    fn deliveries(
        &self,
        serve: &Serve,
        to: &[usize],
        read: Option<&Tensor>,
    ) -> Result<Vec<Delivery>> {
        let mut out = Vec::with_capacity(to.len());
        for &i in to {
            let to = serve.to.get(i).ok_or_else(not_a_peer)?;
            let peer = self.table.number(*to).ok_or_else(not_a_peer)?;
            // Who shares memory gets all of it, and takes its part out.
            let part = serve.parts.get(i).filter(|_| !self.table.shares_memory());
            out.push(match (part, read, &serve.what) {
                (Some(part), Some(read), Wanted::Chunk(of)) => {
                    Delivery::part(peer, &read.narrow(&part.within(&of.region)))
                }
                _ => Delivery::whole(peer),
            });
        }
        Ok(out)
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

/// Puts a part of data that this rank serves into a place that a peer has lent.
fn copy(to: ReadTensor, read: &Tensor, of: &Selection, from: &dyn StorageReader) -> Result<()> {
    let ReadTensor { selection, into } = to;
    let part = read.narrow(&selection.region.within(&of.region));
    let key = Wanted::Chunk(selection);
    let key = key.key(from.metadata()).unwrap_or_default();
    let layout = squeezed(part.layout(), into.shape(), key)?;
    Ok(into.fill_from(read, &layout)?)
}

/// A layout without the axes that a leaf prepends.
pub(super) fn squeezed(layout: &Layout, shape: &[u64], key: &str) -> Result<Layout> {
    let other = || {
        let have = layout.shape();
        format!("{key}: a region of shape {have} can't fill one of shape {shape:?}")
    };
    layout
        .squeeze_to(shape)
        .ok_or_else(|| StrategyError::Invalid(other()))
}
