//! What every `ProcessGroup` must do, run on threads. Each function is one rule.

use super::on_ranks;
use crate::{Cause, Comm, CommError, ProcessGroup, Rank};
use bytes::Bytes;
use futures_util::FutureExt;
use reshard_model::ErrorKind;
use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

type Group = Arc<dyn ProcessGroup>;

/// Runs the contract suite of [`ProcessGroup`]: `make` gives the ranks of a new group of that size, in order.
///
/// # Panics
/// If a rule doesn't hold.
pub fn process_group_contract(make: impl Fn(u32) -> Vec<Group>) {
    for size in [1, 2, 3, 5] {
        ranks_are_numbered_in_order(&make(size), size);
        all_to_all_is_a_transpose(make(size));
        all_gather_is_in_order_of_ranks(make(size));
        any_rank_can_be_root(make(size));
        large_messages_arrive_whole(make(size));
        a_barrier_waits_for_all(make(size));
        split_sorts_by_color_and_order(make(size));
        a_sub_group_goes_its_own_way(make(size));
        a_root_outside_the_group_is_out_of_step(make(size));
        parts_or_failures_cross_and_the_whole_group_learns_of_its_sub_groups(make(size));
        errors_reach_all_and_the_group_stays_usable(make(size));
    }
    for size in [2, 3, 5] {
        an_abort_reaches_all_for_good(make(size));
        a_dropped_future_breaks_the_group(make(size));
        a_silent_rank_breaks_the_group_at_the_deadline(make(size));
    }
}

/// A message that no other pair of ranks, nor another round, sends; the lengths differ, and some are 0.
fn note(round: usize, from: Rank, to: Rank) -> Bytes {
    let length = (round * 7 + from.index() * 3 + to.index()) % 11;
    format!("{round}:{from}>{to}").repeat(length).into()
}

fn ranks(group: &Group) -> impl Iterator<Item = Rank> + use<> {
    (0..group.size()).map(Rank)
}

fn boom() -> Cause {
    Cause::new(ErrorKind::Unavailable, "boom")
}

/// What a collective must return. Not `expect`, so that the message has the error as people see it.
fn well<T>(outcome: crate::Result<T>) -> T {
    match outcome {
        Ok(value) => value,
        Err(error) => panic!("a collective failed: {error}"),
    }
}

fn ranks_are_numbered_in_order(groups: &[Group], size: u32) {
    let found: Vec<_> = groups
        .iter()
        .map(|group| (group.rank(), group.size()))
        .collect();
    let wanted: Vec<_> = (0..size).map(|rank| (Rank(rank), size)).collect();
    assert_eq!(found, wanted, "(rank, size) of each group");
}

fn all_to_all_is_a_transpose(groups: Vec<Group>) {
    on_ranks(groups, |group| async move {
        let me = group.rank();
        for round in 0..50 {
            let got = well(
                group
                    .all_to_all(ranks(&group).map(|to| note(round, me, to)).collect())
                    .await,
            );
            assert_eq!(
                got,
                ranks(&group)
                    .map(|from| note(round, from, me))
                    .collect::<Vec<_>>()
            );
            // In blocks, some of them empty, it is the same.
            let blocks = |to| {
                let message = note(round, me, to);
                let (a, b) = message.split_at(message.len() / 3);
                [a, &[], b].map(Bytes::copy_from_slice).into()
            };
            let got = well(
                group
                    .all_to_all_blocks(ranks(&group).map(blocks).collect())
                    .await,
            );
            let wanted = ranks(&group).map(|from| note(round, from, me));
            assert!(got.iter().map(|blocks| blocks.concat()).eq(wanted));
        }
    });
}

fn all_gather_is_in_order_of_ranks(groups: Vec<Group>) {
    on_ranks(groups, |group| async move {
        for round in 0..50 {
            let got = well(group.all_gather(note(round, group.rank(), Rank(0))).await);
            assert_eq!(
                got,
                ranks(&group)
                    .map(|from| note(round, from, Rank(0)))
                    .collect::<Vec<_>>()
            );
        }
    });
}

