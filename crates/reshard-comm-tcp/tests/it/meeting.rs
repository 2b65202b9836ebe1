//! How ranks meet, and what they say if they don't.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard_comm::Rank;
use reshard_comm_tcp::{Builder, Serve, StoreServer, TcpError, TcpGroup};
use reshard_model::ErrorKind;
use std::{net::TcpListener, thread, time::Duration};

const SOON: Duration = Duration::from_secs(2);
const LATE: Duration = Duration::from_secs(60);

fn store() -> (StoreServer, u16) {
    let store = StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = store.address().port();
    (store, port)
}

fn member(rank: u32, size: u32, port: u16) -> Builder {
    let builder = TcpGroup::builder()
        .rank(rank, size)
        .master("127.0.0.1", port);
    builder.serve(Serve::Nobody).deadline(SOON)
}

/// Connects all of them at the same time.
fn connect(members: Vec<Builder>) -> Vec<Result<TcpGroup, TcpError>> {
    let running: Vec<_> = members
        .into_iter()
        .map(|member| thread::spawn(move || member.connect()))
        .collect();
    running
        .into_iter()
        .map(|rank| rank.join().unwrap())
        .collect()
}

#[test]
fn missing_ranks_are_named() {
    let (_store, port) = store();
    for outcome in connect(vec![member(0, 4, port), member(2, 4, port)]) {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerFailed);
        let TcpError::Missing { ranks, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(ranks, [Rank(1), Rank(3)]);
    }
}

#[test]
fn without_rank_0_the_others_name_it() {
    let (_store, port) = store();
    let error = member(1, 2, port).connect().unwrap_err();
    assert!(
        error.to_string().starts_with("rank 0 did not come"),
        "{error}"
    );
}

#[test]
fn another_world_size_is_named() {
    let (_store, port) = store();
    let outcomes = connect(vec![member(0, 2, port), member(1, 3, port)]);
    let error = outcomes[1].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = error.to_string();
    assert!(
        text.contains("WORLD_SIZE 3") && text.contains("has 2"),
        "{text}"
    );
}

#[test]
fn a_store_that_nobody_serves_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let error = member(0, 1, port)
        .deadline(Duration::from_millis(100))
        .connect()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        error.to_string().contains(&format!("127.0.0.1:{port}")),
        "{error}"
    );
}

#[test]
fn names_and_attempts_keep_groups_apart() {
    let (_store, port) = store();
    // An attempt before this one has left its keys.
    drop(connect(vec![member(0, 2, port)]));
    let mut members = Vec::new();
    for rank in [0, 1] {
        for name in ["a", "b"] {
            members.push(
                member(rank, 2, port)
                    .deadline(LATE)
                    .name(name)
                    .attempt("second"),
            );
        }
    }
    for group in connect(members) {
        group.unwrap();
    }
}

#[test]
fn wrong_settings_are_refused_before_anybody_is_called() {
    for wrong in [
        TcpGroup::builder(),
        TcpGroup::builder().rank(0, 1),
        member(1, 1, 1),
        member(0, 1, 1).heartbeat(Duration::ZERO),
        member(0, 1, 1).silence(SOON).heartbeat(SOON),
    ] {
        assert_eq!(wrong.connect().unwrap_err().kind(), ErrorKind::Invalid);
    }
}
