//! The error protocol of `Comm`: whatever happens on one rank, all ranks learn it, and nobody hangs.

#![expect(clippy::panic, reason = "what tests share fails by panicking too")]

use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt, executor::block_on, future::join_all};
use reshard_comm::{
    Cause, Comm, CommError, LocalGroup, ProcessGroup, Rank, Result, SingleProcess, Timer,
    testkit::{Fault, FaultGroup, on_ranks, try_on_ranks},
};
use reshard_model::ErrorKind;
use serde::{Deserialize, Serialize, Serializer};
use std::{
    collections::BTreeMap,
    io,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Barrier, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

fn full() -> Cause {
    Cause::from_error(ErrorKind::Unavailable, &io::Error::other("disk full"))
}

const OPERATIONS: [&str; 6] = [
    "all_gather",
    "agree",
    "all_reduce",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
];

/// What one rank sends to another: blocks, some of them empty.
fn blocks(from: u32, to: u32) -> Vec<Bytes> {
    let block = |n: u32| Bytes::from(format!("{from}>{to}").repeat(n as usize));
    (0..(from + to) % 3).map(|n| block(n + from % 2)).collect()
}

/// Takes one step, with a fixed result that is checked.
async fn take(comm: Comm<'_>, operation: &'static str, outcome: Result<(), Cause>) -> Result<()> {
    let (me, size) = (comm.rank().0, comm.size());
    let part = outcome.clone().map(|()| me);
    match operation {
        "all_gather" => assert_eq!(
            comm.all_gather(operation, part).await?,
            (0..size).collect::<Vec<_>>()
        ),
        "agree" => comm.agree(operation, outcome).await?,
        "all_reduce" => {
            let text = comm
                .all_reduce(operation, part, |parts| Ok(format!("{parts:?}")))
                .await?;
            assert_eq!(text, format!("{:?}", (0..size).collect::<Vec<_>>()));
        }
        "reduce_scatter" => {
            let squares =
                |parts: Vec<u32>| Ok(parts.iter().map(|part| u64::from(part * part)).collect());
            assert_eq!(
                comm.reduce_scatter(operation, part, squares).await?,
                u64::from(me * me)
            );
        }
        "all_to_all" => {
            let to = outcome.map(|()| (0..size).map(|to| blocks(me, to)).collect());
            let wanted: Vec<Bytes> = (0..size)
                .map(|from| blocks(from, me).concat().into())
                .collect();
            assert_eq!(comm.all_to_all(operation, to).await?, wanted);
        }
        _ => {
            let told = if comm.is_coordinator() {
                Some(part)
            } else {
                outcome.err().map(Err)
            };
            assert_eq!(comm.broadcast(operation, told).await?, comm.coordinator().0);
        }
    }
    Ok(())
}

/// What each rank of an unlucky group got; no rank may be lucky.
fn errors(outcomes: Vec<Result<()>>) -> Vec<CommError> {
    let ranks = outcomes.len();
    let errors: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.len(), ranks, "some ranks think that all is well");
    errors
}

