//! A server in this process, for answers that a service gives seldom.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Instant,
};

/// A request that has come.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Its method.
    pub(crate) method: String,
    /// Its path and query.
    pub(crate) target: String,
    /// Names have small letters.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
    /// The first and the last byte that it asks for.
    pub(crate) range: Option<(usize, usize)>,
    pub(crate) came: Instant,
    /// When its answer was ready.
    pub(crate) answered: Instant,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Such as `200 OK`.
    pub(crate) status: &'static str,
    /// Each with a line break at its end.
    pub(crate) headers: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn new(status: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: String::new(),
            body: body.into(),
        }
    }

    pub(crate) fn with(mut self, header: &str, value: impl std::fmt::Display) -> Self {
        self.headers.push_str(&format!("{header}: {value}\r\n"));
        self
    }
}

/// It lives as long as the process.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// Answers each request, one after the other.
    pub(crate) fn start(answer: impl Fn(&Asked) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let seen = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Some(mut request) = request(&stream) else {
                    continue;
                };
                let answer = answer(&request);
                request.answered = Instant::now();
                let is_head = request.method == "HEAD";
                seen.lock().unwrap().push(request);
                send(&stream, &answer, is_head);
            }
        });
        Self { url, asked }
    }

    /// The requests that have come since this was asked.
    pub(crate) fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

fn request(stream: &TcpStream) -> Option<Asked> {
    let came = Instant::now();
    let mut lines = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        lines.read_line(&mut line).ok()?;
        Some(line.trim().to_owned())
    };
    let first = line()?;
    let mut words = first.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next()?, words.next()?);
    let mut headers = BTreeMap::new();
    while let Some((name, value)) = line()?.split_once(": ") {
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").map(|n| n.parse());
    let mut body = vec![0; length.unwrap_or(Ok(0)).ok()?];
    lines.read_exact(&mut body).ok()?;
    let range = headers.get("range").and_then(|range| {
        let (from, to) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some((from.parse().ok()?, to.parse().ok()?))
    });
    Some(Asked {
        method,
        target,
        headers,
        body,
        range,
        came,
        answered: came,
    })
}

fn send(mut stream: &TcpStream, answer: &Answer, is_head: bool) {
    let Answer {
        status,
        headers,
        body,
    } = answer;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n{headers}\r\n",
        body.len()
    );
    // A client that goes away is no failure of the server.
    stream.write_all(head.as_bytes()).unwrap_or(());
    if !is_head {
        stream.write_all(body).unwrap_or(());
    }
}
