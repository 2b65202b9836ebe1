//! One rank reads a file, and every other rank gets its own slices and no more: counted in the file and on the wire.

use async_trait::async_trait;
use bytes::Bytes;
use reshard::{
    DType, LocalGroup, Region, ShardedTensor, StateDict, Tensor, Value, ValueTree,
    safetensors::{SafetensorsConfig, SafetensorsLoadConfig},
    storage::{CountingStore, LocalStore, PlaceKind, Store},
    strategy::{LoadShardedStrategy, SaveShardedStrategy},
    torch_save::{TorchSaveConfig, TorchSaveLoadConfig},
};
use reshard_comm::{Cause, ProcessGroup, Rank, Result};
use reshard_parallel::OneReaderLoad;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

const RANKS: u64 = 4;
/// 4 MiB as float32.
const SHAPE: [u64; 2] = [1 << 10, 1 << 10];
/// Plans, headers, directories of archives and the like.
const BESIDE: u64 = 256 << 10;

/// A group whose ranks do not share memory. It counts what comes from other ranks.
#[derive(Debug)]
struct Wire {
    inner: Arc<dyn ProcessGroup>,
    received: Arc<AtomicU64>,
}

#[async_trait]
impl ProcessGroup for Wire {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    async fn all_to_all(&self, to: Vec<Bytes>) -> Result<Vec<Bytes>> {
        let got = self.inner.all_to_all(to).await?;
        let own = self.rank().index();
        let others = got.iter().enumerate().filter(|(rank, _)| *rank != own);
        let bytes: usize = others.map(|(_, message)| message.len()).sum();
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(got)
    }

    async fn split(&self, color: Option<u32>, order: u32) -> Result<Option<Arc<dyn ProcessGroup>>> {
        let received = &self.received;
        let part = self.inner.split(color, order).await?;
        Ok(part.map(|inner| {
            Arc::new(Self {
                inner,
                received: Arc::clone(received),
            }) as Arc<dyn ProcessGroup>
        }))
    }

    fn abort(&self, cause: Cause) {
        self.inner.abort(cause);
    }
}

/// What a rank got, read from the file, and received from other ranks.
struct Got {
    state: ValueTree,
    read: u64,
    received: u64,
}

fn number(row: u64, column: u64) -> f32 {
    (row * SHAPE[1] + column) as f32
}

fn saved(url: &str, config: impl Into<SaveShardedStrategy>) {
    let rows = (0..SHAPE[0]).flat_map(|row| (0..SHAPE[1]).map(move |column| number(row, column)));
    let mut state = StateDict::new();
    let weight = Tensor::from_vec(&SHAPE, rows.collect::<Vec<f32>>()).unwrap();
    state.insert("w", ShardedTensor::full("w", weight));
    // Nobody asks for it.
    let other = Tensor::from_vec(&SHAPE, vec![1f32; (SHAPE[0] * SHAPE[1]) as usize]).unwrap();
    state.insert("other", ShardedTensor::full("other", other));
    let saved = reshard::save(&state, url)
        .dialect(reshard::Dialect::Dcp)
        .strategy(config);
    reshard::blocking::run(saved).unwrap();
}

/// Each rank asks for one region.
fn load<C: Into<LoadShardedStrategy> + Clone + Sync>(
    url: &str,
    config: &C,
    regions: &[Region],
) -> Vec<Got> {
    let groups = LocalGroup::new(regions.len() as u32);
    std::thread::scope(|scope| {
        let ranks: Vec<_> = groups
            .into_iter()
            .zip(regions)
            .map(|(group, region)| {
                scope.spawn(move || {
                    let received = Arc::<AtomicU64>::default();
                    let wire = Wire {
                        inner: Arc::new(group),
                        received: Arc::clone(&received),
                    };
                    let folder = LocalStore::open(url).unwrap();
                    let file = folder.of_kind(PlaceKind::File).unwrap();
                    let counted = Arc::new(CountingStore::new(file));
                    let mut template = StateDict::new();
                    let wanted =
                        ShardedTensor::region_of("w", DType::Float32, &SHAPE, region.clone());
                    template.insert("w", wanted);
                    let load = reshard::load(template, url)
                        .group(&wire)
                        .store(Arc::<CountingStore>::clone(&counted))
                        .strategy(OneReaderLoad::new().around(config.clone()));
                    let state = reshard::blocking::run(load).unwrap();
                    Got {
                        state,
                        read: counted.take().read(),
                        received: received.load(Ordering::Relaxed),
                    }
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn each_gets_its_slice<C: Into<LoadShardedStrategy> + Clone + Sync>(url: &str, config: &C) {
    let quarter = |n: u64| SHAPE[0] / RANKS * n;
    let rows = |rank| Region::new([quarter(rank), 0], [quarter(1), SHAPE[1]]);
    let columns = |rank| Region::new([0, quarter(rank)], [SHAPE[0], quarter(1)]);
    let slice = SHAPE[0] * SHAPE[1] * 4 / RANKS;
    for regions in [
        (0..RANKS).map(rows).collect::<Vec<_>>(),
        (0..RANKS).map(columns).collect(),
    ] {
        for (rank, (got, region)) in load(url, config, &regions).iter().zip(&regions).enumerate() {
            let Some(Value::Tensor(w)) = got.state.get("w").and_then(ValueTree::leaf) else {
                unreachable!("rank {rank} has no tensor")
            };
            let cells = (region.offsets[0]..region.end(0)).flat_map(|row| {
                (region.offsets[1]..region.end(1)).map(move |column| number(row, column))
            });
            assert_eq!(w.to_vec::<f32>().unwrap(), cells.collect::<Vec<f32>>());

            let Got { read, received, .. } = *got;
            let (all, own) = match rank {
                0 => (RANKS * slice, 0),
                _ => (0, slice),
            };
            // The tensor that nobody asks for is not read.
            assert!(
                (all..=all + BESIDE * u64::from(rank == 0)).contains(&read),
                "rank {rank} read {read} bytes of the file, and {all} are wanted"
            );
            assert!(
                (own..=own + BESIDE).contains(&received),
                "rank {rank} received {received} bytes, and its slice has {own}"
            );
        }
    }
}

#[test]
fn a_file_of_torch_save_is_read_by_one_rank_and_each_gets_its_slice() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("model.pt").display().to_string();
    saved(&url, TorchSaveConfig::default());
    each_gets_its_slice(&url, &TorchSaveLoadConfig::default());
}

#[test]
fn a_file_of_safetensors_is_read_by_one_rank_and_each_gets_its_slice() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("model.safetensors").display().to_string();
    saved(&url, SafetensorsConfig::default());
    each_gets_its_slice(&url, &SafetensorsLoadConfig::default());
}
