//! What every `ProcessGroup` must do. Each function is one rule, as one rank takes part in it.

use super::{HANGS, on_ranks};
use crate::{Cause, Comm, CommError, ProcessGroup, Rank};
use bytes::Bytes;
use futures_executor::block_on;
use futures_util::{FutureExt, future::LocalBoxFuture, poll};
use reshard_model::{ErrorKind, testkit};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    task::Poll,
    thread,
    time::{Duration, Instant},
};

type Group = Arc<dyn ProcessGroup>;

/// The sizes of groups that are tried.
const SIZES: [u32; 4] = [1, 2, 3, 5];

/// What a rank has for a rule.
#[derive(Clone)]
struct Bench {
    /// The group that is tried. The rule may break it.
    group: Group,
    /// Another group of the same ranks, which stays whole. Ranks tell each other through it how far they are.
    side: Group,
}

/// What must hold, with its name.
struct Rule {
    name: &'static str,
    /// The item whose documentation has it.
    written: &'static str,
    /// Whether it needs more than one rank.
    many: bool,
    check: fn(Bench) -> LocalBoxFuture<'static, ()>,
}

impl Rule {
    /// One rank's part in it.
    async fn check(&self, bench: Bench) {
        let Self { name, written, .. } = *self;
        let of = "the group";
        let rule = testkit::Rule { of, name, written };
        rule.check_async((self.check)(bench)).await;
    }
}

macro_rules! rules {
    ($($many:literal: $($rule:ident at $written:literal),+;)+) => {
        &[$($(Rule {
            name: stringify!($rule),
            written: $written,
            many: $many,
            check: |bench| $rule(bench).boxed_local(),
        }),+),+]
    };
}

/// The rule that breaks a whole job at last.
const AN_ABORT: Rule = Rule {
    name: "an_abort_reaches_all_for_good",
    written: "ProcessGroup::abort",
    many: true,
    check: |bench| an_abort_reaches_all_for_good(bench).boxed_local(),
};

const RULES: &[Rule] = rules! {
    false: all_to_all_is_a_transpose at "ProcessGroup::all_to_all",
        all_gather_is_in_order_of_ranks at "ProcessGroup::all_gather",
        any_rank_can_be_root at "ProcessGroup::gather",
        large_messages_arrive_whole at "ProcessGroup, Contract",
        a_barrier_waits_for_all at "ProcessGroup::barrier",
        split_sorts_by_color_and_order at "ProcessGroup::split",
        a_sub_group_goes_its_own_way at "ProcessGroup::split",
        a_sub_group_outlives_the_group_that_it_was_split_from at "ProcessGroup, Dropping a handle",
        a_call_that_was_never_polled_is_none at "ProcessGroup, Dropping a call",
        a_root_outside_the_group_is_out_of_step at "ProcessGroup, Contract",
        parts_or_failures_cross_and_the_whole_group_learns_of_its_sub_groups at "Comm::split",
        errors_reach_all_and_the_group_stays_usable at "Comm, Contract";
    true: an_abort_reaches_all_for_good at "ProcessGroup::abort",
        a_cause_outlives_the_rank_that_aborted at "ProcessGroup::abort",
        a_dropped_future_breaks_the_group at "ProcessGroup, Dropping a call",
        a_dropped_handle_breaks_calls_that_need_its_rank at "ProcessGroup, Dropping a handle",
        a_silent_rank_breaks_the_group_at_the_deadline at "Comm::with_deadline";
};

fn rules(size: u32) -> impl Iterator<Item = &'static Rule> {
    RULES.iter().filter(move |rule| size > 1 || !rule.many)
}

/// Runs the contract suite of [`ProcessGroup`] with ranks on threads: `make` gives the ranks of a new group of that size,
/// in order. For ranks in processes there is [`process_group_contract_of_rank`].
///
/// # Panics
/// If a rule doesn't hold. The text has the name of the rule, and where the documentation has it.
pub fn process_group_contract(make: impl Fn(u32) -> Vec<Group>) {
    for size in SIZES {
        let sides = make(size);
        ranks_are_numbered_in_order(&sides, size);
        for rule in rules(size) {
            let benches = make(size).into_iter().zip(sides.iter().map(Arc::clone));
            let benches = benches.map(|(group, side)| Bench { group, side });
            on_ranks(benches.collect(), |bench| rule.check(bench));
        }
    }
}

