//! Megatron Core's load in two stages: who reads, what goes on at the same time, and what is told of it.

use crate::ranks::layered;
use crate::ranks::{Group, Loader, groups, load, plain, store};
use async_trait::async_trait;
use reshard::{
    DType, ShardedTensor, StateDict, Tensor,
    comm::{Cause, Rank, Result as CommResult},
    model::{BoxError, Data, DeviceBuffer, DeviceTensor, Layout},
};
use reshard_comm::ProcessGroup;
use reshard_model::testkit::{FakeDevice, LateDevice, OnTheWay};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

/// Ranks that share no memory. It counts the rounds in the group itself, and sees data go through it and through its sub-groups.
#[derive(Debug)]
struct Counted {
    inner: Group,
    own: Arc<AtomicU64>,
    data: Arc<AtomicU64>,
}

/// No round has brought data, the first one has, or the next one has begun.
const NONE: u64 = 0;
const FIRST: u64 = 1;
const NEXT: u64 = 2;
/// Bytes for one rank that are more than a plan.
const DATA: usize = 30 << 10;

#[async_trait]
impl ProcessGroup for Counted {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn abort(&self, cause: Cause) {
        self.inner.abort(cause);
    }

    fn silent(&self) -> Vec<Rank> {
        self.inner.silent()
    }

    async fn all_to_all(&self, to: Vec<bytes::Bytes>) -> CommResult<Vec<bytes::Bytes>> {
        self.own.fetch_add(1, SeqCst);
        let seen = self.data.load(SeqCst);
        if seen == FIRST {
            self.data.store(NEXT, SeqCst);
        }
        let has_data = |all: &[bytes::Bytes]| all.iter().any(|part| part.len() > DATA);
        let sends = has_data(&to);
        let got = self.inner.all_to_all(to).await?;
        if seen == NONE && (sends || has_data(&got)) {
            self.data.store(FIRST, SeqCst);
        }
        Ok(got)
    }

    async fn split(&self, color: Option<u32>, order: u32) -> CommResult<Option<Group>> {
        let part = self.inner.split(color, order).await?;
        Ok(part.map(|inner| {
            Arc::new(Self {
                inner,
                own: Arc::default(),
                data: Arc::clone(&self.data),
            }) as Group
        }))
    }
}

/// A device that takes nothing until its rank is in the round after the first one with data.
#[derive(Debug)]
struct Patient {
    memory: Arc<FakeDevice>,
    data: Arc<AtomicU64>,
    /// Whether it waited in vain.
    in_vain: Arc<AtomicU64>,
}

impl DeviceBuffer for Patient {
    fn device(&self) -> &'static str {
        "patient:0"
    }

    fn nbytes(&self) -> u64 {
        self.memory.nbytes()
    }

    fn allocate(&self, _: u64) -> Result<Arc<dyn DeviceBuffer>, BoxError> {
        Err("it is full".into())
    }

    fn copy_to_host(&self, from: &Layout, out: &mut [u8]) -> Result<(), BoxError> {
        self.memory.copy_to_host(from, out)
    }

    fn copy_from_host(&self, to: &Layout, elements: &[u8]) -> Result<(), BoxError> {
        let begun = Instant::now();
        while self.data.load(SeqCst) < NEXT && self.in_vain.load(SeqCst) == 0 {
            if begun.elapsed() > Duration::from_secs(300) {
                self.in_vain.store(1, SeqCst);
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.memory.copy_from_host(to, elements)
    }

    fn synchronise(&self) -> Result<(), BoxError> {
        Ok(())
    }
}

const TENSORS: usize = 48;
/// Elements of a tensor.
const EACH: u64 = 2 << 10;

fn data(tensor: usize) -> Tensor {
    let numbers = (0..EACH).map(|i| (i + 1000 * tensor as u64) as f32);
    Tensor::from_vec(&[EACH], numbers.collect()).unwrap()
}

fn state(leaf: impl Fn(usize, &str) -> Data) -> StateDict {
    let mut state = StateDict::new();
    for i in 0..TENSORS {
        let key = format!("w{i}");
        let mut t = ShardedTensor::template(&key, DType::Float32, &[EACH]);
        t.data = leaf(i, &key);
        state.insert(key.as_str(), t);
    }
    state
}

/// Devices are busy until the next round is on its way, on the rank that reads and on those that get what it reads. So a rank that
/// would wait for its device before it goes on would wait forever.
#[test]
fn copies_to_devices_go_on_beside_rounds() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    store(vec![state(|i, _| Data::Host(data(i)))], &url);
    let settings = layered(
        json!({ "type": "two_stage", "bytes_in_flight": 512 << 10 }),
        &plain(),
    );
    let in_vain = Arc::new(AtomicU64::new(0));
    let (mut loaders, mut memories) = (Vec::new(), Vec::new());
    for inner in groups(3) {
        let (data, own) = (Arc::new(AtomicU64::new(NONE)), Arc::default());
        let memory: Vec<Arc<FakeDevice>> =
            (0..TENSORS).map(|_| FakeDevice::new(4 * EACH)).collect();
        let template = state(|i, _| {
            let buffer = Patient {
                memory: Arc::clone(&memory[i]),
                data: Arc::clone(&data),
                in_vain: Arc::clone(&in_vain),
            };
            Data::Device(DeviceTensor::new(DType::Float32, &[EACH], Arc::new(buffer)).unwrap())
        });
        let group = Arc::new(Counted { inner, own, data });
        loaders.push(Loader::new(group, template, &settings));
        memories.push(memory);
    }
    for (rank, loaded) in load(loaders, &url).into_iter().enumerate() {
        let times = loaded.unwrap().1.exchange;
        assert!(times.rounds > 4, "{times:?}");
        // What each took is told. One rank reads.
        assert_eq!(rank == 0, !times.reading.is_zero(), "{times:?}");
        assert!(
            !times.handing.is_zero() && !times.devices.is_zero(),
            "{times:?}"
        );
        assert!(rank == 0 || !times.filling.is_zero(), "{times:?}");
    }
    assert_eq!(in_vain.load(SeqCst), 0, "a round waited for a device");
    for memory in memories {
        for (i, memory) in memory.iter().enumerate() {
            assert!(memory.bytes() == data(i).to_bytes());
        }
    }
}

