//! One rank's part in a collective: what it sends to whom, and what it waits for.

use super::{links::Mesh, message::Call, tree::Tree};
use crate::{Cause, CommError, Rank, Result};
use bytes::{BufMut as _, Bytes, BytesMut};
use std::{collections::BTreeMap, future::poll_fn, sync::Arc, task::Poll};

/// This rank's part in one collective. If it is dropped before it is finished, the group breaks.
pub(super) struct Collective<'g> {
    seat: &'g Seat,
    call: Call,
    done: bool,
}

/// One rank in a group.
pub(super) struct Seat {
    pub(super) mesh: Arc<Mesh>,
    pub(super) group: u64,
    /// The rank within the group.
    pub(super) rank: Rank,
    /// The ranks of the job that are in the group.
    pub(super) members: Vec<u32>,
}

impl Seat {
    pub(super) fn in_job(&self, rank: Rank) -> Option<u32> {
        self.members.get(rank.index()).copied()
    }

    pub(super) fn size(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn break_group(&self, error: &CommError) {
        self.mesh.break_group(self.group, error.clone());
    }
}

/// What a rank sends: to whom, and of or for which rank of the group it is.
pub(super) type Parcel = (Rank, Rank, Bytes);

impl<'g> Collective<'g> {
    pub(super) fn new(seat: &'g Seat, call: Call) -> Self {
        Self {
            seat,
            call,
            done: false,
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.call.number
    }

    /// The way between all ranks and the root.
    fn tree(&self) -> Tree {
        Tree::new(self.call.root, self.seat.size(), self.seat.mesh.fan())
    }

    fn me(&self) -> u32 {
        self.seat.rank.0
    }

    /// Sends messages when all of their receivers are ready for them.
    pub(super) async fn send(&self, messages: Vec<Parcel>) -> Result<()> {
        let (mesh, id) = (&self.seat.mesh, self.seat.group);
        let in_job = |(to, about, body): Parcel| Some((self.seat.in_job(to)?, about.0, body));
        let messages: Vec<(u32, u32, Bytes)> = messages.into_iter().filter_map(in_job).collect();
        for (to, ..) in &messages {
            let ready = poll_fn(|cx| mesh.poll_ready(id, *to, cx)).await;
            ready.inspect_err(|error| self.seat.break_group(error))?;
        }
        mesh.send(id, self.call, messages);
        Ok(())
    }

    /// Receives a message of each of these ranks, in this order.
    pub(super) async fn receive(&self, from: Vec<Rank>) -> Result<Vec<Bytes>> {
        let mut got = BTreeMap::new();
        self.expect(&from);
        let mut waits = from.clone();
        while !waits.is_empty() {
            for (from, _, body) in self.arrived(&waits).await? {
                waits.retain(|rank| *rank != from);
                self.heard(from, &[]);
                got.insert(from, body);
            }
        }
        Ok(from.iter().filter_map(|rank| got.remove(rank)).collect())
    }

    /// Messages of these ranks, at least one, at most one of each: from whom, and of or for which rank.
    async fn arrived(&self, from: &[Rank]) -> Result<Vec<(Rank, Rank, Bytes)>> {
        let (mesh, id) = (&self.seat.mesh, self.seat.group);
        let arrived = poll_fn(|cx| {
            let mut got = Vec::new();
            // All connections are opened before the first message is waited for.
            for rank in from {
                let Some(peer) = self.seat.in_job(*rank) else {
                    continue;
                };
                match mesh.poll_take(id, self.call, peer, cx) {
                    Poll::Ready(Ok((about, body))) => got.push((*rank, Rank(about), body)),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {}
                }
            }
            if got.is_empty() {
                Poll::Pending
            } else {
                Poll::Ready(Ok(got))
            }
        });
        let arrived = arrived.await;
        arrived.inspect_err(|error| self.seat.break_group(error))
    }

    /// Tells for whom this rank waits.
    fn expect(&self, from: &[Rank]) {
        let in_job = from.iter().filter_map(|rank| self.seat.in_job(*rank));
        self.seat.mesh.expect(self.seat.group, in_job.collect());
    }

    /// Tells that it does not wait for `from` any more, but for `more`.
    fn heard(&self, from: Rank, more: &[u32]) {
        let in_job = |rank: &u32| self.seat.in_job(Rank(*rank));
        let more: Vec<u32> = more.iter().filter_map(in_job).collect();
        if let Some(from) = self.seat.in_job(from) {
            self.seat.mesh.heard(self.seat.group, from, &more);
        }
    }

    /// Brings a message of each rank to the root, which gets all. Ranks between hand on each as it comes, so that the root
    /// knows who is silent.
    pub(super) async fn collect(&self, mine: Bytes) -> Result<Option<Vec<Bytes>>> {
        let (tree, me) = (self.tree(), self.me());
        let parent = tree.parent(me).map(Rank);
        let mut kept = BTreeMap::new();
        match parent {
            Some(parent) => self.send(vec![(parent, Rank(me), mine)]).await?,
            None => drop(kept.insert(Rank(me), mine)),
        }
        // How many messages still come through each child.
        let children: Vec<Rank> = tree.children(me).into_iter().map(Rank).collect();
        let count = |child: &Rank| (*child, tree.below(child.0).len());
        let mut left: BTreeMap<Rank, usize> = children.iter().map(count).collect();
        self.expect(&children);
        while !left.is_empty() {
            let from: Vec<Rank> = left.keys().copied().collect();
            for (child, of, body) in self.arrived(&from).await? {
                if !tree.is_below(of.0, child.0) {
                    return Err(self.strange(child, of));
                }
                // A child that has come can say for whom it waits; before that, nobody knows.
                let more = if of == child {
                    tree.below(of.0)
                } else {
                    Vec::new()
                };
                self.heard(of, more.get(1..).unwrap_or_default());
                match left.get_mut(&child) {
                    Some(count) if *count > 1 => *count -= 1,
                    Some(_) => drop(left.remove(&child)),
                    None => return Err(self.strange(child, of)),
                }
                match parent {
                    Some(parent) => self.send(vec![(parent, of, body)]).await?,
                    None if kept.insert(of, body).is_some() => return Err(self.strange(child, of)),
                    None => {}
                }
            }
        }
        Ok(parent.is_none().then(|| kept.into_values().collect()))
    }

    /// Brings the data of the root to all.
    pub(super) async fn hand_down(&self, data: Bytes) -> Result<Bytes> {
        let (tree, me) = (self.tree(), self.me());
        let data = match tree.parent(me) {
            Some(parent) => only(self.receive(vec![Rank(parent)]).await?),
            None => data,
        };
        let children = tree.children(me).into_iter();
        let parcels = children.map(|child| (Rank(child), Rank(child), data.clone()));
        self.send(parcels.collect()).await?;
        Ok(data)
    }

    /// Brings to each rank its part, and returns that of this one. The root has all parts, in the order of ranks.
    pub(super) async fn deal(&self, parts: Vec<Bytes>) -> Result<Bytes> {
        let (tree, me) = (self.tree(), self.me());
        let below = tree.below(me);
        let parts: BTreeMap<u32, Bytes> = match tree.parent(me) {
            None => (0..).zip(parts).collect(),
            Some(parent) => {
                let parent = Rank(parent);
                let got = only(self.receive(vec![parent]).await?);
                if below.len() == 1 {
                    return Ok(got);
                }
                let parts = unpack(&got, below.len());
                let parts = parts.ok_or_else(|| self.strange(parent, Rank(me)))?;
                below.iter().copied().zip(parts).collect()
            }
        };
        let part = |rank: &u32| parts.get(rank).cloned().unwrap_or_default();
        let for_child = |child: u32| {
            let below = tree.below(child);
            // A rank with nobody below it gets its part as it is.
            let body = if below.len() == 1 {
                part(&child)
            } else {
                pack(&below.iter().map(part).collect::<Vec<_>>())
            };
            (Rank(child), Rank(child), body)
        };
        self.send(tree.children(me).into_iter().map(for_child).collect())
            .await?;
        Ok(part(&me))
    }

    /// Every rank gets what all ranks have brought.
    pub(super) async fn share(&self, mine: Bytes) -> Result<Vec<Bytes>> {
        let all = self.collect(mine).await?;
        let packed = all.map(|all| pack(&all)).unwrap_or_default();
        let packed = self.hand_down(packed).await?;
        let all = unpack(&packed, self.seat.size() as usize);
        all.ok_or_else(|| self.strange(Rank(self.call.root), Rank(self.me())))
    }

    /// Another rank has sent what no rank sends.
    fn strange(&self, from: Rank, about: Rank) -> CommError {
        let text = format!("rank {from} sent what belongs to another tree, for rank {about}");
        let error = CommError::OutOfStep(text);
        self.seat.break_group(&error);
        error
    }

    pub(super) fn finish<T>(mut self, value: T) -> Result<T> {
        self.done = true;
        self.seat.mesh.end(self.seat.group);
        Ok(value)
    }

    pub(super) fn fail(mut self, error: CommError) -> CommError {
        self.done = true;
        self.seat.mesh.end(self.seat.group);
        self.seat.break_group(&error);
        error
    }
}

impl Drop for Collective<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let (mesh, id) = (&self.seat.mesh, self.seat.group);
        let me = mesh.name(id, mesh.me());
        let trouble = || mesh.trouble(id).map(|what| format!(", after {what}"));
        let why = if std::thread::panicking() {
            ", because it panicked".to_owned()
        } else {
            trouble().unwrap_or_default()
        };
        let text = format!("{me} left a collective before it was done{why}");
        // If the call failed, its error came first, and this one does not count.
        let cause = Cause::new(reshard_model::ErrorKind::PeerFailed, text);
        mesh.end(id);
        mesh.break_group(id, CommError::Broken(cause));
    }
}

