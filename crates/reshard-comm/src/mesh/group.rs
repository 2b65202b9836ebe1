use super::{
    collective::{Collective, Seat},
    links::Mesh,
    message::Call,
    method::{Described, Method},
};
use crate::{Cause, CommError, ProcessGroup, Rank, Result};
use async_trait::async_trait;
use bytes::Bytes;
use reshard_model::ErrorKind;
use sha2::{Digest as _, Sha256};
use std::{fmt, sync::Arc};

/// The group of all ranks of a job.
const WHOLE: u64 = 0;

/// What a [`MeshGroup`] and its sub-groups keep alive. The last one that is dropped drops it.
pub trait Node: Send + Sync {
    /// Whether this rank may have so many links at a time, which `what` needs.
    ///
    /// # Errors
    /// A text that says what is missing, and what to do about it.
    fn may_link(&self, _links: u64, _what: &str) -> Result<(), String> {
        Ok(())
    }
}

/// A transport's own group type, over a [`MeshGroup`]. It is a [`ProcessGroup`] by that.
pub trait OverMesh: fmt::Debug + Send + Sync {
    /// The group underneath.
    fn mesh_group(&self) -> &MeshGroup;
}

/// One rank of a group over a [`Mesh`].
///
/// `gather`, `scatter` and `broadcast` go along a tree from the root, `barrier` and `split` along one from rank 0. The
/// transport says how many ranks are below another one at most ([`Mesh::new`]). If all others fit below one rank, the tree
/// is a star; else `all_gather` goes along it, too. `all_to_all` links each rank with each other one. Sub-groups use the
/// links of the whole group.
pub struct MeshGroup {
    id: u64,
    /// The rank within this group.
    rank: Rank,
    members: Arc<[u32]>,
    mesh: Arc<Mesh>,
    /// How it is printed.
    name: &'static str,
    /// Dropped after this group has left.
    node: Arc<dyn Node>,
}

impl MeshGroup {
    /// The whole group of a rank: all ranks of the mesh. `name` is how it and its sub-groups are printed.
    pub fn whole(name: &'static str, mesh: &Arc<Mesh>, node: Arc<dyn Node>) -> Self {
        let members = (0..mesh.size()).collect();
        Self::new(name, WHOLE, members, Arc::clone(mesh), node)
    }

    fn new(
        name: &'static str,
        id: u64,
        members: Vec<u32>,
        mesh: Arc<Mesh>,
        node: Arc<dyn Node>,
    ) -> Self {
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
            self.count(),
            Described(call),
        ))))
    }

    /// Sends `to[r]` to each rank `r`, and returns what each sent to this one.
    async fn exchange(&self, collective: Collective<'_>, to: Vec<Bytes>) -> Result<Vec<Bytes>> {
        let what = format!("all_to_all of {} ranks", self.count());
        if let Err(text) = self
            .node
            .may_link(u64::from(self.count()).saturating_sub(1), &what)
        {
            let text = format!("rank {}: {text}", self.rank);
            let cause = Cause::new(ErrorKind::Unavailable, text);
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

impl fmt::Debug for MeshGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(rank {} of {})", self.name, self.rank, self.count())
    }
}

impl Drop for MeshGroup {
    fn drop(&mut self) {
        self.mesh().close(self.id, std::thread::panicking());
    }
}

impl OverMesh for MeshGroup {
    fn mesh_group(&self) -> &MeshGroup {
        self
    }
}

// Blocks are joined to one message, and ranks share no memory: the defaults are right.
#[async_trait]
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
        let number = collective.number();
        let has = [u8::from(color.is_some())];
        let mine = [
            &has[..],
            &color.unwrap_or(0).to_le_bytes(),
            &order.to_le_bytes(),
        ]
        .concat();
        // Through rank 0: else each rank would have a link with each other one.
        let all = collective.share(mine.into()).await?;
        let all = collective.finish(all)?;
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
            collective.collect(Bytes::new()).await?;
            collective.hand_down(Bytes::new()).await?;
        }
        collective.finish(())
    }

    async fn all_gather(&self, mine: Bytes) -> Result<Vec<Bytes>> {
        let group = self.mesh_group();
        let collective = group.begin(Method::AllGather, Rank(0), 1, true)?;
        if group.count() > group.mesh().fan().saturating_add(1) {
            let all = collective.share(mine).await?;
            return collective.finish(all);
        }
        group
            .exchange(collective, vec![mine; group.members.len()])
            .await
    }

    async fn gather(&self, mine: Bytes, root: Rank) -> Result<Option<Vec<Bytes>>> {
        let group = self.mesh_group();
        let collective = group.begin(Method::Gather, root, 1, true)?;
        let all = collective.collect(mine).await?;
        collective.finish(all)
    }

    async fn scatter(&self, parts: Option<Vec<Bytes>>, root: Rank) -> Result<Bytes> {
        let group = self.mesh_group();
        let parts = parts.unwrap_or_default();
        let right = group.rank != root || parts.len() == group.members.len();
        let collective = group.begin(Method::Scatter, root, parts.len(), right)?;
        let mine = collective.deal(parts).await?;
        collective.finish(mine)
    }

    async fn broadcast(&self, data: Option<Bytes>, root: Rank) -> Result<Bytes> {
        let group = self.mesh_group();
        let right = group.rank != root || data.is_some();
        let collective =
            group.begin(Method::Broadcast, root, usize::from(data.is_some()), right)?;
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
