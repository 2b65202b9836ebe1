//! N ranks in one process.

mod hub;

use crate::{Cause, CommError, ProcessGroup, Rank, Result};
use async_trait::async_trait;
use bytes::Bytes;
use hub::{Hub, Op, Parcel};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

/// One of N ranks in one process.
///
/// It needs no particular executor: the ranks may be threads with `block_on`, tasks of a pool, or futures joined on a
/// single thread. Bytes are shared between ranks, not copied. If you drop the handle of a rank, this rank leaves: ranks
/// that wait for it, now or later, get [`CommError::Broken`].
///
/// ```
/// use futures::{executor::block_on, future::join_all};
/// use reshard_comm::{LocalGroup, ProcessGroup};
///
/// let ranks = LocalGroup::new(4);
/// let heard = block_on(join_all(ranks.iter().map(|rank| rank.all_gather(vec![rank.rank().0 as u8].into()))));
/// assert_eq!(heard[3].as_ref().unwrap().concat(), [0, 1, 2, 3]);
/// ```
pub struct LocalGroup {
    rank: Rank,
    hub: Arc<Hub>,
}

impl LocalGroup {
    /// The `size` ranks of a new group, in order.
    pub fn new(size: u32) -> Vec<Self> {
        let hub = Arc::new(Hub::new(size));
        (0..size)
            .map(|rank| Self {
                rank: Rank(rank),
                hub: Arc::clone(&hub),
            })
            .collect()
    }

    fn call(&self, op: Op, bytes: Vec<Bytes>) -> Call<'_> {
        self.call_blocks(op, bytes.into_iter().map(|message| vec![message]).collect())
    }

    fn call_blocks(&self, op: Op, messages: Vec<Vec<Bytes>>) -> Call<'_> {
        Call {
            group: self,
            state: State::New(op, messages),
        }
    }
}

impl fmt::Debug for LocalGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalGroup(rank {} of {})", self.rank, self.hub.size())
    }
}

impl Drop for LocalGroup {
    fn drop(&mut self) {
        self.hub
            .break_with(CommError::rank_left(self.rank, "the group"));
    }
}

/// One rank's part in one collective.
struct Call<'a> {
    group: &'a LocalGroup,
    state: State,
}

enum State {
    New(Op, Vec<Vec<Bytes>>),
    Waiting,
    Over,
}

impl Future for Call<'_> {
    type Output = Result<Parcel>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (rank, hub) = (self.group.rank, &self.group.hub);
        if let State::New(op, bytes) = std::mem::replace(&mut self.state, State::Over) {
            hub.give(rank, op, bytes)?;
        }
        let taken = hub.take(rank, cx.waker());
        if taken.is_pending() {
            self.state = State::Waiting;
        }
        taken
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if matches!(self.state, State::Waiting) {
            let left = CommError::rank_left(self.group.rank, "a collective before it was done");
            self.group.hub.break_with(left);
        }
    }
}

#[async_trait]
impl ProcessGroup for LocalGroup {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.hub.size()
    }

    async fn all_to_all(&self, to: Vec<Bytes>) -> Result<Vec<Bytes>> {
        Ok(self.call(Op::AllToAll, to).await?.bytes())
    }

    async fn all_to_all_blocks(&self, to: Vec<Vec<Bytes>>) -> Result<Vec<Vec<Bytes>>> {
        Ok(self.call_blocks(Op::AllToAll, to).await?.messages)
    }

    fn shares_memory(&self) -> bool {
        true
    }

    async fn split(&self, color: Option<u32>, order: u32) -> Result<Option<Arc<dyn ProcessGroup>>> {
        let group = self.call(Op::Split { color, order }, vec![]).await?.group;
        Ok(group.map(|group| Arc::new(group) as Arc<dyn ProcessGroup>))
    }

    fn abort(&self, cause: Cause) {
        self.hub.break_with(CommError::Broken(cause));
    }

    fn silent(&self) -> Vec<Rank> {
        self.hub.silent()
    }

    async fn barrier(&self) -> Result<()> {
        self.call(Op::Barrier, vec![]).await.map(drop)
    }

    async fn all_gather(&self, mine: Bytes) -> Result<Vec<Bytes>> {
        Ok(self.call(Op::AllGather, vec![mine]).await?.bytes())
    }

    async fn gather(&self, mine: Bytes, root: Rank) -> Result<Option<Vec<Bytes>>> {
        let all = self.call(Op::Gather(root), vec![mine]).await?.bytes();
        Ok((self.rank == root).then_some(all))
    }

    async fn scatter(&self, parts: Option<Vec<Bytes>>, root: Rank) -> Result<Bytes> {
        Ok(self
            .call(Op::Scatter(root), parts.unwrap_or_default())
            .await?
            .one())
    }

    async fn broadcast(&self, data: Option<Bytes>, root: Rank) -> Result<Bytes> {
        Ok(self
            .call(Op::Broadcast(root), data.into_iter().collect())
            .await?
            .one())
    }
}
