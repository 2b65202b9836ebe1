//! Files behind a plain web server are read by ranges, and nothing else.

#![cfg(feature = "http")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use bytes::Bytes;
use futures::executor::block_on;
use reshard_model::ErrorKind;
use reshard_object_store::ObjectStores;
use reshard_storage::{Depth, Hints, IfExists, Name, PlaceKind, StorageError, Store};
use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// A web server that knows one file, and ranges of it, unless it is told to forget them.
struct Server {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
    without_ranges: Arc<AtomicBool>,
    tag: Arc<Mutex<&'static str>>,
}

const PATH: &str = "/runs/a%20b/model.bin";

fn answer(
    stream: TcpStream,
    file: &Bytes,
    seen: &Mutex<Vec<String>>,
    without_ranges: bool,
    tag: &str,
) {
    let mut lines = BufReader::new(&stream);
    let (mut line, mut range, mut met) = (String::new(), None, true);
    lines.read_line(&mut line).unwrap();
    loop {
        let mut header = String::new();
        lines.read_line(&mut header).unwrap();
        let header = header.trim();
        if header.is_empty() {
            break;
        }
        // A weak tag never meets a condition.
        if let Some((_, wanted)) = header
            .split_once(": ")
            .filter(|(key, _)| key.eq_ignore_ascii_case("if-match"))
        {
            met = wanted == tag && !tag.starts_with("W/");
        }
        let header = header.to_ascii_lowercase();
        if let Some(bytes) = header.strip_prefix("range: bytes=") {
            let (from, to) = bytes.split_once('-').unwrap();
            let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
            range = (!without_ranges).then(|| from..file.len().min(to.saturating_add(1)));
        }
    }
    seen.lock().unwrap().push(line.trim().to_owned());
    let mut words = line.split_whitespace();
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let (status, extra, body) = match range {
        _ if path != PATH => ("404 Not Found", String::new(), &b""[..]),
        _ if !met => ("412 Precondition Failed", String::new(), &b""[..]),
        Some(range) if range.start >= file.len() => {
            ("416 Range Not Satisfiable", String::new(), &b""[..])
        }
        Some(range) => {
            let of = format!(
                "Content-Range: bytes {}-{}/{}\r\n",
                range.start,
                range.end - 1,
                file.len()
            );
            ("206 Partial Content", of, &file[range])
        }
        None => ("200 OK", String::new(), &file[..]),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: {tag}\r\n\
         Last-Modified: Tue, 03 Nov 2026 10:00:00 GMT\r\nConnection: close\r\n{extra}\r\n",
        body.len()
    );
    let body = if method == "HEAD" { &b""[..] } else { body };
    let mut stream = &stream;
    stream.write_all(head.as_bytes()).unwrap_or(());
    stream.write_all(body).unwrap_or(());
}

fn serve(file: Bytes) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/runs/a%20b", listener.local_addr().unwrap());
    let (requests, without_ranges) = (Arc::default(), Arc::new(AtomicBool::new(false)));
    let tag = Arc::new(Mutex::new("\"1\""));
    let server = Server {
        url,
        requests: Arc::clone(&requests),
        without_ranges: Arc::clone(&without_ranges),
        tag: Arc::clone(&tag),
    };
    // It lives as long as the process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            answer(
                stream.unwrap(),
                &file,
                &requests,
                without_ranges.load(Ordering::Relaxed),
                *tag.lock().unwrap(),
            );
        }
    });
    server
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

