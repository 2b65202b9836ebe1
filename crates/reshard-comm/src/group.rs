use crate::{Cause, CommError, Rank, Result};
use async_trait::async_trait;
use bytes::Bytes;
use std::{fmt, sync::Arc};

/// A transport: moves bytes between the ranks of a group, and knows no errors but its own.
///
/// Three methods are asked for beside `rank` and `size`; the provided ones are right but not fast, and a transport
/// overrides those that it can do better. [`Comm`](crate::Comm) uses `gather`, `scatter` and `broadcast`.
///
/// # Contract
/// - Messages arrive whole and unchanged, of any length, also empty; the one a rank sends to itself too.
/// - A wrong call (a root outside the group, a wrong number of parts) is [`CommError::OutOfStep`] and breaks the
///   group, as the other ranks already wait for this one.
/// - A broken group stays broken: each later call is an error that tells the first cause.
///
/// # Collective
/// Every rank calls the same methods in the same order with the same `root`, one call at a time. A method may return
/// on one rank before the others are done, once that rank's part in it is done.
///
/// # Cancellation
/// Dropping a future that was polled and isn't done breaks the group.
///
/// # Errors
/// [`CommError::Broken`] when a rank left or called [`abort`](Self::abort), [`CommError::OutOfStep`] where the
/// transport sees that calls differ. A transport needs no deadlines, `Comm` has them.
#[async_trait]
pub trait ProcessGroup: fmt::Debug + Send + Sync {
    /// The number of this process in the group.
    fn rank(&self) -> Rank;

    /// How many ranks the group has: at least 1.
    fn size(&self) -> u32;

    /// Sends `to[r]` to rank `r`, for every rank; returns what every rank sent to this one, in order of ranks.
    async fn all_to_all(&self, to: Vec<Bytes>) -> Result<Vec<Bytes>>;

    /// Sub-groups: one for each `color`, its ranks sorted by `order`, then by their rank here. `None`: in no
    /// sub-group. A sub-group has an order of calls of its own, and breaks on its own.
    async fn split(&self, color: Option<u32>, order: u32) -> Result<Option<Arc<dyn ProcessGroup>>>;

    /// Breaks the group: every rank that waits or will wait gets this cause. Best effort, never blocks; only the
    /// first cause counts.
    fn abort(&self, cause: Cause);

    /// The ranks that the collective in flight still waits for, as far as the transport can tell.
    fn silent(&self) -> Vec<Rank> {
        Vec::new()
    }

    /// Returns when all ranks have called it.
    async fn barrier(&self) -> Result<()> {
        self.all_gather(Bytes::new()).await.map(drop)
    }

    /// Every rank gets what every rank gave, in order of ranks.
    async fn all_gather(&self, mine: Bytes) -> Result<Vec<Bytes>> {
        self.all_to_all(vec![mine; self.size() as usize]).await
    }

    /// `root` gets what every rank gave, in order of ranks; the others get `None`.
    async fn gather(&self, mine: Bytes, root: Rank) -> Result<Option<Vec<Bytes>>> {
        let mut to = vec![Bytes::new(); self.size() as usize];
        match to.get_mut(root.index()) {
            Some(place) => *place = mine,
            None => return Err(wrong(self, format!("gather to rank {root}"))),
        }
        let from = self.all_to_all(to).await?;
        Ok((self.rank() == root).then_some(from))
    }

    /// Rank `r` gets `parts[r]` of `root`; what the others pass is ignored.
    async fn scatter(&self, parts: Option<Vec<Bytes>>, root: Rank) -> Result<Bytes> {
        let size = self.size() as usize;
        let to = match parts {
            _ if self.rank() != root => vec![Bytes::new(); size],
            Some(parts) if parts.len() == size => parts,
            other => {
                let given = other.map_or(0, |parts| parts.len());
                return Err(wrong(self, format!("scatter of {given} parts")));
            }
        };
        let mut from = self.all_to_all(to).await?;
        match from.get_mut(root.index()) {
            Some(part) => Ok(std::mem::take(part)),
            None => Err(wrong(self, format!("scatter from rank {root}"))),
        }
    }

    /// All ranks get `data` of `root`; what the others pass is ignored.
    async fn broadcast(&self, data: Option<Bytes>, root: Rank) -> Result<Bytes> {
        self.scatter(data.map(|data| vec![data; self.size() as usize]), root).await
    }
}

fn wrong<G: ProcessGroup + ?Sized>(group: &G, call: String) -> CommError {
    let error = CommError::OutOfStep(format!("rank {} of {} calls {call}", group.rank(), group.size()));
    group.abort(error.to_cause());
    error
}

/// The group of one rank. It sends nothing and can't break.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleProcess;

#[async_trait]
impl ProcessGroup for SingleProcess {
    fn rank(&self) -> Rank {
        Rank(0)
    }

    fn size(&self) -> u32 {
        1
    }

    async fn all_to_all(&self, to: Vec<Bytes>) -> Result<Vec<Bytes>> {
        if to.len() == 1 { Ok(to) } else { Err(wrong(self, format!("all_to_all of {} parts", to.len()))) }
    }

    async fn split(&self, color: Option<u32>, _: u32) -> Result<Option<Arc<dyn ProcessGroup>>> {
        Ok(color.map(|_| Arc::new(Self) as Arc<dyn ProcessGroup>))
    }

    fn abort(&self, _: Cause) {}
}