/// One rank's part in the contract suite of [`ProcessGroup`]. Call it in each process of a job, with the group of all its
/// ranks. A job of 5 processes tries everything; a smaller one leaves out larger groups.
///
/// The rules run on groups that are split off from `group`. At last one rule breaks `group` itself, so it can't be used
/// afterwards. Returns how many times a rule was tried and kept, the same number on all ranks.
///
/// # Errors
/// The same on all ranks: [`CommError::Ranks`] with the rule as its step, and with what each rank saw that found it broken.
/// It is another error if the group can't even carry this verdict.
///
/// ```
/// use reshard_comm::{LocalGroup, testkit};
/// use std::sync::Arc;
///
/// // Threads, for once. In a job each process makes its group, and makes this call.
/// let ranks = LocalGroup::new(2).into_iter().map(|group| {
///     std::thread::spawn(|| testkit::process_group_contract_of_rank(Arc::new(group)))
/// });
/// for rank in ranks.collect::<Vec<_>>() {
///     assert!(rank.join().unwrap()? > 20);
/// }
/// # Ok::<(), reshard_comm::CommError>(())
/// ```
pub fn process_group_contract_of_rank(group: Group) -> crate::Result<usize> {
    let all = group.size();
    let judges = block_on(group.split(Some(0), 0))?;
    let Some(judges) = judges else {
        let text = "a rank that gave a color is in no sub-group";
        return Err(CommError::OutOfStep(text.to_owned()));
    };
    let agree = |rule: &Rule, outcome| {
        let judges = Comm::new(&*judges).with_deadline(2 * HANGS);
        block_on(judges.agree(rule.name, outcome))
    };
    let mut kept = 0;
    for size in SIZES.into_iter().filter(|size| *size < all).chain([all]) {
        for rule in rules(size) {
            let color = (group.rank().0 < size).then_some(size);
            let (tried, side) = (
                block_on(group.split(color, 0))?,
                block_on(group.split(color, 0))?,
            );
            let outcome = match (tried, side) {
                (Some(group), Some(side)) => attempt(rule, Bench { group, side }),
                _ => Ok(()),
            };
            agree(rule, outcome)?;
            kept += 1;
        }
    }
    // At last the group itself, which is no sub-group.
    let (rule, side) = (&AN_ABORT, block_on(group.split(Some(0), 0))?);
    if let (Some(side), true) = (side, all > 1) {
        agree(rule, attempt(rule, Bench { group, side }))?;
        kept += 1;
    }
    Ok(kept)
}

