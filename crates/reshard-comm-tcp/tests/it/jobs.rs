//! Two jobs that are given the same store.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use crate::common::tcp_groups;
use futures::executor::block_on;
use reshard_comm::{CommError, ProcessGroup, Rank, testkit::on_ranks};
use reshard_comm_tcp::{Builder, Serve, StoreServer, TcpError, TcpGroup, testkit::wait_for_key};
use reshard_model::ErrorKind;
use std::{
    process::Command,
    thread::{self, JoinHandle},
    time::Duration,
};

/// Longer than a test takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);
const PORT: &str = "RESHARD_TEST_PORT";

fn store() -> (StoreServer, u16) {
    let store = StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = store.address().port();
    (store, port)
}

/// A rank of a job with this id, or without one.
fn member(id: &str, rank: u32, size: u32, port: u16) -> Builder {
    let builder = TcpGroup::builder()
        .rank(rank, size)
        .master("127.0.0.1", port);
    builder.job_id(id).serve(Serve::Nobody).deadline(LIMIT)
}

type Connecting = JoinHandle<Result<TcpGroup, TcpError>>;

fn start(builder: Builder) -> Connecting {
    thread::spawn(move || builder.connect())
}

/// Starts a rank, and waits until it has claimed its number.
fn claimed(id: &str, rank: u32, size: u32, port: u16) -> Connecting {
    let started = start(member(id, rank, size, port));
    let of_job = if id.is_empty() { "-" } else { id };
    let key = format!("reshard/default/{of_job}/none/0/claim/{rank}");
    wait_for_key(port, &key).unwrap();
    started
}

fn work(groups: Vec<TcpGroup>) {
    let size = groups.len() as u8;
    on_ranks(groups, move |group| async move {
        let mine = vec![group.rank().0 as u8];
        let all = group.all_gather(mine.into()).await.unwrap().concat();
        assert_eq!(all, (0..size).collect::<Vec<_>>());
    });
}

/// Ids that differ, or that only one job has.
const IDS: [(&str, &str); 3] = [("first", "second"), ("first", ""), ("", "second")];

fn is_refused(newcomer: Result<TcpGroup, TcpError>, first: &str, second: &str) {
    let error = newcomer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = error.to_string();
    let id = |id: &str| match id {
        "" => "job id is not set".to_owned(),
        id => format!("job id is `{id}`"),
    };
    let both = format!("its {}, and this process's {}", id(first), id(second));
    assert!(text.contains(&both), "{text}");
}

#[test]
fn another_job_is_refused_while_a_group_forms_which_goes_on() {
    for (first, second) in IDS {
        let (_store, port) = store();
        let waits = claimed(first, 0, 2, port);
        for rank in [0, 1, 0] {
            is_refused(member(second, rank, 2, port).connect(), first, second);
        }
        let other = member(first, 1, 2, port).connect().unwrap();
        work(vec![waits.join().unwrap().unwrap(), other]);
    }
}

#[test]
fn another_job_is_refused_by_a_complete_group_which_goes_on() {
    for (first, second) in IDS {
        let (_store, port) = store();
        let ranks: Vec<_> = (0..2)
            .map(|rank| start(member(first, rank, 2, port)))
            .collect();
        let groups: Vec<_> = ranks
            .into_iter()
            .map(|rank| rank.join().unwrap().unwrap())
            .collect();
        // A larger job, too, whose last rank has a number that nobody else has.
        for rank in 0..3 {
            is_refused(member(second, rank, 3, port).connect(), first, second);
        }
        work(groups);
    }
}

#[test]
fn a_job_that_has_ended_is_in_nobody_s_way() {
    let (_store, port) = store();
    for id in ["first", "second", "", "first"] {
        let ranks: Vec<_> = (0..2)
            .map(|rank| start(member(id, rank, 2, port)))
            .collect();
        let groups = ranks.into_iter().map(|rank| rank.join().unwrap().unwrap());
        work(groups.collect());
    }
}

#[test]
fn a_job_whose_first_rank_has_left_still_has_the_store() {
    let (_store, port) = store();
    let first = claimed("first", 1, 2, port);
    let other = member("first", 0, 2, port).connect().unwrap();
    // Its record names the rank that came first.
    drop(first.join().unwrap().unwrap());
    is_refused(member("second", 0, 2, port).connect(), "first", "second");
    drop(other);
}

fn is_taken(outcome: Result<TcpGroup, TcpError>, rank: u32) {
    match outcome {
        Err(TcpError::RankTaken { rank: taken, .. }) => assert_eq!(taken, Rank(rank)),
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("a group formed"),
    }
}

#[test]
fn two_ranks_with_one_number_fail_while_their_groups_form() {
    for id in ["", "same"] {
        let (_store, port) = store();
        let waiting = [0, 2].map(|rank| claimed(id, rank, 4, port));
        is_taken(member(id, 2, 4, port).connect(), 2);
        // Ranks that wait for the one that fails learn it.
        for rank in waiting {
            is_taken(rank.join().unwrap(), 2);
        }
    }
}

/// A process that claims rank 1 of 2. It is no test of its own.
#[test]
#[ignore = "a rank, which another test starts"]
fn a_newcomer() {
    let Ok(port) = std::env::var(PORT) else {
        return;
    };
    is_taken(member("", 1, 2, port.parse().unwrap()).connect(), 1);
}

#[test]
fn a_second_process_with_a_number_of_a_working_group_fails_both() {
    let (_store, port) = store();
    let ranks = [0, 1].map(|rank| start(member("", rank, 2, port)));
    let groups = ranks.map(|rank| rank.join().unwrap().unwrap());
    let [zero, one] = &groups;
    let barrier = || {
        let (zero, one) = block_on(async { futures::join!(zero.barrier(), one.barrier()) });
        [zero, one]
    };
    // They know each other, and work on nothing.
    barrier().into_iter().for_each(|met| met.unwrap());
    let newcomer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "jobs::a_newcomer", "--ignored", "--nocapture"])
        .env(PORT, port.to_string())
        .output()
        .unwrap();
    assert!(newcomer.status.success(), "{newcomer:?}");
    for outcome in barrier() {
        let error = outcome.unwrap_err();
        assert!(matches!(error, CommError::Broken(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains("two running processes are rank 1"), "{text}");
    }
}

#[test]
fn a_process_makes_several_groups_at_one_store() {
    let (_store, port) = store();
    let form = || -> Vec<TcpGroup> {
        let ranks = [0, 1].map(|rank| start(member("", rank, 2, port)));
        ranks.map(|rank| rank.join().unwrap().unwrap()).into()
    };
    let (first, second) = (form(), form());
    work(first);
    work(second);
    drop(tcp_groups(2, |builder| builder));
}
