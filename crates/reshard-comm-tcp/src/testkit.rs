//! For tests and fuzzing: what reads bytes from other processes, held against any bytes.
//!
//! Each function lays the input over bytes that are right (exclusive or; what is longer is appended). So the empty input is
//! right, and small changes of it come deep. The first byte chooses between several of them.

#![expect(clippy::panic, reason = "tests fail by panicking")]

use crate::{
    frame,
    handshake::{self, Token, Words},
    store::{Request, StoreAnswers, StoreClient, read_value},
};
use reshard_comm::mesh::{Call, Kind, Limit, Mesh, MeshGroup, Message, Node};
use std::{
    io::{self, Read, Write},
    sync::Arc,
    time::Duration,
};

/// More than a frame, less than what a fuzzer takes long for.
const MESSAGE_LIMIT: u64 = 1 << 20;

/// Lays `input` over one of `right`.
fn over(right: &[Vec<u8>], input: &[u8]) -> Vec<u8> {
    let (choice, input) = input.split_first().unwrap_or((&0, &[]));
    let mut bytes = right
        .get(usize::from(*choice) % right.len().max(1))
        .cloned()
        .unwrap_or_default();
    bytes.resize(bytes.len().max(input.len()), 0);
    bytes
        .iter_mut()
        .zip(input)
        .for_each(|(byte, by)| *byte ^= by);
    bytes
}

/// Waits until a store of this host has a key.
///
/// # Errors
/// Those of the store.
pub fn wait_for_key(port: u16, key: &str) -> crate::Result<()> {
    let limit = Limit::after(Duration::from_secs(300));
    let mut store = StoreClient::connect("127.0.0.1", port, limit)?;
    store.get(key, limit).map(drop)
}

/// Frames of a member: rank 1 of 3 sends them to rank 0, which is in the group of all.
///
/// # Panics
/// If right frames are refused, or a message is longer than its bytes.
pub fn frames(input: &[u8]) {
    let call = |number, method| Call {
        number,
        method,
        root: 0,
    };
    let message = |kind, body: &'static [u8]| Message {
        kind,
        group: 0,
        call: call(3, 4),
        about: 1,
        body: body.into(),
    };
    let written = |messages: &[Message]| {
        let mut out = Vec::new();
        messages
            .iter()
            .for_each(|message| drop(frame::write(message, &mut out)));
        out
    };
    let right = [
        written(&[
            message(Kind::Data, b"some bytes"),
            message(Kind::Alive, b""),
        ]),
        written(&[message(Kind::Used, &[1; 16]), message(Kind::Leave, &[1])]),
        written(&[
            message(Kind::Abort, b"\x00\x04boom\x00"),
            message(Kind::Bye, b""),
        ]),
    ];
    let bytes = over(&right, input);
    let (mesh, _tasks) = Mesh::new(0, 3, 2);
    let mesh = Arc::new(mesh);
    let _group = MeshGroup::whole("TcpGroup", &mesh, Arc::new(Alone));
    let (mut from, mut read) = (bytes.as_slice(), 0);
    loop {
        match frame::read(&mut from, MESSAGE_LIMIT) {
            Ok(Some(message)) => {
                assert!(
                    message.body.len() <= bytes.len(),
                    "it has more than was sent"
                );
                read += 1;
                mesh.arrived(1, message);
            }
            Ok(None) => break,
            Err(_) if !right.contains(&bytes) => break,
            Err(e) => panic!("right frames are refused after {read}: {e}"),
        }
    }
}

/// A rank without threads and connections.
struct Alone;

impl Node for Alone {}

/// Requests of clients, and a store that answers them; then the same bytes as its answers.
///
/// # Panics
/// If right requests are refused.
pub fn requests(input: &[u8]) {
    let (k, v) = (|| b"/k".to_vec(), || b"3".to_vec());
    let encoded = |requests: &[Request]| {
        requests
            .iter()
            .flat_map(Request::encode)
            .collect::<Vec<u8>>()
    };
    let right = [
        encoded(&[
            Request::Set(k(), v()),
            Request::Get(k()),
            Request::Add(k(), 4),
            Request::Count,
        ]),
        encoded(&[
            Request::Ping(7),
            Request::Check(vec![k(), v()]),
            Request::Wait(vec![k()]),
        ]),
        encoded(&[
            Request::CompareSet(k(), Vec::new(), v()),
            Request::Delete(k()),
            Request::CancelWait,
        ]),
    ];
    let bytes = over(&right, input);
    let (mut from, store) = (bytes.as_slice(), StoreAnswers::default());
    loop {
        match Request::read(&mut from) {
            // Wrong requests are errors, which close the connection.
            Ok(Some(request)) => match store.answer(request) {
                Ok(answer) => drop(read_value(&mut answer.as_slice())),
                Err(_) => break,
            },
            Ok(None) => break,
            Err(_) if !right.contains(&bytes) => break,
            Err(e) => panic!("right requests are refused: {e}"),
        }
    }
    drop(read_value(&mut bytes.as_slice()));
}

/// What strangers send during a handshake, to the rank that was called and to the one that calls.
///
/// # Panics
/// If somebody gets in.
pub fn handshakes(input: &[u8]) {
    let token = Token::from_bytes([7; 32]);
    // What members have sent in another handshake.
    let recorded = [
        handshake::recorded_claim(&token),
        handshake::recorded_greeting(&token),
    ];
    let bytes = over(&recorded, input);
    let mut stranger = Stranger(bytes.as_slice());
    let heard = Words::hear(&mut stranger).and_then(|words| words.member(&token, 1, 3));
    assert!(heard.is_err(), "a stranger was let in");
    let mut stranger = Stranger(bytes.as_slice());
    assert!(
        handshake::claim(&mut stranger, &token, 2, 1).is_err(),
        "a stranger was taken for a member"
    );
}

/// Says what it wants to say, and hears nothing.
struct Stranger<'b>(&'b [u8]);

impl Read for Stranger<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Stranger<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
