use super::wire::{self, CANCEL_WAIT, MAGIC, Request};
use crate::files;
use std::{
    collections::BTreeMap,
    fmt, io,
    io::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// How many connections there may be at a time. Further ones are closed.
const CONNECTIONS: usize = 1 << 16;
/// How many bytes all keys and values may have.
const BYTES: usize = 256 << 20;
/// How long a new connection has for its first request.
const GREETING: Duration = Duration::from_secs(5);
/// How often a waiting connection looks whether its client is still there.
const LOOK: Duration = Duration::from_millis(100);
/// The stack of a thread that serves one connection.
const STACK: usize = 256 << 10;

/// A store that speaks PyTorch's TCPStore protocol, for jobs in which nobody else serves one.
///
/// It has the requests that PyTorch's clients use for `set`, `get`, `add`, `check`, `wait`, `compare_set`, `delete_key`
/// and `num_keys`. A request that it does not know closes the connection. Keys, values, their sum, and the number of
/// connections are bounded. Like PyTorch's store it asks nobody who they are, so bind it to an address that only the job
/// can reach.
///
/// It stops when it is dropped.
///
/// ```
/// use reshard_comm_tcp::StoreServer;
///
/// let server = StoreServer::bind("127.0.0.1:0".parse()?)?;
/// assert_ne!(server.address().port(), 0, "the system chose a port");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StoreServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Whether the store ends with this value.
    stops: bool,
}

impl StoreServer {
    /// Serves a store at `address`. Port 0 lets the system choose.
    ///
    /// # Errors
    /// Those of binding and of starting a thread.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        thread::Builder::new()
            .name("reshard-store".to_owned())
            .spawn(move || accepting.accept(&listener))?;
        Ok(Self {
            address,
            shared,
            stops: true,
        })
    }

    /// Where the store listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets the store run until the process ends.
    pub fn detach(mut self) {
        self.stops = false;
    }
}

impl fmt::Debug for StoreServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreServer({})", self.address)
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        if !self.stops {
            return;
        }
        let mut state = self.shared.state();
        state.stopped = true;
        for stream in state.connections.values() {
            drop(stream.shutdown(Shutdown::Both));
        }
        drop(state);
        self.shared.changed.notify_all();
        wake_listener(self.address);
    }
}

/// Connects to a listener of this process, so that its thread looks up and sees that it shall end.
pub(crate) fn wake_listener(mut address: SocketAddr) {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    drop(TcpStream::connect_timeout(&address, Duration::from_secs(1)));
}

/// A store without connections.
#[cfg(feature = "testkit")]
pub(crate) type StoreAnswers = Shared;

#[derive(Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
    connections: BTreeMap<u64, Arc<TcpStream>>,
    accepted: u64,
    stopped: bool,
}

impl State {
    /// # Errors
    /// `OutOfMemory` if the store is full.
    fn set(&mut self, key: Vec<u8>, value: Vec<u8>) -> io::Result<()> {
        let old = self.values.get(&key).map_or(0, |old| key.len() + old.len());
        let bytes = self.bytes - old + key.len() + value.len();
        if bytes > BYTES {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.bytes = bytes;
        self.values.insert(key, value);
        Ok(())
    }

    fn has_all(&self, keys: &[Vec<u8>]) -> bool {
        keys.iter().all(|key| self.values.contains_key(key))
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            if self.state().stopped {
                return;
            }
            match accepted {
                Ok((stream, _)) => self.admit(stream),
                // For example, too many open files: it must not become a busy loop.
                Err(e) => {
                    tracing::warn!("nobody gets to the store: {e}; {}", files::HINT);
                    thread::sleep(LOOK);
                }
            }
        }
    }

    fn admit(self: &Arc<Self>, stream: TcpStream) {
        let stream = Arc::new(stream);
        let mut state = self.state();
        if state.connections.len() >= CONNECTIONS {
            return;
        }
        state.accepted += 1;
        let id = state.accepted;
        state.connections.insert(id, Arc::clone(&stream));
        drop(state);
        let serving = Arc::clone(self);
        let thread = thread::Builder::new().stack_size(STACK);
        let spawned = thread.name("reshard-store".to_owned()).spawn(move || {
            if let Err(e) = serving.serve(&stream) {
                tracing::debug!("a connection to the store ended: {e}");
            }
            drop(stream.shutdown(Shutdown::Both));
            serving.state().connections.remove(&id);
        });
        if spawned.is_err() {
            self.state().connections.remove(&id);
        }
    }