fn causes(error: &CommError) -> &BTreeMap<Rank, Cause> {
    match error {
        CommError::Ranks { causes, .. } => causes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn many_rounds_agree() {
    on_ranks(LocalGroup::new(4), |group| async move {
        for _ in 0..200 {
            for (operation, coordinator) in OPERATIONS.into_iter().zip([0, 1, 2, 3, 1, 2]) {
                take(
                    Comm::new(&group).with_coordinator(Rank(coordinator)),
                    operation,
                    Ok(()),
                )
                .await
                .unwrap();
            }
        }
    });
}

#[test]
fn an_error_of_any_rank_in_any_operation_reaches_all_and_the_group_stays_usable() {
    on_ranks(LocalGroup::new(3), |group| async move {
        for operation in OPERATIONS {
            for coordinator in (0..3).map(Rank) {
                let comm = Comm::new(&group).with_coordinator(coordinator);
                for bad in 0b001..0b111u32 {
                    let is_bad = |rank: Rank| bad >> rank.0 & 1 == 1;
                    let outcome = if is_bad(comm.rank()) {
                        Err(full())
                    } else {
                        Ok(())
                    };
                    let error = take(comm, operation, outcome).await.unwrap_err();
                    let wanted = (0..3)
                        .map(Rank)
                        .filter(|r| is_bad(*r))
                        .map(|r| (r, full()))
                        .collect();
                    assert_eq!(causes(&error), &wanted);
                    assert_eq!(error.kind(), ErrorKind::Unavailable);
                    assert!(
                        error.to_string().contains(&format!("`{operation}`")),
                        "{error}"
                    );
                }
                take(comm, operation, Ok(())).await.unwrap();
            }
        }
    });
}

#[test]
fn a_failed_part_means_that_nothing_is_decided() {
    let decided = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&decided);
    on_ranks(LocalGroup::new(3), move |group| {
        let decided = Arc::clone(&decided);
        async move {
            let part = if group.rank() == Rank(2) {
                Err(full())
            } else {
                Ok(())
            };
            let decide = |_: Vec<()>| {
                decided.fetch_add(1, Ordering::SeqCst);
                Ok(())
            };
            Comm::new(&group)
                .all_reduce("plan", part, decide)
                .await
                .unwrap_err();
        }
    });
    assert_eq!(seen.load(Ordering::SeqCst), 0);
}

#[test]
fn a_decision_that_fails_or_panics_is_the_coordinators_failure() {
    let outcomes = on_ranks(LocalGroup::new(3), |group| async move {
        let comm = Comm::new(&group).with_coordinator(Rank(1));
        let fails = comm
            .all_reduce("plan", Ok(()), |_| Err::<(), _>(full()))
            .await
            .unwrap_err();
        let panics = comm.reduce_scatter("plan", Ok(()), |_| -> Result<Vec<()>, Cause> {
            panic!("oh {}", 1)
        });
        let panics = panics.await.unwrap_err();
        let short = comm
            .reduce_scatter("plan", Ok(1), |mut parts| Ok(parts.split_off(1)))
            .await
            .unwrap_err();
        comm.agree("usable", Ok(())).await.unwrap();
        [fails, panics, short]
    });
    for errors in outcomes {
        let said = errors.each_ref().map(|error| {
            causes(error)
                .iter()
                .map(|(r, c)| format!("{r}: {c}"))
                .collect::<Vec<_>>()
        });
        let wanted = [
            "1: disk full",
            "1: panicked: oh 1",
            "1: 2 parts were decided for 3 ranks",
        ];
        assert_eq!(said, wanted.map(|text| vec![text.to_owned()]));
        assert_eq!(errors[1].kind(), ErrorKind::Internal);
    }
}

/// As DCP's exceptions that can't be pickled: there the raising rank dies and the others wait for a timeout.
#[derive(Debug, Deserialize)]
struct Unsendable;

impl Serialize for Unsendable {
    fn serialize<S: Serializer>(&self, _: S) -> std::result::Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("not today"))
    }
}

#[test]
fn a_value_that_cannot_be_sent_is_a_failure_of_its_rank() {
    on_ranks(LocalGroup::new(3), |group| async move {
        let comm = Comm::new(&group);
        let part = if comm.rank() == Rank(2) {
            Err(full())
        } else {
            Ok(Unsendable)
        };
        let error = comm.all_gather("part", part).await.unwrap_err();
        assert_eq!(
            causes(&error).keys().collect::<Vec<_>>(),
            [&Rank(0), &Rank(1), &Rank(2)]
        );
        let error = comm
            .all_reduce("answer", Ok(()), |_| Ok(Unsendable))
            .await
            .unwrap_err();
        assert_eq!(causes(&error).keys().collect::<Vec<_>>(), [&Rank(0)]);
        assert!(
            error.to_string().contains("Unsendable can't be sent"),
            "{error}"
        );
        let error = comm
            .reduce_scatter("parts", Ok(()), |_| {
                Ok(vec![Unsendable, Unsendable, Unsendable])
            })
            .await;
        assert_eq!(causes(&error.unwrap_err()).len(), 1);
        comm.agree("usable", Ok(())).await.unwrap();
    });
}