/// With `cpu_transfer` no data go through the group of the job. The lowest rank reads, and leaves without data get memory.
#[test]
fn a_group_of_its_own_carries_the_data() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    store(vec![state(|i, _| Data::Host(data(i)))], &url);
    let rounds_of_job = |cpu_transfer: bool, bytes: u64| {
        let layer = json!({
            "type": "two_stage", "cpu_transfer": cpu_transfer, "bytes_in_flight": bytes,
        });
        let settings = layered(layer, &plain());
        let own: Vec<Arc<AtomicU64>> = (0..3).map(|_| Arc::default()).collect();
        let loader = |(inner, own): (Group, &Arc<AtomicU64>)| {
            let (data, own) = (Arc::default(), Arc::clone(own));
            let group = Arc::new(Counted { inner, own, data });
            Loader::new(group, state(|_, _| Data::None), &settings)
        };
        let loaders = groups(3).into_iter().zip(&own).map(loader).collect();
        for (rank, loaded) in load(loaders, &url).into_iter().enumerate() {
            let (tree, report) = loaded.unwrap();
            let read = if rank == 0 {
                TENSORS as u64 * EACH * 4
            } else {
                0
            };
            assert_eq!(report.totals.needed, read);
            for i in 0..TENSORS {
                let got = tree
                    .get(&format!("w{i}"))
                    .and_then(|t| t.leaf()?.as_tensor());
                assert_eq!(got, Some(&data(i)));
            }
        }
        own[1].load(SeqCst)
    };
    assert_eq!(rounds_of_job(true, 64 << 10), rounds_of_job(true, 64 << 20));
    assert!(rounds_of_job(false, 64 << 10) > rounds_of_job(false, 64 << 20) + 4);
}

/// The others learn it with the next round, and read no more for nobody.
#[test]
fn a_device_that_fails_ends_the_rounds() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    store(vec![state(|i, _| Data::Host(data(i)))], &url);
    let rounds = |fails: bool| {
        let layer = json!({
            "type": "two_stage", "cpu_transfer": false, "bytes_in_flight": 64 << 10,
        });
        let settings = layered(layer, &plain());
        let own: Vec<Arc<AtomicU64>> = (0..3).map(|_| Arc::default()).collect();
        let loader = |(inner, own): (Group, &Arc<AtomicU64>)| {
            let way = Arc::new(OnTheWay::default());
            if fails && inner.rank().0 == 1 {
                way.fail_after(0, false);
            }
            let template = state(|_, _| {
                let buffer = LateDevice::new(4 * EACH, &way);
                Data::Device(DeviceTensor::new(DType::Float32, &[EACH], buffer).unwrap())
            });
            let (data, own) = (Arc::default(), Arc::clone(own));
            let group = Arc::new(Counted { inner, own, data });
            Loader::new(group, template, &settings)
        };
        let loaders = groups(3).into_iter().zip(&own).map(loader).collect();
        for loaded in load(loaders, &url) {
            assert_eq!(loaded.is_err(), fails);
            if let Err(e) = loaded {
                let text = e.to_string();
                assert!(
                    text.contains("rank 1") && text.contains("copying to late:0"),
                    "{text}"
                );
            }
        }
        own[0].load(SeqCst)
    };
    assert!(
        rounds(true) + 20 < rounds(false),
        "{} {}",
        rounds(true),
        rounds(false)
    );
}
