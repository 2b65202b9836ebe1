//! The tables of Megatron Core's tests of flattened tensors: a tensor of shape (8, 5, 40) on 8 ranks, whose first axis is cut over
//! tensor parallel ranks, and the last one over pipeline parallel ones. Data parallel ranks hold ranges of the flattened chunk, of
//! uneven lengths.

use futures::executor::block_on;
use reshard::{
    DType, OpenOptions, Region, ShardedTensor, StateDict, Tensor, ValueTree,
    plan::{DefaultLoadPlanner, LoadPlan, LoadPlanner},
};
use reshard_laws::{
    place::{Place, stores},
    ranks::{group, load, save},
    zarrs::Zarr,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Arc, Mutex},
};

const RANKS: u64 = 8;
const SHAPE: [u64; 3] = [8, 5, 40];
const FORMATS: [Option<Zarr>; 3] = [None, Some(Zarr::V2), Some(Zarr::V3(64))];

/// Numbers of tensor and of pipeline parallel ranks.
type Cut = (u64, u64);

fn arange() -> Tensor {
    Tensor::from_vec(&SHAPE, (0..1600).collect::<Vec<i32>>()).unwrap()
}

/// Where a rank stands: data parallel ranks are numbered between tensor and pipeline parallel ones.
struct At {
    cut: Cut,
    tp: u64,
    dp: u64,
    pp: u64,
}

impl At {
    fn of(cut: Cut, rank: u64) -> Self {
        let (of_tp, of_dp) = (cut.0, RANKS / (cut.0 * cut.1));
        Self {
            cut,
            tp: rank % of_tp,
            dp: rank / of_tp % of_dp,
            pp: rank / (of_tp * of_dp),
        }
    }

    /// All of the rank's chunk.
    fn chunk(&self, key: &str) -> ShardedTensor {
        let local = [SHAPE[0] / self.cut.0, SHAPE[1], SHAPE[2] / self.cut.1];
        let offsets = [(0, self.tp, self.cut.0), (2, self.pp, self.cut.1)];
        let chunk = ShardedTensor::declare(key, DType::Int32, &local, &offsets, 0).unwrap();
        chunk.with_replica_id(self.dp as u32)
    }

    /// The range that it has of the flattened chunk: each rank but the last one takes one element more of the next.
    fn range(&self) -> Range<u64> {
        let of_dp = RANKS / (self.cut.0 * self.cut.1);
        let n = 1600 / (self.cut.0 * self.cut.1) / of_dp;
        let more = if self.dp + 1 < of_dp { self.dp + 1 } else { 0 };
        n * self.dp + self.dp..n * (self.dp + 1) + more
    }

    fn flat(&self) -> ShardedTensor {
        ShardedTensor {
            flattened_range: Some(self.range()),
            ..self.chunk("flat").with_replica_id(0)
        }
    }

    /// What a rank has of both tensors.
    fn elements(&self) -> [Vec<i32>; 2] {
        let chunk = arange().narrow(&self.chunk("").region());
        let chunk = chunk.to_vec::<i32>().unwrap();
        let range = self.range();
        let flat = chunk[range.start as usize..range.end as usize].to_vec();
        [chunk, flat]
    }

    fn template(&self) -> StateDict {
        let mut state = StateDict::new();
        state.insert("plain", self.chunk("plain"));
        state.insert("flat", self.flat());
        state
    }

    fn state(&self) -> StateDict {
        let [chunk, flat] = self.elements();
        let plain = self.chunk("plain");
        let chunk = Tensor::from_vec(&plain.local_shape, chunk).unwrap();
        let flat = Tensor::from_vec(&[flat.len() as u64], flat).unwrap();
        let mut state = StateDict::new();
        state.insert("plain", plain.with_data(chunk));
        state.insert("flat", self.flat().with_data(flat));
        state
    }
}

fn saved(cut: Cut, format: Option<Zarr>) -> Place {
    let place = Place::new();
    let states = (0..RANKS).map(|rank| At::of(cut, rank).state()).collect();
    let outcomes = save(
        group(RANKS as u32),
        states,
        place.url(),
        move |_, s| match format {
            None => s,
            Some(zarr) => s.strategy(zarr.config()),
        },
    );
    for outcome in outcomes {
        outcome.unwrap_or_else(|e| panic!("{cut:?} {format:?}: {e}"));
    }
    place
}

fn numbers(state: &ValueTree, name: &str) -> Vec<i32> {
    let leaf = state.get(name).and_then(|t| t.leaf()?.as_tensor());
    leaf.unwrap().to_vec().unwrap()
}

/// Keeps the cells of `flat` of which the rank reads something: where they begin in the whole tensor.
#[derive(Debug)]
struct Noted {
    cut: Cut,
    cells: Arc<Mutex<BTreeSet<[u64; 3]>>>,
}

impl LoadPlanner for Noted {
    fn base(&self) -> &dyn LoadPlanner {
        &DefaultLoadPlanner::DEFAULT
    }

    fn finish_plan(&self, plan: LoadPlan) -> reshard::plan::Result<LoadPlan> {
        let cell = [SHAPE[0] / self.cut.0, SHAPE[1], SHAPE[2] / self.cut.1];
        let mut cells = self.cells.lock().unwrap();
        for item in plan.items.iter().filter(|i| &*i.piece.key == "flat") {
            let at = item.piece.offset.as_ref().unwrap();
            cells.insert([0, 1, 2].map(|axis| at[axis] * cell[axis]));
        }
        drop(cells);
        Ok(plan)
    }
}

