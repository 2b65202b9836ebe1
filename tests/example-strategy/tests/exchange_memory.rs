//! How much memory an exchange takes, measured where it is allocated.
#![expect(unsafe_code, reason = "an allocator that counts can't be had without")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

use reshard_comm::{Comm, LocalGroup, testkit::on_ranks};
use reshard_example::{ExampleFormat, ExampleWriter};
use reshard_model::{FlatStateDict, Path, Region, Sharded, ShardedTensor, Tensor};
use reshard_plan::{DefaultSavePlanner, LoadContext, LoadPlan, LoadPlanner, PlanError, share_reads};
use reshard_storage::{IfExists, Store, testkit::MemoryStore};
use reshard_strategy::{
    LoadCx, LoadShardedStrategy, OpenCx, Planned, PlannedLoad,
    testkit::{Rank, save_on_ranks},
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

struct Counting;
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(LIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const RANKS: u32 = 3;
const CHUNKS: u64 = 96;
/// Elements of a chunk, of 4 bytes.
const EACH: u64 = 64 << 10;

/// Each chunk is read by one rank, in turn.
#[derive(Debug)]
struct InTurn;

impl LoadPlanner for InTurn {
    fn create_global_plan(
        &self,
        plans: Vec<LoadPlan>,
        cx: &LoadContext<'_>,
    ) -> Result<Vec<LoadPlan>, PlanError> {
        let turns = |n: usize| (0..RANKS).cycle().take(n).collect();
        share_reads(plans, cx.metadata, |_| Some(0), |all| turns(all.len()))
    }
}

fn numbers(from: u64, n: u64) -> Tensor {
    Tensor::from_vec(&[n], (from..from + n).map(|i| i as u32).collect()).unwrap()
}

fn leaf(region: Region, data: Tensor) -> (Path, Sharded) {
    let path = Path(vec![format!("{}", region.offsets[0]).into()]);
    let leaf = ShardedTensor::region_of("w", data.dtype(), &[CHUNKS * EACH], region);
    (path, Sharded::Tensor(leaf.with_data(data)))
}

fn chunks() -> FlatStateDict {
    (0..CHUNKS).map(|c| leaf(Region::new([c * EACH], [EACH]), numbers(c * EACH, EACH))).collect()
}

/// The most bytes that all ranks together held beyond their templates.
fn peak(store: &Arc<dyn Store>, exchange_memory: u64) -> usize {
    let whole = || leaf(Region::new([0], [CHUNKS * EACH]), numbers(1, CHUNKS * EACH));
    let templates: Vec<FlatStateDict> = (0..RANKS).map(|_| [whole()].into()).collect();
    let store = Arc::clone(store);
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let loaded =
        on_ranks(LocalGroup::new(RANKS).into_iter().zip(templates).collect(), move |(group, flat)| {
            let store = Arc::clone(&store);
            async move {
                let strategy = PlannedLoad::new(ExampleFormat);
                let reader = strategy.open(&OpenCx::new(Arc::clone(&store))).await.unwrap();
                let groups = BTreeMap::new();
                let cx = LoadCx::new(Comm::new(&group), &groups, store, Arc::new(InTurn));
                let cx = cx.with_exchange_memory(exchange_memory);
                strategy.load(flat, reader, &cx).await.map_err(|failure| failure.error).unwrap()
            }
        });
    let peak = PEAK.load(Relaxed) - before;
    let read: u64 = loaded.iter().map(|l| l.totals.read).sum();
    assert_eq!(read, CHUNKS * EACH * 4, "each byte once");
    let whole = numbers(0, CHUNKS * EACH).to_bytes();
    for leaf in loaded.iter().flat_map(|l| l.state.values()) {
        let Sharded::Tensor(t) = leaf else { panic!("an object") };
        assert!(t.data.host().unwrap().to_bytes() == whole);
    }
    peak
}

#[test]
fn an_exchange_holds_no_more_than_its_memory() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let rank = Rank {
        strategy: Arc::new(Planned::new(ExampleWriter)) as _,
        planner: Arc::new(DefaultSavePlanner::DEFAULT) as _,
        flat: chunks(),
    };
    save_on_ranks(&store, IfExists::Refuse, vec![rank]).into_iter().for_each(|o| drop(o.unwrap()));

    const MEMORY: u64 = 1 << 20;
    // Plans, tables of chunks, threads.
    const BESIDES: usize = 512 << 10;
    let most = peak(&store, MEMORY);
    assert!(most < RANKS as usize * MEMORY as usize + BESIDES, "{most} bytes");
    // What is measured is what the limit limits.
    let more = peak(&store, 64 << 20);
    assert!(more > 2 * RANKS as usize * MEMORY as usize, "{more} bytes");
}
