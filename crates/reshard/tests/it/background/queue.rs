use crate::background::common::{Folder, Gate, Training, on_ranks, one};
use reshard::{AsyncCallsQueue, ErrorKind, FrozenRequest, ProcessGroup, SingleProcess, blocking};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

#[test]
fn calls_are_finalized_in_order_when_all_ranks_have_written() {
    let home = Arc::new(Folder::new());
    let of_ranks = Arc::clone(&home);
    let gate = Gate::default();
    on_ranks(2, move |group| {
        let (home, gate) = (Arc::clone(&of_ranks), gate.clone());
        async move {
            let is_late = group.rank().0 == 1;
            let mut queue = AsyncCallsQueue::new(&group)
                .await
                .unwrap()
                .with_in_flight(2);
            let calls = Arc::new(Mutex::new(Vec::new()));
            let written = Arc::new(AtomicU64::new(0));
            for step in 0..2 {
                let training = Training::new(group.rank(), 2, step);
                let url = home.url(&format!("step-{step}"));
                // Rank 1 writes its first call late. It holds one I/O thread, of which there may be two: the saves need the other.
                let (gate, waits) = (gate.clone(), is_late && step == 0);
                let state = training.state();
                let counted = Arc::clone(&written);
                let save = reshard::save(&state, &url).progress(move |bytes| {
                    if waits {
                        gate.pass();
                    }
                    if step == 1 {
                        counted.fetch_add(bytes, Ordering::Relaxed);
                    }
                });
                let mut request = queue.request(save).await.unwrap();
                assert_eq!(request.url(), url);
                drop(state);
                training.spoil();
                for part in ["a", "b"] {
                    let calls = Arc::clone(&calls);
                    request
                        .add_finalize_fn(move |saved| {
                            calls.lock().unwrap().push((step, part, saved.bytes() > 0));
                            Ok(())
                        })
                        .unwrap();
                }
                request.freeze();
                assert!(request.is_frozen());
                assert_eq!(request.add_finalize_fn(|_| Ok(())), Err(FrozenRequest));
                assert_eq!(queue.schedule(request).unwrap(), u64::from(step));
            }
            assert_eq!(queue.unfinalized(), 2);
            assert!(queue.maybe_finalize(false).await.unwrap().is_empty());
            // The second call, although this rank has written it, is not finalized before the first.
            while written.load(Ordering::Relaxed) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(queue.maybe_finalize(false).await.unwrap().is_empty());
            assert!(calls.lock().unwrap().is_empty());
            gate.open();
            let done = queue.maybe_finalize(true).await.unwrap();
            assert_eq!(done.iter().map(|f| f.index).collect::<Vec<_>>(), [0, 1]);
            assert_eq!(queue.unfinalized(), 0);
            let expected = [
                (0, "a", true),
                (0, "b", true),
                (1, "a", true),
                (1, "b", true),
            ];
            assert_eq!(*calls.lock().unwrap(), expected);
            assert!(queue.close(false).await.unwrap().is_empty());
        }
    });
    for step in 0..2 {
        let url = home.url(&format!("step-{step}"));
        let found = blocking::Checkpoint::open(&url)
            .unwrap()
            .tensor("w")
            .unwrap()
            .read(..)
            .unwrap();
        assert_eq!(found.to_vec::<f32>().unwrap()[0], step as f32);
    }
}

#[test]
fn a_request_that_one_rank_drops_fails_the_next_finalization_on_all_ranks() {
    let home = Arc::new(Folder::new());
    let of_ranks = Arc::clone(&home);
    on_ranks(3, move |group| {
        let home = Arc::clone(&of_ranks);
        async move {
            let (lost, late, good) = (home.url("lost"), home.url("late"), home.url("good"));
            let state = one(1.);
            let mut queue = AsyncCallsQueue::new(&group)
                .await
                .unwrap()
                .with_in_flight(3);
            let request = queue.request(reshard::save(&state, &lost)).await.unwrap();
            match group.rank().0 {
                1 => drop(request),
                _ => drop(queue.schedule(request).unwrap()),
            }
            let e = queue.maybe_finalize(true).await.unwrap_err();
            let text = e.to_string();
            assert!(
                text.contains("rank 1 dropped its request to save to") && text.contains("lost"),
                "{text}"
            );
            assert_eq!(e.kind(), ErrorKind::Invalid);
            assert_eq!(queue.unfinalized(), 0);

            // One that the others have not scheduled yet can't be scheduled any more.
            let request = queue.request(reshard::save(&state, &late)).await.unwrap();
            let kept = (group.rank().0 != 2).then_some(request);
            queue.maybe_finalize(false).await.unwrap_err();
            if let Some(request) = kept {
                let e = queue.schedule(request).unwrap_err().to_string();
                assert!(e.contains("another rank has dropped its request"), "{e}");
            }

            // The queue goes on.
            let request = queue.request(reshard::save(&state, &good)).await.unwrap();
            queue.schedule(request).unwrap();
            assert_eq!(queue.close(false).await.unwrap().len(), 1);
        }
    });
    assert_eq!(home.names(), ["good"]);
}

