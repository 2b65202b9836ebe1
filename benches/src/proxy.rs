//! A proxy between clients and a server. It makes each answer late, as a network does, and counts what passes.
//!
//! It knows nothing of HTTP but that an answer follows a request. Bytes go from socket to socket without a copy in this process.

use anyhow::{Context, Result};
use rustix::{
    io::ioctl_fionread,
    net::sockopt::set_tcp_quickack,
    pipe::{SpliceFlags, fcntl_setpipe_size, pipe, splice},
};
use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    ops::Sub,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// What is on its way in the proxy, in each direction of a connection.
const ON_ITS_WAY: usize = 256 << 10;

/// How long the proxy waits for more of a long answer if less than this has come, as network cards do. Otherwise a server that sends 4 KiB at a time
/// would wake the proxy and the client for each of them, and these would share the processors with little else.
const MOMENT: Duration = Duration::from_millis(3);
const MORE: u64 = 64 << 10;

/// A proxy in this process. It lives as long as the process.
pub(crate) struct Proxy {
    url: String,
    counts: Arc<Counts>,
}

/// What has passed since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passed {
    pub(crate) requests: u64,
    /// Bytes in both directions, with all headers.
    pub(crate) bytes: u64,
}

impl Passed {
    /// A share of it.
    pub(crate) fn per(self, times: u64) -> Self {
        Self {
            requests: self.requests / times,
            bytes: self.bytes / times,
        }
    }
}

impl Sub for Passed {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            requests: self.requests - earlier.requests,
            bytes: self.bytes - earlier.bytes,
        }
    }
}

#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Proxy {
    /// Starts a proxy for a server at an address like `http://127.0.0.1:80`. Each answer comes so much later.
    pub(crate) fn start(server: &str, delay: Duration) -> Result<Self> {
        let address = server.strip_prefix("http://").unwrap_or(server);
        let server: SocketAddr = address
            .trim_end_matches('/')
            .parse()
            .with_context(|| format!("{server} is no address"))?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        let counts = Arc::new(Counts::default());
        let shared = Arc::clone(&counts);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let counts = Arc::clone(&shared);
                // A client that goes away is no failure of the proxy.
                thread::spawn(move || drop(connect(&client, server, delay, &counts)));
            }
        });
        Ok(Self { url, counts })
    }

    /// Where clients reach it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn passed(&self) -> Passed {
        Passed {
            requests: self.counts.requests.load(Ordering::Relaxed),
            bytes: self.counts.bytes.load(Ordering::Relaxed),
        }
    }
}

/// Passes on what the two say, until both have ended.
fn connect(
    client: &TcpStream,
    server: SocketAddr,
    delay: Duration,
    counts: &Counts,
) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    // Whether something was asked that is not answered yet.
    let asked = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            drop(requests(client, &server, &asked, counts));
            server.shutdown(Shutdown::Write)
        });
        drop(answers(&server, client, &asked, delay, counts));
        // Nothing more can be asked, either.
        drop(server.shutdown(Shutdown::Both));
        client.shutdown(Shutdown::Both)
    })
}

fn requests(
    client: &TcpStream,
    server: &TcpStream,
    asked: &AtomicBool,
    counts: &Counts,
) -> io::Result<()> {
    let pipe = Pipe::new()?;
    loop {
        let bytes = pipe.take(client)?;
        if bytes == 0 {
            return Ok(());
        }
        asked.store(true, Ordering::Release);
        counts.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        pipe.give(server, bytes)?;
    }
}

fn answers(
    server: &TcpStream,
    client: &TcpStream,
    asked: &AtomicBool,
    delay: Duration,
    counts: &Counts,
) -> io::Result<()> {
    let pipe = Pipe::new()?;
    loop {
        let mut first = [0; 10];
        let seen = server.peek(&mut first)?;
        // "100 Continue" is no answer: the client goes on with its request, at once.
        let goes_on = first[..seen].starts_with(b"HTTP/1.1 1");
        if asked.swap(false, Ordering::AcqRel) && !goes_on {
            counts.requests.fetch_add(1, Ordering::Relaxed);
            thread::sleep(delay);
        } else if seen > 0 && !goes_on && ioctl_fionread(server)? < MORE {
            thread::sleep(MOMENT);
        }
        let bytes = pipe.take(server)?;
        if bytes == 0 {
            return Ok(());
        }
        counts.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        // A server that sends no packet before the last one is acknowledged would wait 40 ms for that, once or twice in each short answer.
        set_tcp_quickack(server, true)?;
        pipe.give(client, bytes)?;
    }
}

