//! The comm thread: the only thread of this crate that talks to other ranks by MPI. It asks MPI again and again, and
//! never waits in it, so calls can be broken off.

use crate::{
    MpiError, Result,
    peer::{HEADS, Peer},
    raw::{Comm, Duplicating, Handle, Listening},
};
use mpi::{Threading, environment, environment::Universe};
use reshard_comm::mesh::{Admission, Kind, Limit, Mesh, Task};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

/// How many ranks are below another one at most, in collectives with a root. All ranks need the same.
const FAN: u32 = 64;

/// Where the communicator comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// The thread initializes MPI, and finalizes it.
    Init,
    /// The job has initialized MPI, and finalizes it.
    Job(Handle),
}

/// Settings of the thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// How long all processes have to come.
    pub(crate) deadline: Duration,
    pub(crate) message_limit: u64,
    pub(crate) part_limit: usize,
}

/// A thread that runs.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) mesh: Arc<Mesh>,
    thread: ThreadId,
    /// Tells the thread, when the mesh is shut, whether nothing is under way.
    end: Sender<bool>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
}

impl Worker {
    /// Starts the thread, and waits until it has a communicator of its own.
    ///
    /// # Errors
    /// Those of [`MpiError`].
    pub(crate) fn start(source: Source, settings: Settings) -> Result<Self> {
        // Initialization can't be broken off, but this thread need not wait for it.
        const SLACK: Duration = Duration::from_secs(1);
        let (ready, came) = mpsc::sync_channel(1);
        let (end, told) = mpsc::channel();
        let (held, ended) = mpsc::channel();
        let thread = thread::Builder::new().name("reshard-mpi".to_owned());
        let thread = thread.spawn(move || {
            run(source, settings, &ready, &told);
            drop(held);
        });
        let thread = thread.map_err(MpiError::Thread)?.thread().id();
        let mesh = match came.recv_timeout(settings.deadline.saturating_add(SLACK)) {
            Ok(outcome) => outcome?,
            Err(_) => return Err(missing(settings)),
        };
        Ok(Self {
            mesh,
            thread,
            end,
            ended,
        })
    }

    /// Leaves the job, and ends the thread.
    pub(crate) fn shut(&self, patience: Duration) {
        // What is not over when nobody waits any more.
        const SHORT: Duration = Duration::from_secs(5);
        // A waker that drops the last group makes the thread come here itself; it can't wait for itself.
        let is_self = thread::current().id() == self.thread;
        let patience = if is_self { Duration::ZERO } else { patience };
        // What a broken group wanted to send matters to nobody.
        let to_send = if self.mesh.is_broken() {
            patience.min(SHORT)
        } else {
            patience
        };
        let clean = self.mesh.shut(to_send, patience);
        if !clean {
            tracing::warn!("not all ranks left the MPI group in time; MPI is left as it is");
        }
        if self.end.send(clean).is_err() {
            tracing::error!("the thread that calls MPI ended before it was told to");
        }
        let limit = if clean { patience } else { SHORT };
        if !is_self && self.ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the MPI library does not finish in time");
        }
    }
}

fn missing(settings: Settings) -> MpiError {
    MpiError::Missing {
        seconds: settings.deadline.as_secs_f64(),
    }
}

/// All that the thread does.
fn run(
    source: Source,
    settings: Settings,
    ready: &SyncSender<Result<Arc<Mesh>>>,
    told: &Receiver<bool>,
) {
    let limit = Limit::after(settings.deadline);
    let (universe, mut work) = match prepare(source, settings, limit) {
        Ok(prepared) => prepared,
        Err((universe, e)) => {
            // Others may wait for this process, so MPI can't be finalized in order.
            std::mem::forget(universe);
            drop(ready.send(Err(e)));
            return;
        }
    };
    if ready.send(Ok(Arc::clone(&work.mesh))).is_err() {
        std::mem::forget(universe);
        return;
    }
    work.work();
    let clean = told.recv().unwrap_or(false);
    if work.leave(clean) {
        // Finalizes MPI, if it is this thread's.
        drop(universe);
    } else {
        std::mem::forget(universe);
    }
}

