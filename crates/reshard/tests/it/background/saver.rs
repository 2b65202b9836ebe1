use crate::background::common::{Folder, Gate, Training, gated, on_ranks, one};
use reshard::{
    AsyncSaver, Checkpoint, Dialect, ErrorKind, LocalGroup, ProcessGroup, SingleProcess, blocking,
};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

#[test]
fn an_asynchronous_save_writes_the_bytes_of_a_synchronous_one_whatever_is_done_to_the_state() {
    for dialect in [Dialect::Megatron, Dialect::Dcp] {
        let home = Arc::new(Folder::new());
        let of_ranks = Arc::clone(&home);
        let reports = on_ranks(3, move |group| {
            let home = Arc::clone(&of_ranks);
            async move {
                let training = |salt| Training::new(group.rank(), 3, salt);
                let mut saver = AsyncSaver::new(&group).await.unwrap();
                let mut report = None;
                for salt in 0..3 {
                    let url = home.url(&format!("sync-{salt}"));
                    let state = training(salt).state();
                    let save = reshard::save(&state, &url).dialect(dialect).group(&group);
                    save.await.unwrap();

                    let now = training(salt);
                    let url = home.url(&format!("async-{salt}"));
                    let gate = Gate::default();
                    let handle = {
                        let state = now.state();
                        let save = gated(&state, &url, &gate).dialect(dialect);
                        saver.start(save).await.unwrap()
                    };
                    handle.staged().await;
                    // Nothing of the state is written yet.
                    now.spoil();
                    gate.open();
                    report = Some(handle.finish().await.unwrap());
                }
                report.unwrap()
            }
        });
        assert!(reports[0].metadata.is_some() && reports[1].metadata.is_none());
        assert!(reports.iter().all(|r| r.bytes() == reports[0].bytes()));
        for salt in 0..3 {
            let files = |kind: &str| {
                let mut files = home.files(&format!("{kind}-{salt}"));
                // Its storage_meta names each save.
                let record = files.remove(".metadata").unwrap();
                (
                    files
                        .into_iter()
                        .filter(|(n, _)| n != "reshard.json")
                        .collect::<Vec<_>>(),
                    record.len(),
                )
            };
            assert!(files("sync") == files("async"), "{dialect:?}, {salt}");
        }
        let left: Vec<String> = home.names();
        assert_eq!(left.len(), 6, "{left:?}");
    }
}

#[test]
fn a_start_waits_while_too_many_saves_are_not_finished_and_says_for_how_long() {
    let home = Folder::new();
    let urls = ["a", "b", "c"].map(|name| home.url(name));
    let states = [1., 2., 3.].map(one);
    futures::executor::block_on(async {
        let mut saver = AsyncSaver::new(&SingleProcess)
            .await
            .unwrap()
            .with_in_flight(2);
        let gate = Gate::default();
        let first = saver
            .start(gated(&states[0], &urls[0], &gate))
            .await
            .unwrap();
        let second = saver
            .start(gated(&states[1], &urls[1], &gate))
            .await
            .unwrap();
        assert!(!first.is_done() && !second.is_done() && saver.unfinished() == 2);
        assert_eq!(first.url(), urls[0]);
        let begin = Instant::now();
        let mut third = Box::pin(saver.start(gated(&states[2], &urls[2], &gate)));
        for _ in 0..20 {
            assert!(futures::poll!(&mut third).is_pending(), "it did not wait");
            std::thread::sleep(Duration::from_millis(5));
        }
        gate.open();
        let third = third.await.unwrap();
        assert!(
            (Duration::from_millis(95)..=begin.elapsed()).contains(&third.waited()),
            "{:?}",
            third.waited()
        );
        assert!(first.is_done());
        for handle in [first, second, third] {
            handle.finish().await.unwrap();
        }
        assert_eq!(saver.unfinished(), 0);
        saver.close().await.unwrap();
    });
}

