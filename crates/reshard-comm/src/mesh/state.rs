//! What a rank knows of its links and of its groups. It is behind the lock of the mesh.

use super::{
    message::{Kind, Message, heard, words},
    room::{Left, Room},
};
use crate::{Cause, CommError};
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    sync::mpsc::{self, Receiver, Sender},
    task::Waker,
};

/// Causes that are longer than this are not sent as a whole.
const CAUSE_LIMIT: usize = 64 << 10;

/// Work that may block, which a [`Mesh`](super::Mesh) leaves to its transport.
#[derive(Debug)]
pub enum Task {
    /// Connect to this rank.
    Dial(u32),
    /// Put where ranks without a link may look for it why this group is broken, if there is such a place.
    Publish(u64, Bytes),
}

/// The connection to another rank.
#[derive(Debug)]
pub(super) enum Link {
    /// Neither rank has needed it yet.
    Idle,
    /// This rank tries to connect. These messages wait.
    Dialling(Vec<Message>),
    Up(Sender<Message>),
    /// Why nothing comes from there any more.
    Gone(String),
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) links: Vec<Link>,
    pub(super) rooms: BTreeMap<u64, Room>,
    pub(super) tasks: Option<Sender<Task>>,
    /// Tasks and writing threads that are not done.
    pub(super) busy: usize,
    /// Reading threads that are not done.
    pub(super) reading: usize,
    pub(super) closing: bool,
    /// What went wrong first on this rank.
    pub(super) first_trouble: Option<String>,
    /// How often anything changed.
    pub(super) changes: u64,
    pub(super) woken: Vec<Waker>,
}

impl State {
    pub(super) fn is_dialling(&self, peer: u32) -> bool {
        matches!(self.links.get(peer as usize), Some(Link::Dialling(_)))
    }

    pub(super) fn task(&mut self, task: Task) {
        if self
            .tasks
            .as_ref()
            .is_some_and(|tasks| tasks.send(task).is_ok())
        {
            self.busy += 1;
        }
    }

    pub(super) fn dial(&mut self, peer: u32) {
        if let Some(link @ Link::Idle) = self.links.get_mut(peer as usize) {
            *link = Link::Dialling(Vec::new());
            self.task(Task::Dial(peer));
        }
    }

    pub(super) fn push(&mut self, to: u32, message: Message) {
        self.dial(to);
        match self.links.get_mut(to as usize) {
            Some(Link::Dialling(waiting)) => waiting.push(message),
            // If its thread has ended, the link is about to be gone.
            Some(Link::Up(queue)) => drop(queue.send(message)),
            Some(Link::Idle | Link::Gone(_)) | None => {}
        }
    }

    /// Tells the members that have a connection, or get one. The others hear it when they get one.
    pub(super) fn tell(&mut self, me: u32, members: &[u32], except: Option<u32>, notice: &Message) {
        for to in members
            .iter()
            .filter(|to| **to != me && Some(**to) != except)
        {
            if !matches!(self.links.get(*to as usize), Some(Link::Idle)) {
                self.push(*to, notice.clone());
            }
        }
    }

    /// The link has a connection: first what waits for it, then what that rank must know.
    pub(super) fn up(&mut self, peer: u32) -> Receiver<Message> {
        let (queue, messages) = mpsc::channel();
        let Some(link) = self.links.get_mut(peer as usize) else {
            return messages;
        };
        // It counts before anybody hears that the call was taken: this rank must not leave before it has said goodbye.
        self.reading += 1;
        self.busy += 1;
        let waiting = match std::mem::replace(link, Link::Idle) {
            Link::Dialling(waiting) => waiting,
            _ => Vec::new(),
        };
        let known = self
            .rooms
            .iter()
            .filter(|(_, room)| room.members.contains(&peer));
        let news = known.flat_map(|(group, room)| {
            let broken = room.broken.as_ref().map(|error| abort(*group, error));
            broken
                .into_iter()
                .chain(room.closed.as_ref().map(|how| leave(*group, how)))
        });
        // The receiver is here, so nothing is lost.
        waiting
            .into_iter()
            .chain(news)
            .for_each(|message| drop(queue.send(message)));
        if let Some(link) = self.links.get_mut(peer as usize) {
            *link = Link::Up(queue);
        }
        if self.closing {
            self.say_goodbye();
        }
        self.wake_all();
        messages
    }

    /// Ends a link, unless it has ended before.
    pub(super) fn lose(&mut self, peer: u32, why: String) {
        let link = self.links.get_mut(peer as usize);
        if let Some(link) = link.filter(|link| !matches!(link, Link::Gone(_))) {
            *link = Link::Gone(why);
            self.wake_all();
        }
    }

