//! The thread that does what may block: connecting to other ranks, and telling the store why a group is broken.

use crate::{
    clock::Timed,
    connection::{self, Watch},
    files,
    handshake::{self, Token, Verdict},
    store::StoreClient,
};
use bytes::Bytes;
use reshard_comm::mesh::{Limit, Mesh, Task};
use std::{
    io,
    net::{SocketAddr, TcpStream},
    sync::{Arc, mpsc::Receiver},
    thread,
    time::Duration,
};

/// How long one handshake may take.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long a rank waits for the call of another one that said that it calls itself.
const CALL: Duration = Duration::from_secs(1);
/// How long the store has for an answer about a broken group.
const STORE: Duration = Duration::from_secs(5);

/// What a rank knows after the meeting.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) token: Token,
    /// Where each rank listens.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) store_host: String,
    pub(crate) store_port: u16,
    /// Begins the keys of this group in the store.
    pub(crate) prefix: String,
    /// How long a rank tries to connect to another one.
    pub(crate) deadline: Duration,
    pub(crate) watch: Watch,
}

/// Starts the thread. It ends when the mesh has been shut.
///
/// # Errors
/// The system starts no thread.
pub(crate) fn start(mesh: &Arc<Mesh>, job: Arc<Job>, tasks: Receiver<Task>) -> io::Result<()> {
    let mesh = Arc::clone(mesh);
    let keeper = thread::Builder::new().name("reshard-tasks".to_owned());
    keeper.spawn(move || {
        for task in tasks {
            let (worker, job) = (Arc::clone(&mesh), Arc::clone(&job));
            let peer = match task {
                Task::Dial(peer) => Some(peer),
                Task::Publish(..) => None,
            };
            let thread = thread::Builder::new().name("reshard-task".to_owned());
            let started = thread.spawn(move || {
                match task {
                    Task::Dial(peer) => dial(&worker, &job, peer),
                    Task::Publish(group, why) => publish(&job, group, &why),
                }
                worker.task_done();
            });
            if let Err(e) = started {
                if let Some(peer) = peer {
                    mesh.unreachable(peer, format!("can't be called: {e}"));
                }
                mesh.task_done();
            }
        }
    })?;
    Ok(())
}

/// Connects to a rank. It tries again until the deadline, because strangers may keep that rank busy.
fn dial(mesh: &Arc<Mesh>, job: &Job, peer: u32) {
    const SHORTEST: Duration = Duration::from_millis(5);
    const LONGEST: Duration = Duration::from_millis(500);
    let Some(address) = job.addresses.get(peer as usize).copied() else {
        return mesh.unreachable(peer, "has no address");
    };
    let limit = Limit::after(job.deadline);
    let mut pause = SHORTEST;
    while mesh.wants(peer) {
        let failed = match call(mesh, job, peer, address, limit) {
            Ok((stream, Verdict::Yes)) => {
                if let Some(messages) = mesh.reached(peer) {
                    connection::start(mesh, peer, stream, messages, job.watch);
                }
                return;
            }
            Ok((_, Verdict::Declined)) => {
                if mesh.wait_for_call(peer, limit.at_most(CALL)) {
                    return;
                }
                // It may have died before it called. Then the next call of this rank is refused.
                io::Error::new(io::ErrorKind::TimedOut, "it did not call")
            }
            Err(e) => e,
        };
        if files::are_too_many(&failed) {
            return mesh.unreachable(peer, format!("can't be called: {failed}; {}", files::HINT));
        }
        // Each rank listens before anybody learns its address, and as long as it lives.
        let is_dead = failed.kind() == io::ErrorKind::ConnectionRefused;
        if is_dead || limit.left().is_err() {
            look_for_cause(mesh, job, peer);
            let why = if is_dead {
                "it left or died"
            } else {
                "it is too late"
            };
            return mesh.unreachable(
                peer,
                format!("can't be reached at {address}: {failed}; {why}"),
            );
        }
        tracing::debug!(peer, "a call failed: {failed}");
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST);
    }
}

