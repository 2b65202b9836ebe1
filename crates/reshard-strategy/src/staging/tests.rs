//! Staging, on the host and from devices.

use super::{memory::IDLE, *};
use futures_executor::block_on;
use reshard_model::{
    DeviceTensor, HostBuffer, Layout, Path, Region, ShardedObject, ShardedTensor, Tensor,
    TensorSource,
    testkit::{FakeDevice, LostDevice},
};
use std::sync::Arc;

/// Each with its number as its key.
fn keyed(leaves: Vec<Data>) -> Vec<KeyedData> {
    let key = |(i, leaf): (usize, Data)| (format!("k{i}").into(), leaf);
    leaves.into_iter().enumerate().map(key).collect()
}

fn stage(stager: &BlockingAsyncStager, leaves: Vec<Data>) -> Vec<Data> {
    block_on(stager.stage(keyed(leaves))).unwrap()
}

fn host(leaf: &Data) -> &Tensor {
    leaf.host().unwrap()
}

/// Elements 0, 1, … as bytes.
fn numbers(shape: &[u64]) -> Tensor {
    let n: u64 = shape.iter().product();
    Tensor::from_vec(shape, (0..n).map(|i| i as u16).collect()).unwrap()
}

#[test]
fn views_of_one_buffer_are_views_of_one_copy_that_lacks_what_no_leaf_reaches() {
    let whole = numbers(&[1000, 8]);
    let regions = [
        Region::new([10, 3], [4, 2]),
        Region::new([12, 0], [3, 8]),
        Region::new([900, 7], [1, 1]),
        Region::new([0, 0], [0, 8]),
        Region::new([999, 0], [1, 8]),
    ];
    let leaves: Vec<Data> = regions
        .iter()
        .map(|r| Data::Host(whole.narrow(r)))
        .collect();
    let stager = BlockingAsyncStager::new();
    let staged = stage(&stager, leaves.clone());
    assert_eq!(stager.allocations(), 1);
    for (copy, leaf) in staged.iter().zip(&leaves) {
        assert!(host(copy) == host(leaf) && !host(copy).same_buffer(&whole));
        assert!(host(copy).same_buffer(host(&staged[0])));
        assert_eq!(host(copy).layout().strides(), host(leaf).layout().strides());
    }
    // Two neighbours in one part, two apart from them: each begins and ends at a multiple of 64 bytes.
    assert!(
        host(&staged[0]).buffer_bytes().len() <= 128 + 64 + 64,
        "gaps are copied"
    );
    // What was one element stays one.
    let [a, b] = [&staged[0], &staged[1]].map(|t| host(t).layout().clone());
    let first = |l: &Layout, r: Region| l.narrow(&r).start();
    assert_eq!(
        first(&a, Region::new([2, 0], [1, 1])),
        first(&b, Region::new([0, 3], [1, 1]))
    );
}

#[test]
fn the_second_save_of_a_structure_allocates_nothing_and_the_memory_of_a_save_at_work_is_left_alone()
{
    let stager = BlockingAsyncStager::new();
    let leaves = |salt: u64| {
        vec![
            Data::Host(numbers(&[(3 << 20) + salt])),
            numbers(&[7]).into(),
            numbers(&[7]).into(),
        ]
    };
    let first = stage(&stager, leaves(0));
    // The small ones lie together.
    assert_eq!(stager.allocations(), 2);
    assert!(host(&first[1]).same_buffer(host(&first[2])));
    let address = |leaf: &Data| host(leaf).buffer_bytes().as_ptr() as usize;
    let mut before: Vec<usize> = first.iter().map(address).collect();
    drop(first);
    let second = stage(&stager, leaves(0));
    assert_eq!(stager.allocations(), 2);
    let mut after: Vec<usize> = second.iter().map(address).collect();
    before.sort_unstable();
    after.sort_unstable();
    assert_eq!(before, after);
    // While that is written, another one begins.
    let third = stage(&stager, leaves(0));
    assert_eq!(stager.allocations(), 4);
    assert!(third.iter().all(|leaf| !after.contains(&address(leaf))));
    assert_eq!(host(&second[0]), &numbers(&[3 << 20]));
    drop((second, third));
    // What is of no use for long goes.
    for _ in 0..IDLE {
        stage(&stager, leaves(9));
    }
    assert_eq!(stager.allocations(), 5);
    stage(&stager, leaves(0));
    assert_eq!(stager.allocations(), 6);
}

