//! The thread that takes the calls of other ranks, and lets no stranger in.

use crate::{
    clock::Timed,
    connection, files,
    gate::Gate,
    handshake::{Knock, Verdict, Words},
    tasks::HANDSHAKE,
};
use reshard_comm::mesh::{Admission, Limit};
use std::{
    collections::VecDeque,
    io,
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// How many callers may be unproven at a time. If one more comes, the oldest one is closed: a member needs a
/// millisecond for its proof, so those that wait for long are strangers.
const UNPROVEN: usize = 64;
/// So many threads prove callers at a time, those included whose caller was closed. The next caller waits until one has ended.
const PROVING: usize = 2 * UNPROVEN;
/// The stack of a thread that proves a caller.
const STACK: usize = 256 << 10;

/// Starts the thread. It ends at the first call after the mesh or the gate has been shut.
///
/// # Errors
/// The system starts no thread.
pub(crate) fn start(gate: &Arc<Gate>, listener: TcpListener) -> io::Result<()> {
    let door = Door {
        gate: Arc::clone(gate),
        unproven: Arc::default(),
        ended: Arc::default(),
    };
    thread::Builder::new()
        .name("reshard-listen".to_owned())
        .spawn(move || door.accept(&listener))?;
    Ok(())
}

#[derive(Clone, Debug)]
struct Door {
    gate: Arc<Gate>,
    unproven: Arc<Mutex<Unproven>>,
    /// A thread has ended.
    ended: Arc<Condvar>,
}

/// The callers that have not proved yet that they are members, the oldest first.
#[derive(Debug, Default)]
struct Unproven {
    callers: VecDeque<(u64, TcpStream)>,
    counted: u64,
    /// Threads that have not ended.
    threads: usize,
}

impl Door {
    fn accept(&self, listener: &TcpListener) {
        const PAUSE: Duration = Duration::from_millis(20);
        loop {
            let accepted = listener.accept();
            if self.gate.is_over() {
                return;
            }
            match accepted {
                Ok((stream, _)) => self.admit(stream),
                // For example, too many open files: it must not become a busy loop.
                Err(e) => {
                    tracing::warn!("a rank can't be let in: {e}; {}", files::HINT);
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    fn unproven(&self) -> MutexGuard<'_, Unproven> {
        self.unproven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self, stream: TcpStream) {
        let Ok(kept) = stream.try_clone() else { return };
        let mut unproven = self.unproven();
        if unproven.callers.len() >= UNPROVEN
            && let Some((_, oldest)) = unproven.callers.pop_front()
        {
            // Its thread reads the end of the stream, and ends.
            drop(oldest.shutdown(Shutdown::Both));
        }
        // Threads of closed callers end at once, but a busy machine may not have come to it.
        while unproven.threads >= PROVING {
            let woken = self.ended.wait(unproven);
            unproven = woken.unwrap_or_else(PoisonError::into_inner);
        }
        unproven.threads += 1;
        unproven.counted += 1;
        let id = unproven.counted;
        unproven.callers.push_back((id, kept));
        drop(unproven);
        let door = self.clone();
        let thread = thread::Builder::new().stack_size(STACK);
        let started = thread.name("reshard-prove".to_owned()).spawn(move || {
            if let Err(e) = door.prove(id, stream) {
                tracing::debug!("a caller was not let in: {e}");
            }
            door.end();
        });
        if started.is_err() {
            self.proven(id);
            self.end();
        }
    }

    /// A thread has ended, or did not start.
    fn end(&self) {
        self.unproven().threads -= 1;
        self.ended.notify_one();
    }

    fn proven(&self, id: u64) {
        self.unproven().callers.retain(|(other, _)| *other != id);
    }

    fn prove(&self, id: u64, stream: TcpStream) -> io::Result<()> {
        let gate = &self.gate;
        let limit = Limit::after(HANDSHAKE);
        let mut timed = Timed {
            stream: &stream,
            limit,
        };
        let heard = Words::hear(&mut timed).and_then(|words| {
            if let Some(knock) = words.knock(&gate.knocking)? {
                return Ok((words, Err(knock)));
            }
            // A member may call before this rank has read the addresses of all.
            let still_meet = || io::Error::new(io::ErrorKind::TimedOut, "the ranks still meet");
            let (mesh, job) = gate.group(limit).ok_or_else(still_meet)?;
            let peer = words.member(&job.token, mesh.me(), mesh.size())?;
            Ok((words, Ok((mesh, job, peer))))
        });
        self.proven(id);
        let (words, caller) = heard?;
        let (mesh, job, peer) = match caller {
            Ok(member) => member,
            Err(knock) => {
                let both_fail = match knock {
                    Knock::Look => false,
                    Knock::RankClaim(process) => gate.claimed(process),
                };
                return words.answer_knock(&mut timed, &gate.knocking, both_fail);
            }
        };
        let mut answer = |verdict| words.answer(&mut timed, &job.token, verdict);
        match mesh.called_by(peer) {
            Admission::Yes(messages) => match answer(Verdict::Yes) {
                Ok(()) => connection::start(&mesh, peer, stream, messages, job.watch),
                Err(e) => {
                    connection::never_used(&mesh);
                    mesh.gone(peer, format!("vanished during its call: {e}"));
                }
            },
            Admission::Declined => answer(Verdict::Declined)?,
            Admission::Refused => {}
        }
        Ok(())
    }
}