    /// Ends the links that are up. Their threads still send what is queued.
    pub(super) fn say_goodbye(&mut self) {
        // A rank may wait for this one in a group of which this one does not know.
        let words = words(self.first_trouble.as_deref().unwrap_or_default());
        for link in &mut self.links {
            if let Link::Up(queue) = link {
                drop(queue.send(Message::notice(Kind::Bye, 0, words.clone())));
            }
            if matches!(link, Link::Up(_) | Link::Idle) {
                *link = Link::Gone("was left by this rank".to_owned());
            }
        }
    }

    pub(super) fn wake_all(&mut self) {
        let wakers = self.rooms.values_mut().filter_map(|room| room.waker.take());
        self.woken.extend(wakers);
    }

    /// Why a call can't go on with rank `who`.
    pub(super) fn lost(&self, group: u64, who: u32) -> Option<CommError> {
        let room = self.rooms.get(&group)?;
        room.broken
            .clone()
            .or_else(|| room.has_left(who))
            .or_else(|| match self.links.get(who as usize)? {
                Link::Gone(why) => Some(room.lost(who, why)),
                _ => None,
            })
    }

    /// Breaks a room, if it isn't broken, and tells the others but `except`. Returns what it told them.
    pub(super) fn break_room(
        &mut self,
        me: u32,
        group: u64,
        error: CommError,
        except: Option<u32>,
    ) -> Option<Bytes> {
        let room = self.rooms.entry(group).or_default();
        if room.broken.is_some() {
            return None;
        }
        let notice = abort(group, &error);
        self.first_trouble
            .get_or_insert_with(|| format!("a group of it broke: {}", error.to_cause()));
        room.broken = Some(error);
        self.woken.extend(room.waker.take());
        if room.closed.is_none() {
            let members = room.members.clone();
            self.tell(me, &members, except, &notice);
        }
        Some(notice.body)
    }

    pub(super) fn arrived(&mut self, me: u32, from: u32, message: Message) {
        let group = message.group;
        match message.kind {
            Kind::Data => self.rooms.entry(group).or_default().arrived(from, message),
            Kind::Used => {
                let room = self.rooms.entry(group).or_default();
                room.heard_used(from, &message.body);
            }
            Kind::Abort => {
                let cause = CommError::Broken(decode(&message.body));
                self.break_room(me, group, cause, Some(from));
            }
            Kind::Leave => {
                let how = how_it_left(&message.body);
                self.rooms.entry(group).or_default().left(from, how);
                self.forget(group, me);
            }
            Kind::Bye | Kind::Alive => return,
        }
        if let Some(room) = self.rooms.get_mut(&group) {
            self.woken.extend(room.waker.take());
        }
    }

    /// What has gone wrong on this rank, if it gives up something in this group. The others may know nothing of it: they
    /// may wait for this rank only, or in another group.
    pub(super) fn trouble(&self, group: u64, me: u32) -> Option<String> {
        let room = self.rooms.get(&group)?;
        let vanished = room
            .present(me)
            .find_map(|who| match self.links.get(who as usize)? {
                Link::Gone(why) => Some(format!("{} {why}", room.name(who))),
                _ => None,
            });
        vanished.or_else(|| self.first_trouble.clone())
    }

    pub(super) fn forget(&mut self, group: u64, me: u32) {
        if self.rooms.get(&group).is_some_and(|room| room.is_over(me)) {
            self.rooms.remove(&group);
        }
    }
}

/// A byte says how, and words say what was before.
pub(super) fn leave(group: u64, how: &Left) -> Message {
    let mut body = vec![u8::from(*how == Left::Panicked)];
    if let Left::After(what) = how {
        body.extend_from_slice(&words(what));
    }
    Message::notice(Kind::Leave, group, body.into())
}

fn how_it_left(body: &[u8]) -> Left {
    match body {
        [1, ..] => Left::Panicked,
        [_, said @ ..] => heard(said).map_or(Left::InOrder, Left::After),
        [] => Left::InOrder,
    }
}

pub(super) fn abort(group: u64, error: &CommError) -> Message {
    let cause = error.to_cause();
    let encoded = postcard::to_allocvec(&cause).ok();
    let short = encoded
        .filter(|bytes| bytes.len() <= CAUSE_LIMIT)
        .or_else(|| {
            let text: String = cause.message.chars().take(CAUSE_LIMIT / 8).collect();
            postcard::to_allocvec(&Cause::new(cause.kind, text)).ok()
        });
    Message::notice(Kind::Abort, group, short.unwrap_or_default().into())
}

pub(super) fn decode(body: &[u8]) -> Cause {
    postcard::from_bytes(body).unwrap_or_else(|_| {
        let text = "a rank broke the group, and its reason can't be read";
        Cause::new(reshard_model::ErrorKind::PeerFailed, text)
    })
}
