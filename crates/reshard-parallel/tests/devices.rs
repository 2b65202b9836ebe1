//! Loads into device memory: how much host memory they take, measured where it is allocated, and devices that fail.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{
    DType, LoadError, LoadReport, LocalGroup, ProcessGroup, Result, ShardedTensor, StateDict,
    Tensor, ValueTree,
    model::{Data, DeviceBuffer, DeviceTensor, Region},
    strategy::LoadShardedStrategy,
};
use reshard_comm::testkit::{Apart, on_ranks};
use reshard_model::testkit::{CountingAllocator, LateDevice, OnTheWay};
use reshard_parallel::{FullyParallelLoad, TwoStageLoad};
use reshard_plan::ExchangeAlgo;
use reshard_torch_dist::TorchDistLoadConfig;
use std::{sync::Arc, thread};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const RANKS: u32 = 2;
const MIB: u64 = 1 << 20;
/// One large tensor, and small ones. The large one is larger than all limits of the test.
const SHAPES: [[u64; 2]; 9] = {
    let mut shapes = [[256, 1024]; 9];
    shapes[0] = [4096, 1024];
    shapes
};
const LARGEST: u64 = 16 * MIB;
/// The bytes of a rank's leaves.
const ALL: u64 = 24 * MIB;
/// How many may be on their way to devices.
const AHEAD: u64 = MIB;
const EXCHANGE: u64 = 2 * MIB;

fn key(tensor: usize) -> String {
    format!("w{tensor}")
}

fn numbers(tensor: usize, part: &Region) -> Vec<u32> {
    let rows = part.offsets[0]..part.end(0);
    let columns = part.offsets[1]..part.end(1);
    rows.flat_map(|y| columns.clone().map(move |x| (y * 1024 + x) as u32))
        .map(|n| n ^ (tensor as u32) << 24)
        .collect()
}

fn store(url: &str) {
    let mut state = StateDict::new();
    for (i, shape) in SHAPES.iter().enumerate() {
        let data = Tensor::from_vec(shape, numbers(i, &Region::whole(shape))).unwrap();
        state.insert(key(i), ShardedTensor::full(&key(i), data));
    }
    futures::executor::block_on(async { reshard::save(&state, url).await }).unwrap();
}

/// The part of each tensor that every rank wants: all, or columns of it.
fn part(shape: [u64; 2], columns: bool) -> Region {
    match columns {
        true => Region::new([0, 100], [shape[0], 300]),
        false => Region::whole(&shape),
    }
}

/// What a rank loads, and the memory that gets it.
fn template(columns: bool, way: &Arc<OnTheWay>) -> (StateDict, Vec<Arc<LateDevice>>) {
    let (mut state, mut memory) = (StateDict::new(), Vec::new());
    for (i, shape) in SHAPES.iter().enumerate() {
        let region = part(*shape, columns);
        let buffer = LateDevice::new(4 * region.volume().unwrap(), way);
        let on_device = Arc::clone(&buffer) as Arc<dyn DeviceBuffer>;
        let data = DeviceTensor::new(DType::UInt32, &region.lengths, on_device).unwrap();
        let leaf = ShardedTensor::region_of(&key(i), DType::UInt32, shape, region);
        state.insert(key(i), leaf.with_data(Data::Device(data)));
        memory.push(buffer);
    }
    (state, memory)
}

type Loads = Vec<Result<(ValueTree, LoadReport), LoadError>>;

/// How ranks load.
#[derive(Clone, Debug)]
struct Way {
    settings: LoadShardedStrategy,
    /// Bytes that may be in host memory beside what is on its way to devices.
    beside: u64,
    /// Ranks share no memory.
    apart: bool,
}

fn load(url: &str, way: &Way, templates: Vec<StateDict>) -> Loads {
    let (url, way): (Arc<str>, _) = (url.into(), way.clone());
    let ranks = LocalGroup::new(RANKS).into_iter().zip(templates).collect();
    on_ranks(ranks, move |(group, template)| {
        let (url, way) = (Arc::clone(&url), way.clone());
        async move {
            let group: Arc<dyn ProcessGroup> = match way.apart {
                true => Arc::new(Apart::new(Arc::new(group))),
                false => Arc::new(group),
            };
            reshard::load(template, &*url)
                .group(&*group)
                .exchange_memory(EXCHANGE)
                .copy_ahead(AHEAD)
                .strategy(way.settings)
                .with_report()
                .await
        }
    })
}