fn call(
    mesh: &Mesh,
    job: &Job,
    peer: u32,
    address: SocketAddr,
    limit: Limit,
) -> io::Result<(TcpStream, Verdict)> {
    let limit = limit.at_most(HANDSHAKE);
    let stream = TcpStream::connect_timeout(&address, limit.left()?)?;
    stream.set_nodelay(true)?;
    let mut timed = Timed {
        stream: &stream,
        limit,
    };
    let verdict = handshake::claim(&mut timed, &job.token, mesh.me(), peer)?;
    Ok((stream, verdict))
}

/// A rank that is gone may have left a reason in the store.
fn look_for_cause(mesh: &Mesh, job: &Job, peer: u32) {
    let limit = Limit::after(STORE);
    let groups = mesh.groups_with(peer);
    let Ok(mut store) = StoreClient::connect_once(&job.store_host, job.store_port, limit) else {
        return;
    };
    for group in groups {
        let key = key(job, group);
        if let (Ok(true), Ok(why)) = (store.has(&key, limit), store.get(&key, limit)) {
            mesh.learned(group, &why);
        }
    }
}

/// For ranks without a connection to this one, which may look for it later. It is best effort.
fn publish(job: &Job, group: u64, why: &Bytes) {
    let limit = Limit::after(STORE);
    let key = key(job, group);
    let published =
        StoreClient::connect_once(&job.store_host, job.store_port, limit).map(|mut store| {
            // The first cause counts.
            match store.has(&key, limit) {
                // Nothing answers a `set`, so ask whether it is there: then others see it, before this rank leaves.
                Ok(false) => store
                    .set(&key, why, limit)
                    .and_then(|()| store.has(&key, limit).map(drop)),
                other => other.map(drop),
            }
        });
    tracing::debug!(group, ?published, "told the store why the group is broken");
}

fn key(job: &Job, group: u64) -> String {
    format!("{}/broken/{group:016x}", job.prefix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;
    use reshard_comm::{
        ProcessGroup as _, Rank,
        mesh::{MeshGroup, Node},
    };
    use std::{net::TcpListener, sync::mpsc};

    /// A rank without threads.
    struct Alone;

    impl Node for Alone {}

    #[test]
    fn a_rank_that_dies_before_it_calls_itself_is_gone() {
        let token = Token::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let watch = Watch {
            heartbeat: Duration::from_secs(5),
            silence: Duration::from_secs(60),
            message_limit: 100,
        };
        let job = Job {
            token: token.clone(),
            addresses: vec![address, address],
            store_host: "127.0.0.1".to_owned(),
            store_port: 1,
            prefix: String::new(),
            deadline: Duration::from_secs(600),
            watch,
        };
        let (mesh, _tasks) = Mesh::new(1, 2, 64);
        let mesh = Arc::new(mesh);
        let group = MeshGroup::whole("TcpGroup", &mesh, Arc::new(Alone));
        block_on(group.gather(Bytes::new(), Rank(0))).unwrap();
        assert!(mesh.wants(0), "a message waits for a connection");
        let (done, waits) = mpsc::channel();
        let caller = Arc::clone(&mesh);
        thread::spawn(move || {
            dial(&caller, &job, 0);
            done.send(()).unwrap_or(());
        });
        // It says that it calls itself, and dies.
        let limit = Limit::after(Duration::from_secs(60));
        let (stream, _) = listener.accept().unwrap();
        let mut stream = Timed { stream, limit };
        let words = handshake::Words::hear(&mut stream).unwrap();
        words.member(&token, 0, 2).unwrap();
        drop(listener);
        let declined = words.answer(&mut stream, &token, Verdict::Declined);
        declined.unwrap();
        drop(stream);
        waits.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(!mesh.wants(0), "nobody waits for a rank that is gone");
    }
}
