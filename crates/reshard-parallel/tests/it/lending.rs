//! Ranks of one process that read straight into each other's leaves, while one of them goes.

use crate::ranks::{groups, store};
use futures::{
    channel::{mpsc, oneshot},
    executor::block_on,
    future::{Either, select},
};
use reshard::{
    DType, Data, ErrorKind, LoadError, ShardedTensor, StateDict, Stores, Tensor,
    model::Leaf,
    storage::{Progress, RecordRead, Result, Store, Traffic},
};
use reshard_parallel::{FullyParallelLoad, TwoStageLoad};
use reshard_torch_dist::TorchDistLoadConfig;
use std::{pin::pin, sync::Arc, thread, time::Duration};

/// It takes its time to read into leaves, or never answers. Then it keeps the regions until the read is dropped.
#[derive(Debug)]
struct Stuck {
    inner: Arc<dyn Store>,
    asked: mpsc::UnboundedSender<()>,
    takes: Option<Duration>,
}

/// Lets go of regions only after a while, as a thread in a call of the system does.
struct Slow(#[expect(dead_code, reason = "only its drop matters")] Vec<RecordRead>);

impl Drop for Slow {
    fn drop(&mut self) {
        thread::sleep(Duration::from_millis(200));
    }
}

#[async_trait::async_trait]
impl Store for Stuck {
    reshard_storage::forward! { inner: url hints read list head remove begin join }

    async fn read_into(&self, reads: Vec<RecordRead>, progress: Progress) -> Result<Traffic> {
        assert!(!reads.is_empty());
        if let Some(takes) = self.takes {
            let (done, is_done) = oneshot::channel::<()>();
            thread::spawn(move || {
                thread::sleep(takes);
                drop(done);
            });
            is_done.await.ok();
            return self.inner.read_into(reads, progress).await;
        }
        let kept = Slow(reads);
        self.asked.unbounded_send(()).unwrap();
        let () = std::future::pending().await;
        drop(kept);
        Ok(Traffic::default())
    }
}

/// Tensors that are too long to be read together with their heads.
fn replicas() -> StateDict {
    let mut state = StateDict::new();
    for key in ["a", "b", "c", "d"] {
        let data = Tensor::zeros(key, DType::Float32, &[64 << 10]).unwrap();
        state.insert(key, ShardedTensor::full(key, data));
    }
    state
}

/// Where the memory of each tensor is.
fn addresses(state: &StateDict) -> Vec<(String, usize)> {
    let mut out = Vec::new();
    state.visit(&mut |_, leaf| {
        if let Leaf::Tensor(t) = leaf {
            let address = match &t.data {
                Data::Host(h) => h.to_bytes().as_ptr().addr(),
                _ => 0,
            };
            out.push((t.key.to_string(), address));
        }
    });
    out
}

/// Rank 0 hangs in a read into everybody's leaves, and rank 2 drops its load. The others hear of it at once, although rank 0 hangs, and
/// rank 1 has its memory back.
#[test]
fn a_rank_that_goes_gets_regions_back_from_a_read_that_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    store(vec![replicas()], &url);
    let (asked, was_asked) = mpsc::unbounded();
    let mut was_asked = Some(was_asked);
    let ranks = groups(3).into_iter().enumerate().map(|(rank, group)| {
        let (url, asked) = (url.clone(), asked.clone());
        let mut was_asked = was_asked.take_if(|_| rank == 2);
        thread::spawn(move || -> Option<(Vec<(String, usize)>, LoadError)> {
            let inner = Stores::linked().unwrap().open(&url).unwrap();
            let store: Arc<dyn Store> = match rank {
                0 => Arc::new(Stuck {
                    inner,
                    asked,
                    takes: None,
                }),
                _ => inner,
            };
            let template = replicas();
            let before = addresses(&template);
            let load = reshard::load(template, &url)
                .group(&*group)
                .store(store)
                .strategy(FullyParallelLoad::new().around(TorchDistLoadConfig::default()));
            let load = pin!(load.into_future());
            let Some(was_asked) = &mut was_asked else {
                return Some((before, block_on(load).map(drop).unwrap_err()));
            };
            // Its load is dropped with its last poll in the air.
            let gone = pin!(futures::StreamExt::next(was_asked));
            match block_on(select(load, gone)) {
                Either::Left(_) => panic!("rank 2 was done before rank 0"),
                Either::Right(_) => None,
            }
        })
    });
    let ranks: Vec<_> = ranks.collect();
    for (rank, thread) in ranks.into_iter().enumerate() {
        let Some((before, failure)) = thread.join().unwrap() else {
            assert_eq!(rank, 2);
            continue;
        };
        let (e, template) = failure.into_parts();
        assert_eq!(e.kind(), ErrorKind::PeerFailed, "rank {rank}: {e}");
        assert!(e.to_string().contains("rank 2"), "rank {rank}: {e}");
        assert_eq!(addresses(&template), before, "rank {rank}");
        assert!(before.iter().all(|(_, address)| *address != 0));
    }
}

/// Rank 0 reads for much longer than the deadline. A deadline is for ranks that say nothing.
#[test]
fn a_rank_may_read_for_longer_than_a_step_waits() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    store(vec![replicas()], &url);
    let ranks = groups(3).into_iter().enumerate().map(|(rank, group)| {
        let url = url.clone();
        thread::spawn(move || {
            let inner = Stores::linked().unwrap().open(&url).unwrap();
            let store: Arc<dyn Store> = match rank {
                0 => Arc::new(Stuck {
                    inner,
                    asked: mpsc::unbounded().0,
                    takes: Some(Duration::from_secs(8)),
                }),
                _ => inner,
            };
            let load = reshard::load(replicas(), &url)
                .group(&*group)
                .store(store)
                .deadline(Duration::from_secs(5))
                .strategy(TwoStageLoad::new().around(TorchDistLoadConfig::default()));
            block_on(load.with_report()).unwrap().1.exchange.rounds
        })
    });
    let ranks: Vec<_> = ranks.collect();
    for rank in ranks {
        assert!(rank.join().unwrap() > 3);
    }
}
