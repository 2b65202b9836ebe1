//! What one rank knows of one group: what has arrived, who left, and why it is broken. No I/O.
//!
//! Ranks of a group are called by their number in the group (`Rank`). Ranks of the job are plain numbers.

use super::{
    message::{Call, Message},
    method::Described,
};
use crate::{Cause, CommError, Rank};
use bytes::Bytes;
use reshard_model::ErrorKind;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    task::Waker,
};

/// How many messages a rank may send to another one before that rank has used them.
const AHEAD: u64 = 16;
/// How many bytes these messages may have, if there is more than one.
const AHEAD_BYTES: u64 = 64 << 20;

/// One group, as one rank sees it.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// The ranks of the job that are in the group. Empty until this rank knows of the group.
    pub(super) members: Vec<u32>,
    pub(super) broken: Option<CommError>,
    /// How this rank has left, if it has.
    pub(super) closed: Option<Left>,
    /// How many calls this rank has begun.
    pub(super) calls: u64,
    pub(super) running: bool,
    /// The ranks of the job from which the current call needs a message.
    pub(super) needs: BTreeSet<u32>,
    pub(super) waker: Option<Waker>,
    peers: BTreeMap<u32, Peer>,
}

/// Another rank in this group.
#[derive(Debug, Default)]
struct Peer {
    inbox: VecDeque<Message>,
    left: Option<Left>,
    /// What this rank sent to it, and how much of that it has used, as it said.
    sent: Flow,
    sent_used: Flow,
    /// What this rank used of its messages, and how much of that this rank told it.
    used: Flow,
    used_told: Flow,
}

/// A number of messages, and their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    messages: u64,
    bytes: u64,
}

impl Flow {
    fn add(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes as u64;
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            messages: self.messages.saturating_sub(earlier.messages),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }
}

/// How a rank left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Left {
    InOrder,
    Panicked,
    /// What had gone wrong on that rank before.
    After(String),
}

impl Room {
    /// A message of rank `from` of the job has arrived.
    pub(super) fn arrived(&mut self, from: u32, message: Message) {
        if self.closed.is_none() {
            self.peers.entry(from).or_default().inbox.push_back(message);
        }
    }

    /// The next message of rank `from` of the job.
    pub(super) fn take(&mut self, from: u32) -> Option<Message> {
        let peer = self.peers.get_mut(&from)?;
        let message = peer.inbox.pop_front()?;
        peer.used.add(message.body.len());
        Some(message)
    }

    /// What to tell rank `from` about the messages that were used, if it is time to tell it.
    pub(super) fn used(&mut self, from: u32) -> Option<Bytes> {
        let peer = self.peers.get_mut(&from)?;
        let news = peer.used.since(peer.used_told);
        if news.messages < AHEAD / 2 && news.bytes < AHEAD_BYTES / 16 {
            return None;
        }
        peer.used_told = peer.used;
        let words = [
            peer.used.messages.to_le_bytes(),
            peer.used.bytes.to_le_bytes(),
        ];
        Some(words.concat().into())
    }

    /// Rank `by` of the job says how much it has used.
    pub(super) fn heard_used(&mut self, by: u32, words: &[u8]) {
        let Some((messages, rest)) = words.split_first_chunk() else {
            return;
        };
        let Some((bytes, [])) = rest.split_first_chunk() else {
            return;
        };
        self.peers.entry(by).or_default().sent_used = Flow {
            messages: u64::from_le_bytes(*messages),
            bytes: u64::from_le_bytes(*bytes),
        };
    }

    /// Whether this rank may send another message to rank `to` of the job now.
    pub(super) fn may_send(&self, to: u32) -> bool {
        self.peers.get(&to).is_none_or(|peer| {
            let ahead = peer.sent.since(peer.sent_used);
            ahead.messages == 0 || (ahead.messages < AHEAD && ahead.bytes < AHEAD_BYTES)
        })
    }

    /// A message with so many bytes goes to rank `to` of the job.
    pub(super) fn sent(&mut self, to: u32, bytes: usize) {
        self.peers.entry(to).or_default().sent.add(bytes);
    }

    /// Rank `who` of the job left the group.
    pub(super) fn left(&mut self, who: u32, how: Left) {
        self.peers.entry(who).or_default().left.get_or_insert(how);
    }

    /// Why rank `who` of the job will send nothing more, if it left.
    pub(super) fn has_left(&self, who: u32) -> Option<CommError> {
        let why = match self.peers.get(&who)?.left.as_ref()? {
            Left::InOrder => "left the group".to_owned(),
            Left::Panicked => "left the group, because it panicked".to_owned(),
            Left::After(what) => format!("left the group, after {what}"),
        };
        Some(self.lost(who, &why))
    }

    /// The members that have not left, without `me`.
    pub(super) fn present(&self, me: u32) -> impl Iterator<Item = u32> {
        let left = |who: &u32| self.peers.get(who).is_some_and(|peer| peer.left.is_some());
        let members = self.members.iter().copied();
        members.filter(move |who| *who != me && !left(who))
    }

    /// Whether nothing of this group matters any more: this rank and all others left.
    pub(super) fn is_over(&self, me: u32) -> bool {
        self.closed.is_some() && self.present(me).next().is_none()
    }

    /// The ranks of which the current call needs a message that is not there.
    pub(super) fn silent(&self) -> Vec<Rank> {
        let empty = |who: &&u32| {
            self.peers
                .get(*who)
                .is_none_or(|peer| peer.inbox.is_empty())
        };
        let silent = self.needs.iter().filter(empty);
        let mut silent: Vec<Rank> = silent.filter_map(|who| self.number(*who)).collect();
        silent.sort_unstable();
        silent
    }

    /// The error of a call that needs rank `who` of the job, which is gone.
    pub(super) fn lost(&self, who: u32, why: &str) -> CommError {
        let text = format!("{} {why}", self.name(who));
        CommError::Broken(Cause::new(ErrorKind::PeerFailed, text))
    }

    /// `rank 1`; in a sub-group also which rank of the job it is.
    pub(super) fn name(&self, who: u32) -> String {
        match self.number(who) {
            Some(rank) if rank.0 == who => format!("rank {rank}"),
            Some(rank) => format!("rank {rank} (rank {who} of the job)"),
            None => format!("rank {who} of the job"),
        }
    }

    /// The error if a message of rank `from` of the job belongs to another call than this rank's.
    pub(super) fn differs(
        &self,
        me: u32,
        mine: Call,
        from: u32,
        theirs: Call,
    ) -> Option<CommError> {
        (mine != theirs).then(|| {
            CommError::OutOfStep(format!(
                "{} makes {}, but {} made {}",
                self.name(me),
                Described(mine),
                self.name(from),
                Described(theirs),
            ))
        })
    }

    fn number(&self, who: u32) -> Option<Rank> {
        let at = self.members.iter().position(|member| *member == who)?;
        u32::try_from(at).ok().map(Rank)
    }
}