#[test]
fn two_saves_to_one_url_at_the_same_time_are_an_error_on_all_ranks() {
    let home = Arc::new(Folder::new());
    let ended = on_ranks(2, move |group| {
        let home = Arc::clone(&home);
        async move {
            let (url, state) = (home.url("ckpt"), one(1.));
            let mut saver = AsyncSaver::new(&group).await.unwrap().with_in_flight(2);
            let gate = Gate::default();
            let first = saver.start(gated(&state, &url, &gate)).await.unwrap();
            let again = || reshard::save(&state, &url).overwrite(true);
            let e = saver.start(again()).await.unwrap_err().to_string();
            assert!(e.contains("is not finished; finish that first"), "{e}");
            let e = again().group(&group).await.unwrap_err().to_string();
            assert!(e.contains("is not finished; finish that first"), "{e}");
            gate.open();
            first.finish().await.unwrap();
            // It is free again.
            let next = saver.start(again()).await.unwrap();
            next.finish().await.map(drop).map_err(|e| e.to_string())
        }
    });
    assert_eq!(ended, [Ok(()), Ok(())]);
}

#[test]
fn saves_that_ranks_start_in_another_order_are_an_error_on_all_ranks() {
    let home = Arc::new(Folder::new());
    let of_ranks = Arc::clone(&home);
    let ended = on_ranks(3, move |group| {
        let home = Arc::clone(&of_ranks);
        async move {
            let mut saver = AsyncSaver::new(&group).await.unwrap();
            let mut names = ["step-1", "step-2"];
            if group.rank().0 == 2 {
                names.reverse();
            }
            let (url, state) = (home.url(names[0]), one(1.));
            saver
                .start(reshard::save(&state, &url))
                .await
                .map(drop)
                .map_err(|e| e.to_string())
        }
    });
    for e in ended {
        let e = e.unwrap_err();
        assert!(e.contains("`place`: ranks 0, 1 have file://"), "{e}");
        assert!(e.contains("/step-1, rank 2 has file://"), "{e}");
    }
    assert!(home.names().is_empty(), "{:?}", home.names());
}

#[test]
fn a_worker_that_panics_fails_the_save_on_all_ranks_and_the_old_checkpoint_stays() {
    let home = Arc::new(Folder::new());
    blocking::save(&one(1.), home.url("ckpt")).unwrap();
    let before = home.files("ckpt");
    let of_ranks = Arc::clone(&home);
    let ended = on_ranks(3, move |group| {
        let home = Arc::clone(&of_ranks);
        async move {
            let training = Training::new(group.rank(), 3, 0);
            let (url, state, faulty) = (home.url("ckpt"), training.state(), group.rank().0 == 1);
            let mut saver = AsyncSaver::new(&group).await.unwrap();
            let save = || reshard::save(&state, &url).overwrite(true);
            let panics = move |_| assert!(!faulty, "a fault");
            let handle = saver.start(save().progress(panics)).await.unwrap();
            let e = handle.finish().await.unwrap_err();
            (e.to_string(), e.kind(), saver.close().await.is_ok())
        }
    });
    for (e, _, closed) in &ended {
        assert!(
            e.contains("rank 1") && e.contains("a fault") && *closed,
            "{e}"
        );
        assert_eq!(e, &ended[0].0);
    }
    assert_eq!(home.files("ckpt"), before);
    assert_eq!(home.names(), ["ckpt"]);
}

