//! A plain web server for a folder: files, and ranges of them. It can't list.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    net::{TcpListener, TcpStream},
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

/// What a server was asked.
#[derive(Clone, Debug, Default)]
pub struct Requests(Arc<Mutex<Vec<String>>>);

impl Requests {
    /// The method and the path of each request since this was asked.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, request: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(request.trim_end_matches(" HTTP/1.1").into());
    }
}

/// Serves the files below a folder until the process ends. Returns the URL of the folder.
///
/// # Errors
/// No port can be opened.
pub fn serve(folder: &Path) -> io::Result<String> {
    Ok(serve_and_tell(folder)?.0)
}

/// The same, and tells what it is asked.
///
/// # Errors
/// No port can be opened.
pub fn serve_and_tell(folder: &Path) -> io::Result<(String, Requests)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    let (folder, requests) = (folder.to_path_buf(), Requests::default());
    let told = requests.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (folder, requests) = (folder.clone(), requests.clone());
            // A client that goes away is no failure of the server.
            thread::spawn(move || answer(&stream, &folder, &requests).unwrap_or_default());
        }
    });
    Ok((url, told))
}

fn answer(mut stream: &TcpStream, folder: &Path, requests: &Requests) -> io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    requests.add(&request);
    let mut range = None;
    for line in lines {
        let line = line?.to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(bytes) = line.strip_prefix("range: bytes=") {
            range = bytes
                .split_once('-')
                .map(|(from, to)| (from.parse(), to.parse()));
        }
    }
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let Some(mut file) = file_of(folder, path) else {
        return stream.write_all(
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
    };
    let len = file.metadata()?.len();
    let (status, from, to) = match range {
        Some((Ok(from), _)) if from >= len => {
            let none = "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            return stream.write_all(none.as_bytes());
        }
        Some((Ok(from), to)) => (
            "206 Partial Content",
            from,
            to.map_or(len, |to: u64| len.min(to.saturating_add(1))),
        ),
        _ => ("200 OK", 0, len),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{}/{len}\r\nETag: \"1\"\r\n\
         Last-Modified: Tue, 03 Nov 2026 10:00:00 GMT\r\nConnection: close\r\n\r\n",
        to - from,
        to.saturating_sub(1),
    );
    stream.write_all(head.as_bytes())?;
    if method == "HEAD" {
        return Ok(());
    }
    file.seek(SeekFrom::Start(from))?;
    io::copy(&mut file.take(to - from), &mut stream).map(drop)
}

/// The file that the path of a request means, if it lies below the folder.
fn file_of(folder: &Path, path: &str) -> Option<File> {
    let decoded = decoded(path)?;
    let path = PathBuf::from(decoded.strip_prefix('/')?);
    let inside = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    let path = folder.join(path);
    (inside && path.is_file()).then(|| File::open(path).ok())?
}

/// A path without percent signs.
fn decoded(path: &str) -> Option<String> {
    let (mut out, mut rest) = (Vec::new(), path.as_bytes());
    while let [first, more @ ..] = rest {
        rest = more;
        out.push(*first);
        if let (b'%', [high, low, more @ ..]) = (first, rest) {
            let hex = [*high, *low];
            out.pop();
            out.push(u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?);
            rest = more;
        }
    }
    String::from_utf8(out).ok()
}
