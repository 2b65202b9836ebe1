//! `LocalGroup` below the error protocol.

use bytes::Bytes;
use futures::{FutureExt, executor::block_on, future::join_all};
use proptest::prelude::*;
use reshard_comm::{Cause, CommError, LocalGroup, ProcessGroup, Rank, testkit::on_ranks};
use reshard_model::ErrorKind;
use std::{error::Error, fmt};

proptest! {
    #![proptest_config(reshard_model::testkit::law(64))]

    /// What rank `a` sends to `b` is what `b` gets from `a`, also on threads and over several rounds.
    #[test]
    fn all_to_all_is_a_transpose(
        (size, rounds) in (1..=6usize).prop_flat_map(|size| {
            let bytes = prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
            let matrix = prop::collection::vec(prop::collection::vec(bytes, size), size);
            (Just(size), prop::collection::vec(matrix, 1..4))
        })
    ) {
        let sent = rounds.clone();
        let got = on_ranks(LocalGroup::new(size as u32), move |group| {
            let sent = sent.clone();
            async move {
                let mut got = Vec::new();
                for round in sent {
                    got.push(group.all_to_all(round[group.rank().index()].clone()).await.unwrap());
                }
                got
            }
        });
        for (round, sent) in rounds.iter().enumerate() {
            for (from, to) in (0..size).flat_map(|from| (0..size).map(move |to| (from, to))) {
                prop_assert_eq!(&got[to][round][from], &sent[from][to]);
            }
        }
    }

    /// Each color is a group of exactly its ranks, by order and then by rank.
    #[test]
    fn split_sorts_ranks_into_groups(
        wishes in prop::collection::vec((prop::option::weighted(0.8, 0..3u32), 0..3u32), 1..12)
    ) {
        let groups = LocalGroup::new(wishes.len() as u32);
        let members = block_on(join_all(groups.iter().zip(&wishes).map(|(group, (color, order))| async move {
            let part = group.split(*color, *order).await.unwrap()?;
            let all = part.all_gather(Bytes::from(vec![group.rank().0 as u8])).await.unwrap();
            Some(all.concat())
        })));
        for ((color, _), got) in wishes.iter().zip(members) {
            let mut wanted: Vec<_> = (0u8..).zip(&wishes).filter(|(_, (c, _))| c == color).map(|(r, (_, o))| (*o, r)).collect();
            wanted.sort_unstable();
            prop_assert_eq!(got, color.map(|_| wanted.into_iter().map(|(_, rank)| rank).collect::<Vec<u8>>()));
        }
    }
}

#[test]
fn bytes_are_shared_and_not_copied() {
    let groups = LocalGroup::new(3);
    let data = Bytes::from(vec![7; 1 << 16]);
    let got = block_on(join_all(groups.iter().map(|group| {
        let data = data.clone();
        async move { group.broadcast(Some(data), Rank(1)).await.unwrap() }
    })));
    assert!(got.iter().all(|bytes| bytes.as_ptr() == data.as_ptr()));
}

#[test]
fn ranks_that_call_different_collectives_are_told_so() {
    let groups = LocalGroup::new(3);
    let outcomes = block_on(join_all(groups.iter().map(|group| async move {
        if group.rank() == Rank(2) {
            group.barrier().await
        } else {
            group.gather(Bytes::new(), Rank(0)).await.map(drop)
        }
    })));
    for outcome in outcomes {
        assert!(
            matches!(&outcome, Err(CommError::OutOfStep(why)) if why == "rank 2 calls barrier, but ranks 0, 1 called gather to rank 0"),
            "{outcome:?}"
        );
    }
}

#[test]
fn two_calls_at_once_on_one_rank_are_refused() {
    let groups = LocalGroup::new(2);
    let mut first = groups[0].barrier();
    assert!((&mut first).now_or_never().is_none());
    let second = groups[0].barrier().now_or_never();
    assert!(
        matches!(second, Some(Err(CommError::OutOfStep(_)))),
        "{second:?}"
    );
}

#[test]
fn silent_ranks_are_those_that_have_not_come() {
    let groups = LocalGroup::new(4);
    let mut waiting: Vec<_> = [0, 3].map(|rank: usize| groups[rank].barrier()).into();
    assert!(waiting.iter_mut().all(|call| call.now_or_never().is_none()));
    assert_eq!(groups[1].silent(), [Rank(1), Rank(2)]);
}