#[test]
fn a_part_of_another_type_than_the_coordinators_is_an_error() {
    on_ranks(LocalGroup::new(2), |group| async move {
        let comm = Comm::new(&group);
        let error = match comm.rank() {
            Rank(0) => comm.all_reduce("part", Ok(1u8), |_| Ok(())).await,
            _ => comm.all_reduce("part", Ok((1u8, 2u8)), |_| Ok(())).await,
        };
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("a u8 can't be received: bytes are left over")
        );
        comm.agree("usable", Ok(())).await.unwrap();
    });
}

#[test]
fn an_answer_that_one_rank_cannot_read_breaks_the_group() {
    on_ranks(LocalGroup::new(3), |group| async move {
        let comm = Comm::new(&group);
        if comm.rank() == Rank(1) {
            let error = comm
                .all_reduce("answer", Ok(()), |_| Ok(String::new()))
                .await
                .unwrap_err();
            assert!(
                error.to_string().contains("rank 1 failed in step `answer`"),
                "{error}"
            );
        } else {
            comm.all_reduce("answer", Ok(()), |_| Ok(200u8))
                .await
                .unwrap();
        }
        let error = comm.agree("next", Ok(())).await.unwrap_err();
        assert!(
            error.to_string().contains("rank 1 failed in step `answer`"),
            "{error}"
        );
    });
}

#[test]
fn a_coordinator_without_a_value_to_broadcast_has_failed() {
    on_ranks(LocalGroup::new(2), |group| async move {
        let error = Comm::new(&group)
            .broadcast::<u8>("metadata", None)
            .await
            .unwrap_err();
        assert_eq!(causes(&error).keys().collect::<Vec<_>>(), [&Rank(0)]);
    });
}

#[test]
fn a_panic_between_steps_reaches_all() {
    for bad in (0..4).map(Rank) {
        let outcomes = try_on_ranks(LocalGroup::new(4), move |group| async move {
            let comm = Comm::new(&group);
            comm.agree("begin", Ok(())).await.unwrap();
            assert_ne!(comm.rank(), bad, "boom");
            comm.agree("end", Ok(())).await
        });
        for (rank, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                Err(_) => assert_eq!(rank, bad.index()),
                Ok(outcome) => {
                    let error = outcome.unwrap_err();
                    assert!(
                        error
                            .to_string()
                            .contains(&format!("rank {bad} left the group, because it panicked")),
                        "{error}"
                    );
                    assert_eq!(error.kind(), ErrorKind::PeerFailed);
                }
            }
        }
    }
}

#[test]
fn a_future_dropped_in_any_operation_reaches_all() {
    for operation in OPERATIONS {
        let dropped = Arc::new(Barrier::new(3));
        let outcomes = on_ranks(LocalGroup::new(3), move |group| {
            let dropped = Arc::clone(&dropped);
            async move {
                let comm = Comm::new(&group);
                if comm.rank() == Rank(1) {
                    assert!(take(comm, operation, Ok(())).now_or_never().is_none());
                }
                dropped.wait();
                take(comm, operation, Ok(())).await
            }
        });
        for error in errors(outcomes) {
            let wanted = format!("rank 1 left `{operation}` before it was done");
            assert!(
                matches!(&error, CommError::Broken(cause) if cause.message == wanted),
                "{error}"
            );
        }
    }
}

#[test]
fn a_future_dropped_while_the_others_wait_reaches_all() {
    let groups = LocalGroup::new(3);
    block_on(async {
        let mut waiting: Vec<_> = groups
            .iter()
            .map(|g| Box::pin(Comm::new(g).agree("write", Ok(()))))
            .collect();
        drop(waiting.remove(2)); // never polled, so nothing has begun
        assert!(waiting[0].as_mut().now_or_never().is_none());
        assert!(waiting[1].as_mut().now_or_never().is_none());
        drop(waiting.remove(1));
        let error = waiting.remove(0).await.unwrap_err();
        assert!(
            error
                .to_string()
                .contains("rank 1 left `write` before it was done"),
            "{error}"
        );
    });
}

