//! DTensor's way to say which rank holds what: a mesh of ranks and a placement per mesh axis.

use crate::{DType, Data, Dims, ModelError, Region, ReplicaId, Result, ShardedTensor, local_chunk};
use std::ops::Range;

/// Ranks arranged in named axes.
///
/// ```
/// use reshard_model::{DeviceMesh, Placement, Region};
/// # fn main() -> Result<(), reshard_model::ModelError> {
/// let mesh = DeviceMesh::of(&[("dp", 2), ("tp", 2)])?;
/// // rows cut over tp, the same on both dp halves; rank 3 is (dp 1, tp 1)
/// let placements = [Placement::Replicate, Placement::Shard(0)];
/// let pieces = mesh.pieces("w", &placements, &[5, 3], 3)?;
/// assert_eq!(pieces, Some(vec![Region::new([3, 0], [2, 3])]));
/// assert_eq!(mesh.replica_id(&placements, 3), Some([1].into()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMesh {
    shape: Dims,
    names: Vec<Box<str>>,
    /// Row-major.
    ranks: Vec<u32>,
}

/// How a tensor lies along one axis of a [`DeviceMesh`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Every rank holds all of it.
    Replicate,
    /// Cut along a tensor axis, by torch.chunk's rule.
    Shard(usize),
    /// Cut along a tensor axis that is already cut into `split_factor` parts; the rank holds a piece of each of these parts.
    /// FSDP2 over tensor parallelism makes this, and PyTorch calls it `_StridedShard`.
    StridedShard {
        /// The tensor axis.
        dim: usize,
        /// The number of parts into which the axis is already cut.
        split_factor: u64,
    },
    /// Every rank holds a summand. Can't be saved: reduce it first.
    Partial,
}

impl DeviceMesh {
    /// Ranks in row-major order; each axis is a name and a size.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when the number of ranks is not the product of the sizes, when an axis has none, or when a rank or a
    /// name is there twice.
    pub fn new(axes: &[(&str, u64)], ranks: Vec<u32>) -> Result<Self> {
        let shape: Dims = axes.iter().map(|(_, n)| *n).collect();
        let fail = |what: String| {
            Err(ModelError::invalid(
                "",
                format!("device mesh of shape {shape}: {what}"),
            ))
        };
        if shape.contains(&0) || shape.volume() != Some(ranks.len() as u64) {
            return fail(format!("{} ranks were given", ranks.len()));
        }
        let mut sorted = ranks.clone();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|w| w[0] == w[1]) {
            return fail(format!("rank {} occurs twice", twice[0]));
        }
        let names: Vec<Box<str>> = axes.iter().map(|(name, _)| (*name).into()).collect();
        if let Some(twice) = (1..names.len()).find(|&i| names[..i].contains(&names[i])) {
            return fail(format!("axis {:?} occurs twice", names[twice]));
        }
        Ok(Self {
            shape,
            names,
            ranks,
        })
    }

    /// The ranks from 0 on, in row-major order.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of(axes: &[(&str, u64)]) -> Result<Self> {
        let n = axes.iter().try_fold(1u32, |n, (_, size)| {
            n.checked_mul(u32::try_from(*size).ok()?)
        });
        match n {
            // More would not be a mesh of anything, but memory.
            Some(n) if n <= 1 << 24 => Self::new(axes, (0..n).collect()),
            _ => Err(ModelError::invalid(
                "",
                "a device mesh has at most 16,777,216 ranks",
            )),
        }
    }

    /// Ranks per axis.
    pub fn shape(&self) -> &Dims {
        &self.shape
    }

    /// Names of the axes.
    pub fn names(&self) -> &[Box<str>] {
        &self.names
    }

    /// The ranks, in row-major order.
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// Where a rank is, per axis; `None` when it is not in the mesh.
    pub fn coordinate(&self, rank: u32) -> Option<Dims> {
        let at = self.ranks.iter().position(|r| *r == rank)?;
        Some(self.shape.index_of(at as u64))
    }

    /// Which copy of its pieces a rank holds: its coordinates along the axes that replicate. `None` when it is not in the mesh.
    pub fn replica_id(&self, placements: &[Placement], rank: u32) -> Option<ReplicaId> {
        let at = self.coordinate(rank)?;
        let replicated = at
            .iter()
            .zip(placements)
            .filter(|(_, p)| **p == Placement::Replicate);
        Some(ReplicaId(
            replicated
                .map(|(&c, _)| u32::try_from(c).unwrap_or(u32::MAX))
                .collect(),
        ))
    }

    /// The boxes of a global tensor that a rank holds, in the order of its local tensor; `None` when the rank is not in the
    /// mesh. There is always one, maybe empty and then at the end of the axis that gave it nothing; strided cuts may give
    /// several.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when there is not one placement per mesh axis, for [`Placement::Partial`], and for a tensor axis
    /// that is not there.
    pub fn pieces(
        &self,
        key: &str,
        placements: &[Placement],
        global_shape: &[u64],
        rank: u32,
    ) -> Result<Option<Vec<Region>>> {
        let held = self.held(key, placements, global_shape, rank)?;
        Ok(held.map(|held| held.into_iter().map(|(global, _)| global).collect()))
    }

    /// The boxes that a rank holds, with where they are in its local tensor.
    fn held(
        &self,
        key: &str,
        placements: &[Placement],
        global_shape: &[u64],
        rank: u32,
    ) -> Result<Option<Vec<(Region, Region)>>> {
        let Some(at) = self.coordinate(rank) else {
            check(key, &self.shape, placements, global_shape)?;
            return Ok(None);
        };
        held_at(key, &self.shape, placements, global_shape, &at).map(Some)
    }
}

