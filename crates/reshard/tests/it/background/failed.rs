//! Failures of saves of an `AsyncSaver` that are easy to lose.

use crate::background::{
    common::{Fails, Folder, Gate, Training, gated, on_ranks, one},
    store::panics_in_commit,
};
use futures::executor::block_on;
use reshard::{
    AsyncSaver, BlockingAsyncStager, ErrorKind, ProcessGroup, Rank, ShardedTensor, SingleProcess,
    StateDict, Tensor, policy::AllInOne,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// So long nobody waits for a rank that has said that it failed.
const SOON: Duration = Duration::from_secs(600);

#[test]
fn a_handle_that_outlives_its_failed_save_hands_the_error_over_when_it_is_dropped() {
    let home = Folder::new();
    let (bad, good) = (home.url("bad"), home.url("good"));
    let state = one(1.);
    block_on(async {
        let mut saver = AsyncSaver::new(&SingleProcess).await.unwrap();
        let save = reshard::save(&state, &bad).progress(|_| panic!("a fault"));
        let failed = saver.start(save).await.unwrap();
        let next = saver.start(reshard::save(&state, &good)).await.unwrap();
        assert!(failed.is_done());
        drop(failed);
        next.finish().await.unwrap();
        let e = saver.close().await.unwrap_err();
        assert!(e.to_string().contains("a fault"), "{e}");
    });
    assert_eq!(home.names(), ["good"]);
}

#[test]
fn a_panic_in_a_commit_is_told_and_leaves_nothing() {
    for dropped in [false, true] {
        let home = Arc::new(Folder::new());
        let of_ranks = Arc::clone(&home);
        on_ranks(2, move |group| {
            let home = Arc::clone(&of_ranks);
            async move {
                let state = one(1.);
                let url = home.url("x");
                let save = reshard::save(&state, &url).store(panics_in_commit(&url));
                let mut saver = AsyncSaver::new(&group).await.unwrap();
                let handle = saver.start(save).await.unwrap();
                let e = if dropped {
                    drop(handle);
                    saver.close().await.unwrap_err()
                } else {
                    handle.finish().await.unwrap_err()
                };
                let what = if group.rank() == Rank(0) {
                    "the thread that commits a save panicked: a fault in commit"
                } else {
                    "rank 0 left `an asynchronous save` before it was done, because it panicked"
                };
                assert!(e.to_string().contains(what), "{e}");
            }
        });
        assert_eq!(home.names(), [""; 0]);
    }
}

#[test]
fn a_start_that_is_dropped_while_it_waits_for_room_lets_the_earlier_save_complete() {
    let home = Arc::new(Folder::new());
    let of_ranks = Arc::clone(&home);
    let gate = Gate::default();
    on_ranks(2, move |group| {
        let (home, gate) = (Arc::clone(&of_ranks), gate.clone());
        async move {
            let (a, b) = (home.url("a"), home.url("b"));
            let state = one(1.);
            // Rank 0 would not wait.
            let room = if group.rank() == Rank(0) { 2 } else { 1 };
            let saver = AsyncSaver::new(&group).await.unwrap();
            let mut saver = saver.with_in_flight(room);
            let first = saver.start(gated(&state, &a, &gate)).await.unwrap();
            group.barrier().await.unwrap();
            let begun = Instant::now();
            if group.rank() == Rank(1) {
                {
                    let mut start = Box::pin(saver.start(reshard::save(&state, &b)));
                    assert!(futures::poll!(&mut start).is_pending());
                }
                assert_eq!(saver.unfinished(), 1, "it counts until it has ended");
            }
            // Rank 0 learns at once that rank 1 does not start; rank 1 can't use a broken saver.
            let e = if group.rank() == Rank(0) {
                saver.start(reshard::save(&state, &b)).await.unwrap_err()
            } else {
                group.barrier().await.unwrap();
                gate.open();
                saver.start(reshard::save(&state, &b)).await.unwrap_err()
            };
            assert!(begun.elapsed() < SOON, "{e}");
            if group.rank() == Rank(0) {
                assert!(e.to_string().contains("rank 1"), "{e}");
                group.barrier().await.unwrap();
            }
            first.finish().await.unwrap();
            saver.close().await.unwrap();
        }
    });
    assert_eq!(home.names(), ["a"]);
}

#[test]
fn all_spellings_of_a_place_are_one_place() {
    let home = Folder::new();
    std::fs::create_dir(home.url("real")).unwrap();
    std::os::unix::fs::symlink(home.url("real"), home.url("link")).unwrap();
    let base = home.url("real/x");
    let spellings = [
        format!("{base}/"),
        format!("{base}/."),
        home.url("real/./x"),
        home.url("real//x"),
        home.url("real/../real/x"),
        home.url("link/x"),
        format!("file://{base}"),
        format!("file://{base}/"),
    ];
    let state = one(1.);
    for (i, other) in spellings.iter().enumerate() {
        block_on(async {
            let saver = AsyncSaver::new(&SingleProcess).await.unwrap();
            let mut saver = saver.with_in_flight(2);
            let gate = Gate::default();
            let save = gated(&state, &base, &gate).overwrite(i > 0);
            let first = saver.start(save).await.unwrap();
            let overwrite = reshard::save(&state, other).overwrite(i > 0);
            let e = saver.start(overwrite).await.unwrap_err().to_string();
            assert!(
                e.contains("an earlier asynchronous save to"),
                "{other}: {e}"
            );
            let waits = reshard::save(&state, other).overwrite(i > 0);
            let e = waits.await.unwrap_err().to_string();
            assert!(
                e.contains("an earlier asynchronous save to"),
                "{other}: {e}"
            );
            gate.open();
            first.finish().await.unwrap();
        });
    }
}

#[test]
fn ranks_may_spell_the_place_differently() {
    let home = Arc::new(Folder::new());
    let of_ranks = Arc::clone(&home);
    on_ranks(2, move |group| {
        let home = Arc::clone(&of_ranks);
        async move {
            let url = home.url(if group.rank() == Rank(0) { "x" } else { "./x/" });
            let state = one(1.);
            let mut saver = AsyncSaver::new(&group).await.unwrap();
            let handle = saver.start(reshard::save(&state, &url)).await.unwrap();
            handle.finish().await.unwrap();
        }
    });
    assert_eq!(home.names(), ["x"]);
}

#[test]
fn types_are_checked_over_sharded_leaves_and_common_state() {
    let home = Folder::new();
    let state = |elements: u64| {
        let mut state = StateDict::new();
        let w = Tensor::from_vec(&[elements], vec![1f32; elements as usize]).unwrap();
        state.insert("w", ShardedTensor::full("w", w));
        state.insert("seed", Tensor::from_vec(&[2], vec![1i64; 2]).unwrap());
        state
    };
    block_on(async {
        let saver = AsyncSaver::new(&SingleProcess).await.unwrap();
        let mut saver = saver.with_stager(BlockingAsyncStager::new().with_type_check(true));
        for step in 0..3 {
            let url = home.url(&format!("{step}"));
            let state = state(4);
            let handle = saver.start(reshard::save(&state, &url)).await.unwrap();
            handle.finish().await.unwrap();
        }
        let (url, other) = (home.url("other"), state(5));
        let handle = saver.start(reshard::save(&other, &url)).await.unwrap();
        let e = handle.finish().await.unwrap_err().to_string();
        assert!(e.contains("was float32 of shape [4]"), "{e}");
    });
}

#[test]
fn a_save_that_could_not_be_staged_holds_nothing_of_the_callers() {
    let home = Folder::new();
    let url = home.url("x");
    let training = Training::new(Rank(0), 1, 0);
    let (host, seed) = (training.host.clone(), training.seed.clone());
    block_on(async {
        let saver = AsyncSaver::new(&SingleProcess).await.unwrap();
        let mut saver = saver.with_stager(Fails);
        let state = training.state();
        let handle = saver.start(reshard::save(&state, &url)).await.unwrap();
        handle.staged().await;
        drop((state, training));
        assert!(host.into_vec::<f32>().is_ok());
        assert!(seed.into_vec::<i64>().is_ok());
        assert!(handle.finish().await.is_err());
    });
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
                let (state, url) = (training.state(), home.url("x"));
                let begun = Instant::now();
                let mut saver = AsyncSaver::new(&group).await.unwrap();
                let mut save = reshard::save(&state, &url).policy(AllInOne::new().gather());
                if group.rank() == bad {
                    save = save.stager(Arc::new(Fails));
                }
                let handle = saver.start(save).await.unwrap();
                let e = handle.finish().await.unwrap_err().to_string();
                assert!(e.contains(&format!("rank {}", bad.0)), "{e}");
                assert!(e.contains("no memory"), "{e}");
                assert!(begun.elapsed() < SOON);
            }
        });
        assert_eq!(home.names(), [""; 0]);
    }
}

#[test]
fn a_coordinator_that_is_no_rank_is_refused() {
    let home = Folder::new();
    let (state, url) = (one(1.), home.url("x"));
    block_on(async {
        let mut saver = AsyncSaver::new(&SingleProcess).await.unwrap();
        let save = reshard::save(&state, &url).coordinator(Rank(7));
        let e = saver.start(save).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
        assert!(e.to_string().contains("rank 7"), "{e}");
    });
}
