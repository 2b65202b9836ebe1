//! What travels between this rank and another one.

use crate::{
    Result,
    raw::{Comm, Receiving, Sending},
    wire::{self, Head},
};
use bytes::Bytes;
use reshard_comm::mesh::{Kind, Message};
use std::{
    collections::VecDeque,
    ffi::c_int,
    sync::mpsc::{Receiver, TryRecvError},
};

/// Heads of messages, each with the first bytes.
pub(crate) const HEADS: c_int = 1;
/// The other parts of messages.
const PARTS: c_int = 2;

/// Another rank of the job.
pub(crate) struct Peer {
    rank: u32,
    /// Messages to send. `None` when there will be no more.
    queue: Option<Receiver<Message>>,
    /// Whether this rank has said goodbye.
    said_bye: bool,
    /// The message of which parts are to be sent, and how many of them MPI has.
    current: Option<(Bytes, usize)>,
    sending: Vec<Sending>,
    /// Messages that arrive, in their order.
    arriving: VecDeque<(Head, Receiving)>,
    /// Whether everything is sent, and was told to be.
    pub(crate) sent: bool,
    /// Whether nothing more can come, and was told so.
    pub(crate) heard: bool,
}

impl Peer {
    /// How many requests may be under way to one rank.
    const WINDOW: usize = 16;

    pub(crate) fn new(rank: u32, queue: Receiver<Message>) -> Self {
        Self {
            rank,
            queue: Some(queue),
            said_bye: false,
            current: None,
            sending: Vec::new(),
            arriving: VecDeque::new(),
            sent: false,
            heard: false,
        }
    }

    /// Sends what there is to send, as far as it may be under way at a time. `leaves` says whether this rank leaves the job.
    /// Returns whether anything has happened.
    ///
    /// # Errors
    /// MPI can't send it.
    pub(crate) fn send(&mut self, comm: &Comm, part: usize, leaves: bool) -> Result<bool> {
        let mut moved = false;
        let mut failed = None;
        self.sending.retain_mut(|sending| match sending.is_done() {
            Ok(done) => {
                moved |= done;
                !done
            }
            Err(e) => {
                failed.get_or_insert(e);
                true
            }
        });
        if let Some(e) = failed {
            return Err(e);
        }
        while self.sending.len() < Self::WINDOW {
            let Some((bytes, tag)) = self.next(part, leaves) else {
                break;
            };
            self.sending
                .push(Sending::start(comm, bytes, self.rank, tag)?);
            moved = true;
        }
        Ok(moved)
    }

    /// The next head or part to send.
    fn next(&mut self, part: usize, leaves: bool) -> Option<(Bytes, c_int)> {
        if let Some((body, at)) = &mut self.current {
            if let Some(range) = wire::part_at(body.len(), part, *at) {
                *at += 1;
                return Some((body.slice(range), PARTS));
            }
            self.current = None;
        }
        let message = match self.queue.as_ref().map(Receiver::try_recv) {
            Some(Ok(message)) => message,
            Some(Err(TryRecvError::Empty)) => return None,
            Some(Err(TryRecvError::Disconnected)) | None => {
                self.queue = None;
                // If the other rank left first, the mesh has nothing more to say to it. It still waits for this goodbye.
                if self.said_bye || !leaves {
                    return None;
                }
                Message::notice(Kind::Bye, 0, Bytes::new())
            }
        };
        self.said_bye |= message.kind == Kind::Bye;
        let head = Head {
            kind: message.kind,
            group: message.group,
            call: message.call,
            about: message.about,
            length: message.body.len() as u64,
            part: u32::try_from(part).unwrap_or(u32::MAX),
        };
        let first = head.encode(&message.body);
        self.current = Some((message.body, 0));
        Some((first, HEADS))
    }

    /// Whether everything is sent and nothing more is to come.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.said_bye && self.queue.is_none() && self.current.is_none() && self.sending.is_empty()
    }

    /// Whether bytes are under way.
    pub(crate) fn is_moving(&self) -> bool {
        !self.sending.is_empty() || !self.arriving.is_empty()
    }

    /// A head has come.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn announced(&mut self, bytes: &[u8], limit: u64) -> Result<(), String> {
        let (head, first) = Head::decode(bytes, limit)?;
        let length = usize::try_from(head.length);
        let length = length.map_err(|_| "sent a message that no memory can hold".to_owned())?;
        let receiving = Receiving::new(first, length, head.part as usize)?;
        self.arriving.push_back((head, receiving));
        Ok(())
    }

    /// Receives parts. Returns whether anything has happened.
    ///
    /// # Errors
    /// MPI can't receive one.
    pub(crate) fn receive(&mut self, comm: &Comm) -> Result<bool> {
        let mut moved = false;
        for (_, receiving) in &mut self.arriving {
            moved |= receiving.poll()? > 0;
            // Parts come in the order of their messages, so MPI is asked for them in that order.
            if !receiving.ask(comm, self.rank, PARTS)? {
                break;
            }
        }
        Ok(moved)
    }

    /// The next message, if it is there as a whole.
    pub(crate) fn arrived(&mut self) -> Option<Message> {
        let (head, receiving) = self.arriving.front_mut()?;
        let body = receiving.take()?;
        let message = Message {
            kind: head.kind,
            group: head.group,
            call: head.call,
            about: head.about,
            body,
        };
        self.arriving.pop_front();
        Some(message)
    }

    /// Gives up: nothing more than a goodbye is sent, and nothing is received.
    pub(crate) fn give_up(&mut self) {
        self.queue = None;
        self.current = None;
        // What MPI still uses is left to it.
        self.sending.clear();
        self.arriving.clear();
    }
}
