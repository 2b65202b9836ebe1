//! Ranks that leave, give up or run ahead.
#![expect(clippy::panic, reason = "tests fail by panicking")]

use crate::common::tcp_groups;
use bytes::Bytes;
use futures::{FutureExt as _, executor::block_on};
use reshard_comm::{Cause, Comm, CommError, ProcessGroup, Rank, testkit::on_ranks};
use reshard_comm_tcp::TcpGroup;
use reshard_model::ErrorKind;
use std::{future::Future, pin::pin, sync::Arc, task::Context, time::Duration};

/// No call hangs for longer.
const LIMIT: Duration = Duration::from_secs(40);

/// The cause with which the group is broken for this rank.
async fn broken(group: &TcpGroup) -> Cause {
    match Comm::new(group)
        .with_deadline(LIMIT)
        .agree("meet", Ok(()))
        .await
    {
        Err(CommError::Broken(cause)) => cause,
        other => panic!("{other:?}"),
    }
}

fn boom() -> Cause {
    Cause::new(ErrorKind::Unavailable, "boom")
}

#[test]
fn a_reason_outlives_the_rank_that_gave_up_before_it_talked_to_anybody() {
    let mut groups = tcp_groups(3, |builder| builder);
    let gone = groups.remove(1);
    gone.abort(boom());
    drop(gone);
    assert_eq!(block_on(broken(&groups[0])), boom(), "it is in the store");
    assert_eq!(block_on(broken(&groups[1])), boom());
}

#[test]
fn a_rank_that_left_is_named_by_those_that_need_it() {
    let groups = tcp_groups(3, |builder| builder);
    on_ranks(groups, |group| async move {
        // All of it goes through rank 0, which can't break the group before it has served rank 1. In an `all_gather`, what rank 2
        // has sent to rank 1 may be slower than the news that rank 2 left.
        group.barrier().await.unwrap();
        if group.rank() == Rank(2) {
            return;
        }
        let cause = broken(&group).await;
        assert_eq!(cause.to_string(), "rank 2 left the group");
    });
}

#[test]
fn a_rank_that_panics_is_named() {
    let mut groups = tcp_groups(2, |builder| builder);
    let second = groups.pop().unwrap();
    let panicked = std::thread::spawn(move || {
        block_on(second.barrier()).unwrap();
        let _held = second;
        std::panic::panic_any("on purpose");
    });
    block_on(groups[0].barrier()).unwrap();
    assert!(panicked.join().is_err());
    let text = block_on(broken(&groups[0])).to_string();
    assert_eq!(text, "rank 1 left the group, because it panicked");
}

#[test]
fn a_rank_that_leaves_says_which_group_of_it_broke_before() {
    let groups = tcp_groups(3, |builder| builder);
    on_ranks(groups, |group| async move {
        let me = group.rank().0;
        let part = group.split((me > 0).then_some(0), 0).await.unwrap();
        match part {
            Some(part) if me == 2 => part.abort(boom()),
            Some(part) => drop(part.barrier().await.unwrap_err()),
            // Rank 1 is gone as soon as it knows. This rank has heard nothing of the sub-group.
            None => {
                let error = group.gather(Bytes::new(), Rank(0)).await.unwrap_err();
                let text = error.to_string();
                assert!(
                    text.contains("left the group, after a group of it broke: boom"),
                    "{text}"
                );
            }
        }
    });
}

#[test]
fn ranks_that_need_nobody_who_left_go_on() {
    let groups = tcp_groups(4, |builder| builder);
    on_ranks(groups, |group| async move {
        let color = group.rank().0 / 2;
        let part = group.split(Some(color), 0).await.unwrap().unwrap();
        drop(group);
        for _ in 0..10 * (1 + color) {
            assert_eq!(part.all_gather(Bytes::new()).await.unwrap().len(), 2);
        }
    });
}

#[test]
fn a_lost_rank_of_a_sub_group_is_named_with_its_rank_in_the_job() {
    let groups = tcp_groups(3, |builder| builder);
    on_ranks(groups, |group| async move {
        let me = group.rank().0;
        let part = group.split((me > 0).then_some(0), 0).await.unwrap();
        if me == 2 {
            drop(part);
        } else if let Some(part) = part {
            let error = part.gather(Bytes::new(), Rank(0)).await.unwrap_err();
            assert!(
                error
                    .to_string()
                    .contains("rank 1 (rank 2 of the job) left the group"),
                "{error}"
            );
        }
        group.barrier().await.unwrap();
    });
}

#[test]
fn a_root_runs_only_so_far_ahead_of_the_others() {
    let mut groups = tcp_groups(2, |builder| builder);
    let other = groups.pop().unwrap();
    let root = Arc::new(groups.pop().unwrap());
    for round in 0..16_u8 {
        let sent = root
            .broadcast(Some(vec![round].into()), Rank(0))
            .now_or_never();
        assert!(sent.is_some_and(|sent| sent.is_ok()), "round {round}");
    }
    let mut next = pin!(root.broadcast(Some(vec![16].into()), Rank(0)));
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert!(
        next.as_mut().poll(&mut cx).is_pending(),
        "the other rank has used nothing"
    );
    let heard = std::thread::spawn(move || {
        let heard: Vec<Bytes> = (0..17)
            .map(|_| block_on(other.broadcast(None, Rank(0))).unwrap())
            .collect();
        (heard.concat(), other)
    });
    block_on(next).unwrap();
    assert_eq!(heard.join().unwrap().0, (0..17).collect::<Vec<u8>>());
}

#[test]
fn ranks_in_different_calls_are_told_which() {
    let groups = tcp_groups(2, |builder| builder);
    let errors = on_ranks(groups, |group| async move {
        match group.rank() {
            Rank(0) => group.gather(Bytes::new(), Rank(0)).await.map(drop),
            _ => group.barrier().await,
        }
        .unwrap_err()
    });
    assert_eq!(errors[0].kind(), ErrorKind::Invalid);
    let text = errors[0].to_string();
    assert!(
        text.contains("rank 0 makes call 0, gather with root 0, but rank 1 made call 0, barrier"),
        "{text}"
    );
    assert!(
        errors[1]
            .to_string()
            .contains("but rank 1 made call 0, barrier"),
        "{}",
        errors[1]
    );
}

#[test]
fn those_that_are_waited_for_are_known() {
    let groups = tcp_groups(3, |builder| builder);
    assert_eq!(groups[0].silent(), []);
    let mut gather = pin!(groups[0].gather(Bytes::new(), Rank(0)));
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert!(gather.as_mut().poll(&mut cx).is_pending());
    assert_eq!(groups[0].silent(), [Rank(1), Rank(2)]);
    for rank in [2, 1] {
        block_on(groups[rank].gather(Bytes::new(), Rank(0))).unwrap();
    }
    assert_eq!(block_on(gather).unwrap().unwrap().len(), 3);
    assert_eq!(groups[0].silent(), []);
}
