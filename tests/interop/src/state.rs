//! The state of a spec as one rank saves it, as it asks for it, and as it must come back.

use crate::spec::{Cut, Spec, TensorSpec};
use anyhow::Result;
use reshard::{
    Dialect, Region, ShardedObject, ShardedTensor, StateDict, Tensor, Value, ValueTree,
    model::{Leaf, Path, Payload, Step, Tree, local_chunk},
};
use std::ops::Range;

/// One leaf of a tensor on one rank.
struct Piece {
    path: Path,
    leaf: Option<ShardedTensor>,
    data: Tensor,
}

/// What a rank has of a tensor under a cut.
fn pieces(t: &TensorSpec, cut: Cut, rank: u64, world: u64) -> Result<Vec<Piece>> {
    let (key, path) = (t.key(), t.path());
    if t.prepend > 0 {
        return prepended(t, cut, rank, world);
    }
    let mut region = Region::whole(&t.shape);
    let leaf = match cut {
        Cut::Flattened { axis, cells, one } if one => {
            let world = (world / cells).max(1);
            let cell = rank % cells;
            return flat(
                t,
                (axis, cells),
                cell..cell + 1,
                rank / cells % world,
                world,
            );
        }
        Cut::Flattened { axis, cells, .. } => return flat(t, (axis, cells), 0..cells, rank, world),
        Cut::Axis(axis) => {
            (region.offsets[axis], region.lengths[axis]) = local_chunk(t.shape[axis], world, rank);
            Some(ShardedTensor::region_of(
                &key,
                t.dtype,
                &t.shape,
                region.clone(),
            ))
        }
        Cut::Replicate => {
            Some(ShardedTensor::template(&key, t.dtype, &t.shape).with_replica_id(rank as u32))
        }
        Cut::Plain => None,
    };
    let data = t.part(&region)?;
    Ok(vec![Piece { path, leaf, data }])
}

/// One leaf for each index of the first axis, which the local shape lacks.
fn prepended(t: &TensorSpec, cut: Cut, rank: u64, world: u64) -> Result<Vec<Piece>> {
    let (key, layers) = (t.key(), t.shape[0]);
    let mine = match cut {
        Cut::Axis(0) => rank * layers / world..(rank + 1) * layers / world,
        _ => 0..layers,
    };
    mine.map(|i| {
        let mut region = Region::whole(&t.shape);
        (region.offsets[0], region.lengths[0]) = (i, 1);
        let mut offsets = vec![(0, i, layers)];
        if let Cut::Axis(axis @ 1..) = cut {
            let part = t.shape[axis] / world;
            (region.offsets[axis], region.lengths[axis]) = (rank * part, part);
            offsets.push((axis, rank, world));
        }
        let local = &region.lengths[1..];
        let leaf = ShardedTensor::declare(&key, t.dtype, local, &offsets, 1)?;
        let replica = if cut == Cut::Replicate {
            rank as u32
        } else {
            0
        };
        let data = t.part(&region)?.view(local)?;
        let path = Path(vec![format!("{key}#{i}").into()]);
        Ok(Piece {
            path,
            leaf: Some(leaf.with_replica_id(replica)),
            data,
        })
    })
    .collect()
}

/// A range of each of some cells.
fn flat(
    t: &TensorSpec,
    (axis, cells): (usize, u64),
    mine: Range<u64>,
    rank: u64,
    world: u64,
) -> Result<Vec<Piece>> {
    let key = t.key();
    mine.map(|cell| {
        let mut region = Region::whole(&t.shape);
        region.lengths[axis] /= cells;
        region.offsets[axis] = cell * region.lengths[axis];
        let n = region.lengths.volume().unwrap_or(0);
        let (from, to) = (n * rank / world, n * (rank + 1) / world);
        let local = &region.lengths;
        let leaf = ShardedTensor::declare(&key, t.dtype, local, &[(axis, cell, cells)], 0)?;
        let leaf = ShardedTensor {
            flattened_range: Some(from..to),
            ..leaf
        };
        let all = t.part(&region)?.view(&[n])?;
        let data = all.narrow(&Region::new([from], [to - from]));
        let path = Path(vec![format!("{key}#{cell}").into()]);
        let leaf = Some(leaf);
        Ok(Piece { path, leaf, data })
    })
    .collect()
}

