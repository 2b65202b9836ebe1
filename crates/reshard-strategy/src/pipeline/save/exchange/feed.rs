//! The taking side of an exchange: bytes of other ranks on their way into this rank's files.
//!
//! The thread that writes waits here for bytes. The rounds put them here, and ask for those that come next.

use super::wire::{ASK, ASKED, Ask, HEAD, Piece, Stream};
use crate::{
    Result, StrategyError, WriteResult,
    pipeline::exchange::{Table, not_a_peer, unplanned},
};
use bytes::Bytes;
use reshard_model::{BoxError, DType, Data, Dims, Layout, Region, Tensor, TensorSource};
use reshard_plan::{SavePlan, TensorWrite};
use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

/// What this rank takes from its peers.
pub(super) struct Feed {
    state: Mutex<State>,
    came: Condvar,
    /// The most bytes that come from one peer in a round.
    quota: u64,
    /// The most bytes that wait here.
    window: u64,
    /// How many items are asked for at once.
    most_asked: usize,
}

struct State {
    items: Vec<Item>,
    /// For each peer, its items, in the order in which it gives them.
    peers: Vec<Vec<usize>>,
    /// Bytes that wait here.
    held: u64,
    /// Bytes that were asked for in the last round.
    coming: u64,
    /// The exchange is over, and no more bytes come.
    stopped: bool,
    laid_out: bool,
    ended: bool,
    written: Option<Result<Vec<WriteResult>>>,
    /// Wakes the rounds.
    waker: Option<Waker>,
}

struct Item {
    key: Box<str>,
    /// Its position among those of its peer.
    number: u32,
    /// `None` for an object: its length is known when all of it has come.
    bytes: Option<u64>,
    attempt: u32,
    blocks: VecDeque<Bytes>,
    came: u64,
    read: u64,
    all_came: bool,
    /// Whether the thread that writes waits for it.
    needed: bool,
    /// How many sources of it there are, of which the thread may read.
    sources: u32,
}

impl Item {
    fn is_closed(&self, laid_out: bool) -> bool {
        laid_out && self.sources == 0
    }

    /// Begins again.
    fn rewind(&mut self) -> u64 {
        let waited = self.blocks.iter().map(|block| block.len() as u64).sum();
        self.blocks.clear();
        (self.came, self.read, self.all_came) = (0, 0, self.bytes == Some(0));
        self.attempt = self.attempt.wrapping_add(1);
        waited
    }
}

impl State {
    /// Whether nobody will ask for bytes any more.
    fn is_complete(&self) -> bool {
        self.ended || self.items.iter().all(|item| item.is_closed(self.laid_out))
    }

    /// How many peers give something.
    fn givers(&self) -> u64 {
        self.peers.iter().filter(|items| !items.is_empty()).count() as u64
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// The items that this rank asks a peer for: what is waited for, what is being read, then the next ones.
    fn wants(&self, peer: &[usize]) -> Vec<(Urgency, &Item)> {
        let items = peer.iter().filter_map(|n| self.items.get(*n));
        let open = items.filter(|item| !item.all_came && !item.is_closed(self.laid_out));
        let mut wants: Vec<_> = open.map(|item| (Urgency::of(item), item)).collect();
        wants.sort_by_key(|(urgency, _)| *urgency);
        wants
    }
}

/// How soon bytes of an item are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    Needed,
    Begun,
    Later,
}

impl Urgency {
    fn of(item: &Item) -> Self {
        match item {
            Item { needed: true, .. } => Self::Needed,
            Item { read: 1.., .. } => Self::Begun,
            _ => Self::Later,
        }
    }
}

