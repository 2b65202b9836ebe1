use crate::{
    collective::{Collective, Seat},
    files,
    frame::Call,
    mesh::Mesh,
    method::{Described, Method},
    room::Left,
    store::wake_listener,
};
use async_trait::async_trait;
use bytes::Bytes;
use reshard_comm::{Cause, CommError, ProcessGroup, Rank, Result};
use reshard_model::ErrorKind;
use sha2::{Digest as _, Sha256};
use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

/// The group of all ranks of a job.
const WHOLE: u64 = 0;

/// One rank of a group of processes that are joined by TCP.
///
/// Its futures need no particular executor, because threads of the group do all I/O. Make it with
/// [`from_env`](Self::from_env) or [`builder`](Self::builder).
///
/// A connection between two ranks is opened when one of them first sends to the other one or waits for it. Sub-groups use
/// the connections of the whole group. A connection has two threads on each side.
///
/// `gather`, `scatter` and `broadcast` go along a tree from the root, `barrier` and `split` along one from rank 0. A rank
/// is connected with at most 64 others below it ([`fan_out`](crate::Builder::fan_out)), so a group of at most 65 ranks is a
/// star. `all_gather` is such a tree in larger groups. `all_to_all` connects each rank with each other one.
///
/// # Failures
/// If a rank vanishes, all ranks whose current or next call needs it get [`CommError::Broken`], which names it: at once
/// if its connection is closed, else when it was silent for too long ([`silence`](crate::Builder::silence)). They tell
/// the others.
///
/// # Leaving
/// Drop the group and its sub-groups before the process ends. Then other ranks get all that this rank has sent. The last
/// drop waits until that is sent. A rank that leaves does not disturb ranks that don't need it any more.
pub struct TcpGroup {
    id: u64,
    /// The rank within this group.
    rank: Rank,
    members: Arc<[u32]>,
    node: Arc<Node>,
}

/// What all groups of a rank share. The last one that is dropped shuts it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) mesh: Arc<Mesh>,
    /// Where this rank listens.
    pub(crate) address: SocketAddr,
    /// How long the last drop waits.
    pub(crate) patience: Duration,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.mesh.shut(self.patience);
        wake_listener(self.address);
    }
}

impl TcpGroup {
    /// The whole group of a rank.
    pub(crate) fn whole(node: Node) -> Self {
        let members = (0..node.mesh.size).collect();
        Self::new(WHOLE, members, Arc::new(node))
    }

    fn new(id: u64, members: Vec<u32>, node: Arc<Node>) -> Self {
        node.mesh.open(id, members.clone());
        let rank = (0..)
            .zip(&members)
            .find(|(_, member)| **member == node.mesh.me);
        Self {
            id,
            rank: Rank(rank.map_or(0, |(rank, _)| rank)),
            members: members.into(),
            node,
        }
    }

    /// Where this rank listens for other ranks.
    pub fn address(&self) -> SocketAddr {
        self.node.address
    }

    /// With how many other ranks of the job this one is connected.
    pub fn connections(&self) -> usize {
        self.mesh().connections()
    }

    fn mesh(&self) -> &Mesh {
        &self.node.mesh
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.size()).map(Rank)
    }

    fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let me = self.rank;
        self.ranks().filter(move |rank| *rank != me)
    }

    fn in_job(&self, rank: Rank) -> Option<u32> {
        self.members.get(rank.index()).copied()
    }

    /// Begins a call. If `right` is false, the arguments are wrong.
    fn begin(
        &self,
        method: Method,
        root: Rank,
        parts: usize,
        right: bool,
    ) -> Result<Collective<'_>> {
        let number = self.mesh().begin(self.id).inspect_err(|error| {
            // Only the first error counts, so this changes nothing if it was broken before.
            self.mesh().break_group(self.id, error.clone());
        })?;
        let call = Call {
            number,
            method: method.code(),
            root: root.0,
        };
        let seat = Seat {
            mesh: self.mesh(),
            group: self.id,
            rank: self.rank,
            members: &self.members,
        };
        let collective = Collective::new(seat, call);
        if right && self.in_job(root).is_some() {
            return Ok(collective);
        }
        Err(collective.fail(CommError::OutOfStep(format!(
            "rank {} of {} makes {} with {parts} parts",
            self.rank,
            self.size(),
            Described(call),
        ))))
    }

    /// Sends `to[r]` to each rank `r`, and returns what each sent to this one.
    async fn exchange(&self, collective: Collective<'_>, to: Vec<Bytes>) -> Result<Vec<Bytes>> {
        let what = format!("all_to_all of {} ranks", self.size());
        if let Err(text) = files::suffice(u64::from(self.size()).saturating_sub(1), &what) {
            let cause = Cause::new(
                ErrorKind::Unavailable,
                format!("rank {}: {text}", self.rank),
            );
            return Err(collective.fail(CommError::Broken(cause)));
        }
        let mine = to.get(self.rank.index()).cloned().unwrap_or_default();
        let parcels = self.ranks().zip(to).map(|(rank, body)| (rank, rank, body));
        let others = parcels.filter(|(rank, ..)| *rank != self.rank);
        collective.send(others.collect()).await?;
        let mut got = collective.receive(self.others().collect()).await?;
        got.insert(self.rank.index().min(got.len()), mine);
        collective.finish(got)
    }
}

