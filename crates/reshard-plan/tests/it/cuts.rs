//! Tensors cut at random, and small things that tests share.

use proptest::prelude::*;
use reshard_model::{
    DType, Dims, FlatStateDict, Path, Region, Sharded, ShardedObject, ShardedTensor,
};
use reshard_plan::{
    DefaultLoadPlanner, DefaultSavePlanner, LoadContext, LoadPlan, LoadPlanner, Metadata, Result,
    SaveContext, SavePlan, SavePlanner,
};

/// Disjoint boxes that make a tensor of this shape: every cut halves some box at some place, as `seeds` say.
pub(crate) fn cut(shape: &[u64], seeds: &[(usize, usize, u64)]) -> Vec<Region> {
    let mut boxes = vec![Region::whole(shape)];
    for &(which, axis, at) in seeds {
        if shape.is_empty() {
            break;
        }
        let which = which % boxes.len();
        let axis = axis % shape.len();
        let (mut low, mut high) = (boxes[which].clone(), boxes[which].clone());
        let at = at % (low.lengths[axis] + 1);
        low.lengths[axis] = at;
        high.offsets[axis] += at;
        high.lengths[axis] -= at;
        boxes[which] = low;
        boxes.push(high);
    }
    boxes
}

pub(crate) fn seeds() -> impl Strategy<Value = Vec<(usize, usize, u64)>> {
    prop::collection::vec((any::<usize>(), any::<usize>(), any::<u64>()), 0..9)
}

pub(crate) fn shapes() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0u64..7, 0..5)
}

pub(crate) fn leaf(key: &str, shape: &[u64], region: Region) -> ShardedTensor {
    ShardedTensor::region_of(key, DType::Float32, shape, region)
}

/// A flat state whose paths are numbers.
pub(crate) fn flat(leaves: impl IntoIterator<Item = ShardedTensor>) -> FlatStateDict {
    let path = |i: usize| Path(vec![(i as u64).into()]);
    leaves
        .into_iter()
        .enumerate()
        .map(|(i, t)| (path(i), Sharded::Tensor(t)))
        .collect()
}

pub(crate) fn objects(keys: &[&str]) -> FlatStateDict {
    let item = |k: &&str| Sharded::Object(ShardedObject::item(k, Default::default()));
    keys.iter()
        .map(|k| (Path(vec![(*k).into()]), item(k)))
        .collect()
}

/// Local plans of all ranks, and the global one.
pub(crate) fn save(
    planner: &dyn SavePlanner,
    ranks: &[FlatStateDict],
) -> Result<(Vec<SavePlan>, Metadata)> {
    let local = |(rank, state): (usize, &FlatStateDict)| {
        planner.create_local_plan(state, &SaveContext::new(rank as u32, rank == 0))
    };
    planner.create_global_plan(ranks.iter().enumerate().map(local).collect::<Result<_>>()?)
}

/// What a save of these ranks as DCP does it would store.
pub(crate) fn stored(ranks: &[FlatStateDict]) -> Metadata {
    save(&DefaultSavePlanner::DCP, ranks).unwrap().1
}

pub(crate) fn load(
    planner: DefaultLoadPlanner,
    template: &FlatStateDict,
    metadata: &Metadata,
) -> Result<LoadPlan> {
    planner.create_local_plan(template, &LoadContext::new(metadata, 0, true))
}

/// A table of tensors "w" with these chunks, whatever they are.
pub(crate) fn table(shape: &[u64], chunks: &[Region]) -> Metadata {
    let mut b = Metadata::builder();
    let w = b
        .add_tensor("w", DType::Float32, shape, Default::default())
        .unwrap();
    for c in chunks {
        b.add_chunk(w, c).unwrap();
    }
    b.finish(None).unwrap()
}

/// Every element of a box: its coordinates in row-major order.
pub(crate) fn elements(r: &Region) -> Vec<Dims> {
    let mut out = vec![Dims::default()];
    for axis in 0..r.ndim() {
        out = out
            .iter()
            .flat_map(|d| {
                (r.offsets[axis]..r.end(axis)).map(|i| {
                    let mut d = d.clone();
                    d.push(i);
                    d
                })
            })
            .collect();
    }
    out
}
