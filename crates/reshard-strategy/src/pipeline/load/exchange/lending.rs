//! Places in leaves that ranks of one process lend each other. The rank that reads fills them itself, so nothing is handed over.
//!
//! Each rank keeps what it lends on a desk of its own, whose number it tells its peers. Regions can't be sent, so they lie in this process.

use crate::{
    LoadCx, ReadTensor, Result, StorageReader, StrategyError, pipeline::load::lend::Place,
};
use indexmap::IndexMap;
use reshard_comm::{Cause, CommError};
use reshard_model::ErrorKind;
use reshard_plan::{LoadPlan, Selection};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Poll, Waker},
};

/// What one rank lends to another, in the order of what it receives from it. `None` where it needs the bytes themselves.
type Lent = VecDeque<Option<Vec<ReadTensor>>>;

/// The desks of all ranks of this process, by number.
static DESKS: LazyLock<Mutex<BTreeMap<u64, Arc<Desk>>>> = LazyLock::new(Mutex::default);

struct Desk {
    /// Its rank in the whole group.
    owner: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By rank that reads.
    lent: BTreeMap<u32, Lent>,
    /// Whether the owner wants everything back.
    is_closed: bool,
    wakers: Vec<Waker>,
}

/// A panic while a lock was held left whole data behind: no code of others runs under these locks.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What this rank lends to its peers. When it is dropped, peers let go of it.
pub(super) struct Offer {
    number: u64,
    desk: Arc<Desk>,
    /// What it receives by that, by position in the plan's receives.
    pub(super) receives: BTreeSet<usize>,
    /// The bytes of that.
    pub(super) bytes: u64,
}

impl Offer {
    /// Lends all places into which stored elements go as they are.
    pub(super) fn new<'p>(
        plan: &'p LoadPlan,
        received: &mut BTreeMap<usize, Vec<Place<'p>>>,
        from: &dyn StorageReader,
        cx: &LoadCx<'_>,
    ) -> Result<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let mut state = State::default();
        let (mut receives, mut bytes) = (BTreeSet::new(), 0);
        for (n, receive) in plan.exchange.receives.iter().enumerate() {
            let straight = match received.get_mut(&n) {
                Some(places) => are_straight(places, from, cx)?,
                None => false,
            };
            let places = straight.then(|| received.remove(&n)).flatten();
            let reads = places.map(|places| reads(places, from)).transpose()?;
            if let Some(reads) = &reads {
                bytes += reads.iter().map(|read| read.selection.bytes()).sum::<u64>();
                receives.insert(n);
            }
            state.lent.entry(receive.from).or_default().push_back(reads);
        }
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let desk = Arc::new(Desk {
            owner: cx.comm.rank().0,
            state: Mutex::new(state),
        });
        lock(&DESKS).insert(number, Arc::clone(&desk));
        Ok(Self {
            number,
            desk,
            receives,
            bytes,
        })
    }

    /// Tells peers of the same process where it is.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        lock(&DESKS).remove(&self.number);
        let mut state = lock(&self.desk.state);
        state.is_closed = true;
        let (lent, wakers) = (
            std::mem::take(&mut state.lent),
            std::mem::take(&mut state.wakers),
        );
        drop(state);
        drop(lent);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Whether elements go into all places as they are stored.
pub(super) fn are_straight(
    places: &mut [Place<'_>],
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> Result<bool> {
    let mut all = true;
    for place in places {
        let Some(selection) = place.item.selection(from.metadata())? else {
            return Ok(false);
        };
        // Only the owner knows how much may be on its way to its devices.
        all &= !place.into.is_on_device() && place.goes_straight(selection.dtype, cx)?;
    }
    Ok(all)
}

/// The reads of items that go straight to their places.
pub(super) fn reads(places: Vec<Place<'_>>, from: &dyn StorageReader) -> Result<Vec<ReadTensor>> {
    let mut out = Vec::with_capacity(places.len());
    for place in places {
        if let Some(selection) = place.item.selection(from.metadata())? {
            out.push(ReadTensor::new(selection, place.into));
        }
    }
    Ok(out)
}

/// What a peer lends to this rank.
#[derive(Default)]
pub(super) struct Borrowed {
    desk: Option<Arc<Desk>>,
    lent: Lent,
}

impl Borrowed {
    /// From the desk of this number. Nothing if the peer has left already, which the next round will tell.
    pub(super) fn from(number: Option<u64>, owner: u32, reader: u32) -> Self {
        let desk = number.and_then(|number| lock(&DESKS).get(&number).cloned());
        let Some(desk) = desk.filter(|desk| desk.owner == owner) else {
            return Self::default();
        };
        let lent = lock(&desk.state).lent.remove(&reader).unwrap_or_default();
        Self {
            desk: Some(desk),
            lent,
        }
    }

    /// Of the next thing that this rank serves to that peer.
    pub(super) fn next(&mut self) -> Option<Vec<ReadTensor>> {
        self.lent.pop_front().flatten()
    }
}

/// Reads into what the peers of `all` have lent, unless one of them wants it back.
pub(super) async fn unless_closed<T>(
    all: Vec<Borrowed>,
    read: impl Future<Output = Result<T>> + Send,
) -> Result<T> {
    let mut read = pin!(read);
    let desks = || all.iter().filter_map(|borrowed| borrowed.desk.as_ref());
    let mut told: Option<Waker> = None;
    poll_fn(|cx| {
        // Each desk keeps a waker from the first poll on, and gets another one if the task has moved.
        let is_new = !told.as_ref().is_some_and(|told| told.will_wake(cx.waker()));
        for desk in desks() {
            let mut state = lock(&desk.state);
            if state.is_closed {
                let what = format!("rank {} has left the exchange", desk.owner);
                let cause = Cause::new(ErrorKind::PeerFailed, what);
                return Poll::Ready(Err(StrategyError::Comm(CommError::Broken(cause))));
            }
            if is_new {
                state.wakers.push(cx.waker().clone());
            }
        }
        if is_new {
            told = Some(cx.waker().clone());
        }
        read.as_mut().poll(cx)
    })
    .await
}

/// Equal selections become one read, with twins as its other destinations. The second value tells whether together they read all of
/// `what` once. If not, it must be read by itself, so that each byte is read once and checksums are checked.
pub(super) fn joined(reads: Vec<ReadTensor>, what: &Selection) -> (Vec<ReadTensor>, bool) {
    let mut out: Vec<ReadTensor> = Vec::new();
    let mut at: IndexMap<Selection, usize> = IndexMap::new();
    for ReadTensor { selection, into } in reads {
        let first = at.get(&selection).and_then(|&i| out.get_mut(i));
        let into = match first.map(|first| &mut first.into) {
            Some(first) => match first.add_twin(into) {
                Ok(()) => continue,
                Err(other) => *other,
            },
            None => into,
        };
        at.entry(selection.clone()).or_insert(out.len());
        out.push(ReadTensor::new(selection, into));
    }
    let selections: Vec<&Selection> = out.iter().map(|read| &read.selection).collect();
    let inside = |s: &&Selection| {
        s.chunk == what.chunk && s.flat == what.flat && what.region.contains(&s.region)
    };
    let all = selections.iter().all(inside) && Selection::cover_once(&selections, what.elements());
    (out, all)
}
