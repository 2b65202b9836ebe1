use crate::{
    frame::Call,
    mesh::Mesh,
    method::{Described, Method},
    room::Left,
    store::wake_listener,
};
use async_trait::async_trait;
use bytes::Bytes;
use reshard_comm::{Cause, CommError, ProcessGroup, Rank, Result};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap, fmt, future::poll_fn, net::SocketAddr, sync::Arc, task::Poll,
    time::Duration,
};

/// The group of all ranks of a job.
const WHOLE: u64 = 0;

/// One rank of a group of processes that are joined by TCP.
///
/// Its futures need no particular executor, because threads of the group do all I/O. Make it with
/// [`from_env`](Self::from_env) or [`builder`](Self::builder).
///
/// A connection between two ranks is opened when one of them first sends to the other one or waits for it. Sub-groups use
/// the connections of the whole group. `gather`, `scatter` and `broadcast` connect each rank with the root only, `barrier`
/// with rank 0; `all_to_all`, `all_gather` and `split` connect each rank with each other one. A connection has two
/// threads on each side.
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
        let collective = Collective {
            group: self,
            call,
            done: false,
        };
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
        let mine = to.get(self.rank.index()).cloned().unwrap_or_default();
        let others = self.ranks().zip(to).filter(|(rank, _)| *rank != self.rank);
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

/// This rank's part in one collective. If it is dropped before it is finished, the group breaks.
struct Collective<'g> {
    group: &'g TcpGroup,
    call: Call,
    done: bool,
}

impl Collective<'_> {
    /// Sends messages when all of their receivers are ready for them.
    async fn send(&self, messages: Vec<(Rank, Bytes)>) -> Result<()> {
        let (mesh, id) = (self.group.mesh(), self.group.id);
        let in_job = |(rank, body)| self.group.in_job(rank).map(|to| (to, body));
        let messages: Vec<(u32, Bytes)> = messages.into_iter().filter_map(in_job).collect();
        for (to, _) in &messages {
            let ready = poll_fn(|cx| mesh.poll_ready(id, *to, cx)).await;
            ready.inspect_err(|error| mesh.break_group(id, error.clone()))?;
        }
        mesh.send(id, self.call, messages);
        Ok(())
    }

    /// Receives a message of each of these ranks, in this order.
    async fn receive(&self, from: Vec<Rank>) -> Result<Vec<Bytes>> {
        let (mesh, id) = (self.group.mesh(), self.group.id);
        let from: Vec<u32> = from
            .into_iter()
            .filter_map(|rank| self.group.in_job(rank))
            .collect();
        mesh.expect(id, from.iter().copied().collect());
        // All connections are opened before the first message is waited for.
        let mut got: BTreeMap<u32, Bytes> = BTreeMap::new();
        poll_fn(|cx| {
            let mut waits = false;
            for peer in &from {
                if got.contains_key(peer) {
                    continue;
                }
                match mesh.poll_take(id, self.call, *peer, cx) {
                    Poll::Ready(body) => drop(got.insert(*peer, body?)),
                    Poll::Pending => waits = true,
                }
            }
            if waits {
                Poll::Pending
            } else {
                Poll::Ready(Ok(()))
            }
        })
        .await
        .inspect_err(|error: &CommError| mesh.break_group(id, error.clone()))?;
        Ok(from.iter().filter_map(|peer| got.remove(peer)).collect())
    }

    fn finish<T>(mut self, value: T) -> Result<T> {
        self.done = true;
        self.group.mesh().end(self.group.id);
        Ok(value)
    }

    fn fail(mut self, error: CommError) -> CommError {
        self.done = true;
        self.group.mesh().end(self.group.id);
        self.group.mesh().break_group(self.group.id, error.clone());
        error
    }
}

impl Drop for Collective<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let (mesh, id) = (self.group.mesh(), self.group.id);
        let me = mesh.name(id, mesh.me);
        let why = if std::thread::panicking() {
            ", because it panicked"
        } else {
            ""
        };
        let text = format!("{me} left a collective before it was done{why}");
        // If the call failed, its error came first, and this one does not count.
        let cause = Cause::new(reshard_model::ErrorKind::PeerFailed, text);
        mesh.end(id);
        mesh.break_group(id, CommError::Broken(cause));
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)] // a new default would be slower than what TCP can do
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
        let number = collective.call.number;
        let has = [u8::from(color.is_some())];
        let mine = [
            &has[..],
            &color.unwrap_or(0).to_le_bytes(),
            &order.to_le_bytes(),
        ]
        .concat();
        let all = self
            .exchange(collective, vec![mine.into(); self.members.len()])
            .await?;
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
            if self.rank == Rank(0) {
                collective.receive(self.others().collect()).await?;
                let all = self.others().map(|rank| (rank, Bytes::new()));
                collective.send(all.collect()).await?;
            } else {
                collective.send(vec![(Rank(0), Bytes::new())]).await?;
                collective.receive(vec![Rank(0)]).await?;
            }
        }
        collective.finish(())
    }

    async fn all_gather(&self, mine: Bytes) -> Result<Vec<Bytes>> {
        let collective = self.begin(Method::AllGather, Rank(0), 1, true)?;
        self.exchange(collective, vec![mine; self.members.len()])
            .await
    }

    async fn gather(&self, mine: Bytes, root: Rank) -> Result<Option<Vec<Bytes>>> {
        let collective = self.begin(Method::Gather, root, 1, true)?;
        if self.rank != root {
            collective.send(vec![(root, mine)]).await?;
            return collective.finish(None);
        }
        let mut got = collective.receive(self.others().collect()).await?;
        got.insert(root.index().min(got.len()), mine);
        collective.finish(Some(got))
    }

    async fn scatter(&self, parts: Option<Vec<Bytes>>, root: Rank) -> Result<Bytes> {
        let parts = parts.unwrap_or_default();
        let right = self.rank != root || parts.len() == self.members.len();
        let collective = self.begin(Method::Scatter, root, parts.len(), right)?;
        if self.rank != root {
            let got = collective.receive(vec![root]).await?;
            return collective.finish(only(got));
        }
        let mine = parts.get(root.index()).cloned().unwrap_or_default();
        let others = self.ranks().zip(parts).filter(|(rank, _)| *rank != root);
        collective.send(others.collect()).await?;
        collective.finish(mine)
    }

    async fn broadcast(&self, data: Option<Bytes>, root: Rank) -> Result<Bytes> {
        let right = self.rank != root || data.is_some();
        let collective = self.begin(Method::Broadcast, root, usize::from(data.is_some()), right)?;
        if self.rank != root {
            let got = collective.receive(vec![root]).await?;
            return collective.finish(only(got));
        }
        let mine = data.unwrap_or_default();
        let others = self.others().map(|rank| (rank, mine.clone()));
        collective.send(others.collect()).await?;
        collective.finish(mine)
    }
}

/// The only message of a list.
fn only(mut messages: Vec<Bytes>) -> Bytes {
    messages.pop().unwrap_or_default()
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