#[test]
fn a_guard_tells_of_work_that_was_given_up() {
    let groups: Vec<_> = LocalGroup::new(2).into_iter().map(Arc::new).collect();
    let kept = groups.clone(); // the handles live on, as those of a training job do
    let outcomes = try_on_ranks(groups, |group| async move {
        let comm = Comm::new(&*group);
        let guard = comm.guard("save");
        assert_ne!(comm.rank(), Rank(1), "boom");
        let outcome = comm.agree("write", Ok(())).await;
        guard.done();
        outcome
    });
    let error = outcomes.into_iter().next().unwrap().unwrap().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("rank 1 left `save` before it was done, because it panicked"),
        "{error}"
    );
    drop(kept);
}

#[test]
fn a_rank_that_leaves_while_others_wait_is_named() {
    let outcomes = on_ranks(LocalGroup::new(3), |group| async move {
        if group.rank() == Rank(1) {
            Ok(())
        } else {
            Comm::new(&group).agree("write", Ok(())).await
        }
    });
    for rank in [0, 2] {
        let error = outcomes[rank].as_ref().unwrap_err();
        assert!(
            error.to_string().contains("rank 1 left the group"),
            "{error}"
        );
    }
}

#[test]
fn ranks_may_leave_after_their_last_step() {
    for _ in 0..200 {
        on_ranks(LocalGroup::new(4), |group| async move {
            for operation in OPERATIONS {
                take(Comm::new(&group), operation, Ok(())).await.unwrap();
            }
        });
    }
}

#[test]
fn a_silent_rank_is_named_at_the_deadline() {
    for silent in (0..3).map(Rank) {
        let groups = LocalGroup::new(3);
        let begun = join_all(
            groups
                .iter()
                .map(|group| Comm::new(group).agree("begin", Ok(()))),
        );
        assert!(block_on(begun).iter().all(Result::is_ok));
        // One rank waits patiently. It is asked first, so that it has come when the hasty one begins to wait, and no clock
        // decides who is silent. The silent one comes when the others have given up.
        let mut others = groups.iter().filter(|group| group.rank() != silent);
        let (patient, hasty) = (others.next().unwrap(), others.next().unwrap());
        let gone = AtomicU32::new(0);
        let waiting =
            [(patient, None), (hasty, Some(Duration::from_millis(50)))].map(|(group, deadline)| {
                let gone = &gone;
                async move {
                    let comm = Comm::new(group);
                    let comm = deadline.map_or(comm, |deadline| comm.with_deadline(deadline));
                    let outcome = comm.agree("write", Ok(())).await;
                    gone.fetch_add(1, Ordering::SeqCst);
                    outcome
                }
                .boxed_local()
            });
        let late = async {
            while gone.load(Ordering::SeqCst) < 2 {
                Timer::after(Duration::from_millis(5)).await.unwrap();
            }
            Comm::new(&groups[silent.index()])
                .agree("write", Ok(()))
                .await
        };
        let outcomes = block_on(join_all(waiting.into_iter().chain([late.boxed_local()])));
        let errors = errors(outcomes);
        let wanted = format!("step `write`: no answer within 0.05 s from rank {silent};");
        assert!(
            errors.iter().all(|e| format!("{e};").contains(&wanted)),
            "{errors:?}"
        );
        assert!(
            matches!(&errors[1], CommError::Deadline { silent: named, .. } if *named == [silent])
        );
        assert!(
            matches!(errors[2], CommError::Broken(_)),
            "the late one learns that it was given up"
        );
    }
}