/// The only message of a list.
pub(super) fn only(mut messages: Vec<Bytes>) -> Bytes {
    messages.pop().unwrap_or_default()
}

/// Several messages as one: each with its length before it.
fn pack(parts: &[Bytes]) -> Bytes {
    let length = parts.iter().map(|part| 8 + part.len()).sum();
    let mut out = BytesMut::with_capacity(length);
    for part in parts {
        out.put_u64_le(part.len() as u64);
        out.put_slice(part);
    }
    out.freeze()
}

/// These messages again, without a copy. `None` if there are not `count` of them.
fn unpack(packed: &Bytes, count: usize) -> Option<Vec<Bytes>> {
    let (mut rest, mut parts) = (packed.clone(), Vec::new());
    for _ in 0..count {
        let (length, _) = rest.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let end = length.checked_add(8).filter(|end| *end <= rest.len())?;
        let mut part = rest.split_to(end);
        parts.push(part.split_off(8));
    }
    rest.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn what_is_packed_is_unpacked(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9)) {
            let parts: Vec<Bytes> = parts.into_iter().map(Bytes::from).collect();
            let packed = pack(&parts);
            prop_assert_eq!(unpack(&packed, parts.len() + 1), None);
            prop_assert_eq!(unpack(&packed, parts.len()), Some(parts));
        }

        #[test]
        fn any_bytes_are_unpacked_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..40), count in 0..5_usize) {
            drop(unpack(&bytes.into(), count));
        }
    }
}