#[test]
fn devices_are_copied_to_the_host_and_lazy_data_stay_as_they_are() {
    let memory = FakeDevice::new(256);
    let device = DeviceTensor::new(DType::UInt8, &[16, 16], memory).unwrap();
    let old = Tensor::from_vec(&[16, 16], (0..=255u8).collect()).unwrap();
    device.fill("k", &old).unwrap();
    let lazy: Arc<dyn TensorSource> = Arc::new(device.clone());
    let column = Region::new([0, 5], [16, 2]);
    let leaves = vec![
        Data::Device(device.narrow(&column)),
        Data::Lazy(Arc::clone(&lazy)),
        Data::None,
        Data::Device(device.clone()),
    ];
    let stager = BlockingAsyncStager::new();
    let staged = stage(&stager, leaves);
    device
        .fill("k", &Tensor::zeros("k", DType::UInt8, &[16, 16]).unwrap())
        .unwrap();
    assert_eq!(host(&staged[0]), &old.narrow(&column));
    assert_eq!(host(&staged[3]), &old);
    assert!(host(&staged[0]).same_buffer(host(&staged[3])));
    assert!(
        matches!(&staged[1], Data::Lazy(l) if Arc::ptr_eq(l, &lazy))
            && matches!(staged[2], Data::None)
    );
    assert_eq!(stager.allocations(), 1);
}

#[test]
fn a_device_that_fails_fails_the_staging() {
    let lost = DeviceTensor::new(DType::UInt8, &[8], Arc::new(LostDevice)).unwrap();
    let e = block_on(BlockingAsyncStager::new().stage(keyed(vec![lost.into()]))).unwrap_err();
    assert_eq!(e.to_string(), "staging: copying from lost:0");
}

#[test]
fn expanded_and_odd_views_are_copied_as_they_are() {
    // One row shown three times, elements of 16 bytes behind one of a byte, and all of a buffer of odd length.
    let bytes = numbers(&[4096]);
    let buffer = || Arc::new(bytes.buffer_bytes().to_vec()) as Arc<dyn HostBuffer>;
    let views = [
        (
            DType::Int16,
            Layout::new(2, 33, [3, 4].into(), [0, 1].into()),
        ),
        (DType::UInt8, Layout::new(1, 129, [1].into(), [1].into())),
        (
            DType::Complex128,
            Layout::new(16, 500, [2, 2].into(), [3, 1].into()),
        ),
        (DType::Float32, Layout::new(4, 2040, [8].into(), [1].into())),
    ];
    let shared = buffer();
    let leaves = views.map(|(dtype, layout)| {
        Data::Host(Tensor::with_layout(dtype, layout.unwrap(), Arc::clone(&shared)).unwrap())
    });
    for (copy, leaf) in stage(&BlockingAsyncStager::new(), leaves.to_vec())
        .iter()
        .zip(&leaves)
    {
        assert_eq!(host(copy), host(leaf));
    }
}

/// Does this to leaves instead of copying them.
struct Does(fn(&mut Vec<Data>));

impl fmt::Debug for Does {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Does")
    }
}

#[async_trait]
impl AsyncStager for Does {
    async fn stage(&self, leaves: Vec<KeyedData>) -> Result<Vec<Data>> {
        let mut leaves = leaves.into_iter().map(|(_, leaf)| leaf).collect();
        (self.0)(&mut leaves);
        Ok(leaves)
    }
}

/// What a save does with its leaves.
fn stage_leaves(
    state: &mut FlatStateDict,
    wanted: &BTreeSet<u32>,
    stager: &dyn AsyncStager,
) -> Result<()> {
    let originals = take_data(state, wanted);
    put_data(state, wanted, block_on(stage_data(originals, stager))?)
}

