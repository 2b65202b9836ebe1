//! Where the ranks of a `LocalGroup` meet: in rounds. When the last rank has given its bytes, the round is dealt into
//! one parcel for each rank, and the next round is open, also while slow ranks have yet to take theirs.

use super::LocalGroup;
use crate::{CommError, Rank, Result, group::joined, rank::Ranks};
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

/// What a round is for. All ranks must want the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    AllToAll,
    AllGather,
    Barrier,
    Gather(Rank),
    Scatter(Rank),
    Broadcast(Rank),
    Split { color: Option<u32>, order: u32 },
}

impl Op {
    fn same_round(self, other: Self) -> bool {
        matches!((self, other), (Self::Split { .. }, Self::Split { .. })) || self == other
    }

    /// Can rank `me` of `size` ask for this with so many parts?
    fn is_right(self, me: Rank, size: u32, parts: usize) -> bool {
        let all = parts == size as usize;
        match self {
            Self::AllToAll => all,
            Self::Gather(root) => root.0 < size,
            Self::Scatter(root) => root.0 < size && (me != root || all),
            Self::Broadcast(root) => root.0 < size && (me != root || parts == 1),
            Self::AllGather | Self::Barrier | Self::Split { .. } => true,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllToAll => f.write_str("all_to_all"),
            Self::AllGather => f.write_str("all_gather"),
            Self::Barrier => f.write_str("barrier"),
            Self::Gather(root) => write!(f, "gather to rank {root}"),
            Self::Scatter(root) => write!(f, "scatter from rank {root}"),
            Self::Broadcast(root) => write!(f, "broadcast from rank {root}"),
            Self::Split { .. } => f.write_str("split"),
        }
    }
}

/// What a rank takes out of a round.
#[derive(Default)]
pub(super) struct Parcel {
    /// Each in blocks.
    pub(super) messages: Vec<Vec<Bytes>>,
    pub(super) group: Option<LocalGroup>,
}

impl Parcel {
    pub(super) fn one(self) -> Bytes {
        self.bytes().pop().unwrap_or_default()
    }

    pub(super) fn bytes(self) -> Vec<Bytes> {
        self.messages.into_iter().map(joined).collect()
    }
}

pub(super) struct Hub {
    seats: Mutex<Seats>,
    size: u32,
}

struct Seats {
    round: Vec<Option<(Op, Vec<Vec<Bytes>>)>>,
    inbox: Vec<Option<Parcel>>,
    wakers: Vec<Option<Waker>>,
    broken: Option<CommError>,
}

impl Hub {
    pub(super) fn new(size: u32) -> Self {
        fn empty<T>(size: u32) -> Vec<Option<T>> {
            (0..size).map(|_| None).collect()
        }
        let seats = Seats {
            round: empty(size),
            inbox: empty(size),
            wakers: empty(size),
            broken: None,
        };
        Self {
            seats: Mutex::new(seats),
            size,
        }
    }

    pub(super) fn size(&self) -> u32 {
        self.size
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a rank's bytes into the round; the last one deals it.
    pub(super) fn give(&self, me: Rank, op: Op, messages: Vec<Vec<Bytes>>) -> Result<()> {
        let mut seats = self.seats();
        if let Some(broken) = &seats.broken {
            return Err(broken.clone());
        }
        if let Some(why) = seats.misfit(me, self.size, op, messages.len()) {
            let error = CommError::OutOfStep(why);
            drop(seats);
            self.break_with(error.clone());
            return Err(error);
        }
        if let Some(seat) = seats.round.get_mut(me.index()) {
            *seat = Some((op, messages));
        }
        if seats.round.iter().all(Option::is_some) {
            let given = seats.round.iter_mut().filter_map(Option::take).collect();
            seats.inbox = deal(op, given).into_iter().map(Some).collect();
            wake(seats);
        }
        Ok(())
    }

    /// A rank's parcel, once its round was dealt. What was dealt is delivered even if the group broke since.
    pub(super) fn take(&self, me: Rank, waker: &Waker) -> Poll<Result<Parcel>> {
        let mut seats = self.seats();
        if let Some(parcel) = seats.inbox.get_mut(me.index()).and_then(Option::take) {
            return Poll::Ready(Ok(parcel));
        }
        if let Some(broken) = &seats.broken {
            return Poll::Ready(Err(broken.clone()));
        }
        if let Some(seat) = seats.wakers.get_mut(me.index()) {
            *seat = Some(waker.clone());
        }
        Poll::Pending
    }

    /// Only the first error counts.
    pub(super) fn break_with(&self, error: CommError) {
        let mut seats = self.seats();
        seats.broken.get_or_insert(error);
        wake(seats);
    }

    /// Who has not come to the round that others wait in.
    pub(super) fn silent(&self) -> Vec<Rank> {
        self.seats().ranks(false)
    }
}

impl Seats {
    /// Why this call doesn't fit into the round.
    fn misfit(&self, me: Rank, size: u32, op: Op, parts: usize) -> Option<String> {
        if !op.is_right(me, size, parts) {
            return Some(format!("rank {me} of {size} calls {op} with {parts} parts"));
        }
        let here = |seat: &Option<_>| seat.is_some();
        if self.round.get(me.index()).is_none_or(here)
            || self.inbox.get(me.index()).is_none_or(|p| p.is_some())
        {
            return Some(format!(
                "rank {me} calls {op} while another of its calls is running"
            ));
        }
        let first = self
            .round
            .iter()
            .flatten()
            .map(|(theirs, _)| *theirs)
            .next()?;
        if first.same_round(op) {
            return None;
        }
        Some(format!(
            "rank {me} calls {op}, but {} called {first}",
            Ranks(&self.ranks(true))
        ))
    }