/// The most boxes into which strided placements may cut what one rank holds: the product of all split factors.
const MOST_BOXES: u64 = 1 << 16;

/// Fails for placements that no rank of a mesh of this shape can have.
fn check(
    key: &str,
    mesh_shape: &[u64],
    placements: &[Placement],
    global_shape: &[u64],
) -> Result<()> {
    let fail = |what: String| Err(ModelError::invalid(key, what));
    if placements.len() != mesh_shape.len() {
        return fail(format!(
            "{} placements for a mesh of shape {}",
            placements.len(),
            Dims::from(mesh_shape)
        ));
    }
    let mut boxes = 1u64;
    for p in placements {
        match *p {
            Placement::Partial => {
                return fail(
                    "a partial placement can't be saved or loaded; reduce the tensor first".into(),
                );
            }
            Placement::Shard(dim) | Placement::StridedShard { dim, .. }
                if dim >= global_shape.len() =>
            {
                let shape = Dims::from(global_shape);
                return fail(format!(
                    "a placement cuts axis {dim} of a tensor of shape {shape}"
                ));
            }
            Placement::StridedShard {
                split_factor: 0, ..
            } => {
                return fail("a strided placement with split factor 0".into());
            }
            Placement::StridedShard { split_factor, .. } => {
                boxes = boxes.saturating_mul(split_factor);
            }
            Placement::Shard(_) | Placement::Replicate => {}
        }
    }
    match boxes > MOST_BOXES {
        true => fail(format!(
            "strided placements with split factors whose product is {boxes}, and at most {MOST_BOXES} is possible"
        )),
        false => Ok(()),
    }
}

/// The boxes of a global tensor that the rank at a coordinate of a mesh holds, each with its place in the local tensor. There is always
/// one, maybe empty. [`DeviceMesh::pieces`] finds the coordinate of a rank first.
///
/// ```
/// use reshard_model::{Placement, Region, held_at};
/// let held = held_at("w", &[2, 2], &[Placement::Shard(0), Placement::Shard(0)], &[7, 3], &[0, 1])?;
/// assert_eq!(held, [(Region::new([2, 0], [2, 3]), Region::new([0, 0], [2, 3]))]);
/// # Ok::<(), reshard_model::ModelError>(())
/// ```
///
/// # Errors
/// As [`DeviceMesh::pieces`]; also for a coordinate outside of the mesh.
pub fn held_at(
    key: &str,
    mesh_shape: &[u64],
    placements: &[Placement],
    global_shape: &[u64],
    at: &[u64],
) -> Result<Vec<(Region, Region)>> {
    // The cuts below index `axes` by the placement's axis and divide by its factor, so bad placements end here.
    check(key, mesh_shape, placements, global_shape)?;
    if at.len() != mesh_shape.len() || at.iter().zip(mesh_shape).any(|(at, n)| at >= n) {
        let (at, shape) = (Dims::from(at), Dims::from(mesh_shape));
        let what = format!("the coordinate {at} is not one of a mesh of shape {shape}");
        return Err(ModelError::invalid(key, what));
    }

    // Each mesh axis cuts what the axes before it left, so an axis of the tensor may be cut several times.
    let mut axes: Vec<Vec<Range<u64>>> = global_shape
        .iter()
        .map(|&n| std::iter::once(0..n).collect())
        .collect();
    for ((p, &index), &parts) in placements.iter().zip(at).zip(mesh_shape) {
        let (dim, split_factor) = match *p {
            Placement::Shard(dim) => (dim, 1),
            Placement::StridedShard { dim, split_factor } => (dim, split_factor),
            Placement::Replicate | Placement::Partial => continue,
        };
        axes[dim] = cut(&axes[dim], split_factor, parts, index);
    }
    Ok(boxes(&axes, global_shape))
}

