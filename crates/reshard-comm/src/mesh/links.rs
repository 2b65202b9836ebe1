//! What the groups and the threads of a rank share: the state of each link and of each room.
//!
//! The mesh does no I/O. Messages go into the queue of a link, which a thread of its connection empties. Work that may
//! block is a [`Task`], which goes to the thread that does such work.

use super::{
    limit::Limit,
    message::{Call, Kind, Message},
    room::{Left, Room},
    state::{Link, State, Task, abort, decode, leave},
};
use crate::{Cause, CommError, Rank};
use bytes::Bytes;
use std::{
    collections::BTreeSet,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

/// What becomes of a call of another member.
#[derive(Debug)]
pub enum Admission {
    /// The connection is used. These are the messages for it.
    Yes(Receiver<Message>),
    /// Another connection is used.
    Declined,
    /// This rank does not talk to that one any more.
    Refused,
}

/// All that the threads and groups of a rank share.
#[derive(Debug)]
pub struct Mesh {
    me: u32,
    size: u32,
    fan: u32,
    state: Mutex<State>,
    changed: Condvar,
}

impl Mesh {
    /// The mesh of rank `me` of a job of `size`, and the tasks that it will have. Each task that is done is told
    /// by [`task_done`](Self::task_done). The tasks end when the mesh has been shut.
    ///
    /// In collectives with a root, at most `fan` ranks are below another one. All ranks of the job give the same number.
    pub fn new(me: u32, size: u32, fan: u32) -> (Self, Receiver<Task>) {
        let (tasks, received) = mpsc::channel();
        let state = State {
            links: (0..size).map(|_| Link::Idle).collect(),
            tasks: Some(tasks),
            ..State::default()
        };
        let mesh = Self {
            me,
            size,
            fan,
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        (mesh, received)
    }

    /// The number of this rank in the job.
    pub fn me(&self) -> u32 {
        self.me
    }

    /// How many ranks the job has.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// How many ranks are below another one at most, in a collective with a root.
    pub(super) fn fan(&self) -> u32 {
        self.fan
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state. Wakers run foreign code, so they are called when the lock is free.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        state.changes += 1;
        let woken = std::mem::take(&mut state.woken);
        drop(state);
        self.changed.notify_all();
        woken.into_iter().for_each(Waker::wake);
        result
    }

    /// Waits until `done`, or until the limit. Returns whether it is done.
    fn wait_until(&self, limit: Limit, done: impl Fn(&State) -> bool) -> bool {
        let mut state = self.lock();
        while !done(&state) {
            let Ok(left) = limit.left() else { return false };
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// How many changes there were. For transports that ask instead of being woken.
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Waits until there is a change after the first `seen` ones, or until the limit.
    pub fn wait_for_change(&self, seen: u64, limit: Limit) {
        self.wait_until(limit, |state| state.changes != seen);
    }

    /// Whether a call of this rank waits in any group.
    pub fn is_waiting(&self) -> bool {
        self.lock().rooms.values().any(|room| room.running)
    }

    // Of groups.

    /// This rank is now in a group of these ranks of the job.
    pub(super) fn open(&self, group: u64, members: Vec<u32>) {
        self.change(|state| {
            let room = state.rooms.entry(group).or_default();
            room.members.clone_from(&members);
            // It may have been broken before this rank knew who is in it.
            if let Some(error) = &room.broken {
                let notice = abort(group, error);
                state.tell(self.me, &members, None, &notice);
            }
        });
    }

    /// This rank leaves the group, `panicked` or not.
    pub(super) fn close(&self, group: u64, panicked: bool) {
        self.change(|state| {
            let how = if panicked {
                Left::Panicked
            } else {
                let trouble = state.trouble(group, self.me);
                if state.first_trouble.is_none() {
                    state.first_trouble.clone_from(&trouble);
                }
                trouble.map_or(Left::InOrder, Left::After)
            };
            let notice = leave(group, &how);
            let room = state.rooms.entry(group).or_default();
            room.closed = Some(how);
            let members = room.members.clone();
            state.tell(self.me, &members, None, &notice);
            state.forget(group, self.me);
        });
    }

    /// Begins a call. Returns its number.
    ///
    /// # Errors
    /// The group is broken, or another call of this rank is running.
    pub(super) fn begin(&self, group: u64) -> Result<u64, CommError> {
        self.change(|state| {
            let room = state.rooms.entry(group).or_default();
            if let Some(broken) = &room.broken {
                return Err(broken.clone());
            }
            if room.running {
                let me = room.name(self.me);
                return Err(CommError::OutOfStep(format!(
                    "{me} makes a call while another of its calls is running"
                )));
            }
            room.running = true;
            room.calls += 1;
            Ok(room.calls - 1)
        })
    }

    /// The current call of the group is over.
    pub(super) fn end(&self, group: u64) {
        self.change(|state| {
            let room = state.rooms.entry(group).or_default();
            room.running = false;
            room.waker = None;
            room.needs.clear();
        });
    }

    /// The current call needs no message of this rank of the job any more, but of these.
    pub(super) fn heard(&self, group: u64, who: u32, more: &[u32]) {
        self.change(|state| {
            let room = state.rooms.entry(group).or_default();
            room.needs.remove(&who);
            room.needs.extend(more);
        });
    }

    /// From which ranks of the job the current call needs a message.
    pub(super) fn expect(&self, group: u64, from: BTreeSet<u32>) {
        self.change(|state| state.rooms.entry(group).or_default().needs = from);
    }

    /// Ready when rank `to` of the job has used most of what was sent to it.
    pub(super) fn poll_ready(
        &self,
        group: u64,
        to: u32,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), CommError>> {
        self.change(|state| {
            if let Some(lost) = state.lost(group, to) {
                return Poll::Ready(Err(lost));
            }
            let room = state.rooms.entry(group).or_default();
            if room.may_send(to) {
                return Poll::Ready(Ok(()));
            }
            room.waker = Some(cx.waker().clone());
            Poll::Pending
        })
    }

    /// Sends all of these messages to ranks of the job, with nothing in between. The second number is the rank of the group
    /// of or for which it is.
    pub(super) fn send(&self, group: u64, call: Call, messages: Vec<(u32, u32, Bytes)>) {
        self.change(|state| {
            for (to, about, body) in messages {
                let room = state.rooms.entry(group).or_default();
                room.sent(to, body.len());
                let message = Message {
                    kind: Kind::Data,
                    group,
                    call,
                    about,
                    body,
                };
                state.push(to, message);
            }
        });
    }

    /// The next message of rank `from` of the job for this call, and the rank of the group of or for which it is.
    pub(super) fn poll_take(
        &self,
        group: u64,
        call: Call,
        from: u32,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(u32, Bytes), CommError>> {
        self.change(|state| {
            let room = state.rooms.entry(group).or_default();
            // What has arrived is delivered even if the group broke since.
            if let Some(message) = room.take(from) {
                if let Some(error) = room.differs(self.me, call, from, message.call) {
                    return Poll::Ready(Err(error));
                }
                if let Some(words) = room.used(from) {
                    state.push(from, Message::notice(Kind::Used, group, words));
                }
                return Poll::Ready(Ok((message.about, message.body)));
            }
            if let Some(lost) = state.lost(group, from) {
                return Poll::Ready(Err(lost));
            }
            // A rank that waits has a connection, so that it sees at once when the other one vanishes.
            state.dial(from);
            let room = state.rooms.entry(group).or_default();
            room.waker = Some(cx.waker().clone());
            Poll::Pending
        })
    }

    /// The ranks of the group for which the current call waits.
    pub(super) fn silent(&self, group: u64) -> Vec<Rank> {
        self.lock()
            .rooms
            .get(&group)
            .map(Room::silent)
            .unwrap_or_default()
    }

    /// How messages name rank `who` of the job in this group.
    pub(super) fn name(&self, group: u64, who: u32) -> String {
        let state = self.lock();
        let room = state.rooms.get(&group);
        room.map_or_else(|| format!("rank {who} of the job"), |room| room.name(who))
    }

    /// What has gone wrong on this rank, if it gives up something in this group.
    pub(super) fn trouble(&self, group: u64) -> Option<String> {
        self.lock().trouble(group, self.me)
    }

    /// Breaks the group. All members hear of it. Only the first error counts.
    pub(super) fn break_group(&self, group: u64, error: CommError) {
        self.change(|state| {
            if let Some(body) = state.break_room(self.me, group, error, None) {
                state.task(Task::Publish(group, body));
            }
        });
    }

    /// Breaks every group of this rank, for a reason that lies outside of their calls. All members learn it.
    pub fn break_all(&self, cause: &Cause) {
        self.change(|state| {
            let open = state.rooms.iter();
            let open = open.filter(|(_, room)| room.closed.is_none() && !room.members.is_empty());
            let groups: Vec<u64> = open.map(|(group, _)| *group).collect();
            for group in groups {
                let error = CommError::Broken(cause.clone());
                if let Some(body) = state.break_room(self.me, group, error, None) {
                    state.task(Task::Publish(group, body));
                }
            }
        });
    }

    // Of connections.

    /// A member has called.
    ///
    /// If two ranks call each other, the call of the lower one counts. So there is never more than one connection. A link that was admitted is
    /// in use until [`end_sending`](Self::end_sending) and [`end_hearing`](Self::end_hearing), also if it fails before anything is sent.
    pub fn called_by(&self, peer: u32) -> Admission {
        self.change(|state| match state.links.get(peer as usize) {
            Some(Link::Idle) => Admission::Yes(state.up(peer)),
            Some(Link::Dialling(_)) if peer < self.me => Admission::Yes(state.up(peer)),
            Some(Link::Dialling(_) | Link::Up(_)) => Admission::Declined,
            Some(Link::Gone(_)) | None => Admission::Refused,
        })
    }

    /// A call of this rank was taken. Returns the messages for that rank, or `None` if another connection is used. The link is in use as after
    /// [`called_by`](Self::called_by).
    pub fn reached(&self, peer: u32) -> Option<Receiver<Message>> {
        self.change(|state| match state.links.get(peer as usize)? {
            Link::Dialling(_) => Some(state.up(peer)),
            _ => None,
        })
    }

    /// How many links are in use, and were not left.
    pub fn connections(&self) -> usize {
        let links = &self.lock().links;
        links
            .iter()
            .filter(|link| matches!(link, Link::Up(_)))
            .count()
    }

    /// Whether the link still needs a connection.
    pub fn wants(&self, peer: u32) -> bool {
        self.lock().is_dialling(peer)
    }

    /// Waits until the link has a connection. Returns whether it has one, or needs none any more.
    pub fn wait_for_call(&self, peer: u32, limit: Limit) -> bool {
        self.wait_until(limit, |state| !state.is_dialling(peer))
    }

    /// Nothing comes from this rank any more. Only the first reason counts.
    pub fn gone(&self, peer: u32, why: impl Into<String>) {
        self.change(|state| state.lose(peer, why.into()));
    }

    /// A call of this rank failed. If the other rank has called since, its connection is used, and may still deliver.
    pub fn unreachable(&self, peer: u32, why: impl Into<String>) {
        self.change(|state| {
            if state.is_dialling(peer) {
                state.lose(peer, why.into());
            }
        });
    }

    /// A message has come from rank `from` of the job.
    pub fn arrived(&self, from: u32, message: Message) {
        self.change(|state| state.arrived(self.me, from, message));
    }

    /// The groups that wait for rank `peer` and are not broken.
    pub fn groups_with(&self, peer: u32) -> Vec<u64> {
        let state = self.lock();
        let concerned = state.rooms.iter().filter(|(_, room)| {
            room.broken.is_none() && room.closed.is_none() && room.members.contains(&peer)
        });
        concerned.map(|(group, _)| *group).collect()
    }

    /// The store says why a group is broken.
    pub fn learned(&self, group: u64, body: &[u8]) {
        self.change(|state| {
            state.break_room(self.me, group, CommError::Broken(decode(body)), None);
        });
    }

    // Of the transport.

    /// A task is done.
    pub fn task_done(&self) {
        self.change(|state| state.busy -= 1);
    }

    /// All messages of a link are sent, and its queue is closed; or nothing more can be sent.
    pub fn end_sending(&self) {
        self.change(|state| state.busy -= 1);
    }

    /// Nothing more can arrive on a link.
    pub fn end_hearing(&self) {
        self.change(|state| state.reading -= 1);
    }

    /// Whether this rank leaves the job, or has left it.
    pub fn is_leaving(&self) -> bool {
        self.lock().closing
    }

    /// Whether this rank has left the job.
    pub fn is_shut(&self) -> bool {
        self.lock().tasks.is_none()
    }

    /// Whether any group of this rank is broken.
    pub fn is_broken(&self) -> bool {
        self.lock().rooms.values().any(|room| room.broken.is_some())
    }

    /// Says goodbye to all, and waits: for `patience` until all has been sent that was to be sent, and then for `echo` until
    /// nothing more can arrive. Returns whether all is sent and nothing more can arrive.
    pub fn shut(&self, patience: Duration, echo: Duration) -> bool {
        self.change(|state| {
            state.closing = true;
            state.say_goodbye();
        });
        let sent = self.wait_until(Limit::after(patience), |state| state.busy == 0);
        // A connection that is closed while bytes arrive may lose what it has sent, so wait for the other side.
        let heard = self.wait_until(Limit::after(echo), |state| state.reading == 0);
        self.change(|state| state.tasks = None);
        sent && heard
    }
}
