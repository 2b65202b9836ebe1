//! Ranks that fail in the transport, fall silent, panic or drop their future: the others learn it, and nobody hangs.

use futures::{executor::block_on, task::noop_waker};
use reshard::storage::StoreExt as _;
use reshard::{DType, Dialect, ErrorKind, ProcessGroup, StateDict, Value, comm::Cause};
use reshard_comm::testkit::{Fault, FaultGroup, try_on_ranks};
use reshard_laws::{
    contents::{Choices, Contents, Global, Watch},
    place::{Place, stores},
    ranks::{Groups, group, load, save, try_load, try_save},
};
use std::{future::IntoFuture, sync::Arc, task::Context, time::Duration};

const RANKS: u32 = 3;

fn contents() -> Contents {
    let tensor = Global {
        key: "a".into(),
        dtype: DType::Float32,
        shape: vec![60, 40],
        salt: 3,
        prepended: false,
    };
    Contents {
        tensors: vec![tensor],
        objects: true,
        extra: Value::Dict(Vec::new()),
    }
}

fn states(contents: &Contents) -> Vec<StateDict> {
    contents.states(&contents.rows(RANKS), &mut Choices::of([0]))
}

fn templates(contents: &Contents) -> (Vec<StateDict>, Vec<Watch>) {
    let cut = contents.columns(RANKS);
    (0..RANKS)
        .map(|r| contents.template(&cut, r, RANKS, Dialect::Megatron, &mut Choices::of([0])))
        .unzip()
}

fn faults() -> [Fault; 4] {
    let cause = Cause::new(ErrorKind::Unavailable, "the network is down");
    [
        Fault::Fail(cause.clone()),
        Fault::Abort(cause),
        Fault::Panic,
        Fault::Silence,
    ]
}

/// The ranks of a group of which one goes wrong at its `at`-th collective.
fn faulty(who: u32, at: u64, fault: &Fault) -> Groups {
    let wrap = |g: Arc<dyn ProcessGroup>| -> Arc<dyn ProcessGroup> {
        if g.rank().0 == who {
            Arc::new(FaultGroup::new(g, at, fault.clone()))
        } else {
            g
        }
    };
    group(RANKS).into_iter().map(wrap).collect()
}

const SHORT: Duration = Duration::from_millis(300);

/// There is no checkpoint, or the whole of it: the last collective comes after it was committed.
fn nothing_or_all(contents: &Contents, place: &Place) {
    if place.files().is_empty() {
        return;
    }
    let cut = contents.columns(RANKS);
    let (templates, _) = templates(contents);
    for (r, outcome) in (0..).zip(load(group(RANKS), templates, place.url(), |_, l| l)) {
        contents.check(&cut, r, RANKS, &outcome.unwrap().0);
    }
}

#[test]
fn a_fault_of_the_transport_at_any_collective_fails_the_save_on_all_ranks() {
    let contents = contents();
    let counting: Vec<FaultGroup> = group(RANKS).into_iter().map(FaultGroup::counting).collect();
    let place = Place::new();
    let groups = counting
        .iter()
        .map(|g| Arc::new(g.clone()) as Arc<dyn ProcessGroup>)
        .collect();
    save(groups, states(&contents), place.url(), |_, s| s)
        .into_iter()
        .for_each(|o| drop(o.unwrap()));
    for who in [0, 1] {
        let calls = counting[who as usize].calls();
        assert!(calls >= 8, "{calls}");
        for at in 0..calls {
            for fault in faults() {
                let place = Place::new();
                let outcomes = try_save(
                    faulty(who, at, &fault),
                    states(&contents),
                    place.url(),
                    |_, s| s.deadline(SHORT),
                );
                for (rank, outcome) in (0..).zip(outcomes) {
                    match outcome {
                        Ok(Ok(_)) => {
                            assert!(
                                at + 1 == calls && rank != who || !place.files().is_empty(),
                                "rank {rank} went on: {fault:?} of rank {who} at call {at}"
                            );
                        }
                        Ok(Err(e)) => {
                            let text = e.strategy_error().to_string();
                            assert!(
                                text.contains("rank") || text.contains("network"),
                                "{fault:?} at {at}: {text}"
                            );
                        }
                        Err(_) => assert_eq!(rank, who, "{fault:?} at {at}"),
                    }
                }
                nothing_or_all(&contents, &place);
            }
        }
    }
}

#[test]
fn a_fault_of_the_transport_at_any_collective_fails_the_load_on_all_ranks() {
    let contents = contents();
    let place = Place::new();
    save(group(RANKS), states(&contents), place.url(), |_, s| s)
        .into_iter()
        .for_each(|o| drop(o.unwrap()));
    let counting: Vec<FaultGroup> = group(RANKS).into_iter().map(FaultGroup::counting).collect();
    let groups = counting
        .iter()
        .map(|g| Arc::new(g.clone()) as Arc<dyn ProcessGroup>)
        .collect();
    load(groups, templates(&contents).0, place.url(), |_, l| l)
        .into_iter()
        .for_each(|o| drop(o.unwrap()));
    for who in [0, 1] {
        let calls = counting[who as usize].calls();
        for at in 0..calls {
            for fault in faults() {
                let (templates, watches) = templates(&contents);
                let outcomes = try_load(faulty(who, at, &fault), templates, place.url(), |_, l| {
                    l.deadline(SHORT)
                });
                let cut = contents.columns(RANKS);
                for (rank, outcome) in (0..).zip(outcomes) {
                    match outcome {
                        // The last answer may have reached some ranks before.
                        Ok(Ok((plain, _))) => contents.check(&cut, rank, RANKS, &plain),
                        Ok(Err(e)) => assert!(!e.error().strategy_error().to_string().is_empty()),
                        Err(_) => assert_eq!(rank, who, "{fault:?} at {at}"),
                    }
                }
                if !matches!(fault, Fault::Panic) {
                    watches.iter().for_each(Watch::check_back);
                }
            }
        }
    }
}