fn ways() -> Vec<Way> {
    let base = TorchDistLoadConfig::default;
    let mut out = vec![Way {
        settings: base().into(),
        beside: 0,
        apart: false,
    }];
    for apart in [false, true] {
        let mut add = |settings: LoadShardedStrategy, beside| {
            out.push(Way {
                settings,
                beside,
                apart,
            });
        };
        // A rank that reads an item for others holds all of it.
        let bounded = LARGEST + u64::from(RANKS) * EXCHANGE;
        for algo in [ExchangeAlgo::Broadcast, ExchangeAlgo::GatherRounds] {
            let shared = FullyParallelLoad::new().exchange(algo).around(base());
            add(shared, bounded);
        }
        let two = TwoStageLoad::new().bytes_in_flight(EXCHANGE).around(base());
        add(two, bounded);
        // This one has no limit. Messages of ranks that share no memory are copies.
        let shared = FullyParallelLoad::new()
            .exchange(ExchangeAlgo::GatherObject)
            .around(base());
        add(shared, if apart { 2 * ALL } else { ALL });
    }
    out
}

#[test]
fn devices_are_filled_in_bounded_host_memory_and_their_failures_reach_all_ranks() {
    // One after the other: what is measured is of the whole process.
    let home = tempfile::tempdir().unwrap();
    let url = home.path().join("ckpt").display().to_string();
    store(&url);
    host_memory_is_bounded(&url);
    a_device_that_fails_fails_all(&url);
}

fn host_memory_is_bounded(url: &str) {
    for columns in [false, true] {
        for way in ways() {
            let on_the_way: Vec<Arc<OnTheWay>> = (0..RANKS).map(|_| Arc::default()).collect();
            let (templates, memory): (Vec<_>, Vec<_>) =
                on_the_way.iter().map(|way| template(columns, way)).unzip();
            let (loads, peak) = ALLOCATOR.peak_of(|| load(url, &way, templates));
            let peak = peak as u64;

            for loaded in &loads {
                let (_, report) = loaded.as_ref().map_err(|e| e.to_string()).unwrap();
                assert!(!report.exchange.devices.is_zero(), "{way:?}");
            }
            // What is read in parts of an item has no checksum.
            let reports = loads.iter().flatten().map(|(_, report)| report);
            let verified: u64 = reports.map(|report| report.totals.verified).sum();
            assert!(
                columns || verified >= SHAPES.len() as u64,
                "{way:?}: {verified}"
            );
            for (buffers, on_the_way) in memory.iter().zip(&on_the_way) {
                for (i, buffer) in buffers.iter().enumerate() {
                    let region = part(SHAPES[i], columns);
                    let expected = Tensor::from_vec(&region.lengths, numbers(i, &region));
                    assert!(
                        expected.unwrap().to_bytes() == buffer.bytes(),
                        "{way:?} {i}"
                    );
                }
                assert!(
                    on_the_way.most() <= AHEAD,
                    "{} of {way:?}",
                    on_the_way.most()
                );
                assert!(columns || on_the_way.copies() > 20, "they go in parts");
            }
            // On its way, and what I/O threads hold. Host memory for the leaves would be far more.
            let threads = thread::available_parallelism().unwrap().get() as u64;
            let most = way.beside + u64::from(RANKS) * AHEAD + 2 * threads * MIB + 2 * MIB;
            assert!(peak < most, "{peak} of {most}: {way:?}");
        }
    }
}

/// The error names rank, key and device on all ranks, and everybody has the template.
fn a_device_that_fails_fails_all(url: &str) {
    for way in ways() {
        for bad in 0..RANKS {
            for (after, panics) in [(0, false), (1, false), (20, false), (3, true)] {
                let (templates, _): (Vec<_>, Vec<_>) = (0..RANKS)
                    .map(|rank| {
                        let on_the_way = Arc::new(OnTheWay::default());
                        if rank == bad {
                            on_the_way.fail_after(after, panics);
                        }
                        template(false, &on_the_way)
                    })
                    .unzip();
                for loaded in load(url, &way, templates) {
                    let (e, template) = loaded.unwrap_err().into_parts();
                    let text = e.to_string();
                    assert!(text.contains(&format!("rank {bad}")), "{text}");
                    // With the key before it.
                    let key = text.split(": copying to late:0").next().unwrap();
                    assert!(
                        key.len() < text.len() && key.ends_with(char::is_numeric),
                        "{text}"
                    );
                    assert_eq!(text.contains("has panicked"), panics, "{text}");
                    assert!(template.get("w0").is_some());
                }
            }
        }
    }
}