#[test]
fn a_decision_that_takes_too_long_names_the_coordinator() {
    let given_up = Arc::new(AtomicU32::new(0));
    let outcomes = on_ranks(LocalGroup::new(2), move |group| {
        let given_up = Arc::clone(&given_up);
        async move {
            let comm = Comm::new(&group).with_coordinator(Rank(1));
            let comm = match comm.is_coordinator() {
                true => comm,
                false => comm.with_deadline(Duration::from_millis(50)),
            };
            let outcome = comm.all_reduce("plan", Ok(()), |_| {
                while given_up.load(Ordering::SeqCst) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            });
            let outcome = outcome.await;
            given_up.fetch_add(1, Ordering::SeqCst);
            outcome
        }
    });
    for error in errors(outcomes) {
        assert!(error.to_string().contains("from rank 1"), "{error}");
    }
}

#[test]
fn ranks_in_different_steps_are_told_so() {
    let outcomes = on_ranks(LocalGroup::new(4), |group| async move {
        let comm = Comm::new(&group);
        let outcome = match comm.rank() {
            Rank(1) => comm.agree("write", Ok(())).await,
            Rank(2) => comm.reduce_scatter("write", Ok(()), Ok).await,
            _ => comm.all_gather("plan", Ok(7)).await.map(drop),
        };
        let again = comm.agree("again", Ok(())).await;
        assert!(
            matches!(&again, Err(CommError::Broken(cause)) if cause.message.contains("`plan`")),
            "{again:?}"
        );
        outcome
    });
    for error in errors(outcomes) {
        assert!(
            matches!(&error, CommError::OutOfStep(why) if why == "ranks 0, 3 in `plan`; ranks 1, 2 in `write`"),
            "{error}"
        );
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}

#[test]
fn ranks_that_name_different_coordinators_are_told_so() {
    let outcomes = on_ranks(LocalGroup::new(3), |group| async move {
        let comm = Comm::new(&group).with_coordinator(Rank(group.rank().0 / 2));
        comm.agree("plan", Ok(())).await
    });
    assert!(
        errors(outcomes)
            .iter()
            .all(|error| error.to_string().contains("gather to rank 1"))
    );
}

#[test]
fn a_coordinator_outside_the_group_is_an_error() {
    for size in [1, 3] {
        let outcomes = on_ranks(LocalGroup::new(size), |group| async move {
            Comm::new(&group)
                .with_coordinator(Rank(3))
                .agree("plan", Ok(()))
                .await
        });
        assert!(
            errors(outcomes)
                .iter()
                .all(|error| error.to_string().contains("gather to rank 3"))
        );
    }
    assert!(
        block_on(
            Comm::single()
                .with_coordinator(Rank(3))
                .agree("plan", Ok(()))
        )
        .is_err()
    );
}

/// What each rank of three gets when one of them has a fault at one of its calls; a panic is `None`.
async fn with_fault(bad: Option<(u32, u64, Fault)>) -> Vec<Option<Result<u64>>> {
    // Nothing else ends by the clock, however busy the machine is.
    let hasty = matches!(bad, Some((.., Fault::Silence)));
    let ranks = LocalGroup::new(3).into_iter().map(|group| {
        let group: Arc<dyn ProcessGroup> = Arc::new(group);
        let group = match bad.clone() {
            Some((rank, at, fault)) if rank == group.rank().0 => FaultGroup::new(group, at, fault),
            _ => FaultGroup::counting(group),
        };
        let steps = async move {
            let mut comm = Comm::new(&group).with_coordinator(Rank(1));
            if hasty {
                comm = comm.with_deadline(Duration::from_secs(1));
            }
            for operation in OPERATIONS {
                take(comm, operation, Ok(())).await?;
            }
            Ok(group.calls())
        };
        AssertUnwindSafe(steps)
            .catch_unwind()
            .map(std::result::Result::ok)
    });
    join_all(ranks).await
}

#[test]
fn a_fault_of_the_transport_at_any_call_reaches_all() {
    let calls: Vec<u64> = block_on(with_fault(None))
        .into_iter()
        .map(|outcome| outcome.unwrap().unwrap())
        .collect();
    assert_eq!(
        calls, [12; 3],
        "two collectives a step, three for reduce_scatter, one for all_to_all"
    );
    let faults = [
        Fault::Fail(full()),
        Fault::Abort(full()),
        Fault::Panic,
        Fault::Silence,
    ];
    let cases = faults
        .iter()
        .flat_map(|fault| (0..3).flat_map(move |rank| (0..12).map(move |at| (rank, at, fault))));
    block_on(join_all(cases.map(|(rank, at, fault)| async move {
        for (me, outcome) in (0..).zip(with_fault(Some((rank, at, fault.clone()))).await) {
            let wanted = match fault {
                Fault::Panic if me == rank => {
                    assert!(outcome.is_none());
                    continue;
                }
                Fault::Panic => format!("rank {rank} left"),
                Fault::Silence => format!("from rank {rank}"),
                _ => "disk full".to_owned(),
            };
            let error = outcome
                .unwrap()
                .expect_err("a rank thinks that all is well")
                .to_string();
            assert!(
                error.contains(&wanted),
                "{fault:?} of rank {rank} at call {at}, as rank {me} sees it: {error}"
            );
        }
    })));
}

#[test]
fn ranks_1_and_3_of_4_are_a_group_whose_coordinator_is_3() {
    on_ranks(LocalGroup::new(4), |group| async move {
        let color = (group.rank().0 % 2 == 1).then_some(0);
        let Some(part) = group.split(color, 0).await.unwrap() else {
            return group.barrier().await.unwrap();
        };
        assert_eq!((part.rank().0, part.size()), (group.rank().0 / 2, 2));
        let comm = Comm::new(&*part).with_coordinator(Rank(1)); // rank 3 of the whole
        assert_eq!(comm.is_coordinator(), group.rank() == Rank(3));
        for operation in OPERATIONS {
            take(comm, operation, Ok(())).await.unwrap();
        }
        let decided = comm
            .all_reduce("plan", Ok(group.rank()), |parts| Ok((group.rank(), parts)))
            .await;
        assert_eq!(decided.unwrap(), (Rank(3), vec![Rank(1), Rank(3)]));
        let outcome = if group.rank() == Rank(1) {
            Err(full())
        } else {
            Ok(())
        };
        assert_eq!(
            causes(&comm.agree("write", outcome).await.unwrap_err()),
            &[(Rank(0), full())].into()
        );
        group.barrier().await.unwrap();
    });
}

#[test]
fn sixty_four_ranks_are_joined_on_one_thread() {
    let groups = LocalGroup::new(64);
    let outcomes = block_on(join_all(groups.iter().map(|group| async move {
        for operation in OPERATIONS {
            take(
                Comm::new(group).with_coordinator(Rank(63)),
                operation,
                Ok(()),
            )
            .await?;
        }
        let outcome = if group.rank() == Rank(17) {
            Err(full())
        } else {
            Ok(())
        };
        Comm::new(group).agree("write", outcome).await
    })));
    assert!(
        errors(outcomes)
            .iter()
            .all(|error| causes(error).keys().eq([&Rank(17)]))
    );
}

#[test]
fn one_rank_needs_no_group() {
    block_on(async {
        let comm = Comm::single();
        assert_eq!(
            (comm.rank(), comm.size(), comm.is_coordinator()),
            (Rank(0), 1, true)
        );
        for operation in OPERATIONS {
            take(comm, operation, Ok(())).await.unwrap();
            let error = take(comm, operation, Err(full())).await.unwrap_err();
            assert_eq!(causes(&error), &[(Rank(0), full())].into());
        }
        let panics = comm
            .all_reduce("plan", Ok(()), |_| -> Result<(), Cause> { panic!("oh") })
            .await;
        assert_eq!(
            panics.unwrap_err().to_string(),
            "step `plan` failed on 1 rank: rank 0: panicked: oh"
        );
    });
}

#[test]
fn one_rank_sends_nothing() {
    let group = FaultGroup::counting(Arc::new(SingleProcess));
    for operation in OPERATIONS {
        block_on(take(Comm::new(&group), operation, Ok(()))).unwrap();
    }
    assert_eq!(group.calls(), 0);
    let wrong = block_on(SingleProcess.scatter(Some(Vec::new()), Rank(0)))
        .unwrap_err()
        .to_string();
    assert!(wrong.contains("scatter of 0 parts"), "{wrong}");
}

/// A transport that delivers its first broadcast again and again.
#[derive(Debug)]
struct Stale(LocalGroup, OnceLock<Bytes>);

#[async_trait]
impl ProcessGroup for Stale {
    fn rank(&self) -> Rank {
        self.0.rank()
    }
    fn size(&self) -> u32 {
        self.0.size()
    }
    fn abort(&self, cause: Cause) {
        self.0.abort(cause);
    }
    async fn all_to_all(&self, to: Vec<Bytes>) -> Result<Vec<Bytes>> {
        self.0.all_to_all(to).await
    }
    async fn split(&self, color: Option<u32>, order: u32) -> Result<Option<Arc<dyn ProcessGroup>>> {
        self.0.split(color, order).await
    }
    async fn broadcast(&self, data: Option<Bytes>, root: Rank) -> Result<Bytes> {
        let new = self.0.broadcast(data, root).await?;
        Ok(self.1.get_or_init(|| new).clone())
    }
}

#[test]
fn an_answer_to_another_step_is_none_to_this_one() {
    let stale: Vec<_> = LocalGroup::new(2)
        .into_iter()
        .map(|group| Stale(group, OnceLock::new()))
        .collect();
    let outcomes = block_on(join_all(stale.iter().map(|group| async move {
        Comm::new(group).agree("plan", Ok(())).await.unwrap();
        Comm::new(group).agree("write", Ok(())).await
    })));
    assert_eq!(
        stale[0].silent(),
        [],
        "nobody is blamed by a transport that can't tell"
    );
    for (me, e) in errors(outcomes).into_iter().enumerate() {
        assert!(matches!(e, CommError::OutOfStep(_)), "{e:?}");
        let told = e.to_string();
        assert!(
            ["`plan`", "`write`"].iter().all(|step| told.contains(step)),
            "as rank {me} sees it: {told}"
        );
    }
}

#[test]
fn steps_can_be_spawned() {
    fn is_send<F: Future + Send>(_: F) {}
    let comm = Comm::single();
    is_send(comm.all_gather("a", Ok(String::new())));
    is_send(comm.reduce_scatter("a", Ok(1), |parts: Vec<i32>| Ok(parts)));
    is_send(comm.broadcast("a", Some(Ok(1))));
    is_send(comm.agree("a", Ok(())));
    is_send(comm.all_to_all("a", Ok(Vec::new())));
    is_send(comm.split("a", None));
}

#[test]
fn other_than_a_part_for_each_rank_is_a_failure_of_its_rank() {
    on_ranks(LocalGroup::new(3), |group| async move {
        let comm = Comm::new(&group);
        let parts = if comm.rank() == Rank(1) { 2 } else { 3 };
        let error = comm
            .all_to_all("move", Ok(vec![Vec::new(); parts]))
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "step `move` failed on 1 rank: rank 1: 2 parts were decided for 3 ranks"
        );
        comm.agree("usable", Ok(())).await.unwrap();
    });
}

#[test]
fn a_split_that_one_rank_does_not_come_to_ends_at_the_deadline() {
    let given_up = Arc::new(AtomicU32::new(0));
    let outcomes = on_ranks(LocalGroup::new(3), move |group| {
        let given_up = Arc::clone(&given_up);
        async move {
            while group.rank() == Rank(2) && given_up.load(Ordering::SeqCst) < 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let comm = Comm::new(&group).with_deadline(Duration::from_millis(50));
            let outcome = comm.split("split", Some(0)).await;
            given_up.fetch_add(1, Ordering::SeqCst);
            outcome.map(drop)
        }
    });
    for error in errors(outcomes) {
        assert!(
            error
                .to_string()
                .contains("`split`: no answer within 0.05 s from rank 2"),
            "{error}"
        );
    }
}