#[test]
fn a_handle_that_is_dropped_lets_its_save_complete_and_an_error_comes_back_later() {
    let home = Folder::new();
    let (good, bad) = (home.url("good"), home.url("bad"));
    let state = one(1.);
    futures::executor::block_on(async {
        let mut saver = AsyncSaver::new(&SingleProcess)
            .await
            .unwrap()
            .with_in_flight(2);
        drop(saver.start(reshard::save(&state, &good)).await.unwrap());
        let panics = |_| panic!("a fault");
        drop(
            saver
                .start(reshard::save(&state, &bad).progress(panics))
                .await
                .unwrap(),
        );
        let e = saver.close().await.unwrap_err();
        assert!(e.to_string().contains("a fault") && e.url() == bad, "{e}");
        assert_eq!(home.names(), ["good"]);

        // That of a save without a saver waits, too.
        let alone = home.url("alone");
        let gate = Gate::default();
        let handle = gated(&state, &alone, &gate).start().await.unwrap();
        let opener = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            gate.open();
        });
        drop(handle);
        Checkpoint::open(&alone).await.unwrap();
        opener.join().unwrap();
    });
}

#[test]
fn a_save_alone_goes_on_in_the_background_and_the_group_is_free() {
    let home = Arc::new(Folder::new());
    let of_ranks = Arc::clone(&home);
    let ended = on_ranks(2, move |group| {
        let home = Arc::clone(&of_ranks);
        async move {
            let (url, state, gate) = (home.url("ckpt"), one(2.), Gate::default());
            let handle = gated(&state, &url, &gate)
                .group(&group)
                .start()
                .await
                .unwrap();
            // The training loop uses its group meanwhile.
            for _ in 0..10 {
                group.barrier().await.unwrap();
            }
            assert!(!handle.is_done());
            gate.open();
            handle.finish().await.map(drop).map_err(|e| e.to_string())
        }
    });
    assert_eq!(ended, [Ok(()), Ok(())]);
    blocking::Checkpoint::open(home.url("ckpt")).unwrap();
}

#[test]
fn a_rank_that_leaves_while_saves_are_written_fails_them_on_the_others() {
    let home = Arc::new(Folder::new());
    let of_ranks = Arc::clone(&home);
    let groups: Vec<LocalGroup> = LocalGroup::new(3);
    let ended = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&ended);
    reshard_comm::testkit::on_ranks(groups, move |group| {
        let (home, told) = (Arc::clone(&of_ranks), Arc::clone(&told));
        async move {
            let (url, state) = (home.url("ckpt"), one(2.));
            let mut saver = AsyncSaver::new(&group).await.unwrap();
            if group.rank().0 == 2 {
                // It takes no part.
                return;
            }
            let e = match saver.start(reshard::save(&state, &url)).await {
                Ok(handle) => handle.finish().await.unwrap_err(),
                Err(e) => e,
            };
            told.lock().unwrap().push((e.to_string(), e.kind()));
        }
    });
    let ended = ended.lock().unwrap();
    assert_eq!(ended.len(), 2);
    for (e, kind) in &*ended {
        assert!(e.contains("rank 2"), "{e}");
        assert_ne!(*kind, ErrorKind::Invalid);
    }
    assert!(home.names().is_empty(), "{:?}", home.names());
}

#[test]
fn blocking_versions_do_the_same() {
    let home = Folder::new();
    let (urls, state) = (["a", "b", "c"].map(|name| home.url(name)), one(1.));
    let mut saver = blocking::AsyncSaver::new(&SingleProcess).unwrap();
    let handle = saver.start(reshard::save(&state, &urls[0])).unwrap();
    handle.staged();
    assert_eq!(handle.url(), urls[0]);
    let first = handle.finish().unwrap();
    saver.close().unwrap();
    let alone = blocking::start(reshard::save(&state, &urls[1])).unwrap();
    assert_eq!(alone.finish().unwrap().bytes(), first.bytes());
    let mut queue = blocking::AsyncCallsQueue::new(&SingleProcess).unwrap();
    let request = queue.request(reshard::save(&state, &urls[2])).unwrap();
    assert_eq!(queue.schedule(request).unwrap(), 0);
    assert_eq!(queue.maybe_finalize(true).unwrap().len(), 1);
    assert!(queue.close(false).unwrap().is_empty());
    assert_eq!(home.names(), ["a", "b", "c"]);
}
