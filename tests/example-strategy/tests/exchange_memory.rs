//! How much memory an exchange takes, measured where it is allocated.
#![expect(unsafe_code, reason = "an allocator that counts can't be had without")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

use futures::executor::block_on;
use reshard_comm::{
    Comm, LocalGroup, ProcessGroup,
    testkit::{Apart, on_ranks},
};
use reshard_example::{ExampleConfig, ExampleLoadConfig};
use reshard_model::{FlatStateDict, Path, Region, Sharded, ShardedTensor, Tensor};
use reshard_plan::{
    DefaultSavePlanner, ExchangeAlgo, LoadContext, LoadPlan, LoadPlanner, Metadata, PlanError,
    SavePlan, SavePlanner, share_reads, share_writes,
};
use reshard_storage::{IfExists, LocalStore, Store, testkit::MemoryStore};
use reshard_strategy::{
    LoadCx, LoadPipelineOptions, LoadShardedStrategy, OpenCx, PipelineOptions, SaveCx,
    SaveShardedStrategy,
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
        PEAK.fetch_max(
            LIVE.fetch_add(layout.size(), Relaxed) + layout.size(),
            Relaxed,
        );
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
struct InTurn(ExchangeAlgo);

impl LoadPlanner for InTurn {
    fn create_global_plan(
        &self,
        plans: Vec<LoadPlan>,
        cx: &LoadContext<'_>,
    ) -> Result<Vec<LoadPlan>, PlanError> {
        let turns = |n: usize| (0..RANKS).cycle().take(n).collect();
        let mut plans = share_reads(plans, cx.metadata, |_| Some(0), |all| turns(all.len()))?;
        for plan in &mut plans {
            plan.exchange.algo = self.0;
        }
        Ok(plans)
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
    (0..CHUNKS)
        .map(|c| leaf(Region::new([c * EACH], [EACH]), numbers(c * EACH, EACH)))
        .collect()
}

/// How ranks take part in a load.
#[derive(Clone, Copy, Debug)]
struct Way {
    algo: ExchangeAlgo,
    /// Ranks share no memory.
    apart: bool,
    /// Each rank wants half of each chunk that another one wants.
    overlap: bool,
}

/// The most bytes that all ranks together held beyond their templates.
fn peak(store: &Arc<dyn Store>, exchange_memory: u64, way: Way) -> usize {
    let first = |rank: u32| match way.overlap {
        true => u64::from(rank) * EACH / 2,
        false => 0,
    };
    let end = |rank: u32| CHUNKS * EACH - first(RANKS - 1 - rank);
    let wanted = |rank: u32| {
        let (from, n) = (first(rank), end(rank) - first(rank));
        leaf(Region::new([from], [n]), numbers(1, n))
    };
    let templates: Vec<FlatStateDict> = (0..RANKS).map(|rank| [wanted(rank)].into()).collect();
    let store = Arc::clone(store);
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let loaded = on_ranks(
        LocalGroup::new(RANKS).into_iter().zip(templates).collect(),
        move |(group, flat)| {
            let group: Arc<dyn ProcessGroup> = match way.apart {
                true => Arc::new(Apart::new(Arc::new(group))),
                false => Arc::new(group),
            };
            let store = Arc::clone(&store);
            async move {
                let strategy = LoadShardedStrategy::new(ExampleLoadConfig::default());
                let reader = strategy
                    .open(&OpenCx::new(Arc::clone(&store)))
                    .await
                    .unwrap();
                let groups = BTreeMap::new();
                let options = LoadPipelineOptions {
                    exchange_memory,
                    ..LoadPipelineOptions::default()
                };
                let cx = LoadCx::new(
                    &options,
                    Comm::new(&*group),
                    &groups,
                    store,
                    Arc::new(InTurn(way.algo)),
                );
                strategy
                    .load(flat, reader, &cx)
                    .await
                    .map_err(|failure| failure.error)
                    .unwrap()
            }
        },
    );
    let peak = PEAK.load(Relaxed) - before;
    let read: u64 = loaded.iter().map(|l| l.totals.bytes).sum();
    assert_eq!(read, CHUNKS * EACH * 4, "each byte once");
    for (rank, loaded) in (0..).zip(&loaded) {
        let Sharded::Tensor(t) = &loaded.state[0] else {
            panic!("an object")
        };
        let expected = numbers(first(rank), end(rank) - first(rank)).to_bytes();
        assert!(t.data.host().unwrap().to_bytes() == expected);
    }
    peak
}

/// The first rank writes everything.
#[derive(Debug)]
struct First;

impl SavePlanner for First {
    fn create_global_plan(
        &self,
        plans: Vec<SavePlan>,
    ) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
        let (plans, metadata) = self.base().create_global_plan(plans)?;
        Ok((
            share_writes(plans, |_| Some(0), |all| vec![0; all.len()])?,
            metadata,
        ))
    }
}

/// The most bytes that all ranks together held beyond their states while one of them wrote them all. Returns what was written, too.
fn peak_of_save(home: &std::path::Path, exchange_memory: u64) -> (usize, Vec<u8>) {
    let store: Arc<dyn Store> =
        Arc::new(LocalStore::at(home.join(exchange_memory.to_string())).unwrap());
    let mut states = vec![FlatStateDict::new(); RANKS as usize];
    for (n, (path, leaf)) in chunks().into_iter().enumerate() {
        states[n % RANKS as usize].insert(path, leaf);
    }
    let transaction = block_on(store.begin("a", IfExists::Refuse)).unwrap();
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let ranks: Vec<_> = LocalGroup::new(RANKS).into_iter().zip(states).collect();
    on_ranks(ranks, move |(group, flat)| {
        let transaction = Arc::clone(&transaction);
        async move {
            let (comm, groups) = (Comm::new(&group), BTreeMap::new());
            let options = PipelineOptions {
                exchange_memory,
                ..PipelineOptions::default()
            };
            let to = Arc::clone(&transaction);
            let cx = SaveCx::new(&options, comm, &groups, to, "", Arc::new(First));
            let mut prepared = SaveShardedStrategy::new(ExampleConfig::default())
                .prepare(flat, &cx)
                .await
                .unwrap();
            let written = prepared.write().await;
            let saved = prepared.finish(written, &comm).await.unwrap();
            if comm.is_coordinator() {
                assert_eq!(saved.ranks[0].items, CHUNKS);
                transaction
                    .commit(None, &[], Default::default())
                    .await
                    .unwrap();
            }
        }
    });
    let peak = PEAK.load(Relaxed) - before;
    (
        peak,
        std::fs::read(home.join(exchange_memory.to_string()).join("rank-0.bin")).unwrap(),
    )
}

#[test]
fn an_exchange_holds_no_more_than_its_memory() {
    // One after the other: what is measured is of the whole process.
    a_load_holds_no_more();
    a_save_holds_no_more();
}

/// The writer holds its memory, and the givers a block for each item that is on its way.
fn a_save_holds_no_more() {
    const MEMORY: u64 = 2 << 20;
    const BESIDES: usize = 3 << 20;
    let home = tempfile::tempdir().unwrap();
    let (most, bytes) = peak_of_save(home.path(), MEMORY);
    assert_eq!(bytes.len() as u64, CHUNKS * EACH * 4, "all of it");
    assert!(
        most < RANKS as usize * MEMORY as usize + BESIDES,
        "{most} bytes"
    );
    // What is measured is what the limit limits.
    let (more, same) = peak_of_save(home.path(), 64 << 20);
    assert!(
        more > most + (4 << 20),
        "{more} bytes, and {most} with less memory"
    );
    assert!(bytes == same);
}

fn a_load_holds_no_more() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let rank = Rank {
        strategy: Arc::new(SaveShardedStrategy::new(ExampleConfig::default())),
        planner: Arc::new(DefaultSavePlanner::DEFAULT) as _,
        flat: chunks(),
    };
    save_on_ranks(&store, IfExists::Refuse, vec![rank])
        .into_iter()
        .for_each(|o| drop(o.unwrap()));

    const MEMORY: u64 = 1 << 20;
    // Plans, tables of chunks, threads.
    const BESIDES: usize = 512 << 10;
    let ways = [
        (ExchangeAlgo::Broadcast, false, false),
        (ExchangeAlgo::Broadcast, true, false),
        (ExchangeAlgo::Broadcast, false, true),
        (ExchangeAlgo::Broadcast, true, true),
        (ExchangeAlgo::GatherRounds, true, true),
    ];
    for (algo, apart, overlap) in ways {
        let way = Way {
            algo,
            apart,
            overlap,
        };
        let most = peak(&store, MEMORY, way);
        assert!(
            most < RANKS as usize * MEMORY as usize + BESIDES,
            "{way:?}: {most} bytes"
        );
    }
    // What is measured is what the limit limits.
    let way = |algo, apart| Way {
        algo,
        apart,
        overlap: false,
    };
    let more = peak(&store, 64 << 20, way(ExchangeAlgo::Broadcast, true));
    assert!(more > 2 * RANKS as usize * MEMORY as usize, "{more} bytes");
    // One has no limit, and one takes no more than an item, however much it may.
    let all = peak(&store, MEMORY, way(ExchangeAlgo::GatherObject, true));
    assert!(all as u64 > CHUNKS * EACH * 4, "{all} bytes");
    let few = peak(&store, 64 << 20, way(ExchangeAlgo::GatherRounds, true));
    assert!(few < more / 2, "{few} bytes of {more}");
}