/// Puts a leaf into nested dicts and lists.
fn place(tree: &mut StateDict, path: &[Step], leaf: Tree<Leaf>) {
    let [first, rest @ ..] = path else {
        *tree = leaf;
        return;
    };
    let child = match first {
        Step::Key(_) => {
            if !matches!(tree, Tree::Dict(_)) {
                *tree = StateDict::new();
            }
            match tree {
                Tree::Dict(d) => d
                    .entry(first.clone())
                    .or_insert_with(|| Tree::Leaf(Value::None.into())),
                _ => return,
            }
        }
        Step::Index(i) => {
            if !matches!(tree, Tree::List(_)) {
                *tree = Tree::List(Vec::new());
            }
            let Tree::List(v) = tree else { return };
            while v.len() <= *i as usize {
                v.push(Tree::Leaf(Value::None.into()));
            }
            &mut v[*i as usize]
        }
    };
    place(child, rest, leaf);
}

fn leaves(value: ValueTree) -> Tree<Leaf> {
    match value {
        ValueTree::Leaf(v) => Tree::Leaf(Leaf::Value(v)),
        ValueTree::List(v) => Tree::List(v.into_iter().map(leaves).collect()),
        ValueTree::Dict(d) => Tree::Dict(d.into_iter().map(|(k, v)| (k, leaves(v))).collect()),
    }
}

fn cell_path(key: &str, i: usize) -> Path {
    Path(vec![format!("{key}#{i}").into()])
}

/// What a rank hands to a save.
pub(crate) fn to_save(spec: &Spec, rank: u64, world: u64) -> Result<StateDict> {
    let mut out = StateDict::new();
    for t in &spec.tensors {
        for Piece { path, leaf, data } in pieces(t, t.write, rank, world)? {
            let leaf = leaf.map_or_else(
                || Leaf::from(data.clone()),
                |l| l.with_data(data.clone()).into(),
            );
            place(&mut out, &path.0, Tree::Leaf(leaf));
        }
    }
    for v in &spec.values {
        place(&mut out, &v.path().0, leaves(ValueTree::from(v.value()?)));
    }
    for o in &spec.objects {
        let cells = o.cells()?;
        let n = cells.len() as u64;
        for (i, cell) in cells
            .into_iter()
            .enumerate()
            .filter(|(i, _)| *i as u64 % world == rank)
        {
            let object = ShardedObject::new(&o.key, cell, &[n], &[i as u64], 0)?;
            place(&mut out, &cell_path(&o.key, i).0, Tree::Leaf(object.into()));
        }
    }
    for (key, body) in &spec.common {
        place(
            &mut out,
            &[key.as_str().into()],
            leaves(ValueTree::from(crate::spec::value(body)?)),
        );
    }
    Ok(out)
}

/// What a rank asks for: buffers of zeros, or none if the template is to be `bare`; places for objects.
pub(crate) fn to_load(spec: &Spec, rank: u64, world: u64, bare: bool) -> Result<StateDict> {
    let mut out = StateDict::new();
    for t in &spec.tensors {
        for Piece { path, leaf, data } in pieces(t, t.read, rank, world)? {
            let leaf = match leaf {
                leaf if bare => {
                    let plain = || ShardedTensor::template(&t.key(), t.dtype, data.shape());
                    leaf.unwrap_or_else(plain).into()
                }
                None => Leaf::from(Tensor::zeros(&t.key(), t.dtype, data.shape())?),
                Some(leaf) => leaf
                    .with_data(Tensor::zeros(&t.key(), t.dtype, data.shape())?)
                    .into(),
            };
            place(&mut out, &path.0, Tree::Leaf(leaf));
        }
    }
    for v in &spec.values {
        place(&mut out, &v.path().0, Tree::Leaf(Value::None.into()));
    }
    for o in &spec.objects {
        let n = o.cells()?.len() as u64;
        for i in 0..n {
            let mut object = ShardedObject::new(&o.key, Value::None, &[n], &[i], 0)?;
            object.data = Payload::None;
            // Every rank asks for all cells; only one of them is the main one.
            object.replica_id = (rank as u32).into();
            place(
                &mut out,
                &cell_path(&o.key, i as usize).0,
                Tree::Leaf(object.into()),
            );
        }
    }
    Ok(out)
}

/// What must come back on a rank.
pub(crate) fn wanted(spec: &Spec, rank: u64, world: u64) -> Result<Vec<(Path, Value)>> {
    let mut out = Vec::new();
    for t in &spec.tensors {
        out.extend(
            pieces(t, t.read, rank, world)?
                .into_iter()
                .map(|p| (p.path, Value::Tensor(p.data))),
        );
    }
    for v in &spec.values {
        out.push((v.path(), v.value()?));
    }
    for o in &spec.objects {
        out.extend(
            o.cells()?
                .into_iter()
                .enumerate()
                .map(|(i, cell)| (cell_path(&o.key, i), cell)),
        );
    }
    if spec.dialect == Dialect::Megatron {
        for (key, body) in &spec.common {
            out.push((Path(vec![key.as_str().into()]), crate::spec::value(body)?));
        }
    }
    Ok(out)
}
