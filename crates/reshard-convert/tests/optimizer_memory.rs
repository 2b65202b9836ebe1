//! Rewriting an optimizer by parameter takes little memory, measured where it is allocated.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{
    DType, Data, Dialect, Region, ShardedObject, ShardedTensor, StateDict, Tensor, Value,
    blocking::{self, Checkpoint},
    model::{BoxError, Dims, TensorSource},
};
use reshard_convert::convert;
use reshard_model::testkit::CountingAllocator;
use reshard_optim::{BucketLayout, BucketParam, BucketPiece};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const MIB: usize = 1 << 20;
const ROWS: u64 = 2048;
const COLUMNS: u64 = 4096;
const STATES: [&str; 3] = ["param", "exp_avg", "exp_avg_sq"];
/// Of a group and state: half of the columns.
const OF_GROUP: u64 = ROWS * COLUMNS / 2;
/// Of all groups and states: 96 MiB.
const ALL: usize = OF_GROUP as usize * 4 * 2 * STATES.len();

/// The element at a row and column.
fn element(row: u64, column: u64) -> f32 {
    (row * COLUMNS + column) as f32
}

/// The elements of a group: its half of the columns, row by row.
struct Half(u64);

impl TensorSource for Half {
    fn dtype(&self) -> DType {
        DType::Float32
    }

    fn shape(&self) -> Dims {
        [OF_GROUP].into()
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        for (i, out) in (region.offsets[0]..).zip(out.chunks_mut(4)) {
            let (row, column) = (i / (COLUMNS / 2), i % (COLUMNS / 2));
            out.copy_from_slice(&element(row, self.0 * COLUMNS / 2 + column).to_le_bytes());
        }
        Ok(())
    }
}

fn layout() -> BucketLayout {
    let param = |group: u64| BucketParam {
        chained: None,
        dp_group: group,
        gbuf: 0,
        bucket: 0,
        start: 0,
        pieces: vec![BucketPiece {
            key: "w".into(),
            shape: [ROWS, COLUMNS / 2].into(),
            global_shape: [ROWS, COLUMNS].into(),
            global_offset: [0, group * COLUMNS / 2].into(),
            main: true,
        }],
    };
    BucketLayout {
        params: vec![param(0), param(1)],
    }
}

fn save(form: &str, optimizer: StateDict, url: &str) {
    let mut optimizer = optimizer;
    optimizer.insert("param_state_sharding_type", form);
    let mut state = StateDict::new();
    state.insert_tree("optimizer", optimizer);
    blocking::run(reshard::save(&state, url).dialect(Dialect::Megatron)).unwrap();
}

fn dp_reshardable(url: &str) {
    let mut optimizer = StateDict::new();
    for group in 0..2 {
        for state in STATES {
            let key = format!(
                "optimizer.distributed.dp_group_idx_{group}.gbuf_idx_0.dtype_(a, b).bucket_idx_0.{state}"
            );
            let leaf = ShardedTensor::template(&key, DType::Float32, &[OF_GROUP]);
            optimizer.insert(key, leaf.with_data(Data::Lazy(Arc::new(Half(group)))));
        }
    }
    save("dp_reshardable", optimizer, url);
}

fn dp_zero(url: &str) {
    let mut optimizer = StateDict::new();
    for group in 0..2 {
        let elements = || {
            let mut bytes = vec![0; OF_GROUP as usize * 4];
            Half(group)
                .read(&Region::new([0], [OF_GROUP]), &mut bytes)
                .unwrap();
            Value::Tensor(Tensor::new(DType::Float32, &[OF_GROUP], bytes).unwrap())
        };
        let states = STATES.iter().map(|s| ((*s).into(), elements())).collect();
        let types = Value::Tuple(vec!["a".into(), "b".into()]);
        let value = Value::Dict(vec![
            ("buckets_coalesced".into(), Value::Bool(true)),
            (
                Value::Int(0),
                Value::Dict(vec![(types, Value::Dict(states))]),
            ),
        ]);
        let key = format!("optimizer.distributed.dp_group_idx_{group}.param_state");
        optimizer.insert(
            &*key.clone(),
            ShardedObject::new(&key, value, &[1], &[0], 0).unwrap(),
        );
    }
    save("dp_zero_gather_scatter", optimizer, url);
}

/// How many bytes a conversion allocated at most at a time.
fn peak_of(from: &str, to: &str) -> usize {
    let source = Checkpoint::open(from).unwrap();
    let conversion = convert(&source, to).ranks(2).canonical_optimizer(true);
    let conversion = conversion.bucket_layout(layout());
    let (report, peak) = ALLOCATOR.peak_of(|| blocking::run(conversion));
    report.unwrap();

    // What is made of two halves is right.
    let got = Checkpoint::open(to).unwrap();
    let tensor = got.tensor("optimizer.state.exp_avg.w").unwrap();
    let read = tensor.read(Region::new([1000, 2046], [2, 4])).unwrap();
    let want: Vec<f32> = (1000..1002)
        .flat_map(|y| (2046..2050).map(move |x| element(y, x)))
        .collect();
    assert_eq!(read.to_vec::<f32>().unwrap(), want);
    peak
}

// One test, so that nothing else allocates meanwhile.
#[test]
fn buckets_are_rewritten_in_a_fraction_of_their_size() {
    let dir = tempfile::tempdir().unwrap();
    let url = |name: &str| dir.path().join(name).display().to_string();
    dp_reshardable(&url("buckets"));
    let peak = peak_of(&url("buckets"), &url("buckets-to"));
    println!("dp_reshardable: {} KiB of {} KiB", peak >> 10, ALL >> 10);
    assert!(peak < 24 * MIB, "{} MiB of {}", peak / MIB, ALL / MIB);

    // Of this form one object at a time, half of all, is in memory.
    dp_zero(&url("zero"));
    let peak = peak_of(&url("zero"), &url("zero-to"));
    println!(
        "dp_zero_gather_scatter: {} KiB of {} KiB",
        peak >> 10,
        ALL >> 10
    );
    assert!(
        peak < ALL / 2 + 24 * MIB,
        "{} MiB of {}",
        peak / MIB,
        ALL / MIB
    );
}