/// Whether a rank's future was polled to its end.
#[derive(Debug, PartialEq)]
enum End {
    Dropped,
    Failed,
    Done,
}

#[test]
fn a_save_whose_future_one_rank_drops_fails_on_the_others() {
    let contents = contents();
    let mut dropped = 0;
    for who in [0, 2] {
        for polls in 0..24 {
            let place = Place::new();
            let url: Arc<str> = place.url().into();
            let ranks: Vec<_> = group(RANKS).into_iter().zip(states(&contents)).collect();
            let outcomes = try_on_ranks(ranks, move |(group, state)| {
                let url = Arc::clone(&url);
                async move {
                    let rank = group.rank().0;
                    let mut save = reshard::save(&state, &*url)
                        .group(&*group)
                        .stores(stores())
                        .into_future();
                    if rank != who {
                        return save.await.map_or(End::Failed, |_| End::Done);
                    }
                    let waker = noop_waker();
                    for _ in 0..polls {
                        if save
                            .as_mut()
                            .poll(&mut Context::from_waker(&waker))
                            .is_ready()
                        {
                            return End::Done;
                        }
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    End::Dropped
                }
            });
            let ends: Vec<End> = outcomes.into_iter().map(|o| o.unwrap()).collect();
            if ends[who as usize] == End::Dropped {
                dropped += 1;
                let others = ends.iter().filter(|e| **e == End::Done).count();
                assert!(
                    others == 0 || !place.files().is_empty(),
                    "{ends:?} after {polls} polls"
                );
            }
            nothing_or_all(&contents, &place);
        }
    }
    assert!(dropped > 2);
}

#[test]
fn a_load_whose_future_one_rank_drops_ends_at_once_on_the_others() {
    let contents = contents();
    let place = Place::new();
    save(group(RANKS), states(&contents), place.url(), |_, s| s)
        .into_iter()
        .for_each(|o| drop(o.unwrap()));
    let mut dropped = 0;
    for who in [0, 2] {
        for polls in 0..24 {
            let url: Arc<str> = place.url().into();
            let ranks: Vec<_> = group(RANKS)
                .into_iter()
                .zip(templates(&contents).0)
                .collect();
            let outcomes = try_on_ranks(ranks, move |(group, template)| {
                let url = Arc::clone(&url);
                async move {
                    let rank = group.rank().0;
                    let load = reshard::load(template, &*url)
                        .group(&*group)
                        .stores(stores());
                    let mut load = Box::pin(load.with_report());
                    if rank != who {
                        return load.await.map_or_else(
                            |e| (End::Failed, e.error().strategy_error().to_string()),
                            |_| (End::Done, String::new()),
                        );
                    }
                    let waker = noop_waker();
                    for _ in 0..polls {
                        if load
                            .as_mut()
                            .poll(&mut Context::from_waker(&waker))
                            .is_ready()
                        {
                            return (End::Done, String::new());
                        }
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    (End::Dropped, String::new())
                }
            });
            let ends: Vec<(End, String)> = outcomes.into_iter().map(|o| o.unwrap()).collect();
            dropped += u32::from(ends[who as usize].0 == End::Dropped);
            // They are told; no deadline had to pass.
            assert!(
                ends.iter()
                    .all(|(_, said)| !said.contains("no answer within")),
                "{ends:?}"
            );
        }
    }
    assert!(dropped > 2);
}

#[test]
fn a_silent_rank_is_named_when_the_deadline_has_passed() {
    let contents = contents();
    let place = Place::new();
    let outcomes = save(
        faulty(1, 2, &Fault::Silence),
        states(&contents),
        place.url(),
        |_, s| s.deadline(SHORT),
    );
    for outcome in outcomes {
        let e = outcome.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::PeerFailed);
        let text = e.strategy_error().to_string();
        assert!(text.contains("no answer within 0.3 s"), "{text}");
    }
    assert!(place.files().is_empty());
}

#[test]
fn a_group_outlives_saves_and_loads_that_failed_in_order() {
    let contents = contents();
    let place = Place::new();
    let groups = group(RANKS);
    let again = || groups.iter().map(Arc::clone).collect::<Groups>();
    save(again(), states(&contents), place.url(), |_, s| s)
        .into_iter()
        .for_each(|o| drop(o.unwrap()));
    // Refused, on all ranks; the group is as good as before.
    assert!(
        save(again(), states(&contents), place.url(), |_, s| s)
            .iter()
            .all(Result::is_err)
    );
    let mut wrong = templates(&contents).0;
    wrong[1].insert(
        "x",
        reshard::ShardedTensor::template("x", DType::Int8, &[1]),
    );
    assert!(
        load(again(), wrong, place.url(), |_, l| l)
            .iter()
            .all(Result::is_err)
    );
    let cut = contents.columns(RANKS);
    for (r, outcome) in (0..).zip(load(again(), templates(&contents).0, place.url(), |_, l| l)) {
        contents.check(&cut, r, RANKS, &outcome.unwrap().0);
    }
    drop(block_on(place.store().files()).unwrap());
}
