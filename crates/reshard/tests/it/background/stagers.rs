use crate::background::common::{Fails, Folder, Gate, Training, on_ranks};
use async_trait::async_trait;
use reshard::{
    AsyncCallsQueue, AsyncSaver, AsyncStager, BlockingAsyncStager, Checkpoint, Data, ProcessGroup,
    ShardedObject, ShardedTensor, SingleProcess, Staging, StateDict, Tensor, Value, blocking,
    strategy::{KeyedData, Result},
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

/// Copies when it is asked to wait, behind a gate: as a stager does that copies on a stream of its device.
#[derive(Clone, Default)]
struct Background {
    inner: Arc<BlockingAsyncStager>,
    gate: Gate,
    complete: Arc<AtomicBool>,
}

impl std::fmt::Debug for Background {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Background")
    }
}

#[async_trait]
impl AsyncStager for Background {
    async fn stage(&self, leaves: Vec<KeyedData>) -> Result<Vec<Data>> {
        self.inner.stage(leaves).await
    }

    fn should_synchronize_after_execute(&self) -> bool {
        false
    }

    async fn synchronize_staging(&self) -> Result<()> {
        self.gate.pass();
        self.complete.store(true, Ordering::SeqCst);
        Ok(())
    }
}

#[test]
fn a_stager_in_the_background_is_waited_for_before_anything_is_written() {
    let home = Folder::new();
    let (url, training) = (home.url("ckpt"), Training::new(SingleProcess.rank(), 1, 3));
    futures::executor::block_on(async {
        let stager = Background::default();
        let mut saver = AsyncSaver::new(&SingleProcess)
            .await
            .unwrap()
            .with_stager(stager.clone());
        let complete = Arc::clone(&stager.complete);
        let state = training.state();
        let save = reshard::save(&state, &url)
            .progress(move |_| assert!(complete.load(Ordering::SeqCst), "written too early"));
        let handle = saver.start(save).await.unwrap();
        assert!(
            !stager.complete.load(Ordering::SeqCst),
            "the start has waited"
        );
        stager.gate.open();
        handle.staged().await;
        assert!(stager.complete.load(Ordering::SeqCst));
        handle.finish().await.unwrap();
    });
    blocking::Checkpoint::open(&url).unwrap();
}

#[test]
fn a_rank_that_can_not_stage_fails_the_save_on_all_ranks() {
    let home = Arc::new(Folder::new());
    let of_ranks = Arc::clone(&home);
    let ended = on_ranks(3, move |group| {
        let home = Arc::clone(&of_ranks);
        async move {
            let training = Training::new(group.rank(), 3, 0);
            let (url, state) = (home.url("ckpt"), training.state());
            let mut saver = AsyncSaver::new(&group).await.unwrap();
            let mut save = reshard::save(&state, &url);
            if group.rank().0 == 2 {
                save = save.stager(Arc::new(Fails));
            }
            let handle = saver.start(save).await.unwrap();
            handle.staged().await;
            drop(state);
            training.spoil();
            handle.finish().await.map(drop).map_err(|e| e.to_string())
        }
    });
    for e in ended {
        let e = e.unwrap_err();
        assert!(e.contains("rank 2: in `stage`: no memory"), "{e}");
    }
    assert!(home.names().is_empty(), "{:?}", home.names());
}

#[test]
fn memory_of_copies_is_kept_for_the_next_save_and_shared_memory_is_not_copied() {
    let home = Folder::new();
    let weights = Tensor::from_vec(&[1000], vec![1f32; 1000]).unwrap();
    let mut state = StateDict::new();
    state.insert("w", ShardedTensor::full("w", weights.clone()));
    futures::executor::block_on(async {
        let stager = Arc::new(BlockingAsyncStager::new());
        let mut saver = AsyncSaver::new(&SingleProcess).await.unwrap();
        for step in 0..4 {
            let url = home.url(&format!("copied-{step}"));
            let save = reshard::save(&state, &url).stager(Arc::clone(&stager) as _);
            saver.start(save).await.unwrap().finish().await.unwrap();
            assert_eq!(stager.allocations(), 1);
        }
        let other = Arc::new(BlockingAsyncStager::new());
        let (url, gate) = (home.url("shared"), Gate::default());
        let pass = gate.clone();
        let save = reshard::save(&state, &url)
            .stager(Arc::clone(&other) as _)
            .staging(Staging::Share)
            .progress(move |_| pass.pass());
        let handle = saver.start(save).await.unwrap();
        assert_eq!(other.allocations(), 0);
        drop(state);
        // The save has a handle, so nobody can change the elements.
        let Err(weights) = weights.into_vec::<f32>() else {
            panic!("nobody holds the elements")
        };
        gate.open();
        handle.finish().await.unwrap();
        drop(saver);
        assert!(weights.into_vec::<f32>().is_ok(), "the save is over");
        let stored = Checkpoint::open(&url).await.unwrap();
        let stored = stored.tensor("w").unwrap().read(..).await.unwrap();
        assert!(stored.to_vec::<f32>().unwrap() == [1f32; 1000]);
    });
}