type Prepared = (Option<Universe>, Work);

fn prepare(
    source: Source,
    settings: Settings,
    limit: Limit,
) -> Result<Prepared, (Option<Universe>, MpiError)> {
    let (universe, handle) = match source {
        Source::Job(handle) => (None, handle),
        Source::Init => match environment::initialize_with_threading(Threading::Funneled) {
            // For MPI this is the main thread, because it initializes.
            Some((universe, granted)) if granted >= Threading::Funneled => {
                (Some(universe), Handle::of_all())
            }
            Some((universe, _)) => {
                let message = "it grants no threads at all".to_owned();
                let doing = "MPI_Init_thread";
                return Err((Some(universe), MpiError::Mpi { doing, message }));
            }
            None => return Err((None, MpiError::Initialized)),
        },
    };
    match duplicate(handle, settings, limit).and_then(|comm| Work::new(comm, settings)) {
        Ok(work) => Ok((universe, work)),
        Err(e) => Err((universe, e)),
    }
}

fn duplicate(handle: Handle, settings: Settings, limit: Limit) -> Result<Comm> {
    const PAUSE: Duration = Duration::from_micros(200);
    let mut duplicating = Duplicating::start(handle)?;
    loop {
        if let Some(comm) = duplicating.poll()? {
            return Ok(comm);
        }
        if limit.left().is_err() {
            return Err(missing(settings));
        }
        thread::sleep(PAUSE);
    }
}

/// The state of the thread.
struct Work {
    comm: Comm,
    mesh: Arc<Mesh>,
    tasks: Receiver<Task>,
    peers: BTreeMap<u32, Peer>,
    listening: Listening,
    settings: Settings,
    /// Whether MPI failed, so that nothing is sent or received any more.
    failed: bool,
}

impl Work {
    fn new(comm: Comm, settings: Settings) -> Result<Self> {
        let (me, size) = comm.place()?;
        let (mesh, tasks) = Mesh::new(me, size, FAN);
        let mut peers = BTreeMap::new();
        // MPI connects ranks when they need it, so each rank has a link to each other one from the beginning.
        for rank in (0..size).filter(|rank| *rank != me) {
            if let Admission::Yes(queue) = mesh.called_by(rank) {
                peers.insert(rank, Peer::new(rank, queue));
            }
        }
        let listening = Listening::start(&comm, HEADS)?;
        Ok(Self {
            comm,
            mesh: Arc::new(mesh),
            tasks,
            peers,
            listening,
            settings,
            failed: false,
        })
    }

    /// Moves messages until the mesh is shut.
    fn work(&mut self) {
        let mut pause = Pause::default();
        while !self.mesh.is_shut() {
            let seen = self.mesh.changes();
            match self.step() {
                Ok(moved) => pause.after(self, moved, seen),
                Err(why) => self.fail(&why),
            }
            if self.failed {
                pause.after(self, false, seen);
            }
        }
    }

    /// Looks once at all that is under way. Returns whether anything has happened.
    fn step(&mut self) -> Result<bool, String> {
        while let Ok(task) = self.tasks.try_recv() {
            // All ranks have links, so nobody looks elsewhere for news of a broken group.
            match task {
                Task::Dial(peer) => self
                    .mesh
                    .unreachable(peer, "can't be reached a second time"),
                Task::Publish(..) => {}
            }
            self.mesh.task_done();
        }
        if self.failed {
            return Ok(false);
        }
        if environment::is_finalized() {
            return Err("is lost: the job finalized MPI before it dropped the group".to_owned());
        }
        let lost = |e: MpiError| format!("is lost: {e}");
        let mut moved = false;
        while let Some((from, bytes)) = self.listening.poll().map_err(lost)? {
            moved = true;
            let announced = match self.peers.get_mut(&from) {
                Some(peer) if !peer.heard => peer.announced(bytes, self.settings.message_limit),
                _ => Err("sent something after its goodbye".to_owned()),
            };
            self.listening.again(&self.comm, HEADS).map_err(lost)?;
            if let Err(why) = announced {
                self.lose(from, &why);
            }
        }
        for rank in self.peers.keys().copied().collect::<Vec<_>>() {
            match self.serve(rank) {
                Ok(changed) => moved |= changed,
                Err(e) => self.lose(rank, &format!("vanished: {e}")),
            }
        }
        Ok(moved)
    }

