//! A connection between two members: one thread reads it, one writes it.

use crate::frame;
use reshard_comm::mesh::{Kind, Mesh, Message};
use std::{
    io::{self, BufReader},
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

/// How the threads of a connection watch over it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    /// How often a rank that has nothing to say says that it is alive.
    pub(crate) heartbeat: Duration,
    /// How long a rank may be silent, or take no bytes.
    pub(crate) silence: Duration,
    /// How long a message may be.
    pub(crate) message_limit: u64,
}

/// Starts the threads of a connection to rank `peer`.
pub(crate) fn start(
    mesh: &Arc<Mesh>,
    peer: u32,
    stream: TcpStream,
    messages: Receiver<Message>,
    watch: Watch,
) {
    if let Err(e) = try_start(mesh, peer, stream, messages, watch) {
        mesh.gone(peer, format!("has no connection: {e}"));
    }
}

fn try_start(
    mesh: &Arc<Mesh>,
    peer: u32,
    stream: TcpStream,
    messages: Receiver<Message>,
    watch: Watch,
) -> io::Result<()> {
    let set = stream
        .set_nodelay(true)
        .and_then(|()| stream.set_read_timeout(Some(watch.silence)))
        .and_then(|()| stream.set_write_timeout(Some(watch.silence)));
    set.inspect_err(|_| never_used(mesh))?;
    let stream = Arc::new(stream);
    let ends = (Arc::clone(&stream), stream);
    let owners = (Arc::clone(mesh), Arc::clone(mesh));
    let reader = thread::Builder::new()
        .name(format!("reshard-from-{peer}"))
        .spawn(move || {
            let (mesh, stream) = (owners.0, ends.0);
            let why = read(&mesh, peer, &stream, watch);
            mesh.gone(peer, why);
            mesh.end_hearing();
        });
    reader.inspect_err(|_| never_used(mesh))?;
    let writer = thread::Builder::new()
        .name(format!("reshard-to-{peer}"))
        .spawn(move || {
            let (mesh, stream) = (owners.1, ends.1);
            if let Err(e) = write(&stream, &messages, watch) {
                mesh.gone(peer, vanished(&e, watch));
                // The reading thread ends, too.
                drop(stream.shutdown(Shutdown::Both));
            } else {
                drop(stream.shutdown(Shutdown::Write));
            }
            mesh.end_sending();
        });
    writer.map(drop).inspect_err(|_| mesh.end_sending())
}

/// The link has no threads.
pub(crate) fn never_used(mesh: &Mesh) {
    mesh.end_hearing();
    mesh.end_sending();
}

/// Reads until the end, and says why it is the end.
fn read(mesh: &Mesh, peer: u32, stream: &TcpStream, watch: Watch) -> String {
    let mut from = BufReader::with_capacity(64 << 10, stream);
    loop {
        match frame::read(&mut from, watch.message_limit) {
            Ok(Some(message)) if message.kind == Kind::Bye => {
                // From here on it reads nothing; the end of its stream comes soon.
                return message.goodbye();
            }
            Ok(Some(message)) => mesh.arrived(peer, message),
            Ok(None) => return "vanished: its connection was closed without a goodbye".to_owned(),
            Err(e) => {
                drop(stream.shutdown(Shutdown::Both));
                return vanished(&e, watch);
            }
        }
    }
}

/// Writes messages until there will be no more.
fn write(mut stream: &TcpStream, messages: &Receiver<Message>, watch: Watch) -> io::Result<()> {
    let alive = Message::notice(Kind::Alive, 0, bytes::Bytes::new());
    loop {
        match messages.recv_timeout(watch.heartbeat) {
            Ok(message) => frame::write(&message, &mut stream)?,
            Err(RecvTimeoutError::Timeout) => frame::write(&alive, &mut stream)?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

fn vanished(error: &io::Error, watch: Watch) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!(
                "vanished: it was silent for {} s",
                watch.silence.as_secs_f64()
            )
        }
        _ => format!("vanished: {error}"),
    }
}