#[test]
fn a_file_of_a_web_server_is_read_by_ranges_without_a_request_before() {
    let file: Bytes = (0..100_000_u32).map(|i| (i / 7) as u8).collect();
    let server = serve(file.clone());
    let stores = ObjectStores::new().with_retries(0, Duration::from_secs(10));
    let store = stores.open_place(&server.url).unwrap();
    let model = name("model.bin");
    block_on(async {
        assert_eq!(store.read(&model, 5..50).await.unwrap(), file.slice(5..50));
        assert_eq!(
            store.read_all(&model, 1 << 20).await.unwrap().unwrap(),
            file
        );
    });
    let seen = std::mem::take(&mut *server.requests.lock().unwrap());
    assert_eq!(seen, vec![format!("GET {PATH} HTTP/1.1"); 2]);
    block_on(async {
        let head = store.head(&model).await.unwrap().unwrap();
        assert_eq!(head.bytes, 100_000);
        assert!(head.modified.is_some());
        assert_eq!(store.read_all(&name("other"), 10).await.unwrap(), None);
        assert!(store.head(&name("other")).await.unwrap().is_none());
        for range in [99_999..100_001, 200_000..200_001] {
            let e = store.read(&model, range).await.unwrap_err();
            assert!(
                matches!(e, StorageError::Short { size: 100_000, .. }),
                "{e}"
            );
        }
    });

    // A file is a place of its own.
    let file_url = format!("{}/model.bin", server.url);
    let one = stores.open_place(&file_url).unwrap();
    let one = one.of_kind(PlaceKind::File).unwrap();
    let top = block_on(one.list(None, Depth::One)).unwrap();
    assert_eq!(top.names().collect::<Vec<_>>(), ["model.bin"]);
    assert_eq!(block_on(one.read(&model, 1..3)).unwrap(), file.slice(1..3));
}

#[test]
fn a_file_with_a_weak_tag_is_read_as_often_as_one_likes_until_it_is_replaced() {
    let file: Bytes = (0..100_000_u32).map(|i| (i / 7) as u8).collect();
    let server = serve(file.clone());
    let tag = |tag| *server.tag.lock().unwrap() = tag;
    tag("W/\"1\"");
    let stores = ObjectStores::new()
        .with_retries(0, Duration::from_secs(10))
        .with_hints(Hints::default().with_part_size(30_000));
    let store = stores.open_place(&server.url).unwrap();
    let model = name("model.bin");
    block_on(async {
        // All parts of a long read, and several reads of one version.
        let all = store.read(&model, 0..100_000).await.unwrap();
        assert_eq!(all, file);
        let pinned = store.pinned().await.unwrap().unwrap();
        for _ in 0..2 {
            let part = pinned.read(&model, 5..50).await.unwrap();
            assert_eq!(part, file.slice(5..50));
            assert_eq!(pinned.head(&model).await.unwrap().unwrap().bytes, 100_000);
        }
        assert!(pinned.read_all(&model, 1 << 20).await.unwrap().is_some());
        // Nothing is kept by a tag that does not promise equal bytes.
        assert!(pinned.tags(&model).await.unwrap().is_none());

        tag("W/\"2\"");
        let e = pinned.read(&model, 5..50).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        let e = pinned.head(&model).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        assert!(store.read(&model, 5..50).await.is_ok());
    });
}

#[test]
fn what_a_web_server_can_not_do_is_said() {
    let server = serve(Bytes::from_static(b"0123456789"));
    let stores = ObjectStores::new().with_retries(0, Duration::from_secs(10));
    let store = stores.open_place(&server.url).unwrap();
    block_on(async {
        let e = store.list(None, Depth::One).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(
            e.to_string().contains("a web server can only be read"),
            "{e}"
        );
        let e = store.begin("a", IfExists::Refuse).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(store.recovery().is_none());
    });
    let signed = format!("{}/model.bin?X-Amz-Signature=secret", server.url);
    let e = stores.open_place(&signed).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("a signed URL"), "{e}");
    assert!(!e.to_string().contains("secret"), "{e}");
    assert!(server.requests.lock().unwrap().is_empty());

    // A server that sends all of a file instead of a range would fill memory with it.
    server.without_ranges.store(true, Ordering::Relaxed);
    let e = block_on(store.read(&name("model.bin"), 2..4)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert!(e.to_string().contains("Range request not supported"), "{e}");
}

#[test]
fn a_server_that_is_not_there_can_not_be_reached() {
    // Nobody may listen at this port but the system.
    let url = "http://127.0.0.1:1/a";
    let stores = ObjectStores::new().with_retries(1, Duration::from_secs(10));
    let store = stores.open_place(url).unwrap();
    let e = block_on(store.read(&name("b"), 0..1)).unwrap_err();
    let StorageError::Service { fault, .. } = &e else {
        panic!("{e}")
    };
    assert_eq!(*fault, reshard_storage::ServiceFault::Unreachable, "{e}");
    assert!(
        e.to_string().contains("at most 1 times and for 10 s"),
        "{e}"
    );
}