    /// Sends to one rank, and receives from it.
    fn serve(&mut self, rank: u32) -> Result<bool> {
        let Some(peer) = self.peers.get_mut(&rank) else {
            return Ok(false);
        };
        let mut moved = false;
        if !peer.sent {
            moved |= peer.send(&self.comm, self.settings.part_limit, self.mesh.is_leaving())?;
            if peer.has_sent_all() {
                peer.sent = true;
                self.mesh.end_sending();
            }
        }
        if !peer.heard {
            moved |= peer.receive(&self.comm)?;
        }
        while let Some(message) = peer.arrived() {
            moved = true;
            if message.kind == Kind::Bye {
                self.mesh.gone(rank, message.goodbye());
                if !peer.heard {
                    peer.heard = true;
                    self.mesh.end_hearing();
                }
            } else {
                self.mesh.arrived(rank, message);
            }
        }
        Ok(moved)
    }

    /// Nothing comes from this rank any more, and it gets no more than a goodbye.
    fn lose(&mut self, rank: u32, why: &str) {
        tracing::debug!(rank, "lost: {why}");
        if let Some(peer) = self.peers.get_mut(&rank) {
            peer.give_up();
            if !std::mem::replace(&mut peer.heard, true) {
                self.mesh.end_hearing();
            }
        }
        self.mesh.gone(rank, why);
    }

    /// MPI can't be used any more.
    fn fail(&mut self, why: &str) {
        self.failed = true;
        for rank in self.peers.keys().copied().collect::<Vec<_>>() {
            self.lose(rank, why);
            if let Some(peer) = self.peers.get_mut(&rank)
                && !std::mem::replace(&mut peer.sent, true)
            {
                self.mesh.end_sending();
            }
        }
    }

    /// Gives back what MPI gave. Returns whether MPI may be finalized.
    fn leave(mut self, clean: bool) -> bool {
        if environment::is_finalized() {
            return false;
        }
        let cancelled = self.listening.cancel();
        // Others may still send to a rank that left too early.
        if !clean || self.failed {
            return false;
        }
        let freed = cancelled.and_then(|()| self.comm.free());
        freed
            .inspect_err(|e| tracing::warn!("the communicator is not freed: {e}"))
            .is_ok()
    }
}

/// How long the thread rests when nothing happens.
#[derive(Debug, Default)]
struct Pause {
    /// Since when nothing has happened.
    since: Option<Instant>,
}

impl Pause {
    /// Rests, unless something has happened. A change of the mesh since there were `seen` ends the rest.
    fn after(&mut self, work: &Work, moved: bool, seen: u64) {
        // Other threads and processes may need this processor, so the thread soon stops to ask all the time.
        const BUSY: Duration = Duration::from_micros(100);
        const MOVING: Duration = Duration::from_millis(50);
        const SHORTEST: Duration = Duration::from_micros(20);
        const WAITING: Duration = Duration::from_millis(1);
        const IDLE: Duration = Duration::from_millis(10);
        if moved {
            self.since = None;
            return;
        }
        let idle = self.since.get_or_insert_with(Instant::now).elapsed();
        // Many MPI libraries move bytes only while they are asked.
        let moving = work.peers.values().any(Peer::is_moving);
        if idle < BUSY || (moving && idle < MOVING) {
            return thread::yield_now();
        }
        let waits = moving || work.mesh.is_waiting();
        let longest = if waits { WAITING } else { IDLE };
        let rest = (idle / 4).clamp(SHORTEST, longest);
        work.mesh.wait_for_change(seen, Limit::after(rest));
    }
}