fn any_rank_can_be_root(groups: Vec<Group>) {
    on_ranks(groups, |group| async move {
        let me = group.rank();
        for (round, root) in (0..4).flat_map(|_| ranks(&group)).enumerate() {
            let is_root = me == root;
            let gathered = well(group.gather(note(round, me, root), root).await);
            let wanted =
                is_root.then(|| ranks(&group).map(|from| note(round, from, root)).collect());
            assert_eq!(gathered, wanted, "gather to {root}");
            let parts = is_root.then(|| ranks(&group).map(|to| note(round, root, to)).collect());
            assert_eq!(
                well(group.scatter(parts, root).await),
                note(round, root, me),
                "scatter from {root}"
            );
            let data = is_root.then(|| note(round, root, root));
            assert_eq!(
                well(group.broadcast(data, root).await),
                note(round, root, root),
                "broadcast from {root}"
            );
            // What others than the root pass is ignored.
            assert_eq!(
                well(group.broadcast(Some(note(round, me, root)), root).await),
                note(round, root, root)
            );
        }
    });
}

fn large_messages_arrive_whole(groups: Vec<Group>) {
    on_ranks(groups, |group| async move {
        let large = |rank: Rank| Bytes::from(vec![rank.0 as u8; (1 << 20) + rank.index()]);
        let got = well(group.all_gather(large(group.rank())).await);
        assert!(
            got == ranks(&group).map(large).collect::<Vec<_>>(),
            "messages of 1 MiB are not what was sent"
        );
    });
}

fn a_barrier_waits_for_all(groups: Vec<Group>) {
    let late = Duration::from_millis(20);
    let waited = on_ranks(groups, move |group| async move {
        if group.rank().0 + 1 == group.size() {
            std::thread::sleep(late);
        }
        let before = std::time::Instant::now();
        well(group.barrier().await);
        (before, std::time::Instant::now())
    });
    let last_in = waited.iter().map(|(before, _)| *before).max();
    let first_out = waited.iter().map(|(_, after)| *after).min();
    assert!(
        last_in <= first_out,
        "a rank left the barrier before all had come"
    );
}

fn split_sorts_by_color_and_order(groups: Vec<Group>) {
    on_ranks(groups, |group| async move {
        let (me, last) = (group.rank().0, group.size() - 1);
        let in_none = |rank: u32| rank == last && last > 1;
        let color = (!in_none(me)).then_some(me % 2);
        let part = well(group.split(color, last - me).await);
        assert_eq!(
            part.is_some(),
            color.is_some(),
            "only ranks with a color are in a sub-group"
        );
        if let Some(part) = part {
            let wanted: Vec<u8> = (0..=last)
                .rev()
                .filter(|r| !in_none(*r) && r % 2 == me % 2)
                .map(|r| r as u8)
                .collect();
            let got = well(part.all_gather(vec![me as u8].into()).await);
            assert_eq!(
                got.concat(),
                wanted,
                "ranks of color {}, the last one first",
                me % 2
            );
            assert_eq!(wanted.get(part.rank().index()), Some(&(me as u8)));
            assert_eq!(part.size() as usize, wanted.len());
        }
        let same_order = well(group.split(Some(7), 7).await);
        assert_eq!(
            same_order.map(|same| same.rank()),
            Some(group.rank()),
            "equal orders are sorted by rank"
        );
        well(group.barrier().await);
    });
}

fn a_sub_group_goes_its_own_way(groups: Vec<Group>) {
    on_ranks(groups, |group| async move {
        let color = group.rank().0 % 2;
        if let Some(part) = well(group.split(Some(color), 0).await) {
            for round in 0..10 * (1 + color as usize) {
                well(part.all_gather(note(round, part.rank(), Rank(0))).await);
            }
            if color == 1 {
                part.abort(boom());
            }
        }
        well(group.barrier().await);
    });
}

fn parts_or_failures_cross_and_the_whole_group_learns_of_its_sub_groups(groups: Vec<Group>) {
    on_ranks(groups, |group| async move {
        let whole = Comm::new(&*group);
        let (me, last) = (group.rank().0, group.size() - 1);
        let Some(part) = well(whole.split("split", Some(me % 2)).await) else {
            panic!("every rank has a color")
        };
        assert_eq!(
            (part.rank().0, part.size()),
            (me / 2, (last - me % 2) / 2 + 1),
            "in the order of the whole"
        );
        let comm = Comm::new(&*part);
        for round in 0..10 {
            let parts = ranks(&part)
                .map(|to| vec![note(round, comm.rank(), to), note(round, to, to)])
                .collect();
            let got = well(comm.all_to_all("move", Ok(parts)).await);
            let sent = |from| {
                [
                    note(round, from, comm.rank()),
                    note(round, comm.rank(), comm.rank()),
                ]
                .concat()
            };
            assert_eq!(got, ranks(&part).map(sent).collect::<Vec<_>>());
        }
        // The last rank fails: its sub-group learns it at once, the others when all agree.
        let parts = if me == last {
            Err(boom())
        } else {
            Ok(vec![Vec::new(); part.size() as usize])
        };
        let failed = comm.all_to_all("move", parts).await;
        assert_eq!(failed.is_err(), me % 2 == last % 2, "rank {me}: {failed:?}");
        let mine = if me == last { Err(boom()) } else { Ok(()) };
        match whole.agree("moved", mine).await {
            Err(CommError::Ranks { causes, .. }) => {
                assert_eq!(causes, [(Rank(last), boom())].into())
            }
            other => panic!("rank {me}: {other:?}"),
        }
        well(comm.agree("usable", Ok(())).await);
        well(whole.agree("usable", Ok(())).await);
    });
}

