//! Requests of an `AsyncCallsQueue` that are dropped, forgotten, or given to the wrong queue; calls that fail.

use crate::background::common::{Fails, Folder, Training, on_ranks, one};
use futures::executor::block_on;
use reshard::{AsyncCallsQueue, ErrorKind, ProcessGroup, Rank, SingleProcess, policy::AllInOne};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

#[test]
fn a_request_that_ranks_drop_at_different_moments_is_lost_once() {
    let home = Arc::new(Folder::new());
    let of_ranks = Arc::clone(&home);
    on_ranks(2, move |group| {
        let home = Arc::clone(&of_ranks);
        async move {
            let (lost, good) = (home.url("lost"), home.url("good"));
            let state = one(1.);
            let queue = AsyncCallsQueue::new(&group).await.unwrap();
            let mut queue = queue.with_in_flight(3);
            let request = queue.request(reshard::save(&state, &lost)).await.unwrap();
            let mut kept = Some(request);
            if group.rank() == Rank(1) {
                kept = None;
            }
            let e = queue.maybe_finalize(false).await.unwrap_err().to_string();
            assert!(e.contains("rank 1 dropped its request"), "{e}");
            // The error unwinds what held the request of rank 0.
            drop(kept);
            let request = queue.request(reshard::save(&state, &good)).await.unwrap();
            queue.schedule(request).unwrap();
            let done = queue.maybe_finalize(true).await.unwrap();
            assert_eq!(done.iter().map(|f| f.index).collect::<Vec<_>>(), [1]);
            queue.close(false).await.unwrap();
        }
    });
    assert_eq!(home.names(), ["good"]);
}

#[test]
fn a_request_is_scheduled_by_its_own_queue_only() {
    let home = Folder::new();
    let (url, state) = (home.url("x"), one(1.));
    block_on(async {
        let mut own = AsyncCallsQueue::new(&SingleProcess).await.unwrap();
        let mut other = AsyncCallsQueue::new(&SingleProcess).await.unwrap();
        let request = own.request(reshard::save(&state, &url)).await.unwrap();
        let e = other.schedule(request).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        assert!(e.to_string().contains("another queue"), "{e}");
        assert!(other.close(false).await.unwrap().is_empty());
        let e = own.close(false).await.unwrap_err().to_string();
        assert!(e.contains("dropped its request"), "{e}");
    });
    assert_eq!(home.names(), [""; 0]);
}

#[test]
fn a_request_that_outlives_its_queue_fails_the_close_and_leaves_nothing() {
    for abort in [false, true] {
        let home = Folder::new();
        let (url, state) = (home.url("x"), one(1.));
        block_on(async {
            let mut queue = AsyncCallsQueue::new(&SingleProcess).await.unwrap();
            let request = queue.request(reshard::save(&state, &url)).await.unwrap();
            match queue.close(abort).await {
                Ok(done) => assert!(abort && done.is_empty()),
                Err(e) => assert!(!abort && e.to_string().contains("not scheduled"), "{e}"),
            }
            drop(request);
        });
        assert_eq!(home.names(), [""; 0]);
    }
}

