//! The pauses that services ask for.

use crate::services::server::{Answer, Server};
use futures::executor::block_on;
use reshard_model::ErrorKind;
use reshard_object_store::ObjectStores;
use reshard_storage::{Name, ServiceFault, StorageError, Store};
use std::{sync::Mutex, time::Duration};

/// Gives these answers, one after the other, and then a file.
fn server(answers: &[(&'static str, &'static str)]) -> Server {
    let last_first: Vec<_> = answers.iter().rev().copied().collect();
    let answers = Mutex::new(last_first);
    Server::start(move |asked| match answers.lock().unwrap().pop() {
        Some((status, pause)) => Answer::new(status, "later").with("Retry-After", pause),
        None => {
            let (from, to) = asked.range.unwrap();
            Answer::new("206 Partial Content", vec![b'x'; to - from + 1])
                .with("Content-Range", format!("bytes {from}-{to}/1000"))
                .with("Last-Modified", "Tue, 03 Nov 2026 10:00:00 GMT")
                .with("ETag", "\"1\"")
        }
    })
}

fn read(stores: &ObjectStores, server: &Server) -> Result<bytes::Bytes, StorageError> {
    let store = stores.open_place(&server.url).unwrap();
    block_on(store.read(&Name::new("a").unwrap(), 3..7))
}

/// A minute, which is much more than any request takes.
fn tries(retries: usize) -> ObjectStores {
    ObjectStores::new().with_retries(retries, Duration::from_secs(60))
}

#[test]
fn a_request_is_made_again_no_sooner_than_the_service_asks() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    for stores in [tries(3), tries(3).with_runtime(runtime.handle().clone())] {
        let server = server(&[
            ("429 Too Many Requests", "1"),
            ("503 Service Unavailable", "1"),
        ]);
        assert_eq!(read(&stores, &server).unwrap(), "xxxx");
        let asked = server.take();
        assert_eq!(asked.len(), 3, "{asked:#?}");
        assert!(asked.iter().all(|a| a.target == "/a"), "{asked:#?}");
        for (one, next) in asked.iter().zip(&asked[1..]) {
            let pause = next.came.duration_since(one.answered);
            assert!(pause >= Duration::from_secs(1), "{pause:?}");
        }
    }
}

/// The error of a read, after so many requests.
fn refused(stores: &ObjectStores, answers: &[(&'static str, &'static str)]) -> (String, usize) {
    let server = server(answers);
    let e = read(stores, &server).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    let StorageError::Service { fault, .. } = &e else {
        panic!("{e}")
    };
    assert_eq!(*fault, ServiceFault::Throttled, "{e}");
    (
        format!("{e} {:?}", std::error::Error::source(&e)),
        server.take().len(),
    )
}

#[test]
fn a_pause_that_does_not_fit_into_the_time_for_tries_ends_with_an_error_at_once() {
    for pause in [
        "999999999",
        "99999999999999999999",
        "Fri, 31 Dec 9999 23:59:59 GMT",
    ] {
        for status in ["429 Too Many Requests", "503 Service Unavailable"] {
            let (e, requests) = refused(&tries(9), &[(status, pause)]);
            assert!(e.contains("asks for a pause of "), "{e}");
            assert!(e.contains("and for 60 s"), "{e}");
            assert_eq!(requests, 1, "{e}");
        }
    }
    // The second one does not fit into what the first has left.
    let answers = [
        ("429 Too Many Requests", "1"),
        ("429 Too Many Requests", "60"),
    ];
    let (e, requests) = refused(&tries(9), &answers);
    assert!(e.contains("asks for a pause of 60 s"), "{e}");
    assert_eq!(requests, 2, "{e}");
}

#[test]
fn nobody_waits_if_nobody_tries_again() {
    let (e, requests) = refused(&tries(0), &[("429 Too Many Requests", "999999999")]);
    assert!(!e.contains("pause"), "{e}");
    assert_eq!(requests, 1, "{e}");
}