fn a_root_outside_the_group_is_out_of_step(groups: Vec<Group>) {
    on_ranks(groups, |group| async move {
        if group.rank() == Rank(0) {
            let wrong = group.gather(Bytes::new(), Rank(group.size())).await;
            assert!(matches!(wrong, Err(CommError::OutOfStep(_))), "{wrong:?}");
        } else {
            assert!(group.barrier().await.is_err(), "the others are told");
        }
    });
}

fn errors_reach_all_and_the_group_stays_usable(groups: Vec<Group>) {
    on_ranks(groups, |group| async move {
        let comm = Comm::new(&*group).with_coordinator(Rank(group.size() - 1));
        for bad in ranks(&group) {
            let part = if group.rank() == bad {
                Err(boom())
            } else {
                Ok(bad)
            };
            match comm.all_gather("part", part).await {
                Err(CommError::Ranks { causes, .. }) => assert_eq!(causes, [(bad, boom())].into()),
                other => {
                    assert!(
                        other.is_err(),
                        "rank {bad} failed, and rank {} got {other:?}",
                        group.rank()
                    )
                }
            }
            let sum = comm
                .all_reduce("sum", Ok(group.rank().0), |parts| {
                    Ok(parts.iter().sum::<u32>())
                })
                .await;
            assert_eq!(well(sum), ranks(&group).map(|rank| rank.0).sum::<u32>());
            let mine = comm.reduce_scatter("deal", Ok(group.rank()), |mut parts| {
                parts.reverse();
                Ok(parts)
            });
            assert_eq!(well(mine.await), Rank(group.size() - 1 - group.rank().0));
        }
    });
}

fn an_abort_reaches_all_for_good(groups: Vec<Group>) {
    on_ranks(groups, |group| async move {
        well(group.barrier().await);
        if group.rank() == Rank(1) {
            group.abort(boom());
            group.abort(Cause::new(
                ErrorKind::Internal,
                "a second cause, that must not hide the first",
            ));
        }
        for _ in 0..3 {
            match group.barrier().await {
                Err(CommError::Broken(cause)) => {
                    assert!(cause.to_string().contains("boom"), "{cause}")
                }
                other => assert!(matches!(other, Err(CommError::Broken(_))), "{other:?}"),
            }
        }
    });
}

fn a_dropped_future_breaks_the_group(groups: Vec<Group>) {
    let dropped = Arc::new(Barrier::new(groups.len()));
    on_ranks(groups, move |group| {
        let dropped = Arc::clone(&dropped);
        async move {
            if group.rank() == Rank(1) {
                assert!(
                    group.barrier().now_or_never().is_none(),
                    "nobody else is there yet"
                );
            }
            dropped.wait();
            assert!(
                group.barrier().await.is_err(),
                "rank 1 dropped its future, rank {} goes on",
                group.rank()
            );
        }
    });
}

fn a_silent_rank_breaks_the_group_at_the_deadline(groups: Vec<Group>) {
    let ended = Arc::new(AtomicU32::new(0));
    on_ranks(groups, move |group| {
        let ended = Arc::clone(&ended);
        async move {
            let deadline = Duration::from_millis(100);
            // Silent until the others have given up, however long that takes here.
            while group.rank() == Rank(1) && ended.load(Ordering::SeqCst) + 1 < group.size() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let outcome = Comm::new(&*group)
                .with_deadline(deadline)
                .agree("meet", Ok(()))
                .await;
            assert!(
                matches!(
                    outcome,
                    Err(CommError::Deadline { .. } | CommError::Broken(_))
                ),
                "rank {}: {outcome:?}",
                group.rank()
            );
            ended.fetch_add(1, Ordering::SeqCst);
        }
    });
}
