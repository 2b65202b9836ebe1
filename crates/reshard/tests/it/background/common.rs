//! States, gates and places for these tests.

use async_trait::async_trait;
use reshard::{
    AsyncStager, DType, Data, LocalGroup, Rank, Region, Save, ShardedObject, ShardedTensor,
    StateDict, Tensor, Value,
    model::{DeviceTensor, testkit::FakeDevice},
    strategy::{KeyedData, Result, StrategyError},
};
use reshard_comm::testkit;
use std::{
    collections::BTreeMap,
    fs,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};
use tempfile::TempDir;

/// Runs ranks of one group, each on a thread, and returns what they return.
pub(crate) fn on_ranks<T, F>(
    ranks: u32,
    rank: impl Fn(LocalGroup) -> F + Send + Sync + 'static,
) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    testkit::on_ranks(LocalGroup::new(ranks), rank)
}

/// What one rank trains: rows of a tensor in host memory and of one on a device, a tensor that is not sharded, an object.
pub(crate) struct Training {
    pub(crate) host: Tensor,
    pub(crate) device: DeviceTensor,
    pub(crate) seed: Tensor,
    rank: u64,
    ranks: u64,
}

impl Training {
    pub(crate) fn new(rank: Rank, ranks: u32, salt: u8) -> Self {
        let elements = (0..24).map(|i| rank.0 as f32 * 100. + i as f32 + f32::from(salt));
        let bytes: Vec<u8> = (0..16).map(|i| i + salt + rank.0 as u8 * 16).collect();
        let device = DeviceTensor::new(DType::UInt8, &[4, 4], FakeDevice::new(16)).unwrap();
        let of_device = Tensor::from_vec(&[4, 4], bytes).unwrap();
        device.fill("d", &of_device).unwrap();
        Self {
            host: Tensor::from_vec(&[4, 6], elements.collect()).unwrap(),
            device,
            seed: Tensor::from_vec(&[3], vec![i64::from(salt); 3]).unwrap(),
            rank: rank.0.into(),
            ranks: ranks.into(),
        }
    }

    pub(crate) fn state(&self) -> StateDict {
        let mut state = StateDict::new();
        let rows = |columns| Region::new([self.rank * 4, 0], [4, columns]);
        let leaf = |key, dtype, columns| {
            ShardedTensor::region_of(key, dtype, &[self.ranks * 4, columns], rows(columns))
        };
        let w = leaf("w", DType::Float32, 6).with_data(self.host.clone());
        state.insert("w", w);
        let d = leaf("d", DType::UInt8, 4).with_data(self.device.clone());
        state.insert("d", d);
        state.insert("seed", self.seed.clone());
        state.insert("step", 7);
        let rng = Value::from(self.rank as i64);
        let rng = ShardedObject::new("rng", rng, &[self.ranks], &[self.rank], 0).unwrap();
        state.insert("rng", rng);
        state
    }

    /// A training step: all that it has is overwritten in place.
    ///
    /// # Panics
    /// When somebody holds a handle on host memory.
    pub(crate) fn spoil(self) {
        self.host.into_vec::<f32>().unwrap().fill(-1.);
        self.seed.into_vec::<i64>().unwrap().fill(-1);
        let zeros = Tensor::zeros("d", DType::UInt8, &[4, 4]).unwrap();
        self.device.fill("d", &zeros).unwrap();
    }
}

/// The state of a rank that has one tensor, which is not sharded.
pub(crate) fn one(value: f32) -> StateDict {
    let mut state = StateDict::new();
    state.insert("w", Tensor::from_vec(&[2], vec![value; 2]).unwrap());
    state
}

/// A save of `state`, which is written when the gate is open.
pub(crate) fn gated<'a>(state: &'a StateDict, url: &'a str, gate: &Gate) -> Save<'a> {
    let gate = gate.clone();
    reshard::save(state, url).progress(move |_| gate.pass())
}

/// A stager without memory.
#[derive(Debug)]
pub(crate) struct Fails;

#[async_trait]
impl AsyncStager for Fails {
    async fn stage(&self, _: Vec<KeyedData>) -> Result<Vec<Data>> {
        Err(StrategyError::Invalid("no memory".into()))
    }
}

/// Holds a save up while it is being written.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(crate) fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    /// Waits until it is open.
    pub(crate) fn pass(&self) {
        let open = self.0.0.lock().unwrap();
        let waited = self
            .0
            .1
            .wait_timeout_while(open, Duration::from_secs(300), |open| !*open)
            .unwrap();
        assert!(!waited.1.timed_out(), "nobody opened the gate");
    }
}

/// A directory for checkpoints.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn url(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// The names in the directory, hidden ones too.
    pub(crate) fn names(&self) -> Vec<String> {
        names(self.0.path())
    }

    /// The bytes of all files of a checkpoint.
    pub(crate) fn files(&self, name: &str) -> BTreeMap<String, Vec<u8>> {
        let dir = self.0.path().join(name);
        let read = |name: String| (name.clone(), fs::read(dir.join(name)).unwrap());
        names(&dir).into_iter().map(read).collect()
    }
}

fn names(dir: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
