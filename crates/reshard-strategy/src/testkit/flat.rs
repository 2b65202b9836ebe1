//! A tensor whose chunks are stored as ranges of their elements, and read as boxes: what Megatron Core's flattened ranges need of
//! a format.

use super::{Rank, load_on_ranks, save_on_ranks};
use crate::{LoadShardedStrategy, OpenCx, SaveShardedStrategy};
use futures_executor::block_on;
use reshard_model::{
    DType, FlatStateDict, FlatView, Path, Region, Sharded, ShardedTensor, Step, Tensor,
};
use reshard_plan::{
    DefaultSavePlanner, LoadContext, LoadPlan, LoadPlanner, PieceId, PlanError, ReadItem,
    SavePlanner, Stored,
};
use reshard_storage::{IfExists, Store, testkit::MemoryStore};
use std::sync::Arc;

/// Each tensor has this many layers, an axis that leaves prepend, and as many chunks of `rows x columns` elements in each.
const LAYERS: u64 = 2;
const CHUNKS: u64 = 2;
/// Small chunks, and some of a few pages.
const TENSORS: &[(&str, u64, u64)] = &[("small", 2, 5), ("large", 64, 99)];

/// Any boxes of flattened ranges, behind prepended axes, come in their places: straight into their leaves, and by way of a cast.
pub(super) fn regions_of_flattened_ranges_are_read(
    save: &SaveShardedStrategy,
    load: &LoadShardedStrategy,
) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let planner: Arc<dyn SavePlanner> = Arc::new(DefaultSavePlanner::DEFAULT);
    let rank = |r| Rank {
        strategy: save.clone().into(),
        planner: Arc::clone(&planner),
        flat: ranges(r, 3),
    };
    let saved = save_on_ranks(&store, IfExists::Refuse, (0..3).map(rank).collect());
    saved.into_iter().for_each(|o| drop(o.unwrap()));

    // A format that stores whole tensors has no ranges.
    let reader = block_on(load.clone().open(&OpenCx::new(Arc::clone(&store)))).unwrap();
    let mut tensors = reader.metadata().tensors();
    if tensors.all(|t| t.chunk_count() == 1) {
        return;
    }
    let planner: Arc<dyn LoadPlanner> = Arc::new(Unflatten);
    let rank = |r| Rank {
        strategy: load.clone().into(),
        planner: Arc::clone(&planner),
        flat: boxes(r),
    };
    for loaded in load_on_ranks(&store, (0..2).map(rank).collect()) {
        for leaf in loaded.map_err(|f| f.error).unwrap().state.values() {
            let Sharded::Tensor(t) = leaf else {
                panic!("an object")
            };
            let got = t.data.host().unwrap();

            // Some leaves are loaded through a cast, and hold the same numbers in another type.
            let got: Vec<i64> = match t.dtype {
                DType::Int16 => got
                    .to_vec::<i16>()
                    .unwrap()
                    .into_iter()
                    .map(i64::from)
                    .collect(),
                _ => got.to_vec::<i64>().unwrap(),
            };
            assert_eq!(got, elements(t), "{} {} {}", t.key, t.region(), t.dtype);
        }
    }
}

fn path(key: &str, leaf: usize) -> Path {
    Path(vec![key.into(), Step::Index(leaf as u64)])
}

/// What a leaf's elements are: their numbers in the global tensor.
fn elements(t: &ShardedTensor) -> Vec<i64> {
    let (rows, columns) = (t.global_shape[1], t.global_shape[2]);
    let number = |e: Region| (e.offsets[0] * rows + e.offsets[1]) * columns + e.offsets[2];
    t.region().blocks(1).map(|e| number(e) as i64).collect()
}