type Cells = Vec<BTreeSet<[u64; 3]>>;

/// Loads on other ranks. Returns of which stored cells each of them has read.
fn moves(from: Cut, to: Cut, format: Option<Zarr>) -> Cells {
    let place = saved(from, format);
    let noted: Vec<Arc<Mutex<BTreeSet<[u64; 3]>>>> = (0..RANKS).map(|_| Arc::default()).collect();
    let templates = (0..RANKS).map(|rank| At::of(to, rank).template()).collect();
    let cells = noted.clone();
    let loaded = load(
        group(RANKS as u32),
        templates,
        place.url(),
        move |rank, l| {
            l.planner(Noted {
                cut: from,
                cells: Arc::clone(&cells[rank.index()]),
            })
        },
    );
    for (rank, loaded) in (0..).zip(loaded) {
        let case = format!("{from:?} as {to:?} in {format:?}, rank {rank}");
        let (state, _) = loaded.unwrap_or_else(|e| panic!("{case}: {e}"));
        let [plain, flat] = At::of(to, rank).elements();
        assert_eq!(numbers(&state, "plain"), plain, "{case}");
        assert_eq!(numbers(&state, "flat"), flat, "{case}");
    }
    noted.iter().map(|n| n.lock().unwrap().clone()).collect()
}

#[test]
fn flattened_tensors_are_loaded_on_other_ranks_than_saved_them() {
    let pairs = [
        ((2, 4), (2, 4)),
        ((2, 4), (2, 2)),
        ((2, 4), (4, 2)),
        ((8, 1), (1, 2)),
    ];
    for format in FORMATS {
        for (from, to) in pairs {
            moves(from, to, format);
        }
    }
}

/// Megatron Core reads the whole of each cell that a rank's chunk meets. Here a rank reads only of those in which elements of its range lie.
#[test]
fn a_rank_reads_of_the_cells_in_which_its_elements_lie() {
    let set = |cells: &[[u64; 3]]| cells.iter().copied().collect::<BTreeSet<_>>();
    // As in Megatron Core: ranges of both data parallel ranks cross both cells.
    let by_chunk = [
        [[0, 0, 0], [0, 0, 10]],
        [[4, 0, 0], [4, 0, 10]],
        [[0, 0, 20], [0, 0, 30]],
        [[4, 0, 20], [4, 0, 30]],
    ];
    let want: Cells = [0, 1, 0, 1, 2, 3, 2, 3].map(|n| set(&by_chunk[n])).into();
    assert_eq!(moves((2, 4), (2, 2), None), want);

    // Here Megatron Core reads all eight cells on each rank. A range of 200 elements lies in two or three rows of 100.
    let rows = |rows: Range<u64>| rows.map(|row| [row, 0, 0]).collect::<BTreeSet<_>>();
    let by_range = [0..3, 2..5, 4..7, 6..8].map(rows);
    let want: Cells = [0, 1, 2, 3, 0, 1, 2, 3]
        .map(|n: usize| by_range[n].clone())
        .into();
    assert_eq!(moves((8, 1), (1, 2), None), want);
}

#[test]
fn what_is_listed_of_a_flattened_tensor_is_what_is_listed_of_its_twin() {
    for format in FORMATS {
        for cut in [(2, 4), (8, 1), (1, 1), (1, 4)] {
            let case = format!("{cut:?} in {format:?}");
            let place = saved(cut, format);
            let opened = block_on(OpenOptions::new().stores(stores()).open(place.url())).unwrap();
            let shapes: BTreeMap<&str, _> = ["flat", "plain"]
                .map(|key| (key, opened.tensor(key).unwrap().flattened_shape()))
                .into();
            let cells = [cut.0, 1, cut.1, 1600 / (cut.0 * cut.1)];
            // In arrays it lies unflattened, as Megatron Core stores it there.
            let flattened = format.is_none().then(|| cells.into());
            assert_eq!(
                (&shapes["flat"], &shapes["plain"]),
                (&flattened, &None),
                "{case}"
            );

            let mut template = opened.load_tensors_metadata().unwrap();
            for key in ["flat", "plain"] {
                let leaf = template.get(key).and_then(|t| t.leaf()).unwrap();
                let reshard::model::Leaf::Tensor(t) = leaf else {
                    panic!("{case}: {leaf:?}");
                };
                assert_eq!(
                    (&t.global_shape[..], &t.local_shape[..]),
                    (&SHAPE[..], &SHAPE[..])
                );
                assert!(t.region() == Region::whole(&SHAPE) && t.flattened_range.is_none());
            }
            let whole = ShardedTensor::template("flat", DType::Int32, &SHAPE);
            let whole = ShardedTensor {
                flattened_range: Some(0..1600),
                ..whole
            };
            template.insert("as_range", whole);
            let loaded = load(group(1), vec![template], place.url(), |_, l| l).remove(0);
            let (loaded, _) = loaded.unwrap();
            for name in ["flat", "plain", "as_range"] {
                let all: Vec<i32> = (0..1600).collect();
                assert_eq!(numbers(&loaded, name), all, "{case}: {name}");
            }
        }
    }
}
