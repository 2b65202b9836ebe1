//! What a caller finds at a rank: while the ranks meet, and when the group is complete.

use crate::{
    error::rank_taken,
    handshake::{Process, Token},
    tasks::Job,
};
use reshard_comm::{
    Cause, Rank,
    mesh::{Limit, Mesh},
};
use reshard_model::ErrorKind;
use std::{
    net::{Shutdown, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

/// The state of a rank, for those who call it.
#[derive(Debug)]
pub(crate) struct Gate {
    /// The key of those who knock.
    pub(crate) knocking: Token,
    pub(crate) process: Process,
    rank: u32,
    /// Where the store is, for errors.
    pub(crate) store: String,
    phase: Mutex<Phase>,
    changed: Condvar,
}

#[derive(Debug)]
enum Phase {
    /// The ranks meet. This connection to the store waits for others.
    Forming(Option<TcpStream>),
    /// Another process has claimed the rank meanwhile.
    Taken,
    Open(Arc<Mesh>, Arc<Job>),
    /// There is no group.
    Shut,
}

impl Gate {
    pub(crate) fn new(knocking: Token, process: Process, rank: u32, store: String) -> Self {
        Self {
            knocking,
            process,
            rank,
            store,
            phase: Mutex::new(Phase::Forming(None)),
            changed: Condvar::new(),
        }
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The meeting waits at this connection, which ends if another process claims the rank.
    pub(crate) fn ends(&self, store: TcpStream) {
        let mut phase = self.phase();
        match &mut *phase {
            Phase::Forming(ends) => *ends = Some(store),
            _ => drop(store.shutdown(Shutdown::Both)),
        }
    }

    /// Whether another process has claimed the rank during the meeting.
    pub(crate) fn is_taken(&self) -> bool {
        matches!(*self.phase(), Phase::Taken)
    }

    /// The group is complete. Returns whether it may begin: another process may have claimed the rank.
    pub(crate) fn open(&self, mesh: &Arc<Mesh>, job: &Arc<Job>) -> bool {
        let mut phase = self.phase();
        if matches!(*phase, Phase::Taken) {
            return false;
        }
        *phase = Phase::Open(Arc::clone(mesh), Arc::clone(job));
        self.changed.notify_all();
        true
    }

    /// The meeting is over. Returns whether it has failed, so that there is no group.
    pub(crate) fn give_up(&self) -> bool {
        let mut phase = self.phase();
        let failed = !matches!(*phase, Phase::Open(..));
        if failed {
            *phase = Phase::Shut;
            self.changed.notify_all();
        }
        failed
    }

    /// Whether nobody is to be let in any more.
    pub(crate) fn is_over(&self) -> bool {
        match &*self.phase() {
            Phase::Shut => true,
            Phase::Open(mesh, _) => mesh.is_shut(),
            Phase::Forming(_) | Phase::Taken => false,
        }
    }

    /// The group, as soon as it is complete. `None` if it isn't within the limit.
    pub(crate) fn group(&self, limit: Limit) -> Option<(Arc<Mesh>, Arc<Job>)> {
        let mut phase = self.phase();
        loop {
            match &*phase {
                Phase::Open(mesh, job) => return Some((Arc::clone(mesh), Arc::clone(job))),
                Phase::Taken | Phase::Shut => return None,
                Phase::Forming(_) => {}
            }
            let left = limit.left().ok()?;
            let woken = self.changed.wait_timeout(phase, left);
            phase = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A process claims the rank. Returns whether both groups fail. A process may make several groups, one after the other.
    pub(crate) fn claimed(&self, by: Process) -> bool {
        let mut phase = self.phase();
        match &*phase {
            Phase::Forming(store) => {
                if let Some(store) = store {
                    // The meeting reads the end of the stream, and looks for the reason.
                    drop(store.shutdown(Shutdown::Both));
                }
                *phase = Phase::Taken;
                self.changed.notify_all();
                true
            }
            Phase::Open(mesh, _) if by != self.process => {
                let mesh = Arc::clone(mesh);
                drop(phase);
                let why = rank_taken(&self.store, Rank(self.rank));
                mesh.break_all(&Cause::new(ErrorKind::Invalid, why));
                true
            }
            Phase::Taken => true,
            Phase::Open(..) | Phase::Shut => false,
        }
    }
}