#[test]
fn tensors_of_a_plan_and_those_in_objects_are_staged_and_nothing_else_is_kept() {
    let path = |k: &str| Path(vec![k.into()]);
    let tensor = |k: &str, t: &Tensor| Sharded::Tensor(ShardedTensor::full(k, t.clone()));
    let (wanted, other, inner) = (numbers(&[3]), numbers(&[4]), numbers(&[5]));
    let object = Value::Dict(vec![(
        "t".into(),
        Value::List(vec![Value::Tensor(inner.clone())]),
    )]);
    let object = ShardedObject::new("o", object, &[1], &[0], 0).unwrap();
    let mut state: FlatStateDict = [
        (path("wanted"), tensor("wanted", &wanted)),
        (path("other"), tensor("other", &other)),
        (path("o"), Sharded::Object(object)),
    ]
    .into();
    let plan: BTreeSet<u32> = [0].into();
    stage_leaves(&mut state, &plan, &BlockingAsyncStager::new()).unwrap();
    let data = |k: &str| match &state[&path(k)] {
        Sharded::Tensor(t) => t.data.host(),
        Sharded::Object(_) => None,
    };
    assert!(data("wanted") == Some(&wanted) && !data("wanted").unwrap().same_buffer(&wanted));
    assert!(data("other").is_none());
    let Sharded::Object(ShardedObject {
        data: Payload::Value(v),
        ..
    }) = &state[&path("o")]
    else {
        panic!("no object")
    };
    let staged = v
        .get("t")
        .and_then(|l| l.as_seq())
        .and_then(|l| l[0].as_tensor())
        .unwrap();
    assert!(*staged == inner && !staged.same_buffer(&inner));
    for t in [wanted, other, inner] {
        assert!(t.into_vec::<u16>().is_ok(), "nobody else holds it");
    }
    let wrong: [fn(&mut Vec<Data>); 4] = [
        |leaves| drop(leaves.pop()),
        |leaves| leaves[0] = Data::None,
        |leaves| leaves[0] = Data::Host(numbers(&[9])),
        |leaves| {
            leaves[0] = DeviceTensor::new(DType::Int16, &[3], FakeDevice::new(6))
                .unwrap()
                .into()
        },
    ];
    for wrong in wrong {
        let e = stage_leaves(&mut state.clone(), &plan, &Does(wrong)).unwrap_err();
        assert_eq!(e.kind(), reshard_model::ErrorKind::Internal);
    }
    stage_leaves(&mut state, &plan, &Does(|_| {})).unwrap();
}

#[test]
fn a_large_buffer_is_copied_in_parts_by_several_threads_and_comes_out_whole() {
    let large = numbers(&[(20 << 20) + 3]);
    let view = large.narrow(&Region::new([3], [20 << 20]));
    let staged = stage(
        &BlockingAsyncStager::new(),
        vec![large.clone().into(), view.clone().into()],
    );
    assert!(host(&staged[0]) == &large && host(&staged[1]) == &view);
    assert!(host(&staged[0]).same_buffer(host(&staged[1])));
}

#[test]
fn without_a_cache_each_call_allocates() {
    let stager = BlockingAsyncStager::new().with_cache(false);
    for calls in 1..4 {
        drop(stage(&stager, vec![numbers(&[3]).into()]));
        assert_eq!(stager.allocations(), calls);
    }
}

#[test]
fn a_changed_structure_is_found_if_types_are_checked() {
    let leaves = |n: u64| vec![numbers(&[2]).into(), Data::None, numbers(&[n]).into()];
    let stager = BlockingAsyncStager::new().with_type_check(true);
    let call = |leaves| {
        block_on(stager.stage(keyed(leaves)))
            .map(drop)
            .map_err(|e| e.to_string())
    };
    call(leaves(4)).unwrap();
    call(leaves(4)).unwrap();
    let e = call(leaves(6)).unwrap_err();
    assert!(
        e.contains("leaf 2 (k2) was uint16 of shape [4], and is uint16 of shape [6]"),
        "{e}"
    );
    let e = call(leaves(4)[..2].to_vec()).unwrap_err();
    assert!(e.contains("and is no leaf"), "{e}");
    call(leaves(4)).unwrap();
    // Nobody asks for a check.
    let stager = BlockingAsyncStager::new();
    stage(&stager, leaves(4));
    stage(&stager, leaves(6));
}

/// Memory that others may write to.
#[derive(Clone)]
struct Foreign(Vec<u8>);

