//! Groups that measure what they move, or fail.

use async_trait::async_trait;
use bytes::Bytes;
use reshard_comm::{
    Cause, LocalGroup, ProcessGroup, Rank as CommRank,
    testkit::{Fault, FaultGroup},
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// A group that sees how many bytes are on their way to and from this rank at once.
#[derive(Debug)]
pub(super) struct Meter {
    inner: Arc<dyn ProcessGroup>,
    most: Arc<AtomicU64>,
}

impl Meter {
    /// Around a group; keeps the most bytes in `most`.
    pub(super) fn on(inner: Arc<dyn ProcessGroup>, most: &Arc<AtomicU64>) -> Arc<dyn ProcessGroup> {
        Arc::new(Self {
            inner,
            most: Arc::clone(most),
        })
    }
}

/// The ranks of a new group.
pub(super) fn local(ranks: u32) -> impl Iterator<Item = Arc<dyn ProcessGroup>> {
    LocalGroup::new(ranks)
        .into_iter()
        .map(|group| Arc::new(group) as Arc<dyn ProcessGroup>)
}

/// The ranks of a new group, with a fault of rank `bad` at its call `at`; all of them count their calls. Also as what ranks take.
pub(super) fn with_fault(
    ranks: u32,
    bad: u32,
    at: u64,
    fault: Option<&Fault>,
) -> (Vec<FaultGroup>, Vec<Arc<dyn ProcessGroup>>) {
    let wrapped: Vec<FaultGroup> = local(ranks)
        .map(|group| match fault {
            Some(fault) if group.rank().0 == bad => FaultGroup::new(group, at, fault.clone()),
            _ => FaultGroup::counting(group),
        })
        .collect();
    let dynamic = wrapped
        .iter()
        .map(|g| Arc::new(g.clone()) as Arc<dyn ProcessGroup>)
        .collect();
    (wrapped, dynamic)
}

#[async_trait]
impl ProcessGroup for Meter {
    fn rank(&self) -> CommRank {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    async fn all_to_all(&self, to: Vec<Bytes>) -> reshard_comm::Result<Vec<Bytes>> {
        let sent: usize = to.iter().map(Bytes::len).sum();
        let got = self.inner.all_to_all(to).await?;
        let received: usize = got.iter().map(Bytes::len).sum();
        self.most
            .fetch_max((sent + received) as u64, Ordering::Relaxed);
        Ok(got)
    }

    async fn split(
        &self,
        color: Option<u32>,
        order: u32,
    ) -> reshard_comm::Result<Option<Arc<dyn ProcessGroup>>> {
        let most = &self.most;
        let part = self.inner.split(color, order).await?;
        Ok(part.map(|inner| {
            Arc::new(Self {
                inner,
                most: Arc::clone(most),
            }) as Arc<dyn ProcessGroup>
        }))
    }

    // As if it were the transport's own, so that only exchanges are measured.
    async fn gather(
        &self,
        mine: Bytes,
        root: CommRank,
    ) -> reshard_comm::Result<Option<Vec<Bytes>>> {
        self.inner.gather(mine, root).await
    }

    async fn scatter(
        &self,
        parts: Option<Vec<Bytes>>,
        root: CommRank,
    ) -> reshard_comm::Result<Bytes> {
        self.inner.scatter(parts, root).await
    }

    async fn broadcast(&self, data: Option<Bytes>, root: CommRank) -> reshard_comm::Result<Bytes> {
        self.inner.broadcast(data, root).await
    }

    fn abort(&self, cause: Cause) {
        self.inner.abort(cause);
    }

    fn silent(&self) -> Vec<CommRank> {
        self.inner.silent()
    }
}