impl fmt::Debug for TcpGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpGroup(rank {} of {})", self.rank, self.size())
    }
}

impl Drop for TcpGroup {
    fn drop(&mut self) {
        let panics = std::thread::panicking();
        let how = if panics {
            Left::Panicked
        } else {
            Left::InOrder
        };
        self.mesh().close(self.id, how);
    }
}

#[async_trait]
impl ProcessGroup for TcpGroup {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }

    async fn all_to_all(&self, to: Vec<Bytes>) -> Result<Vec<Bytes>> {
        let right = to.len() == self.members.len();
        let collective = self.begin(Method::AllToAll, Rank(0), to.len(), right)?;
        self.exchange(collective, to).await
    }

    async fn split(&self, color: Option<u32>, order: u32) -> Result<Option<Arc<dyn ProcessGroup>>> {
        let collective = self.begin(Method::Split, Rank(0), 1, true)?;
        let number = collective.number();
        let has = [u8::from(color.is_some())];
        let mine = [
            &has[..],
            &color.unwrap_or(0).to_le_bytes(),
            &order.to_le_bytes(),
        ]
        .concat();
        // Through rank 0: else each rank would have a connection with each other one.
        let all = collective.share(mine.into()).await?;
        let all = collective.finish(all)?;
        let Some(color) = color else {
            return Ok(None);
        };
        let mut members = Vec::new();
        for (rank, said) in self.ranks().zip(&all) {
            let [1, c0, c1, c2, c3, o0, o1, o2, o3] = said[..] else {
                continue;
            };
            if u32::from_le_bytes([c0, c1, c2, c3]) == color {
                members.push((u32::from_le_bytes([o0, o1, o2, o3]), rank));
            }
        }
        members.sort_unstable();
        let members = members
            .into_iter()
            .filter_map(|(_, rank)| self.in_job(rank));
        let id = sub_group(self.id, number, color);
        let part = Self::new(id, members.collect(), Arc::clone(&self.node));
        Ok(Some(Arc::new(part)))
    }

    fn abort(&self, cause: Cause) {
        self.mesh().break_group(self.id, CommError::Broken(cause));
    }

    fn silent(&self) -> Vec<Rank> {
        self.mesh().silent(self.id)
    }

    async fn barrier(&self) -> Result<()> {
        let collective = self.begin(Method::Barrier, Rank(0), 0, true)?;
        // In the second round each rank shows that it is still there. So nobody returns if a rank came and then dropped
        // its call, however late that news arrives.
        for _ in 0..2 {
            collective.collect(Bytes::new()).await?;
            collective.hand_down(Bytes::new()).await?;
        }
        collective.finish(())
    }

    async fn all_gather(&self, mine: Bytes) -> Result<Vec<Bytes>> {
        let collective = self.begin(Method::AllGather, Rank(0), 1, true)?;
        if self.size() > self.mesh().fan.saturating_add(1) {
            let all = collective.share(mine).await?;
            return collective.finish(all);
        }
        self.exchange(collective, vec![mine; self.members.len()])
            .await
    }

    async fn gather(&self, mine: Bytes, root: Rank) -> Result<Option<Vec<Bytes>>> {
        let collective = self.begin(Method::Gather, root, 1, true)?;
        let all = collective.collect(mine).await?;
        collective.finish(all)
    }

    async fn scatter(&self, parts: Option<Vec<Bytes>>, root: Rank) -> Result<Bytes> {
        let parts = parts.unwrap_or_default();
        let right = self.rank != root || parts.len() == self.members.len();
        let collective = self.begin(Method::Scatter, root, parts.len(), right)?;
        let mine = collective.deal(parts).await?;
        collective.finish(mine)
    }

    async fn broadcast(&self, data: Option<Bytes>, root: Rank) -> Result<Bytes> {
        let right = self.rank != root || data.is_some();
        let collective = self.begin(Method::Broadcast, root, usize::from(data.is_some()), right)?;
        let data = collective.hand_down(data.unwrap_or_default()).await?;
        collective.finish(data)
    }
}

/// The name of a sub-group, which all its ranks work out alike: no group of the job has had it before.
fn sub_group(parent: u64, call: u64, color: u32) -> u64 {
    let digest = Sha256::new()
        .chain_update(b"sub-group")
        .chain_update(parent.to_le_bytes())
        .chain_update(call.to_le_bytes())
        .chain_update(color.to_le_bytes())
        .finalize();
    digest
        .first_chunk()
        .map_or(0, |first| u64::from_le_bytes(*first))
}