impl HostBuffer for Foreign {
    fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[test]
fn shared_staging_copies_only_what_somebody_could_change() {
    let device = DeviceTensor::new(DType::UInt8, &[2], FakeDevice::new(2)).unwrap();
    let foreign = Tensor::new(DType::UInt8, &[3], Foreign(vec![1, 2, 3])).unwrap();
    let bytes = Tensor::new(DType::UInt8, &[3], bytes::Bytes::from_static(b"abc")).unwrap();
    let (vec, zeros) = (
        numbers(&[4]),
        Tensor::zeros("k", DType::UInt8, &[3]).unwrap(),
    );
    let leaves: Vec<Data> = vec![
        vec.clone().into(),
        device.into(),
        Data::None,
        foreign.clone().into(),
        bytes.clone().into(),
        zeros.clone().into(),
    ];
    let inner = Arc::new(BlockingAsyncStager::new());
    let stager = Staging::Share.over(Arc::clone(&inner) as _);
    let staged = block_on(stager.stage(keyed(leaves.clone()))).unwrap();
    let shared = |i: usize, t: &Tensor| host(&staged[i]).same_buffer(t);
    assert!(shared(0, &vec) && shared(4, &bytes) && shared(5, &zeros) && !shared(3, &foreign));
    assert_eq!(host(&staged[3]), &foreign);
    assert!(matches!(staged[2], Data::None) && staged[1].host().is_some());
    assert_eq!(inner.allocations(), 2);
    // Nothing at all to copy.
    block_on(stager.stage(keyed(vec![vec.into()]))).unwrap();
    assert_eq!(inner.allocations(), 2);
    let copied = block_on(Staging::Copy.over(inner).stage(keyed(leaves))).unwrap();
    assert!(!host(&copied[0]).same_buffer(host(&staged[0])));
}

#[test]
fn common_state_and_sharded_leaves_are_staged_in_one_call() {
    let (t, w) = (numbers(&[3]), numbers(&[4]));
    let stager = BlockingAsyncStager::new().with_type_check(true);
    let save = |t: &Tensor, w: &Tensor| {
        let mut common = ValueTree::new();
        common.insert("lr", Value::from(0.5));
        common.insert("t", Value::List(vec![Value::Tensor(t.clone())]));
        let leaves = keyed(vec![w.clone().into()]);
        let staged = block_on(stage_both(leaves, &mut common, &stager))?;
        Ok::<_, StrategyError>((common, staged))
    };
    for _ in 0..2 {
        // The second save has the structure of the first one.
        let (common, sharded) = save(&t, &w).unwrap();
        let list = common.get("t").and_then(|l| l.leaf()).unwrap();
        let copy = list.as_seq().unwrap()[0].as_tensor().unwrap();
        assert!(*copy == t && !copy.same_buffer(&t));
        assert!(*host(&sharded[0]) == w && !host(&sharded[0]).same_buffer(&w));
    }
    let e = save(&t, &numbers(&[5])).unwrap_err().to_string();
    assert!(e.contains("leaf 1 (k0) was uint16 of shape [4]"), "{e}");
    assert!(t.into_vec::<u16>().is_ok() && w.into_vec::<u16>().is_ok());
}

/// A device whose copies go to memory of its own.
#[derive(Debug)]
struct Pinning(Arc<FakeDevice>, std::sync::atomic::AtomicU64);

impl reshard_model::DeviceBuffer for Pinning {
    fn device(&self) -> &str {
        "pinning:0"
    }
    fn nbytes(&self) -> u64 {
        self.0.nbytes()
    }
    fn allocate(
        &self,
        nbytes: u64,
    ) -> Result<Arc<dyn reshard_model::DeviceBuffer>, reshard_model::BoxError> {
        self.0.allocate(nbytes)
    }
    fn staging(&self, nbytes: u64) -> Result<Option<Arc<dyn HostBuffer>>, reshard_model::BoxError> {
        self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Some(Arc::new(vec![0u8; nbytes as usize])))
    }
    fn copy_to_host(&self, from: &Layout, out: &mut [u8]) -> Result<(), reshard_model::BoxError> {
        self.0.copy_to_host(from, out)
    }
    fn copy_from_host(&self, to: &Layout, from: &[u8]) -> Result<(), reshard_model::BoxError> {
        self.0.copy_from_host(to, from)
    }
    fn synchronise(&self) -> Result<(), reshard_model::BoxError> {
        Ok(())
    }
}

#[test]
fn a_device_brings_memory_for_its_copies_once() {
    let memory = Arc::new(Pinning(FakeDevice::new(64), 0.into()));
    let device = DeviceTensor::new(DType::UInt8, &[64], Arc::clone(&memory) as _).unwrap();
    let stager = BlockingAsyncStager::new();
    for _ in 0..3 {
        drop(stage(&stager, vec![device.clone().into()]));
    }
    assert_eq!(memory.1.load(std::sync::atomic::Ordering::Relaxed), 1);
}
