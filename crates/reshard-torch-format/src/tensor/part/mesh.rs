//! Meshes of ranks, and how DTensors are placed on them.

use super::{
    super::{
        TensorRef,
        parse::{Wrapped, dims, tensor_of},
    },
    pieces::{PartRef, field, wrong},
};
use crate::{
    Budget, Result,
    pickle::{Graph, Id, Node},
};
use reshard_model::{Dims, Placement, Region, held_at};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// Most ranks of a mesh.
const MAX_RANKS: usize = 1 << 20;
/// Most axes of a mesh.
const MAX_MESH_AXES: usize = 32;

/// The ranks of a device mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mesh {
    /// Ranks per axis.
    pub shape: Dims,
    /// Row-major.
    pub ranks: Arc<[u32]>,
}

impl Mesh {
    /// # Errors
    /// The ranks are not as many as the shape says, or one of them is there twice.
    pub(crate) fn new(shape: Dims, ranks: Vec<u32>) -> Result<Self> {
        if shape.len() > MAX_MESH_AXES || shape.volume() != Some(ranks.len() as u64) {
            let what = format!("a mesh of shape {shape} has {} ranks", ranks.len());
            return Err(wrong(&what));
        }
        let mut sorted = ranks.clone();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find_map(|w| match w {
            [a, b] if a == b => Some(a),
            _ => None,
        }) {
            return Err(wrong(&format!("rank {twice} is twice in its mesh")));
        }
        let ranks = ranks.into();
        Ok(Self { shape, ranks })
    }

    /// Where a rank is.
    pub fn coordinate(&self, rank: u32) -> Option<Dims> {
        let at = self.ranks.iter().position(|r| *r == rank)?;
        Some(self.shape.index_of(at as u64))
    }

    fn rank_at(&self, at: &[u64]) -> Option<u32> {
        if at.len() != self.shape.len() || at.iter().zip(&self.shape).any(|(at, n)| at >= n) {
            return None;
        }
        let number = at
            .iter()
            .zip(&self.shape)
            .fold(0, |n, (at, of)| n * of + at);
        self.ranks.get(usize::try_from(number).ok()?).copied()
    }
}

/// How a global tensor is divided over a mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Spread {
    /// The mesh.
    pub mesh: Arc<Mesh>,
    /// One for each axis of the mesh.
    pub placements: Vec<Placement>,
    /// The order in which the axes of the mesh cut the tensor, if it is not their own order.
    pub order: Option<Vec<usize>>,
    /// The shape of the tensor.
    pub shape: Dims,
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |p: &Placement| match p {
            Placement::Replicate => "Replicate".into(),
            Placement::Shard(dim) => format!("Shard({dim})"),
            Placement::StridedShard { dim, split_factor } => {
                format!("_StridedShard({dim}, split_factor={split_factor})")
            }
            Placement::Partial => "Partial".into(),
        };
        let all: Vec<String> = self.placements.iter().map(name).collect();
        write!(f, "[{}] on a mesh of {}", all.join(", "), self.mesh.shape)?;
        match &self.order {
            Some(order) => write!(f, ", cut in the order {order:?}"),
            None => Ok(()),
        }
    }
}

impl Spread {
    /// The part of a rank, whose local tensor is this one.
    ///
    /// # Errors
    /// The rank is not in the mesh; the local tensor does not have the shape that the placements give it.
    pub fn part_of_rank(&self, local: &TensorRef, rank: u32) -> Result<PartRef> {
        let at = self.mesh.coordinate(rank);
        let at = at.ok_or_else(|| wrong(&format!("rank {rank} is not in its mesh")))?;
        self.part(local, rank, &at)
    }

    pub(super) fn part(&self, local: &TensorRef, rank: u32, at: &[u64]) -> Result<PartRef> {
        let held = self.held(at)?;
        let mut expected = Dims::zeros(self.shape.len());
        for (_, place) in &held {
            for (axis, n) in expected.iter_mut().enumerate() {
                *n = (*n).max(place.end(axis));
            }
        }
        if local.shape != expected {
            let what = format!(
                "its placements {self} give rank {rank} the shape {expected} of {}, but its local tensor has {}",
                self.shape, local.shape
            );
            return Err(wrong(&what));
        }
        let pieces = held
            .into_iter()
            .filter(|(global, _)| global.volume() != Some(0));
        let pieces = pieces.map(|(global, place)| Ok((global, local.narrow(&place)?)));
        Ok(PartRef {
            dtype: local.dtype,
            shape: self.shape.clone(),
            requires_grad: local.requires_grad,
            pieces: pieces.collect::<Result<_>>()?,
            rank: Some(rank),
            ranks: Arc::clone(&self.mesh.ranks),
            layout: self.to_string().into(),
        })
    }