#[test]
fn requests_that_are_not_scheduled_count() {
    let home = Folder::new();
    let (a, b, state) = (home.url("a"), home.url("b"), one(1.));
    block_on(async {
        let mut queue = AsyncCallsQueue::new(&SingleProcess).await.unwrap();
        let first = queue.request(reshard::save(&state, &a)).await.unwrap();
        let e = queue.request(reshard::save(&state, &b)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        assert!(e.to_string().contains("not scheduled"), "{e}");
        queue.schedule(first).unwrap();
        let second = queue.request(reshard::save(&state, &b)).await.unwrap();
        queue.schedule(second).unwrap();
        assert_eq!(queue.close(false).await.unwrap().len(), 2);
    });
    assert_eq!(home.names(), ["a", "b"]);
}

#[test]
fn a_dropped_request_fails_the_next_request_on_all_ranks_if_that_needs_its_room() {
    let home = Arc::new(Folder::new());
    let of_ranks = Arc::clone(&home);
    on_ranks(2, move |group| {
        let home = Arc::clone(&of_ranks);
        async move {
            let (lost, good, state) = (home.url("lost"), home.url("good"), one(1.));
            let mut queue = AsyncCallsQueue::new(&group).await.unwrap();
            let request = queue.request(reshard::save(&state, &lost)).await.unwrap();
            if group.rank() == Rank(1) {
                drop(request);
            } else {
                queue.schedule(request).unwrap();
            }
            let e = queue
                .request(reshard::save(&state, &good))
                .await
                .unwrap_err();
            assert!(e.to_string().contains("rank 1 dropped its request"), "{e}");
            let request = queue.request(reshard::save(&state, &good)).await.unwrap();
            queue.schedule(request).unwrap();
            assert_eq!(queue.close(false).await.unwrap().len(), 1);
        }
    });
    assert_eq!(home.names(), ["good"]);
}

#[test]
fn closing_finalizes_the_calls_after_one_that_failed() {
    let home = Folder::new();
    let urls = ["a", "b", "c"].map(|name| home.url(name));
    let state = one(1.);
    let called = Arc::new(Mutex::new(Vec::new()));
    block_on(async {
        let queue = AsyncCallsQueue::new(&SingleProcess).await.unwrap();
        let mut queue = queue.with_in_flight(3);
        for (i, url) in urls.iter().enumerate() {
            let mut save = reshard::save(&state, url);
            if i == 0 {
                save = save.progress(|_| panic!("a fault"));
            }
            let mut request = queue.request(save).await.unwrap();
            let called = Arc::clone(&called);
            let f = move |_: &_| {
                called.lock().unwrap().push(i);
                if i == 1 {
                    Err("no tracker".into())
                } else {
                    Ok(())
                }
            };
            request.add_finalize_fn(f).unwrap();
            queue.schedule(request).unwrap();
        }
        let e = queue.close(false).await.unwrap_err().to_string();
        assert!(e.contains("a fault"), "the first error: {e}");
    });
    assert_eq!(*called.lock().unwrap(), [1, 2]);
    assert_eq!(home.names(), ["b", "c"]);
}

#[test]
fn a_rank_that_can_not_stage_is_no_deadline_for_ranks_that_write_for_each_other() {
    for bad in [Rank(0), Rank(1)] {
        let home = Arc::new(Folder::new());
        let of_ranks = Arc::clone(&home);
        on_ranks(2, move |group| {
            let home = Arc::clone(&of_ranks);
            async move {
                let training = Training::new(group.rank(), 2, 0);
                let (host, seed) = (training.host.clone(), training.seed.clone());
                let (state, url) = (training.state(), home.url("x"));
                let begun = Instant::now();
                let mut queue = AsyncCallsQueue::new(&group).await.unwrap();
                let mut save = reshard::save(&state, &url).policy(AllInOne::new().gather());
                if group.rank() == bad {
                    save = save.stager(Arc::new(Fails));
                }
                let request = queue.request(save).await.unwrap();
                drop((state, training));
                // Copied or given up: nothing of the caller's is held.
                assert!(host.into_vec::<f32>().is_ok() && seed.into_vec::<i64>().is_ok());
                queue.schedule(request).unwrap();
                let e = queue.maybe_finalize(true).await.unwrap_err().to_string();
                assert!(e.contains(&format!("rank {}", bad.0)), "{e}");
                assert!(e.contains("no memory"), "{e}");
                assert!(begun.elapsed() < Duration::from_secs(600));
            }
        });
        assert_eq!(home.names(), [""; 0]);
    }
}

/// What each of two ranks hears that write for each other, when they wait for the end of a request.
fn heard(
    drops: Option<Rank>,
    fault: impl Fn() + Clone + Send + Sync + 'static,
) -> (Vec<String>, Duration) {
    let home = Arc::new(Folder::new());
    let of_ranks = Arc::clone(&home);
    let begun = Instant::now();
    let heard = on_ranks(2, move |group| {
        let (home, fault) = (Arc::clone(&of_ranks), fault.clone());
        async move {
            let training = Training::new(group.rank(), 2, 0);
            let (state, url) = (training.state(), home.url("x"));
            let queue = AsyncCallsQueue::new(&group).await.unwrap();
            let mut queue = queue.with_deadline(Duration::from_secs(1200));
            let mut save = reshard::save(&state, &url).policy(AllInOne::new().gather());
            if group.rank() == Rank(0) {
                save = save.progress(move |_| fault());
            }
            let request = queue.request(save).await.unwrap();
            if drops == Some(group.rank()) {
                drop(request);
            } else {
                queue.schedule(request).unwrap();
            }
            let e = queue.maybe_finalize(true).await.unwrap_err();
            queue.close(false).await.unwrap();
            e.to_string()
        }
    });
    assert_eq!(home.names(), [""; 0]);
    (heard, begun.elapsed())
}

#[test]
fn a_coordinator_that_can_not_write_common_state_is_no_deadline_for_ranks_that_write_for_each_other()
 {
    let (heard, took) = heard(None, || panic!("a fault"));
    for e in heard {
        assert!(e.contains("rank 0") && e.contains("a fault"), "{e}");
        assert!(!e.contains("`stage`"), "it was staged: {e}");
    }
    assert!(took < Duration::from_secs(600), "{took:?}");
}

#[test]
fn a_dropped_request_is_no_deadline_for_ranks_that_write_for_each_other() {
    for rank in [Rank(0), Rank(1)] {
        let (heard, took) = heard(Some(rank), || ());
        for e in heard {
            let what = format!("rank {} dropped its request", rank.0);
            assert!(e.contains(&what), "{e}");
        }
        assert!(took < Duration::from_secs(600), "{took:?}");
    }
}
