use crate::{Cause, CommError, ProcessGroup, Rank, Result};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::pending;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// What goes wrong in a [`FaultGroup`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The call is an error for this rank; the transport tells nobody.
    Fail(Cause),
    /// The group is broken before the call.
    Abort(Cause),
    /// The call panics.
    Panic,
    /// The call never ends.
    Silence,
    /// The process ends, and nothing is cleaned up. For ranks in processes.
    Death,
}

/// A group of which one rank's `k`-th collective, counted from 0 over the group and its sub-groups, goes wrong.
#[derive(Clone, Debug)]
pub struct FaultGroup {
    inner: Arc<dyn ProcessGroup>,
    plan: Arc<Plan>,
}

#[derive(Debug)]
struct Plan {
    calls: AtomicU64,
    sent: AtomicU64,
    fault: Option<(u64, Fault)>,
}

impl FaultGroup {
    /// Call number `at` goes wrong, and all others go through.
    pub fn new(inner: Arc<dyn ProcessGroup>, at: u64, fault: Fault) -> Self {
        Self {
            inner,
            plan: Arc::new(Plan {
                calls: AtomicU64::new(0),
                sent: AtomicU64::new(0),
                fault: Some((at, fault)),
            }),
        }
    }

    /// Nothing goes wrong; [`calls`](Self::calls) tells how many places there are for a fault.
    pub fn counting(inner: Arc<dyn ProcessGroup>) -> Self {
        Self {
            inner,
            plan: Arc::new(Plan {
                calls: AtomicU64::new(0),
                sent: AtomicU64::new(0),
                fault: None,
            }),
        }
    }

    /// How many collectives this rank has called.
    pub fn calls(&self) -> u64 {
        self.plan.calls.load(Ordering::SeqCst)
    }

    /// How many bytes this rank has handed to other ranks, or to itself as the root.
    pub fn sent(&self) -> u64 {
        self.plan.sent.load(Ordering::SeqCst)
    }

    async fn enter<'b>(&self, data: impl IntoIterator<Item = &'b Bytes>) -> Result<()> {
        let bytes: usize = data.into_iter().map(Bytes::len).sum();
        self.plan.sent.fetch_add(bytes as u64, Ordering::SeqCst);
        let call = self.plan.calls.fetch_add(1, Ordering::SeqCst);
        match &self.plan.fault {
            Some((at, fault)) if *at == call => match fault {
                Fault::Fail(cause) => Err(CommError::Broken(cause.clone())),
                Fault::Abort(cause) => {
                    self.inner.abort(cause.clone());
                    Ok(())
                }
                Fault::Panic => panic!("an injected panic"),
                Fault::Silence => pending().await,
                Fault::Death => std::process::abort(),
            },
            _ => Ok(()),
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)] // a new default must not slip past the inner group
impl ProcessGroup for FaultGroup {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn abort(&self, cause: Cause) {
        self.inner.abort(cause);
    }

    fn silent(&self) -> Vec<Rank> {
        self.inner.silent()
    }

    async fn all_to_all(&self, to: Vec<Bytes>) -> Result<Vec<Bytes>> {
        self.enter(&to).await?;
        self.inner.all_to_all(to).await
    }

    async fn all_to_all_blocks(&self, to: Vec<Vec<Bytes>>) -> Result<Vec<Vec<Bytes>>> {
        self.enter(to.iter().flatten()).await?;
        self.inner.all_to_all_blocks(to).await
    }

    fn shares_memory(&self) -> bool {
        self.inner.shares_memory()
    }

    async fn split(&self, color: Option<u32>, order: u32) -> Result<Option<Arc<dyn ProcessGroup>>> {
        self.enter([]).await?;
        let part = self.inner.split(color, order).await?;
        Ok(part.map(|inner| {
            Arc::new(Self {
                inner,
                plan: Arc::clone(&self.plan),
            }) as Arc<dyn ProcessGroup>
        }))
    }

    async fn barrier(&self) -> Result<()> {
        self.enter([]).await?;
        self.inner.barrier().await
    }

    async fn all_gather(&self, mine: Bytes) -> Result<Vec<Bytes>> {
        self.enter([&mine]).await?;
        self.inner.all_gather(mine).await
    }

    async fn gather(&self, mine: Bytes, root: Rank) -> Result<Option<Vec<Bytes>>> {
        self.enter([&mine]).await?;
        self.inner.gather(mine, root).await
    }

    async fn scatter(&self, parts: Option<Vec<Bytes>>, root: Rank) -> Result<Bytes> {
        self.enter(parts.iter().flatten()).await?;
        self.inner.scatter(parts, root).await
    }

    async fn broadcast(&self, data: Option<Bytes>, root: Rank) -> Result<Bytes> {
        self.enter(&data).await?;
        self.inner.broadcast(data, root).await
    }
}