/// Memory of the system between two sockets.
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipe {
    fn new() -> io::Result<Self> {
        let (read, write) = pipe()?;
        // With less it is only slower.
        fcntl_setpipe_size(&write, ON_ITS_WAY).unwrap_or_default();
        Ok(Self { read, write })
    }

    /// Takes what has come; 0 at the end.
    fn take(&self, from: &TcpStream) -> io::Result<usize> {
        let flags = SpliceFlags::MOVE;
        Ok(splice(from, None, &self.write, None, ON_ITS_WAY, flags)?)
    }

    fn give(&self, to: &TcpStream, mut bytes: usize) -> io::Result<()> {
        while bytes > 0 {
            match splice(&self.read, None, to, None, bytes, SpliceFlags::MOVE)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                given => bytes -= given,
            }
        }
        Ok(())
    }
}

/// Bytes in a second that a proxy passes on through so many connections, with a sender and a receiver that do nothing else.
pub(crate) fn speed(connections: usize) -> Result<f64> {
    const ALL: usize = 4 << 30;
    const BLOCK: usize = 1 << 20;
    let each = ALL / connections;
    let sender = TcpListener::bind("127.0.0.1:0")?;
    let address = sender.local_addr()?.to_string();
    thread::spawn(move || {
        for stream in sender.incoming().take(connections).flatten() {
            thread::spawn(move || send(stream, each, BLOCK));
        }
    });
    let proxy = Proxy::start(&address, Duration::ZERO)?;
    let address = proxy.url().trim_start_matches("http://").to_owned();
    let start = Instant::now();
    let receivers: Vec<_> = (0..connections)
        .map(|_| {
            let address = address.clone();
            thread::spawn(move || receive(&address, each, BLOCK))
        })
        .collect();
    for receiver in receivers {
        let received = receiver.join();
        received.map_err(|_| anyhow::anyhow!("a receiver panicked"))??;
    }
    Ok(ALL as f64 / start.elapsed().as_secs_f64())
}

fn send(mut stream: TcpStream, mut bytes: usize, block: usize) -> io::Result<()> {
    stream.read_exact(&mut [0])?;
    let memory = vec![1; block];
    while bytes > 0 {
        let some = bytes.min(block);
        stream.write_all(&memory[..some])?;
        bytes -= some;
    }
    Ok(())
}

fn receive(address: &str, mut bytes: usize, block: usize) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(&[0])?;
    let mut memory = vec![0; block];
    while bytes > 0 {
        match stream.read(&mut memory)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            some => bytes = bytes.saturating_sub(some),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    /// A server of one connection. It answers each line with this, and then with the line.
    fn server(before: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            while reader.read_line(&mut line).unwrap() > 0 {
                (&stream).write_all(before.as_bytes()).unwrap();
                (&stream).write_all(line.as_bytes()).unwrap();
                line.clear();
            }
        });
        format!("http://{address}")
    }

    fn ask(before: &'static str, delay: Duration, requests: u64) -> (Proxy, Duration) {
        let proxy = Proxy::start(&server(before), delay).unwrap();
        let address = proxy.url().trim_start_matches("http://");
        let stream = TcpStream::connect(address).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let start = Instant::now();
        for request in 0..requests {
            let line = format!("request {request}\n");
            (&stream).write_all(line.as_bytes()).unwrap();
            let mut answer = String::new();
            while !answer.ends_with(&line) {
                assert!(reader.read_line(&mut answer).unwrap() > 0);
            }
            assert_eq!(answer, format!("{before}{line}"));
        }
        (proxy, start.elapsed())
    }

    #[test]
    fn each_answer_comes_later_and_is_counted() {
        let delay = Duration::from_millis(30);
        let (proxy, took) = ask("", delay, 5);
        assert!(took >= 5 * delay, "{took:?}");
        let Passed { requests, bytes } = proxy.passed();
        assert_eq!((requests, bytes), (5, 2 * 5 * "request 0\n".len() as u64));
    }

    #[test]
    fn a_word_to_go_on_is_no_answer() {
        let (proxy, _) = ask("HTTP/1.1 100 Continue\r\n\r\n", Duration::from_secs(100), 1);
        assert_eq!(proxy.passed().requests, 0);
    }
}