    /// The ranks that have come to the round, or those that have not.
    fn ranks(&self, have_come: bool) -> Vec<Rank> {
        let seats = self.round.iter().enumerate();
        let ranks = seats.filter(|(_, given)| given.is_some() == have_come);
        ranks.map(|(i, _)| Rank::at(i)).collect()
    }
}

/// Wakers run foreign code, so they are called when the lock is free.
fn wake(mut seats: MutexGuard<'_, Seats>) {
    let wakers: Vec<Waker> = seats.wakers.iter_mut().filter_map(Option::take).collect();
    drop(seats);
    wakers.into_iter().for_each(Waker::wake);
}

/// What each rank gets of what all ranks gave.
fn deal(op: Op, given: Vec<(Op, Vec<Vec<Bytes>>)>) -> Vec<Parcel> {
    let size = given.len();
    let mut parcels: Vec<Parcel> = (0..size).map(|_| Parcel::default()).collect();
    let of = |root: Rank| {
        given
            .get(root.index())
            .map(|(_, parts)| parts.as_slice())
            .unwrap_or_default()
    };

    // Every call was checked when it came in, so each rank gave as many parts as its operation needs.
    match op {
        Op::Barrier => {}
        Op::Split { .. } => split(&given, &mut parcels),
        // Rank after rank hands out its parts, so each parcel has them in the order of the ranks that gave them.
        Op::AllToAll => {
            for (_, parts) in given {
                parcels
                    .iter_mut()
                    .zip(parts)
                    .for_each(|(parcel, part)| parcel.messages.push(part));
            }
        }
        Op::AllGather => {
            let all: Vec<Vec<Bytes>> = given.into_iter().flat_map(|(_, parts)| parts).collect();
            parcels
                .iter_mut()
                .for_each(|parcel| parcel.messages.clone_from(&all));
        }
        Op::Gather(root) => {
            if let Some(parcel) = parcels.get_mut(root.index()) {
                parcel.messages = given.into_iter().flat_map(|(_, parts)| parts).collect();
            }
        }
        Op::Scatter(root) => {
            parcels
                .iter_mut()
                .zip(of(root))
                .for_each(|(parcel, part)| parcel.messages.push(part.clone()));
        }
        Op::Broadcast(root) => parcels
            .iter_mut()
            .for_each(|parcel| parcel.messages.extend_from_slice(of(root))),
    }
    parcels
}

/// A group for each color, its ranks in the order asked for.
fn split(given: &[(Op, Vec<Vec<Bytes>>)], parcels: &mut [Parcel]) {
    let mut colors = BTreeMap::<u32, Vec<(u32, usize)>>::new();
    for (rank, (op, _)) in given.iter().enumerate() {
        if let Op::Split {
            color: Some(color),
            order,
        } = op
        {
            colors.entry(*color).or_default().push((*order, rank));
        }
    }
    for mut members in colors.into_values() {
        members.sort_unstable();
        let size = u32::try_from(members.len()).unwrap_or(u32::MAX);
        for (group, (_, rank)) in LocalGroup::new(size).into_iter().zip(members) {
            if let Some(parcel) = parcels.get_mut(rank) {
                parcel.group = Some(group);
            }
        }
    }
}
