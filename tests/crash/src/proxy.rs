//! A proxy between a client of HTTP and a server. What it does to chosen requests and their answers, a network may do.

mod fault;
mod message;

pub use fault::{FAULTS, Fault};

use self::{
    fault::{Answer, Carried, Then},
    message::Message,
};
use anyhow::{Context, Result};
use std::{
    io::{self, BufReader, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// How long a client may wait before it gives a stalled request up. The proxy waits no longer for that.
const PATIENCE: Duration = Duration::from_secs(20);

/// A proxy in this process. It lives as long as the process.
#[derive(Debug)]
pub struct Proxy {
    url: String,
    shared: Arc<Shared>,
}

/// What one operation asked for.
#[derive(Debug, Default)]
pub struct Seen {
    /// Methods and paths, in order.
    pub requests: Vec<String>,
    /// How many faults there were.
    pub faults: usize,
    /// Bytes of all bodies that the server has answered.
    pub bytes: u64,
    /// The longest time that the server took for an answer.
    pub slowest: Duration,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    state: Mutex<State>,
    settled: Condvar,
}

/// Says what happens to the request of this number.
type Plan = Box<dyn FnMut(usize) -> Option<Fault> + Send>;

#[derive(Default)]
struct State {
    plan: Option<Plan>,
    /// What happens to all requests from now on.
    lasting: Option<Fault>,
    seen: Seen,
    /// Requests that will still be carried out.
    late: usize,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

impl Proxy {
    /// Starts a proxy for the server at this URL.
    ///
    /// # Errors
    /// The URL has no host and port; no port can be opened.
    pub fn start(server: &str) -> Result<Self> {
        let address = server.strip_prefix("http://").context("no URL of http")?;
        let server = address
            .trim_end_matches('/')
            .parse()
            .context("no address")?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared {
            server,
            state: Mutex::default(),
            settled: Condvar::new(),
        });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                // A client that goes away is no failure of the proxy.
                thread::spawn(move || serve(&client, &shared).unwrap_or_default());
            }
        });
        Ok(Self { url, shared })
    }

    /// Where clients reach it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Counts requests from zero, and asks the plan what happens to each of them.
    pub fn begin(&self, plan: impl FnMut(usize) -> Option<Fault> + Send + 'static) {
        let mut state = self.shared.state();
        state.plan = Some(Box::new(plan));
        state.lasting = None;
        state.seen = Seen::default();
    }

    /// Waits until nothing is on its way any more, and says what there was. No request fails after that.
    pub fn end(&self) -> Seen {
        let mut state = self.shared.state();
        state.plan = None;
        state.lasting = None;
        while state.late > 0 {
            state = self
                .shared
                .settled
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::take(&mut state.seen)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request, and says what happens to it.
    fn next(&self, request: &Message) -> Option<Fault> {
        let mut state = self.state();
        let number = state.seen.requests.len();
        state.seen.requests.push(request.first.clone());
        let planned = match &mut state.plan {
            Some(plan) => plan(number),
            None => None,
        };
        let fault = planned.or(state.lasting)?;
        state.seen.faults += 1;
        if let Then::Ever(answer) = fault.then {
            state.lasting = Some(Fault::lasting(answer));
        }
        if fault.is_late() {
            state.late += 1;
        }
        Some(fault)
    }

    /// Carries a late request out, whatever comes of it.
    fn late(&self, request: &Message) {
        drop(self.ask(request));
        self.state().late -= 1;
        self.settled.notify_all();
    }

    fn ask(&self, request: &Message) -> io::Result<Message> {
        let begin = Instant::now();
        let mut server = TcpStream::connect(self.server)?;
        server.set_nodelay(true)?;
        // The server closes, so the answer ends where the stream does.
        server.write_all(&request.bytes(&["connection: close".into()]))?;
        let answer = Message::response(&mut BufReader::new(server), request.is("HEAD"))?;
        let mut state = self.state();
        state.seen.bytes += answer.body.len() as u64;
        state.seen.slowest = state.seen.slowest.max(begin.elapsed());
        Ok(answer)
    }
}

/// Answers the requests of one connection, until a fault ends it.
fn serve(client: &TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut reader = BufReader::new(client);
    while let Some(request) = Message::request(&mut reader)? {
        let fault = shared.next(&request);
        if !answer(client, shared, &request, fault)? {
            break;
        }
    }
    Ok(())
}

/// Whether the connection goes on.
fn answer(
    client: &TcpStream,
    shared: &Arc<Shared>,
    request: &Message,
    fault: Option<Fault>,
) -> io::Result<bool> {
    let Some(fault) = fault else {
        send(client, &shared.ask(request)?)?;
        return Ok(true);
    };
    let carried = match fault.carried {
        Carried::Not | Carried::Late => None,
        Carried::Once => Some(shared.ask(request)?),
        Carried::Twice => {
            drop(shared.ask(request)?);
            Some(shared.ask(request)?)
        }
        Carried::AgainLater => {
            let (shared, request) = (Arc::clone(shared), request.clone());
            let first = shared.ask(&request)?;
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(200));
                shared.late(&request);
            });
            Some(first)
        }
    };
    let goes_on = match (fault.answer, carried) {
        (Answer::AsItIs, Some(answer)) => send(client, &answer).map(|()| true),
        (Answer::Status(status), _) => send(client, &status.message(request)).map(|()| true),
        (Answer::CutOff, Some(answer)) => {
            let bytes = answer.bytes(&[]);
            let body = answer.body.len();
            (&*client).write_all(&bytes[..bytes.len() - body.div_ceil(2)])?;
            Ok(false)
        }
        (Answer::StallInBody, Some(answer)) => {
            let bytes = answer.bytes(&[]);
            let body = answer.body.len();
            (&*client).write_all(&bytes[..bytes.len() - body.div_ceil(2)])?;
            wait_for_end(client).map(|()| false)
        }
        (Answer::Range(odd), Some(answer)) => send(client, &odd.of(answer)).map(|()| true),
        (Answer::Reset, _) => {
            rustix::net::sockopt::set_socket_linger(client, Some(Duration::ZERO))?;
            Ok(false)
        }
        (Answer::Stall, _) => wait_for_end(client).map(|()| false),
        // The end of the stream instead of an answer.
        _ => client.shutdown(Shutdown::Both).map(|()| false),
    };
    if fault.carried == Carried::Late {
        shared.late(request);
    }
    goes_on
}

fn send(mut client: &TcpStream, answer: &Message) -> io::Result<()> {
    client.write_all(&answer.bytes(&[]))
}

/// Says nothing until the client has gone.
fn wait_for_end(mut client: &TcpStream) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    io::copy(&mut client, &mut io::sink()).map(drop).or(Ok(()))
}