impl Feed {
    pub(super) fn new(plan: &SavePlan, table: &Table) -> Result<Arc<Self>> {
        let mut peers = vec![Vec::new(); table.len()];
        let mut items = Vec::with_capacity(plan.exchange.takes.len());
        for (n, (from, item)) in plan.taken_items()?.into_iter().enumerate() {
            let peer = table
                .number(from)
                .and_then(|n| peers.get_mut(n))
                .ok_or_else(not_a_peer)?;
            let bytes = item.tensor().map(TensorWrite::bytes);
            items.push(Item {
                key: item.key.clone(),
                number: peer.len() as u32,
                bytes,
                attempt: 0,
                blocks: VecDeque::new(),
                came: 0,
                read: 0,
                all_came: bytes == Some(0),
                needed: false,
                sources: 0,
            });
            peer.push(n);
        }
        let state = State {
            items,
            peers,
            held: 0,
            coming: 0,
            stopped: false,
            laid_out: false,
            ended: false,
            written: None,
            waker: None,
        };
        // A quarter of what may go to a peer is for asking.
        let asking = table.quota() / 4;
        Ok(Arc::new(Self {
            state: Mutex::new(state),
            came: Condvar::new(),
            quota: table.quota() - asking,
            window: table.window(),
            most_asked: (asking.saturating_sub(ASK) / ASKED).max(1) as usize,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this rank has something to say in a round: it needs bytes, has room for more, waits for those that it asked for,
    /// or has ended.
    pub(super) async fn ready(&self) {
        poll_fn(|cx| {
            let mut state = self.lock();
            let waiting = state.coming > 0 || state.items.iter().any(|item| item.needed);
            let least = self.window / 4;
            let room = state.held < least && least > HEAD * state.givers();
            let room = room && state.peers.iter().any(|p| !state.wants(p).is_empty());
            if waiting || room || state.is_complete() {
                return Poll::Ready(());
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// What to ask of each peer, and whether this rank needs another round.
    ///
    /// # Errors
    /// The files could not be written.
    pub(super) fn asks(&self) -> Result<(Vec<Ask>, bool)> {
        let mut state = self.lock();
        if let Some(e) = state
            .written
            .take_if(|written| written.is_err())
            .and_then(Result::err)
        {
            return Err(e);
        }
        let complete = state.is_complete();
        // What was asked for in the last round comes in this one.
        let mut taken = state.held + std::mem::take(&mut state.coming);
        let mut asks = Vec::with_capacity(state.peers.len());
        let mut givers = state.givers();
        for items in &state.peers {
            let share = |room: u64| (room.saturating_sub(taken) / givers.max(1)).min(self.quota);
            let mut wants = state.wants(items);
            let urgency = wants.first().map(|(urgency, _)| *urgency);
            // Items of which nothing is read yet get half of the room. So there is always room for one that is being read.
            let (all, urgent) = (share(self.window / 2), share(self.window));
            let mut credit = all;
            if all < urgent && urgency < Some(Urgency::Later) {
                credit = urgent;
                wants.retain(|(urgency, _)| *urgency < Urgency::Later);
            }
            // However full the memory is: what the thread waits for comes, if only slowly.
            if urgency == Some(Urgency::Needed) {
                credit = credit.max(LEAST.min(self.quota));
            }
            wants.truncate(if credit > HEAD { self.most_asked } else { 0 });
            let streams: Vec<Stream> = wants.iter().map(|(_, item)| item.stream()).collect();
            let credit = if streams.is_empty() { 0 } else { credit };
            taken += credit;
            givers = givers.saturating_sub(u64::from(!items.is_empty()));
            asks.push(Ask {
                credit,
                items: streams,
            });
        }
        state.coming = asks.iter().map(|ask| ask.credit).sum();
        Ok((asks, !complete))
    }

    /// Takes what a peer has sent.
    pub(super) fn take(&self, table: &Table, peer: usize, mut given: Bytes) -> Result<()> {
        let mut state = self.lock();
        let State {
            items, peers, held, ..
        } = &mut *state;
        while !given.is_empty() {
            let Piece {
                stream,
                last,
                bytes,
            } = Piece::next(&mut given)?;
            let item = peers
                .get(peer)
                .and_then(|own| own.get(stream.item as usize));
            let item = item.and_then(|n| items.get_mut(*n)).ok_or_else(unplanned)?;
            // Bytes of a reading that has ended since.
            if item.attempt != stream.attempt {
                continue;
            }
            // The thread that waits for it will see to it; before it has, nothing of it is urgent.
            item.needed = false;
            item.came += bytes.len() as u64;
            *held += bytes.len() as u64;
            if !bytes.is_empty() {
                item.blocks.push_back(bytes);
            }
            item.all_came |= last;
            let wrong = match item.bytes {
                Some(n) if item.came > n => Some("more"),
                Some(n) if last && item.came < n => Some("less"),
                _ => None,
            };
            if let Some(wrong) = wrong {
                let (key, rank) = (&item.key, table.rank(peer));
                let what = format!("{key}: rank {rank} has sent {wrong} of it than was planned");
                return Err(StrategyError::Internal(what));
            }
            item.all_came |= item.bytes == Some(item.came);
        }
        drop(state);
        self.came.notify_all();
        Ok(())
    }

    /// The exchange is over. Who waits for bytes gets an error.
    pub(super) fn stop(&self) {
        self.lock().stopped = true;
        self.came.notify_all();
    }

    /// The files are laid out: no item is opened any more.
    pub(super) fn laid_out(&self) {
        let mut state = self.lock();
        state.laid_out = true;
        state.wake();
    }

    pub(super) fn is_laid_out(&self) -> bool {
        self.lock().laid_out
    }

    /// The thread that writes is at its end.
    pub(super) fn ended(&self, written: Result<Vec<WriteResult>>) {
        let mut state = self.lock();
        (state.ended, state.written) = (true, Some(written));
        state.wake();
    }

    /// Waits for the end of the thread that writes.
    pub(super) async fn written(&self) -> Result<Vec<WriteResult>> {
        poll_fn(|cx| {
            let mut state = self.lock();
            if !state.ended {
                state.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let none = || {
                Err(StrategyError::Internal(
                    "an exchange lost what was written".into(),
                ))
            };
            Poll::Ready(state.written.take().unwrap_or_else(none))
        })
        .await
    }

    /// A source of a tensor.
    pub(super) fn tensor(self: &Arc<Self>, n: usize, t: &TensorWrite) -> Data {
        if let Some(item) = self.lock().items.get_mut(n) {
            item.sources += 1;
        }
        let (dtype, shape) = (t.dtype, t.region.lengths.clone());
        Data::Lazy(Arc::new(Taken {
            feed: Arc::clone(self),
            n,
            dtype,
            shape,
            whole: Mutex::new(None),
        }))
    }

    /// Waits for the next bytes of an item, at most so many. Empty at its end.
    fn next(&self, n: usize, most: usize) -> Result<Bytes, BoxError> {
        let mut state = self.lock();
        loop {
            let State {
                items,
                held,
                stopped,
                ..
            } = &mut *state;
            let item = items.get_mut(n).ok_or("an item that no rank gives")?;

            // Bytes that already came count even after the exchange has stopped, so they are looked at first.
            if let Some(block) = item.blocks.front_mut() {
                let bytes = block.split_to(block.len().min(most));
                if block.is_empty() {
                    item.blocks.pop_front();
                }
                item.read += bytes.len() as u64;
                *held -= bytes.len() as u64;

                // Taken bytes leave room, so the rounds may ask for more.
                state.wake();
                return Ok(bytes);
            }
            if item.all_came {
                return Ok(Bytes::new());
            }
            if *stopped {
                return Err(format!(
                    "{}: the exchange with the rank that has it was interrupted",
                    item.key
                )
                .into());
            }

            // The rounds ask for what is needed before anything else. `take` clears the mark when bytes come.
            item.needed = true;
            state.wake();
            state = self
                .came
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How many bytes of an item were read.
    fn at(&self, n: usize) -> u64 {
        self.lock().items.get(n).map_or(0, |item| item.read)
    }

    /// Begins an item again.
    fn rewind(&self, n: usize) {
        let mut state = self.lock();
        let State { items, held, .. } = &mut *state;
        if let Some(item) = items.get_mut(n).filter(|item| item.read > 0) {
            *held -= item.rewind();
        }
    }

    /// All bytes of an item, in memory.
    pub(super) fn whole(&self, n: usize) -> Result<Bytes, BoxError> {
        self.rewind(n);
        let expected = self
            .lock()
            .items
            .get(n)
            .and_then(|item| item.bytes)
            .unwrap_or(0);
        let mut out = Vec::new();
        let reserved = usize::try_from(expected)
            .ok()
            .and_then(|n| out.try_reserve_exact(n).ok());
        reserved
            .ok_or_else(|| format!("no memory for {expected} bytes that another rank gives"))?;
        loop {
            let bytes = self.next(n, usize::MAX)?;
            if bytes.is_empty() {
                return Ok(out.into());
            }
            out.extend_from_slice(&bytes);
        }
    }
}

impl Item {
    fn stream(&self) -> Stream {
        Stream {
            item: self.number,
            attempt: self.attempt,
        }
    }
}

/// The least number of bytes that come in a round of an item that the thread waits for.
const LEAST: u64 = 128;

/// A tensor that another rank gives. Read in order, it goes through this rank's memory block by block. Read in another order, it is
/// collected first.
struct Taken {
    feed: Arc<Feed>,
    n: usize,
    dtype: DType,
    shape: Dims,
    whole: Mutex<Option<Tensor>>,
}

impl TensorSource for Taken {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> Dims {
        self.shape.clone()
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let wanted = region
            .volume()
            .and_then(|n| n.checked_mul(self.dtype.size()));
        if !region.fits(&self.shape) || wanted != Some(out.len() as u64) {
            return Err(format!(
                "{region} does not lie in {}, or does not fit the memory",
                self.shape
            )
            .into());
        }
        if out.is_empty() {
            return Ok(());
        }
        // One reader at a time: the bytes of an item come in order.
        let mut whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tensor) = &*whole {
            out.copy_from_slice(&tensor.narrow(region).to_bytes());
            return Ok(());
        }
        let at = self.feed.at(self.n);
        match self.start(region) {
            Some(start) if start == at || start == 0 => {
                if start != at {
                    self.feed.rewind(self.n);
                }
                self.stream(out)
            }
            _ => {
                let tensor = Tensor::new(self.dtype, &self.shape, self.feed.whole(self.n)?)?;
                out.copy_from_slice(&tensor.narrow(region).to_bytes());
                *whole = Some(tensor);
                Ok(())
            }
        }
    }
}

impl Taken {
    /// Where a region begins, in bytes, if its elements follow each other without gaps.
    fn start(&self, region: &Region) -> Option<u64> {
        let part = Layout::contiguous(self.dtype.size(), &self.shape)?.narrow(region);
        part.is_contiguous().then(|| part.hull().start)
    }

    fn stream(&self, mut out: &mut [u8]) -> Result<(), BoxError> {
        while !out.is_empty() {
            let bytes = self.feed.next(self.n, out.len())?;
            if bytes.is_empty() {
                return Err("another rank has given less than was planned".into());
            }
            let (now, later) = out.split_at_mut(bytes.len());
            now.copy_from_slice(&bytes);
            out = later;
        }
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut state = self.feed.lock();
        if let Some(item) = state.items.get_mut(self.n) {
            item.sources -= 1;
        }
        state.wake();
    }
}

#[cfg(test)]
mod tests;
