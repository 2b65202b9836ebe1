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
    seat: Seat,
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
        let seat = Seat {
            mesh,
            group: id,
            rank: Rank(rank.map_or(0, |(rank, _)| rank)),
            members,
        };
        Self { seat, name, node }
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.seat.size()).map(Rank)
    }

    /// Begins a call. If `right` is false, the arguments are wrong.
    fn begin(
        &self,
        method: Method,
        root: Rank,
        parts: usize,
        right: bool,
    ) -> Result<Collective<'_>> {
        let seat = &self.seat;
        // Only the first error counts, so this changes nothing if it was broken before.
        let begun = seat.mesh.begin(seat.group);
        let number = begun.inspect_err(|error| seat.break_group(error))?;
        let call = Call {
            number,
            method: method as u8,
            root: root.0,
        };
        let collective = Collective::new(seat, call);
        if right && seat.in_job(root).is_some() {
            return Ok(collective);
        }
        Err(collective.fail(CommError::OutOfStep(format!(
            "rank {} of {} makes {} with {parts} parts",
            seat.rank,
            seat.size(),
            Described(call),
        ))))
    }

    /// Sends `to[r]` to each rank `r`, and returns what each sent to this one.
    async fn exchange(&self, collective: Collective<'_>, to: Vec<Bytes>) -> Result<Vec<Bytes>> {
        let (me, size) = (self.seat.rank, self.seat.size());
        let what = format!("all_to_all of {size} ranks");
        if let Err(text) = self.node.may_link(u64::from(size).saturating_sub(1), &what) {
            let text = format!("rank {me}: {text}");
            let cause = Cause::new(ErrorKind::Unavailable, text);
            return Err(collective.fail(CommError::Broken(cause)));
        }
        let mine = to.get(me.index()).cloned().unwrap_or_default();
        let parcels = self.ranks().zip(to).map(|(rank, body)| (rank, rank, body));
        let others = parcels.filter(|(rank, ..)| *rank != me);
        collective.send(others.collect()).await?;
        let others = self.ranks().filter(|rank| *rank != me);
        let mut got = collective.receive(others.collect()).await?;
        got.insert(me.index().min(got.len()), mine);
        collective.finish(got)
    }
}

impl fmt::Debug for MeshGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, size) = (self.seat.rank, self.seat.size());
        write!(f, "{}(rank {rank} of {size})", self.name)
    }
}

impl Drop for MeshGroup {
    fn drop(&mut self) {
        let Seat { mesh, group, .. } = &self.seat;
        mesh.close(*group, std::thread::panicking());
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
        self.mesh_group().seat.rank
    }

    fn size(&self) -> u32 {
        self.mesh_group().seat.size()
    }

    async fn all_to_all(&self, to: Vec<Bytes>) -> Result<Vec<Bytes>> {
        let group = self.mesh_group();
        let right = to.len() == group.seat.members.len();
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
            .filter_map(|(_, rank)| group.seat.in_job(rank));
        let id = sub_group(group.seat.group, number, color);
        let (mesh, node) = (Arc::clone(&group.seat.mesh), Arc::clone(&group.node));
        let part = MeshGroup::new(group.name, id, members.collect(), mesh, node);
        Ok(Some(Arc::new(part)))
    }

    fn abort(&self, cause: Cause) {
        let seat = &self.mesh_group().seat;
        seat.break_group(&CommError::Broken(cause));
    }

    fn silent(&self) -> Vec<Rank> {
        let seat = &self.mesh_group().seat;
        seat.mesh.silent(seat.group)
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
        if group.seat.size() > group.seat.mesh.fan().saturating_add(1) {
            let all = collective.share(mine).await?;
            return collective.finish(all);
        }
        group
            .exchange(collective, vec![mine; group.seat.members.len()])
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
        let right = group.seat.rank != root || parts.len() == group.seat.members.len();
        let collective = group.begin(Method::Scatter, root, parts.len(), right)?;
        let mine = collective.deal(parts).await?;
        collective.finish(mine)
    }

    async fn broadcast(&self, data: Option<Bytes>, root: Rank) -> Result<Bytes> {
        let group = self.mesh_group();
        let right = group.seat.rank != root || data.is_some();
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
