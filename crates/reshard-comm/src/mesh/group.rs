use super::{
    links::Mesh,
    message::Call,
    method::{Described, Method},
    room::Left,
};
use crate::{Cause, CommError, ProcessGroup, Rank, Result};
use async_trait::async_trait;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use std::{any::Any, collections::BTreeMap, fmt, future::poll_fn, sync::Arc, task::Poll};

/// The group of all ranks of a job.
const WHOLE: u64 = 0;

/// What a [`MeshGroup`] and its sub-groups keep alive. The last one that is dropped drops it.
pub type Node = Arc<dyn Any + Send + Sync>;

/// A transport's own group type, over a [`MeshGroup`]. It is a [`ProcessGroup`] by that.
pub trait OverMesh: fmt::Debug + Send + Sync {
    /// The group underneath.
    fn mesh_group(&self) -> &MeshGroup;
}

/// One rank of a group over a [`Mesh`].
///
/// `gather`, `scatter` and `broadcast` link each rank with the root only, `barrier` with rank 0; `all_to_all`, `all_gather`
/// and `split` link each rank with each other one. Sub-groups use the links of the whole group.
pub struct MeshGroup {
    id: u64,
    /// The rank within this group.
    rank: Rank,
    members: Arc<[u32]>,
    mesh: Arc<Mesh>,
    /// How it is printed.
    name: &'static str,
    /// Dropped after this group has left.
    node: Node,
}

impl MeshGroup {
    /// The whole group of a rank: all ranks of the mesh. `name` is how it and its sub-groups are printed.
    pub fn whole(name: &'static str, mesh: &Arc<Mesh>, node: Node) -> Self {
        let members = (0..mesh.size()).collect();
        Self::new(name, WHOLE, members, Arc::clone(mesh), node)
    }

    fn new(name: &'static str, id: u64, members: Vec<u32>, mesh: Arc<Mesh>, node: Node) -> Self {
        mesh.open(id, members.clone());
        let rank = (0..)
            .zip(&members)
            .find(|(_, member)| **member == mesh.me());
        Self {
            id,
            rank: Rank(rank.map_or(0, |(rank, _)| rank)),
            members: members.into(),
            mesh,
            name,
            node,
        }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }

    fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.count()).map(Rank)
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
            self.count(),
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

impl fmt::Debug for MeshGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(rank {} of {})", self.name, self.rank, self.count())
    }
}

impl Drop for MeshGroup {
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
    group: &'g MeshGroup,
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
        let me = mesh.name(id, mesh.me());
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

impl OverMesh for MeshGroup {
    fn mesh_group(&self) -> &MeshGroup {
        self
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)] // a new default would be slower than what messages between pairs can do
impl<T: OverMesh> ProcessGroup for T {
    fn rank(&self) -> Rank {
        self.mesh_group().rank
    }

    fn size(&self) -> u32 {
        self.mesh_group().count()
    }

    async fn all_to_all(&self, to: Vec<Bytes>) -> Result<Vec<Bytes>> {
        let group = self.mesh_group();
        let right = to.len() == group.members.len();
        let collective = group.begin(Method::AllToAll, Rank(0), to.len(), right)?;
        group.exchange(collective, to).await
    }

    async fn split(&self, color: Option<u32>, order: u32) -> Result<Option<Arc<dyn ProcessGroup>>> {
        let group = self.mesh_group();
        let collective = group.begin(Method::Split, Rank(0), 1, true)?;
        let number = collective.call.number;
        let has = [u8::from(color.is_some())];
        let mine = [
            &has[..],
            &color.unwrap_or(0).to_le_bytes(),
            &order.to_le_bytes(),
        ]
        .concat();
        let all = group
            .exchange(collective, vec![mine.into(); group.members.len()])
            .await?;
        let Some(color) = color else {
            return Ok(None);
        };
        let mut members = Vec::new();
        for (rank, said) in group.ranks().zip(&all) {
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
            .filter_map(|(_, rank)| group.in_job(rank));
        let id = sub_group(group.id, number, color);
        let (mesh, node) = (Arc::clone(&group.mesh), Arc::clone(&group.node));
        let part = MeshGroup::new(group.name, id, members.collect(), mesh, node);
        Ok(Some(Arc::new(part)))
    }

    fn abort(&self, cause: Cause) {
        let group = self.mesh_group();
        group.mesh().break_group(group.id, CommError::Broken(cause));
    }

    fn silent(&self) -> Vec<Rank> {
        let group = self.mesh_group();
        group.mesh().silent(group.id)
    }

    async fn barrier(&self) -> Result<()> {
        let group = self.mesh_group();
        let collective = group.begin(Method::Barrier, Rank(0), 0, true)?;
        // In the second round each rank shows that it is still there. So nobody returns if a rank came and then dropped
        // its call, however late that news arrives.
        for _ in 0..2 {
            if group.rank == Rank(0) {
                collective.receive(group.others().collect()).await?;
                let all = group.others().map(|rank| (rank, Bytes::new()));
                collective.send(all.collect()).await?;
            } else {
                collective.send(vec![(Rank(0), Bytes::new())]).await?;
                collective.receive(vec![Rank(0)]).await?;
            }
        }
        collective.finish(())
    }

    async fn all_gather(&self, mine: Bytes) -> Result<Vec<Bytes>> {
        let group = self.mesh_group();
        let collective = group.begin(Method::AllGather, Rank(0), 1, true)?;
        group
            .exchange(collective, vec![mine; group.members.len()])
            .await
    }

    async fn gather(&self, mine: Bytes, root: Rank) -> Result<Option<Vec<Bytes>>> {
        let group = self.mesh_group();
        let collective = group.begin(Method::Gather, root, 1, true)?;
        if group.rank != root {
            collective.send(vec![(root, mine)]).await?;
            return collective.finish(None);
        }
        let mut got = collective.receive(group.others().collect()).await?;
        got.insert(root.index().min(got.len()), mine);
        collective.finish(Some(got))
    }

    async fn scatter(&self, parts: Option<Vec<Bytes>>, root: Rank) -> Result<Bytes> {
        let group = self.mesh_group();
        let parts = parts.unwrap_or_default();
        let right = group.rank != root || parts.len() == group.members.len();
        let collective = group.begin(Method::Scatter, root, parts.len(), right)?;
        if group.rank != root {
            let got = collective.receive(vec![root]).await?;
            return collective.finish(only(got));
        }
        let mine = parts.get(root.index()).cloned().unwrap_or_default();
        let others = group.ranks().zip(parts).filter(|(rank, _)| *rank != root);
        collective.send(others.collect()).await?;
        collective.finish(mine)
    }

    async fn broadcast(&self, data: Option<Bytes>, root: Rank) -> Result<Bytes> {
        let group = self.mesh_group();
        let right = group.rank != root || data.is_some();
        let collective =
            group.begin(Method::Broadcast, root, usize::from(data.is_some()), right)?;
        if group.rank != root {
            let got = collective.receive(vec![root]).await?;
            return collective.finish(only(got));
        }
        let mine = data.unwrap_or_default();
        let others = group.others().map(|rank| (rank, mine.clone()));
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