/// Tries a rule. Its groups are dropped if it fails, so that the other ranks don't wait.
fn attempt(rule: &'static Rule, bench: Bench) -> Result<(), Cause> {
    let (done, outcome) = mpsc::sync_channel(1);
    thread::spawn(move || {
        done.send(catch_unwind(AssertUnwindSafe(|| {
            block_on(rule.check(bench))
        })))
    });
    match outcome.recv_timeout(HANGS) {
        Ok(outcome) => outcome.map_err(|panic| Cause::from_panic(&*panic)),
        Err(_) => Err(Cause::new(ErrorKind::Internal, "it hangs")),
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

async fn all_to_all_is_a_transpose(Bench { group, .. }: Bench) {
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
}

async fn all_gather_is_in_order_of_ranks(Bench { group, .. }: Bench) {
    for round in 0..50 {
        let got = well(group.all_gather(note(round, group.rank(), Rank(0))).await);
        assert_eq!(
            got,
            ranks(&group)
                .map(|from| note(round, from, Rank(0)))
                .collect::<Vec<_>>()
        );
    }
}

async fn any_rank_can_be_root(Bench { group, .. }: Bench) {
    let me = group.rank();
    for (round, root) in (0..4).flat_map(|_| ranks(&group)).enumerate() {
        let is_root = me == root;
        let gathered = well(group.gather(note(round, me, root), root).await);
        let wanted = is_root.then(|| ranks(&group).map(|from| note(round, from, root)).collect());
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
}

async fn large_messages_arrive_whole(Bench { group, .. }: Bench) {
    let large = |rank: Rank| Bytes::from(vec![rank.0 as u8; (1 << 20) + rank.index()]);
    let got = well(group.all_gather(large(group.rank())).await);
    assert!(
        got == ranks(&group).map(large).collect::<Vec<_>>(),
        "messages of 1 MiB are not what was sent"
    );
}

async fn a_barrier_waits_for_all(Bench { group, side }: Bench) {
    const LATE: Duration = Duration::from_millis(20);
    let last = group.size() - 1;
    for late in [0, last] {
        // Each other rank has a group of two with the late one, to tell it that it has left the barrier.
        let mut pairs = Vec::new();
        for other in ranks(&group)
            .map(|rank| rank.0)
            .filter(|rank| *rank != late)
        {
            let mine = group.rank().0 == late || group.rank().0 == other;
            pairs.extend(well(
                side.split(mine.then_some(0), u32::from(group.rank().0 != late))
                    .await,
            ));
        }
        if group.rank().0 != late {
            well(group.barrier().await);
            for pair in &pairs {
                well(pair.gather(Bytes::new(), Rank(0)).await);
            }
            continue;
        }
        let mut told: Vec<_> = pairs
            .iter()
            .map(|pair| pair.gather(Bytes::new(), Rank(0)))
            .collect();
        let begun = Instant::now();
        while begun.elapsed() < LATE {
            for told in &mut told {
                let early = matches!(poll!(told), Poll::Ready(_));
                assert!(!early, "a rank left the barrier before all had come");
            }
            thread::sleep(Duration::from_millis(1));
        }
        well(group.barrier().await);
        for told in told {
            well(told.await);
        }
    }
}

async fn split_sorts_by_color_and_order(Bench { group, .. }: Bench) {
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
}

async fn a_sub_group_goes_its_own_way(Bench { group, .. }: Bench) {
    let color = group.rank().0 % 2;
    let part = well(group.split(Some(color), 0).await);
    if let Some(part) = &part {
        for round in 0..10 * (1 + color as usize) {
            well(part.all_gather(note(round, part.rank(), Rank(0))).await);
        }
    }
    // A rank may have its part of a collective before others do, whom an abort would reach first.
    well(group.barrier().await);
    if let (1, Some(part)) = (color, part) {
        part.abort(boom());
    }
    well(group.barrier().await);
}

async fn a_sub_group_outlives_the_group_that_it_was_split_from(Bench { group, side }: Bench) {
    let me = group.rank();
    let Some(part) = well(group.split(Some(0), 0).await) else {
        panic!("every rank has a color")
    };
    drop(group);
    well(side.barrier().await);
    let got = well(part.all_gather(note(1, me, Rank(0))).await);
    let wanted: Vec<_> = ranks(&part).map(|from| note(1, from, Rank(0))).collect();
    assert_eq!(got, wanted);
    // Nobody leaves while another rank needs it.
    well(side.barrier().await);
}

async fn a_call_that_was_never_polled_is_none(Bench { group, side }: Bench) {
    if group.rank() == Rank(0) {
        drop(group.gather(Bytes::new(), Rank(0)));
    }
    well(side.barrier().await);
    well(group.barrier().await);
    well(side.barrier().await);
}

async fn parts_or_failures_cross_and_the_whole_group_learns_of_its_sub_groups(
    Bench { group, .. }: Bench,
) {
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
}

async fn a_root_outside_the_group_is_out_of_step(Bench { group, .. }: Bench) {
    if group.rank() == Rank(0) {
        let wrong = group.gather(Bytes::new(), Rank(group.size())).await;
        assert!(matches!(wrong, Err(CommError::OutOfStep(_))), "{wrong:?}");
    } else {
        assert!(group.barrier().await.is_err(), "the others are told");
    }
}

async fn errors_reach_all_and_the_group_stays_usable(Bench { group, .. }: Bench) {
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
}

async fn an_abort_reaches_all_for_good(Bench { group, side }: Bench) {
    well(group.barrier().await);
    // An abort may be faster than what another rank still waits for.
    well(side.barrier().await);
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
}

async fn a_cause_outlives_the_rank_that_aborted(Bench { group, side }: Bench) {
    if group.rank() == Rank(1) {
        group.abort(boom());
        drop(group);
        return well(side.barrier().await);
    }
    well(side.barrier().await);
    match group.barrier().await {
        Err(CommError::Broken(cause)) => assert!(cause.message.contains("boom"), "{cause}"),
        other => panic!("{other:?}"),
    }
}

async fn a_dropped_future_breaks_the_group(Bench { group, side }: Bench) {
    if group.rank() == Rank(1) {
        let polled = group.barrier().now_or_never();
        assert!(polled.is_none(), "nobody else is there yet");
    }
    well(side.barrier().await);
    assert!(
        group.barrier().await.is_err(),
        "rank 1 dropped its future, rank {} goes on",
        group.rank()
    );
}

async fn a_dropped_handle_breaks_calls_that_need_its_rank(Bench { group, side }: Bench) {
    // What a rank has sent arrives, even if it leaves at once.
    let mine = note(1, group.rank(), Rank(0));
    let got = well(group.gather(mine, Rank(0)).await);
    if group.rank() == Rank(1) {
        drop(group);
        return well(side.barrier().await);
    }
    let all = ranks(&group).map(|from| note(1, from, Rank(0))).collect();
    assert_eq!(got, (group.rank() == Rank(0)).then_some(all));
    match group.barrier().await {
        Err(CommError::Broken(cause)) => {
            assert!(
                cause.message.contains("rank 1"),
                "it names another one: {cause}"
            )
        }
        other => panic!("rank 1 left, and rank {} got {other:?}", group.rank()),
    }
    well(side.barrier().await);
}

async fn a_silent_rank_breaks_the_group_at_the_deadline(Bench { group, side }: Bench) {
    let deadline = Duration::from_millis(100);
    let meet = || {
        Comm::new(&*group)
            .with_deadline(deadline)
            .agree("meet", Ok(()))
    };
    if group.rank() == Rank(1) {
        // Silent until the others have given up, however long that takes here.
        well(side.barrier().await);
    }
    let outcome = meet().await;
    assert!(
        matches!(
            outcome,
            Err(CommError::Deadline { .. } | CommError::Broken(_))
        ),
        "rank {}: {outcome:?}",
        group.rank()
    );
    if group.rank() != Rank(1) {
        well(side.barrier().await);
    }
}