#[test]
fn what_was_dealt_is_delivered_though_the_group_broke_since() {
    let groups = LocalGroup::new(2);
    let mut early = groups[0].all_gather(Bytes::from_static(b"a"));
    assert!((&mut early).now_or_never().is_none());
    assert!(
        groups[1]
            .all_gather(Bytes::from_static(b"b"))
            .now_or_never()
            .is_some()
    );
    groups[1].abort(Cause::new(ErrorKind::Internal, "later"));
    assert_eq!(early.now_or_never().unwrap().unwrap().concat(), b"ab");
    assert!(groups[0].barrier().now_or_never().unwrap().is_err());
}

#[derive(Debug)]
struct Layer(&'static str, Option<Box<Layer>>);

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for Layer {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.1.as_deref().map(|source| source as _)
    }
}

#[test]
fn a_cause_keeps_the_chain_and_says_nothing_twice() {
    let root = Layer("no space left", None);
    let middle = Layer("cannot extend: no space left", Some(Box::new(root)));
    let error = Layer("cannot write `__0_0.distcp`", Some(Box::new(middle)));
    let cause = Cause::from_error(ErrorKind::Unavailable, &error);
    assert_eq!(
        cause.chain,
        ["cannot extend: no space left", "no space left"]
    );
    assert_eq!(
        cause.to_string(),
        "cannot write `__0_0.distcp`: cannot extend: no space left"
    );
}

#[test]
fn an_error_of_a_thousand_ranks_stays_readable() {
    let failed = |why: &dyn Fn(u32) -> String| {
        let cause = |rank| (Rank(rank), Cause::new(ErrorKind::Corrupt, why(rank)));
        let (step, causes) = ("read", (0..1000).map(cause).collect());
        CommError::Ranks { step, causes }.to_string()
    };
    let error = failed(&|rank| format!("bad {rank}"));
    assert!(
        error.starts_with("step `read` failed on 1000 ranks: rank 0: bad 0; rank 1: bad 1;"),
        "{error}"
    );
    assert!(error.ends_with("; rank 7: bad 7; and 992 more"), "{error}");
    // One reason is told once.
    let error = failed(&|rank| if rank == 1 { "worse" } else { "bad" }.into());
    assert_eq!(
        error,
        "step `read` failed on 1000 ranks: ranks 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 983 more: bad; rank 1: worse"
    );
    let error = CommError::Deadline {
        step: "read",
        seconds: 1800.0,
        silent: (0..20).map(Rank).collect(),
    };
    assert!(error.to_string().ends_with(
        "within 1800 s from ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 4 more"
    ));
}

#[test]
fn the_kind_of_an_error_is_the_one_its_causes_share() {
    let of = |kinds: &[ErrorKind]| {
        let causes = (0..)
            .map(Rank)
            .zip(kinds.iter().map(|kind| Cause::new(*kind, "")))
            .collect();
        CommError::Ranks {
            step: "read",
            causes,
        }
        .kind()
    };
    use ErrorKind::{Corrupt, Invalid, PeerFailed, Unavailable};
    assert_eq!(of(&[Corrupt, Corrupt]), Corrupt);
    assert_eq!(of(&[Corrupt, PeerFailed]), Corrupt);
    assert_eq!(of(&[Unavailable, Invalid]), PeerFailed);
    // What one rank has found damaged is damaged, whatever else failed.
    assert_eq!(of(&[Invalid, Corrupt]), Corrupt);
    assert_eq!(of(&[PeerFailed]), PeerFailed);
}

#[test]
fn a_group_shows_which_rank_it_is() {
    assert_eq!(
        format!("{:?}", LocalGroup::new(3)[1]),
        "LocalGroup(rank 1 of 3)"
    );
}

#[test]
fn a_root_that_is_no_rank_and_a_wrong_number_of_parts_are_told_at_once() {
    let none = || Bytes::new();
    for case in 0..5 {
        let ranks = LocalGroup::new(2);
        let group = &ranks[0];
        let outcome = match case {
            0 => group
                .gather(none(), Rank(2))
                .now_or_never()
                .map(|outcome| outcome.map(drop)),
            1 => group
                .scatter(None, Rank(2))
                .now_or_never()
                .map(|outcome| outcome.map(drop)),
            2 => group
                .broadcast(None, Rank(2))
                .now_or_never()
                .map(|outcome| outcome.map(drop)),
            3 => group
                .scatter(Some(vec![none()]), Rank(0))
                .now_or_never()
                .map(|outcome| outcome.map(drop)),
            _ => group
                .broadcast(None, Rank(0))
                .now_or_never()
                .map(|outcome| outcome.map(drop)),
        };
        let told = outcome.expect("it waits for others").unwrap_err();
        assert!(
            matches!(&told, CommError::OutOfStep(_)),
            "case {case}: {told}"
        );
    }
    assert_eq!(Rank::from(3), Rank(3));
}
