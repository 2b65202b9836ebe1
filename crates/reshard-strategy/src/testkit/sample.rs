use reshard_model::{
    DType, Data, FlatStateDict, Path, Payload, Region, Sharded, ShardedObject, ShardedTensor,
    Tensor, Value, local_chunk,
};

/// How the sample's tensors are spread over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cut {
    /// Along the first axis, by torch.chunk's rule: uneven, maybe empty.
    Rows,
    /// Along the last axis, by the same rule; such pieces don't lie in one run.
    Columns,
    /// Every rank has all of it.
    Replicated,
}

impl Cut {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Rows, Self::Columns, Self::Replicated];

    fn region(self, shape: &[u64], rank: u32, ranks: u32) -> Region {
        let mut region = Region::whole(shape);
        let axis = match self {
            Self::Rows if !shape.is_empty() => 0,
            Self::Columns if !shape.is_empty() => shape.len() - 1,
            _ => return region,
        };
        (region.offsets[axis], region.lengths[axis]) =
            local_chunk(shape[axis], ranks.into(), rank.into());
        region
    }
}

/// Small ones, large ones, scalars, empty ones; elements of every size.
const TENSORS: &[(&str, DType, &[u64])] = &[
    ("matrix", DType::Float32, &[12, 7]),
    ("large", DType::Float32, &[96, 64]),
    ("cube", DType::BFloat16, &[4, 3, 5]),
    ("five", DType::Int16, &[2, 3, 1, 2, 3]),
    ("bytes", DType::UInt8, &[41]),
    ("scalar", DType::Int64, &[]),
    ("empty", DType::Float32, &[0, 3]),
    ("flags", DType::Bool, &[9]),
    ("eights", DType::Float8E4M3Fn, &[3, 3]),
    ("wide", DType::Complex128, &[6, 2]),
];

/// Elements that are the same in every run, and differ between tensors.
fn whole(key: &str, dtype: DType, shape: &[u64]) -> Tensor {
    let salt = key
        .bytes()
        .fold(7u32, |s, b| s.wrapping_mul(31) + u32::from(b));
    let bytes = shape.iter().product::<u64>() * dtype.size();
    let byte = |i: u64| ((i as u32).wrapping_add(salt).wrapping_mul(2_654_435_761) >> 13) as u8;
    let mask = if dtype == DType::Bool { 1 } else { 0xff };
    Tensor::new(
        dtype,
        shape,
        (0..bytes).map(|i| byte(i) & mask).collect::<Vec<u8>>(),
    )
    .unwrap()
}

fn path(key: &str) -> Path {
    Path(vec!["model".into(), key.into()])
}

fn object(rank: u32, ranks: u32) -> ShardedObject {
    ShardedObject::new(
        "rng",
        Value::Int(rank.into()),
        &[ranks.into()],
        &[rank.into()],
        0,
    )
    .unwrap()
}

/// What a rank of several saves: tensors of many kinds, as views of larger buffers, and an object if `objects`.
pub fn sample(cut: Cut, rank: u32, ranks: u32, objects: bool) -> FlatStateDict {
    let mut out = leaves(cut, rank, ranks, |t, all| {
        let part = all.narrow(&Region {
            offsets: t.global_offset.clone(),
            lengths: t.local_shape.clone(),
        });
        t.with_data(part)
    });
    if objects {
        out.insert(path("rng"), Sharded::Object(object(rank, ranks)));
    }
    out
}

/// The template that loads the same onto any ranks. Every second leaf has a buffer, the others are allocated by the load. With
/// `objects`, each rank asks for that of a rank that saved.
pub fn sample_template(cut: Cut, rank: u32, ranks: u32, objects: Option<u32>) -> FlatStateDict {
    let mut n = 0;
    let mut out = leaves(cut, rank, ranks, |t, _| {
        n += 1;
        match n % 2 {
            0 => t,
            _ => {
                let zeros = Tensor::zeros(&t.key, t.dtype, &t.local_shape).unwrap();
                t.with_data(zeros)
            }
        }
    });
    if let Some(saved) = objects {
        let cell = ShardedObject {
            data: Payload::None,
            ..object(rank % saved, saved)
        };
        out.insert(path("rng"), Sharded::Object(cell));
    }
    out
}

fn leaves(
    cut: Cut,
    rank: u32,
    ranks: u32,
    mut with: impl FnMut(ShardedTensor, &Tensor) -> ShardedTensor,
) -> FlatStateDict {
    let leaf = |&(key, dtype, shape): &(&str, DType, &[u64])| {
        let region = cut.region(shape, rank, ranks);
        // Ranks that hold the same are copies of each other.
        let copy = if region == Region::whole(shape) {
            rank
        } else {
            0
        };
        let t = ShardedTensor::region_of(key, dtype, shape, region).with_replica_id(copy);
        (
            path(key),
            Sharded::Tensor(with(t, &whole(key, dtype, shape))),
        )
    };
    TENSORS.iter().map(leaf).collect()
}

/// Every element of a loaded [`sample_template`] is what [`sample`] saved.
///
/// # Panics
/// When one isn't.
pub fn check_sample(loaded: &FlatStateDict) {
    for leaf in loaded.values() {
        match leaf {
            Sharded::Tensor(t) => {
                let Data::Host(got) = &t.data else {
                    panic!("{} was not loaded", t.key)
                };
                let part = Region {
                    offsets: t.global_offset.clone(),
                    lengths: t.local_shape.clone(),
                };
                let want = whole(&t.key, t.dtype, &t.global_shape).narrow(&part);
                assert_eq!(got.to_bytes(), want.to_bytes(), "{} {part}", t.key);
            }
            Sharded::Object(o) => {
                let want = Value::Int(o.global_offset[0] as i64);
                assert_eq!(o.data, Payload::Value(want), "{}", o.unique_key());
            }
        }
    }
}
