use crate::{Cause, CommError, Rank, Result};
use async_trait::async_trait;
use bytes::Bytes;
use std::{fmt, sync::Arc};

/// A transport: moves bytes between the ranks of a group, and knows only its own errors.
///
/// Implement the required methods. The provided methods are correct but slow: override those that your transport can do
/// better. [`Comm`](crate::Comm) never uses `barrier` and `all_gather`.
///
/// # Contract
/// - Messages of any length arrive whole and unchanged, including empty ones and the message of a rank to itself.
/// - A wrong call (a root outside the group, a wrong number of parts) is [`CommError::OutOfStep`] and breaks the group,
///   because the other ranks already wait for this one.
/// - A broken group stays broken: each later call is an error that names the first cause.
///
/// The suite `testkit::process_group_contract` checks all that this page says, with ranks on threads, and
/// `testkit::process_group_contract_of_rank` from processes (feature `testkit`).
///
/// # Collective
/// Every rank calls the same methods in the same order with the same `root`, one call at a time. A method may return on
/// one rank as soon as this rank's part is done, even if the other ranks are not done. Only [`barrier`](Self::barrier)
/// waits for all.
///
/// # Dropping a call
/// If you drop a future that was polled and is not finished, the group breaks. A rank may have sent its part before, so
/// others can't tell it from one that goes on: the transport must tell them. A future that was never polled has done
/// nothing.
///
/// # Dropping a handle
/// A rank leaves the group when its last handle is dropped, or when its process ends. What it has sent still arrives. From
/// then on calls that need it are [`CommError::Broken`] with a cause that names it. A transport in which ranks share
/// memory may break the group for all at once, as [`LocalGroup`](crate::LocalGroup) does. Over a network, ranks that need
/// nothing more of a rank should not be disturbed when it leaves. Sub-groups live on when the group that they were split from
/// is dropped.
///
/// # Errors
/// [`CommError::Broken`] if a rank left or called [`abort`](Self::abort); [`CommError::OutOfStep`] if the transport
/// notices that calls differ. A transport needs no deadlines, because `Comm` has them.
#[async_trait]
pub trait ProcessGroup: fmt::Debug + Send + Sync {
    /// The number of this process in the group.
    fn rank(&self) -> Rank;

    /// How many ranks the group has: at least 1.
    fn size(&self) -> u32;

    /// Sends `to[r]` to each rank `r`. Returns what every rank sent to this one, in the order of ranks.
    async fn all_to_all(&self, to: Vec<Bytes>) -> Result<Vec<Bytes>>;

    /// As [`all_to_all`](Self::all_to_all), with messages in blocks. A message arrives in any number of blocks: only the bytes of all
    /// of them together count. Override it if your transport can do without joining them.
    async fn all_to_all_blocks(&self, to: Vec<Vec<Bytes>>) -> Result<Vec<Vec<Bytes>>> {
        let got = self
            .all_to_all(to.into_iter().map(joined).collect())
            .await?;
        Ok(got.into_iter().map(|message| vec![message]).collect())
    }

    /// Whether the ranks share memory, so that [`all_to_all_blocks`](Self::all_to_all_blocks) hands blocks over and copies nothing.
    fn shares_memory(&self) -> bool {
        false
    }

    /// Splits the group into one sub-group for each `color`. Its ranks are sorted by `order`, then by their rank here. A
    /// rank that passes `None` is in no sub-group. A sub-group has its own order of calls, and breaks separately.
    async fn split(&self, color: Option<u32>, order: u32) -> Result<Option<Arc<dyn ProcessGroup>>>;

    /// Breaks the group: every rank that waits, now or later, gets this cause. It never blocks. Only the first cause
    /// counts.
    ///
    /// The cause must get out even if this rank drops its handle or ends right after the call. So a transport over a
    /// network sends it beside the messages of collectives, to ranks that wait in a call and to those that come later; for
    /// ranks that it has no connection with, it leaves the cause where they look when they can't reach this rank.
    /// `TcpGroup` sends notices on all connections, and puts the cause into the store at which the ranks met. A rank may get
    /// the cause in a call that others have finished, because an abort may be faster than a message.
    fn abort(&self, cause: Cause);

    /// The ranks for which the current collective still waits, as far as the transport knows.
    fn silent(&self) -> Vec<Rank> {
        Vec::new()
    }

    /// Returns when all ranks have called it.
    ///
    /// Over a network one round is too little: a rank may come, and drop its call when others have its message already. They
    /// would go on, and it would not. In a second round each rank shows that it is still there, so nobody returns before
    /// all have come, or after one has given up in between.
    async fn barrier(&self) -> Result<()> {
        self.all_gather(Bytes::new()).await.map(drop)
    }

    /// Every rank gets the data of all ranks, in the order of ranks.
    async fn all_gather(&self, mine: Bytes) -> Result<Vec<Bytes>> {
        self.all_to_all(vec![mine; self.size() as usize]).await
    }

    /// `root` gets the data of all ranks, in the order of ranks. The other ranks get `None`.
    async fn gather(&self, mine: Bytes, root: Rank) -> Result<Option<Vec<Bytes>>> {
        let mut to = vec![Bytes::new(); self.size() as usize];
        match to.get_mut(root.index()) {
            Some(place) => *place = mine,
            None => return Err(wrong(self, format!("gather to rank {root}"))),
        }
        let from = self.all_to_all(to).await?;
        Ok((self.rank() == root).then_some(from))
    }

    /// Rank `r` gets `parts[r]` of `root`. Parts that other ranks pass are ignored.
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

    /// All ranks get the `data` of `root`. Data that other ranks pass are ignored.
    async fn broadcast(&self, data: Option<Bytes>, root: Rank) -> Result<Bytes> {
        self.scatter(data.map(|data| vec![data; self.size() as usize]), root)
            .await
    }
}

/// The bytes of blocks that follow each other, in one block. A single block is not copied.
pub(crate) fn joined(mut blocks: Vec<Bytes>) -> Bytes {
    match blocks.len() {
        1 => blocks.pop().unwrap_or_default(),
        _ => blocks.concat().into(),
    }
}

fn wrong<G: ProcessGroup + ?Sized>(group: &G, call: String) -> CommError {
    let error = CommError::OutOfStep(format!(
        "rank {} of {} calls {call}",
        group.rank(),
        group.size()
    ));
    group.abort(error.to_cause());
    error
}

/// The group of a single rank. It sends nothing and can't break.
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
        if to.len() == 1 {
            Ok(to)
        } else {
            Err(wrong(self, format!("all_to_all of {} parts", to.len())))
        }
    }

    async fn split(&self, color: Option<u32>, _: u32) -> Result<Option<Arc<dyn ProcessGroup>>> {
        Ok(color.map(|_| Arc::new(Self) as Arc<dyn ProcessGroup>))
    }

    fn abort(&self, _: Cause) {}
}