    /// The boxes at a coordinate, each with its place in the local tensor.
    fn held(&self, at: &[u64]) -> Result<Vec<(Region, Region)>> {
        let key = "a distributed tensor";
        let (shape, whole) = (&self.mesh.shape, &self.shape);
        let held = match &self.order {
            None => held_at(key, shape, &self.placements, whole, at),
            Some(order) => {
                let pick = |from: &[u64]| -> Dims {
                    order.iter().filter_map(|i| from.get(*i).copied()).collect()
                };
                let placements = order
                    .iter()
                    .filter_map(|i| self.placements.get(*i).copied());
                let placements: Vec<Placement> = placements.collect();
                held_at(key, &pick(shape), &placements, whole, &pick(at))
            }
        };
        held.map_err(|e| wrong(&e.to_string()))
    }
}

/// The place of a rank in a mesh: the rank, and its coordinate.
type Place = (u32, Dims);

/// The meshes of a pickle. Very many tensors refer to one mesh, which may be large.
#[derive(Debug, Default)]
pub(crate) struct Meshes(BTreeMap<Id, (Arc<Mesh>, Option<Place>)>);

impl Meshes {
    /// Reads a `DTensorSpec`, and the place of the rank that pickled it; `None` if the rank is not in the mesh.
    pub(crate) fn spread(
        &mut self,
        graph: &Graph<'_>,
        spec: Id,
        shape: Dims,
        budget: &mut Budget,
    ) -> Result<(Spread, Option<Place>)> {
        let of = |name: &str| {
            field(graph, spec, name)?.ok_or_else(|| wrong(&format!("its spec has no {name}")))
        };
        let (mesh, listed) = (of("mesh")?, of("placements")?);
        let found = match self.0.get(&mesh) {
            Some(known) => known.clone(),
            None => {
                let found = mesh_of(graph, mesh, budget)?;
                self.0.insert(mesh, found.clone());
                found
            }
        };
        let (mesh, place) = found;
        let placements = placements(graph, listed, &mesh, shape.len())?;
        let order = match field(graph, spec, "shard_order")? {
            Some(order) => cut_order(graph, order, &placements)?,
            None => None,
        };
        let spread = Spread {
            mesh,
            placements,
            order,
            shape,
        };
        Ok((spread, place))
    }
}

fn placements(graph: &Graph<'_>, listed: Id, mesh: &Mesh, ndim: usize) -> Result<Vec<Placement>> {
    let all = graph.as_seq(listed).unwrap_or_default();
    if all.len() != mesh.shape.len() {
        let what = format!("{} placements for a mesh of {}", all.len(), mesh.shape);
        return Err(wrong(&what));
    }
    let found: Vec<Placement> =
        (all.iter().map(|p| placement(graph, *p, ndim))).collect::<Result<_>>()?;
    for (n, axis) in found.iter().enumerate() {
        let Placement::Shard(dim) = axis else {
            continue;
        };
        if found.iter().take(n).any(|before| before == axis)
            && all.iter().any(|p| is_before_2_5(graph, *p))
        {
            let what = format!(
                "a DTensor of torch before 2.5 whose axis {dim} is cut by two axes of the mesh (with FSDP2 over tensor parallelism its rows are in \
                 another order, which the file does not tell; save it as DCP with the torch that wrote it),"
            );
            return Err(graph.unsupported(listed, what));
        }
    }
    Ok(found)
}

/// DTensor became public in torch 2.5, and its classes moved.
fn is_before_2_5(graph: &Graph<'_>, placement: Id) -> bool {
    let class = match graph.node(placement) {
        Node::Call(call) => graph.as_global(call.callable),
        _ => None,
    };
    class.is_some_and(|(module, _)| module.starts_with("torch.distributed._tensor."))
}

fn placement(graph: &Graph<'_>, id: Id, ndim: usize) -> Result<Placement> {
    let class = match graph.node(id) {
        Node::Call(call) => graph.as_global(call.callable),
        _ => None,
    };
    let Some((_, class)) = class.filter(|(module, _)| module.starts_with("torch.")) else {
        return Err(graph.unsupported(id, "a DTensor with a placement that is not torch's"));
    };
    let int = |name: &str| -> Result<i64> {
        let value = field(graph, id, name)?.and_then(|id| graph.as_int(id));
        value.ok_or_else(|| wrong(&format!("its placement {class} has no {name}")))
    };
    let dim = || -> Result<usize> {
        let dim = int("dim")?;
        let dim = if dim < 0 {
            dim.saturating_add(ndim as i64)
        } else {
            dim
        };
        usize::try_from(dim).map_err(|_| wrong("its placement has a negative axis"))
    };
    match class {
        "Shard" => Ok(Placement::Shard(dim()?)),
        "Replicate" => Ok(Placement::Replicate),
        "_StridedShard" => Ok(Placement::StridedShard {
            dim: dim()?,
            split_factor: u64::try_from(int("split_factor")?).unwrap_or(0),
        }),
        class if class.contains("Partial") => {
            let what = format!(
                "a DTensor with the placement {class}, of which each rank holds a summand (redistribute it to Shard or Replicate before you save),"
            );
            Err(graph.unsupported(id, what))
        }
        class => Err(graph.unsupported(id, format!("a DTensor with the placement {class}"))),
    }
}