/// What a rank saves: of each chunk a range, as one axis behind those that count chunks.
fn ranges(rank: u64, ranks: u64) -> FlatStateDict {
    let mut out = FlatStateDict::new();
    for &(key, rows, columns) in TENSORS {
        let n = rows * columns;
        let (start, end) = (n * rank / ranks, n * (rank + 1) / ranks);
        for chunk in 0..LAYERS * CHUNKS {
            let numbers = (start..end).map(|i| (chunk * n + i) as i16).collect();
            let region = Region::new(
                [chunk / CHUNKS, chunk % CHUNKS, 0, start],
                [1, 1, 1, end - start],
            );
            let leaf = ShardedTensor {
                local_shape: [end - start].into(),
                prepend_axis_num: 3,
                ..ShardedTensor::region_of(key, DType::Int16, &[LAYERS, CHUNKS, 1, n], region)
            };
            let data = Tensor::from_vec(&[end - start], numbers).unwrap();
            out.insert(path(key, out.len()), Sharded::Tensor(leaf.with_data(data)));
        }
    }
    out
}

/// What a rank asks for: of each chunk all, and of another type all but a row and a column.
fn boxes(rank: u64) -> FlatStateDict {
    let mut out = FlatStateDict::new();
    for &(key, rows, columns) in TENSORS {
        for chunk in 0..LAYERS * CHUNKS {
            let (layer, first) = (chunk / CHUNKS, chunk % CHUNKS * rows);
            let whole = Region::new([layer, first, 0], [1, rows, columns]);
            let part = Region::new([layer, first + 1 - rank, rank], [1, rows - 1, columns - 1]);
            for (dtype, region) in [(DType::Int16, whole), (DType::Int64, part)] {
                let leaf = ShardedTensor {
                    local_shape: region.lengths[1..].into(),
                    prepend_axis_num: 1,
                    ..ShardedTensor::region_of(
                        key,
                        dtype,
                        &[LAYERS, CHUNKS * rows, columns],
                        region,
                    )
                };
                out.insert(path(key, out.len()), Sharded::Tensor(leaf));
            }
        }
    }
    out
}

/// Reads boxes of chunks of which ranges are stored.
#[derive(Debug)]
struct Unflatten;

impl LoadPlanner for Unflatten {
    fn create_local_plan(
        &self,
        template: &FlatStateDict,
        cx: &LoadContext<'_>,
    ) -> Result<LoadPlan, PlanError> {
        let mut plan = LoadPlan::default();
        for (dest, leaf) in template.values().enumerate() {
            let Sharded::Tensor(t) = leaf else { continue };
            let &(_, rows, columns) = TENSORS.iter().find(|of| of.0 == &*t.key).unwrap();
            let shape = [1, rows, columns];
            let wanted = t.region();
            let (layer, chunk) = (wanted.offsets[0], wanted.offsets[1] / rows);
            // The leaf's box, counted from the start of its chunk.
            let inner = wanted.within(&Region::new([layer, chunk * rows, 0], shape));
            for (id, stored) in cx.metadata.tensor(&t.key).unwrap().chunks() {
                // A format that stores tensors whole has one chunk, which is all boxes one after the other.
                if stored.lengths[..2] == [LAYERS, CHUNKS] {
                    let mut region = inner.clone();
                    region.offsets[0] = layer * CHUNKS + chunk;
                    plan.items.push(ReadItem {
                        dest: dest as u32,
                        dest_region: Region::whole(&inner.lengths),
                        piece: PieceId {
                            key: (&*t.key).into(),
                            offset: Some(stored.offsets.clone()),
                        },
                        stored: Stored::Chunk(id),
                        stored_region: region,
                        flat: Some(Box::new(FlatView {
                            shape: [LAYERS * CHUNKS, rows, columns].into(),
                            start: 0,
                        })),
                    });
                    continue;
                }
                if stored.offsets[..2] != [layer, chunk] {
                    continue;
                }
                let start = stored.offsets[3];
                for part in Region::whole(&shape).boxes(start..stored.end(3)) {
                    let Some(both) = part.intersect(&inner) else {
                        continue;
                    };
                    plan.items.push(ReadItem {
                        dest: dest as u32,
                        dest_region: both.within(&inner),
                        piece: PieceId {
                            key: (&*t.key).into(),
                            offset: Some(stored.offsets.clone()),
                        },
                        stored: Stored::Chunk(id),
                        stored_region: both,
                        flat: Some(Box::new(FlatView {
                            shape: shape.into(),
                            start,
                        })),
                    });
                }
            }
        }
        Ok(plan)
    }
}