    fn serve(&self, mut stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(GREETING))?;
        if Request::read(stream)? != Some(Request::Validate(MAGIC)) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // A member may be silent for as long as it likes.
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(GREETING))?;
        let mut from = io::BufReader::new(stream);
        while let Some(request) = Request::read(&mut from)? {
            let answer = match request {
                Request::Wait(keys) if from.buffer().is_empty() => {
                    vec![u8::from(!self.wait(&keys, stream)?)]
                }
                other => self.answer(other)?,
            };
            stream.write_all(&answer)?;
        }
        Ok(())
    }

    pub(crate) fn answer(&self, request: Request) -> io::Result<Vec<u8>> {
        let brings = matches!(
            request,
            Request::Set(..) | Request::CompareSet(..) | Request::Add(..)
        );
        let mut state = self.state();
        let answer = match request {
            Request::Set(key, value) => {
                state.set(key, value)?;
                Vec::new()
            }
            Request::CompareSet(key, expected, value) => {
                let old = state.values.get(&key);
                // As in PyTorch: a missing key is only set if nothing is expected.
                if old.map_or(expected.is_empty(), |old| *old == expected) {
                    let answer = wire::counted(&value);
                    state.set(key, value)?;
                    answer
                } else {
                    wire::counted(old.unwrap_or(&expected))
                }
            }
            Request::Get(key) => wire::counted(state.values.get(&key).map_or(&[], Vec::as_slice)),
            Request::Add(key, number) => {
                let old = state.values.get(&key).map(|old| std::str::from_utf8(old));
                let old: Option<i64> = match old {
                    None => Some(0),
                    Some(text) => text.ok().and_then(|text| text.parse().ok()),
                };
                let sum = old.and_then(|old| old.checked_add(number));
                let sum = sum.ok_or(io::ErrorKind::InvalidData)?;
                state.set(key, sum.to_string().into_bytes())?;
                sum.to_ne_bytes().to_vec()
            }
            Request::Check(keys) | Request::Wait(keys) => vec![u8::from(!state.has_all(&keys))],
            Request::Count => (state.values.len() as u64).to_ne_bytes().to_vec(),
            Request::Delete(key) => {
                let old = state.values.remove(&key);
                state.bytes -= old.as_ref().map_or(0, |old| key.len() + old.len());
                i64::from(old.is_some()).to_ne_bytes().to_vec()
            }
            Request::CancelWait => vec![1],
            Request::Ping(nonce) => nonce.to_ne_bytes().to_vec(),
            Request::Validate(_) => return Err(io::ErrorKind::InvalidData.into()),
        };
        drop(state);
        if brings {
            self.changed.notify_all();
        }
        Ok(answer)
    }

    /// Whether all keys exist now. `false` if the client gave up waiting.
    fn wait(&self, keys: &[Vec<u8>], stream: &TcpStream) -> io::Result<bool> {
        let mut state = self.state();
        loop {
            if state.has_all(keys) {
                return Ok(true);
            }
            if state.stopped {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            let (woken, waited) = self
                .changed
                .wait_timeout(state, LOOK)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if waited.timed_out() {
                drop(state);
                if cancelled(stream)? {
                    return Ok(false);
                }
                state = self.state();
            }
        }
    }
}

/// Whether the client of a `Wait` has sent `CancelWait`.
///
/// # Errors
/// `ConnectionAborted` if the client went away, `InvalidData` if it sent something else.
fn cancelled(mut stream: &TcpStream) -> io::Result<bool> {
    use io::Read as _;
    let mut next = [0];
    stream.set_nonblocking(true)?;
    let peeked = stream.peek(&mut next);
    stream.set_nonblocking(false)?;
    match peeked {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(e) => Err(e),
        Ok(0) => Err(io::ErrorKind::ConnectionAborted.into()),
        Ok(_) if next == [CANCEL_WAIT] => stream.read_exact(&mut next).map(|()| true),
        Ok(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}