#[test]
fn requests_that_are_scheduled_in_another_order_are_an_error_on_all_ranks() {
    let home = Arc::new(Folder::new());
    let of_ranks = Arc::clone(&home);
    on_ranks(2, move |group| {
        let home = Arc::clone(&of_ranks);
        async move {
            let state = one(1.);
            let urls = ["a", "b"].map(|name| home.url(name));
            let mut queue = AsyncCallsQueue::new(&group)
                .await
                .unwrap()
                .with_in_flight(2);
            let mut requests = Vec::new();
            for url in &urls {
                requests.push(queue.request(reshard::save(&state, url)).await.unwrap());
            }
            if group.rank().0 == 1 {
                requests.reverse();
            }
            for request in requests {
                queue.schedule(request).unwrap();
            }
            let e = queue.maybe_finalize(true).await.unwrap_err().to_string();
            assert!(e.contains("unmatched asynchronous calls"), "{e}");
            assert!(e.contains("call 0, to"), "{e}");
            queue.close(true).await.unwrap();
        }
    });
    assert!(home.names().is_empty(), "{:?}", home.names());
}

#[test]
fn a_request_that_would_be_one_too_many_finalizes_the_oldest() {
    let home = Folder::new();
    let urls = ["a", "b"].map(|name| home.url(name));
    let state = one(1.);
    futures::executor::block_on(async {
        let mut queue = AsyncCallsQueue::new(&SingleProcess).await.unwrap();
        for url in &urls {
            let request = queue.request(reshard::save(&state, url)).await.unwrap();
            queue.schedule(request).unwrap();
            assert_eq!(queue.unfinalized(), 1);
        }
        assert!(home.names().contains(&"a".to_owned()));
        let done = queue.close(false).await.unwrap();
        let found: Vec<_> = done.iter().map(|f| (f.index, &f.url)).collect();
        assert_eq!(found, [(0, &urls[0]), (1, &urls[1])]);
        assert!(done[0].report.bytes() == done[1].report.bytes());
    });
}

#[test]
fn a_function_that_fails_is_told_to_all_ranks_and_the_checkpoint_stays() {
    let home = Arc::new(Folder::new());
    let of_ranks = Arc::clone(&home);
    on_ranks(2, move |group| {
        let home = Arc::clone(&of_ranks);
        async move {
            let (url, state, fails) = (home.url("ckpt"), one(1.), group.rank().0 == 1);
            let mut queue = AsyncCallsQueue::new(&group).await.unwrap();
            let mut request = queue.request(reshard::save(&state, &url)).await.unwrap();
            let f = move |_: &reshard::SaveReport| {
                if fails {
                    Err("no tracker".into())
                } else {
                    Ok(())
                }
            };
            request.add_finalize_fn(f).unwrap();
            queue.schedule(request).unwrap();
            let e = queue.maybe_finalize(true).await.unwrap_err().to_string();
            assert!(
                e.contains("rank 1: the checkpoint is committed, but"),
                "{e}"
            );
            assert!(e.contains("no tracker"), "{e}");
            assert!(queue.close(false).await.unwrap().is_empty());
        }
    });
    blocking::Checkpoint::open(home.url("ckpt")).unwrap();
}

#[test]
fn an_abort_and_a_dropped_queue_leave_nothing() {
    let home = Arc::new(Folder::new());
    for dropped in [false, true] {
        let of_ranks = Arc::clone(&home);
        on_ranks(2, move |group| {
            let home = Arc::clone(&of_ranks);
            async move {
                let (urls, state) = (["a", "b"].map(|name| home.url(name)), one(1.));
                let mut queue = AsyncCallsQueue::new(&group)
                    .await
                    .unwrap()
                    .with_in_flight(2);
                let request = queue
                    .request(reshard::save(&state, &urls[0]))
                    .await
                    .unwrap();
                queue.schedule(request).unwrap();
                let request = queue
                    .request(reshard::save(&state, &urls[1]))
                    .await
                    .unwrap();
                drop(request);
                if dropped {
                    drop(queue);
                } else {
                    queue.close(true).await.unwrap();
                }
                // The group of the training loop is whole.
                group.barrier().await.unwrap();
            }
        });
        assert!(home.names().is_empty(), "{dropped}: {:?}", home.names());
    }
}

#[test]
fn a_queue_that_one_rank_drops_is_an_error_on_the_others() {
    let home = Arc::new(Folder::new());
    let of_ranks = Arc::clone(&home);
    on_ranks(2, move |group| {
        let home = Arc::clone(&of_ranks);
        async move {
            let (url, state) = (home.url("ckpt"), one(1.));
            let mut queue = AsyncCallsQueue::new(&group).await.unwrap();
            let request = queue.request(reshard::save(&state, &url)).await.unwrap();
            queue.schedule(request).unwrap();
            if group.rank().0 == 1 {
                drop(queue);
                return;
            }
            let e = queue.maybe_finalize(true).await.unwrap_err().to_string();
            assert!(e.contains("rank 1 dropped its queue"), "{e}");
        }
    });
    assert!(home.names().is_empty(), "{:?}", home.names());
}