/// Says that it was called, and never ends.
#[derive(Debug, Default)]
struct Hangs(Mutex<Option<futures::channel::oneshot::Sender<()>>>);

#[async_trait]
impl AsyncStager for Hangs {
    async fn stage(&self, _: Vec<KeyedData>) -> Result<Vec<Data>> {
        if let Some(called) = self.0.lock().unwrap().take() {
            called.send(()).unwrap();
        }
        std::future::pending().await
    }
}

#[test]
fn a_start_that_one_rank_drops_fails_the_save_on_the_others_at_once() {
    // Rank 0 has begun what has to be removed.
    for drops in [2, 0] {
        a_start_that_a_rank_drops(drops);
    }
}

fn a_start_that_a_rank_drops(drops: u32) {
    let home = Arc::new(Folder::new());
    let of_ranks = Arc::clone(&home);
    let ended = on_ranks(3, move |group| {
        let home = Arc::clone(&of_ranks);
        async move {
            let training = Training::new(group.rank(), 3, 0);
            let (url, state) = (home.url("ckpt"), training.state());
            let mut saver = AsyncSaver::new(&group).await.unwrap();
            let save = reshard::save(&state, &url);
            if group.rank().0 == drops {
                let (called, staging) = futures::channel::oneshot::channel();
                let stager = Arc::new(Hangs(Mutex::new(Some(called))));
                let start = Box::pin(saver.start(save.stager(stager)));
                drop(futures::future::select(start, staging).await);
                return None;
            }
            let handle = saver.start(save).await.unwrap();
            Some(handle.finish().await.unwrap_err().to_string())
        }
    });
    for e in ended.into_iter().flatten() {
        let rank = format!("rank {drops}");
        assert!(e.contains(&rank) && e.contains("starting a save"), "{e}");
    }
    assert!(home.names().is_empty(), "{:?}", home.names());
}

/// Panics.
#[derive(Debug)]
struct Panics;

#[async_trait]
impl AsyncStager for Panics {
    #[expect(clippy::panic, reason = "this is the fault")]
    async fn stage(&self, _: Vec<KeyedData>) -> Result<Vec<Data>> {
        panic!("a fault")
    }
}

#[test]
fn a_stager_that_panics_or_is_left_waiting_leaves_nothing() {
    use futures::{FutureExt, executor::block_on};
    let home = Folder::new();
    let (url, state) = (
        home.url("x"),
        Training::new(SingleProcess.rank(), 1, 0).state(),
    );
    block_on(async {
        let mut saver = AsyncSaver::new(&SingleProcess).await.unwrap();
        let save = reshard::save(&state, &url).stager(Arc::new(Panics));
        let start = std::panic::AssertUnwindSafe(saver.start(save));
        assert!(start.catch_unwind().await.is_err());
        assert!(home.names().is_empty(), "{:?}", home.names());
        drop(saver);

        let mut queue = AsyncCallsQueue::new(&SingleProcess).await.unwrap();
        let (called, staging) = futures::channel::oneshot::channel();
        let stager = Arc::new(Hangs(Mutex::new(Some(called))));
        let save = reshard::save(&state, &url).stager(stager);
        let request = Box::pin(queue.request(save));
        drop(futures::future::select(request, staging).await);
        assert!(home.names().is_empty(), "{:?}", home.names());
        // The place is free again.
        reshard::save(&state, &url).await.unwrap();
    });
}

/// Notes the keys of what it stages.
#[derive(Clone, Debug, Default)]
struct Names(Arc<Mutex<Vec<String>>>);

#[async_trait]
impl AsyncStager for Names {
    async fn stage(&self, leaves: Vec<KeyedData>) -> Result<Vec<Data>> {
        let keys = leaves.iter().map(|(key, _)| key.to_string());
        self.0.lock().unwrap().extend(keys);
        BlockingAsyncStager::new().stage(leaves).await
    }
}

#[test]
fn a_stager_is_told_the_keys_of_what_it_stages() {
    let home = Folder::new();
    let tensor = || Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
    let mut state = StateDict::new();
    state.insert("model.w", ShardedTensor::full("stored.w", tensor()));
    state.insert("lr", tensor());
    let object = ShardedObject::new("rng", Value::Tensor(tensor()), &[1], &[0], 0).unwrap();
    state.insert("rng", object);
    let names = Names::default();
    futures::executor::block_on(async {
        let saver = AsyncSaver::new(&SingleProcess).await.unwrap();
        let mut saver = saver.with_stager(names.clone());
        let handle = saver.start(reshard::save(&state, home.url("ckpt"))).await;
        handle.unwrap().finish().await.unwrap();
    });
    let mut keys = names.0.lock().unwrap().clone();
    keys.sort();
    assert_eq!(keys, ["lr", "rng/shard_0_1", "stored.w"]);
}