/// What is left of an axis: the elements that `ranges` list are cut into `split_factor` parts by torch.chunk's rule, each part into
/// `parts`, and part `index` of each is kept.
fn cut(ranges: &[Range<u64>], split_factor: u64, parts: u64, index: u64) -> Vec<Range<u64>> {
    let extent = ranges.iter().map(|r| r.end - r.start).sum::<u64>();
    let mut out: Vec<Range<u64>> = Vec::new();
    for outer in 0..split_factor {
        let (from, len) = local_chunk(extent, split_factor, outer);
        if len == 0 {
            // All further ones are empty too.
            break;
        }
        let (inner, len) = local_chunk(len, parts, index);
        let (lo, hi) = (from + inner, from + inner + len);
        let mut seen = 0;
        for r in ranges {
            let n = r.end - r.start;
            let (a, b) = (
                lo.clamp(seen, seen + n) - seen,
                hi.clamp(seen, seen + n) - seen,
            );
            seen += n;
            if a == b {
                continue;
            }
            let piece = r.start + a..r.start + b;
            match out.last_mut() {
                Some(last) if last.end == piece.start => last.end = piece.end,
                _ => out.push(piece),
            }
        }
    }
    out
}

/// The product of ranges per axis: each box with its place in the local tensor, in row-major order.
fn boxes(axes: &[Vec<Range<u64>>], global_shape: &[u64]) -> Vec<(Region, Region)> {
    let mut out = vec![(Region::default(), Region::default())];
    for (ranges, &extent) in axes.iter().zip(global_shape) {
        // An axis without elements: PyTorch puts what is empty at the end.
        let nothing = extent..extent;
        let empty = ranges.iter().all(Range::is_empty);
        let ranges = if empty {
            std::slice::from_ref(&nothing)
        } else {
            ranges
        };
        out = out
            .iter()
            .flat_map(|(global, local)| {
                let mut seen = 0;
                ranges.iter().map(move |r| {
                    let (mut global, mut local) = (global.clone(), local.clone());
                    let n = r.end - r.start;
                    global.offsets.push(r.start);
                    global.lengths.push(n);
                    local.offsets.push(seen);
                    local.lengths.push(n);
                    seen += n;
                    (global, local)
                })
            })
            .collect();
    }
    out
}

impl ShardedTensor {
    /// The pieces of a global tensor that a rank holds as a DTensor: `data` is its local tensor, of which the pieces are views.
    /// One piece, as a rule; several for strided cuts that leave gaps; none when the rank is not in the mesh. Copies get
    /// [`replica_id`](DeviceMesh::replica_id)s. The grid is regular when every cut divides evenly.
    ///
    /// # Errors
    /// As [`DeviceMesh::pieces`]; [`ModelError::Invalid`] also when the data's shape is not what the placements give, or is not
    /// known ([`declare_mesh`](Self::declare_mesh) needs none).
    pub fn from_mesh(
        key: &str,
        data: impl Into<Data>,
        mesh: &DeviceMesh,
        placements: &[Placement],
        global_shape: &[u64],
        rank: u32,
    ) -> Result<Vec<Self>> {
        let data = data.into();
        let (dtype, shape) = data.known_spec(key)?;
        let Some(held) = mesh.held(key, placements, global_shape, rank)? else {
            return Ok(Vec::new());
        };
        let mut local = Dims::zeros(global_shape.len());
        for (_, place) in &held {
            (0..local.len()).for_each(|a| local[a] = local[a].max(place.end(a)));
        }
        if shape != local {
            let what = format!(
                "local data has shape {shape}, but by the mesh and the placements rank {rank} holds shape {local}"
            );
            return Err(ModelError::invalid(key, what));
        }
        let pieces = Self::declare_mesh(key, dtype, mesh, placements, global_shape, rank)?;
        Ok(pieces
            .into_iter()
            .zip(&held)
            .map(|(p, (_, place))| p.with_data(data.narrow(place)))
            .collect())
    }

    /// As [`from_mesh`](Self::from_mesh), without data.
    ///
    /// # Errors
    /// As [`DeviceMesh::pieces`].
    pub fn declare_mesh(
        key: &str,
        dtype: DType,
        mesh: &DeviceMesh,
        placements: &[Placement],
        global_shape: &[u64],
        rank: u32,
    ) -> Result<Vec<Self>> {
        let Some(pieces) = mesh.pieces(key, placements, global_shape, rank)? else {
            return Ok(Vec::new());
        };
        let replica_id = mesh.replica_id(placements, rank).unwrap_or_default();
        let fragmentations = regular(mesh, placements, global_shape);
        pieces
            .into_iter()
            .map(|region| {
                let mut piece = Self::region_of(key, dtype, global_shape, region);
                piece.axis_fragmentations.clone_from(&fragmentations);
                piece.with_replica_id(replica_id.clone()).validated()
            })
            .collect()
    }
}

/// Fragments per axis, if all ranks hold equal chunks: the same answer on every rank.
fn regular(mesh: &DeviceMesh, placements: &[Placement], global_shape: &[u64]) -> Option<Dims> {
    let mut fragments = Dims::splat(1, global_shape.len());
    for (p, &parts) in placements.iter().zip(&mesh.shape) {
        match *p {
            Placement::Shard(dim) => fragments[dim] = fragments[dim].checked_mul(parts)?,
            Placement::StridedShard { .. } => return None,
            Placement::Replicate | Placement::Partial => {}
        }
    }
    global_shape
        .iter()
        .zip(&fragments)
        .all(|(n, f)| n.is_multiple_of(*f))
        .then_some(fragments)
}