/// The order in which the axes of the mesh cut, from `shard_order`. `None` if it is their own.
fn cut_order(graph: &Graph<'_>, id: Id, placements: &[Placement]) -> Result<Option<Vec<usize>>> {
    let Some(entries) = graph.as_seq(id) else {
        return Ok(None);
    };
    let bad = || wrong("its shard_order is not one of its placements");
    let mut order: Vec<usize> = Vec::new();
    let mut ascends = true;
    for entry in entries {
        let args = match graph.node(*entry) {
            Node::Call(call) => graph.as_seq(call.args),
            _ => graph.as_seq(*entry),
        };
        let Some(&[_, axes]) = args else {
            return Err(bad());
        };
        let axes = dims(graph, axes).ok_or_else(bad)?;
        ascends &= axes.windows(2).all(|w| w.first() < w.last());
        for axis in &axes {
            let axis = usize::try_from(*axis)
                .ok()
                .filter(|a| *a < placements.len());
            let axis = axis.filter(|a| !order.contains(a)).ok_or_else(bad)?;
            order.push(axis);
        }
    }
    if ascends {
        return Ok(None);
    }
    let rest = (0..placements.len()).filter(|axis| !order.contains(axis));
    let rest: Vec<usize> = rest.collect();
    order.extend(rest);
    Ok(Some(order))
}

/// Reads a `DeviceMesh`, with the place of the rank that pickled it.
fn mesh_of(graph: &Graph<'_>, id: Id, budget: &mut Budget) -> Result<(Arc<Mesh>, Option<Place>)> {
    let of = |name: &str| field(graph, id, name);
    // Since torch 2.9 a mesh is a layout over a list of ranks. Before, it is a tensor.
    let layout = of("_layout")?;
    let listed = match layout {
        Some(_) => of("_flatten_rank_map")?,
        None => of("_flatten_mesh_list")?,
    };
    let Some(listed) = listed else {
        return Err(graph.unsupported(id, "a device mesh that does not list its ranks"));
    };
    let listed = ranks_of(graph, listed, budget)?;
    let at = match of("_coordinate_on_dim")? {
        None => None,
        Some(at) if matches!(graph.node(at), Node::None) => None,
        Some(at) => {
            let at = dims(graph, at);
            Some(at.ok_or_else(|| wrong("its coordinate is not a list of ints"))?)
        }
    };
    let rank = of("_rank")?.and_then(|rank| graph.as_int(rank));
    let rank = rank.and_then(|rank| u32::try_from(rank).ok());
    let mesh = match layout {
        Some(layout) => {
            let axes = axes_of(graph, layout)?;
            selected(&axes, &listed, rank, at.as_ref())?
        }
        None => {
            let tensor = of("mesh")?.map(|mesh| tensor_of(graph, mesh, Wrapped::Any));
            let shape = tensor.transpose()?.flatten().map(|tensor| tensor.shape);
            let shape = shape.ok_or_else(|| wrong("its mesh is not a tensor"))?;
            Mesh::new(shape, listed)?
        }
    };
    let place = match at {
        None => None,
        Some(at) => {
            let found = mesh.rank_at(&at).ok_or_else(|| {
                wrong(&format!(
                    "the coordinate {at} is not one of a mesh of {}",
                    mesh.shape
                ))
            })?;
            if let Some(rank) = rank.filter(|rank| *rank != found) {
                let what =
                    format!("rank {rank} has the coordinate {at}, which is that of rank {found}");
                return Err(wrong(&what));
            }
            Some((found, at))
        }
    };
    Ok((Arc::new(mesh), place))
}

/// A list of ranks.
pub(super) fn ranks_of(graph: &Graph<'_>, id: Id, budget: &mut Budget) -> Result<Vec<u32>> {
    let all = graph.as_seq(id).unwrap_or_default();
    if all.len() > MAX_RANKS {
        let what = format!("a device mesh of {} ranks (at most {MAX_RANKS})", all.len());
        return Err(graph.unsupported(id, what));
    }
    graph.draw(id, 8 * all.len() as u64, budget)?;
    let rank = |id: &Id| u32::try_from(graph.as_int(*id)?).ok();
    let ranks: Option<Vec<u32>> = all.iter().map(rank).collect();
    ranks.ok_or_else(|| wrong("its ranks are not numbers"))
}

/// Sizes and strides that make up one axis of a mesh. Flattened axes have several.
type Axis = Vec<(u64, u64)>;

/// The axes of a `_MeshLayout`.
fn axes_of(graph: &Graph<'_>, layout: Id) -> Result<Vec<Axis>> {
    let bad = || wrong("the layout of its mesh is not one of sizes and strides");
    let of = |id: Id, name: &str| field(graph, id, name)?.ok_or_else(bad);
    let mut out = Vec::new();
    let pair = |sizes: Id, strides: Id| -> Result<Axis> {
        let (sizes, strides) = (flat(graph, sizes, 0), flat(graph, strides, 0));
        match (sizes, strides) {
            (Some(sizes), Some(strides)) if sizes.len() == strides.len() => {
                Ok(sizes.into_iter().zip(strides).collect())
            }
            _ => Err(bad()),
        }
    };
    if let Some(axes) = field(graph, layout, "axes")? {
        let axes = graph.as_seq(axes).ok_or_else(bad)?;
        for axis in axes.iter().take(MAX_MESH_AXES + 1) {
            out.push(pair(of(*axis, "shape")?, of(*axis, "stride")?)?);
        }
    } else {
        let (shape, stride) = (of(layout, "shape")?, of(layout, "stride")?);
        match (graph.as_seq(shape), graph.as_seq(stride)) {
            (Some(sizes), Some(strides)) if sizes.len() == strides.len() => {
                for (size, stride) in sizes.iter().zip(strides).take(MAX_MESH_AXES + 1) {
                    out.push(pair(*size, *stride)?);
                }
            }
            _ => out.push(pair(shape, stride)?),
        }
    }
    match out.len() > MAX_MESH_AXES {
        true => Err(graph.unsupported(layout, format!("a mesh of more than {MAX_MESH_AXES} axes"))),
        false => Ok(out),
    }
}

/// The ints of an int, or of nested tuples of ints.
fn flat(graph: &Graph<'_>, id: Id, depth: usize) -> Option<Vec<u64>> {
    if let Some(n) = graph.as_int(id) {
        return Some(vec![u64::try_from(n).ok()?]);
    }
    let mut out = Vec::new();
    for item in graph.as_seq(id).filter(|_| depth < 4)? {
        out.extend(flat(graph, *item, depth + 1)?);
        if out.len() > MAX_MESH_AXES {
            return None;
        }
    }
    Some(out)
}

/// The mesh that a layout selects of a list of ranks: the one that has this rank.
fn selected(axes: &[Axis], listed: &[u32], rank: Option<u32>, at: Option<&Dims>) -> Result<Mesh> {
    let bad = || wrong("the layout of its mesh reaches beyond its ranks");
    let size = |axis: &Axis| {
        axis.iter()
            .try_fold(1u64, |n, (size, _)| n.checked_mul(*size))
    };
    let shape: Option<Dims> = axes.iter().map(size).collect();
    let shape = shape.ok_or_else(bad)?;
    let count = shape.volume().filter(|n| *n <= listed.len() as u64);
    let count = count.ok_or_else(bad)?;
    let offset = |at: &[u64]| -> Option<u64> {
        let mut sum = 0u64;
        for (axis, &index) in axes.iter().zip(at) {
            let mut left = index;
            for (size, stride) in axis.iter().rev() {
                let size = (*size).max(1);
                sum = sum.checked_add((left % size).checked_mul(*stride)?)?;
                left /= size;
            }
        }
        Some(sum)
    };
    // A part of a larger mesh begins where the coordinate of this rank puts it.
    let base = match (rank, at) {
        (Some(rank), Some(at)) if at.len() == shape.len() => {
            let position = listed.iter().position(|r| *r == rank);
            let position =
                position.ok_or_else(|| wrong(&format!("rank {rank} is not in its mesh")))?;
            (position as u64).checked_sub(offset(at).ok_or_else(bad)?)
        }
        _ => Some(0),
    };
    let base = base.ok_or_else(bad)?;
    let rank = |number: u64| {
        let at = offset(&shape.index_of(number))?.checked_add(base)?;
        listed.get(usize::try_from(at).ok()?).copied()
    };
    let ranks: Option<Vec<u32>> = (0..count).map(rank).collect();
    Mesh::new(shape, ranks.ok_or_else(bad)?)
}

/// The mesh of a `metadata.pkl`: its shape and its ranks, row-major.
pub(super) fn mesh_in(
    graph: &Graph<'_>,
    shape: Id,
    ranks: Id,
    budget: &mut Budget,
) -> Result<Mesh> {
    let shape = dims(graph, shape).ok_or_else(|| wrong("the shape of its mesh is no tuple"))?;
    Mesh::new(shape, ranks_of(graph, ranks, budget)?)
}
