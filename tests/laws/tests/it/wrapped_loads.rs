//! A wrapper around a load changes who reads, and nothing of the outcome: casts, strictness and other shapes are decided alike.

use proptest::prelude::*;
use reshard::strategy::testkit::layered;
use reshard::{
    Cast, DType, Dialect, Region, ShardedTensor, StateDict, StrictHandling, Tensor, Value,
    model::local_chunk,
};
use reshard_comm::testkit::Apart;
use reshard_laws::{
    formats::{format, load_config},
    law,
    ranks::{Loaded, group, load, save},
};
use serde_json::{Value as Json, json};
use std::sync::Arc;

/// All wrappers of loads around a format, one around another too.
fn wrapped(base: &Json) -> [Json; 5] {
    let two_stage = layered(json!({ "type": "two_stage" }), base);
    [
        layered(json!({ "type": "fully_parallel" }), base),
        layered(
            json!({ "type": "fully_parallel", "exchange": "gather_object" }),
            base,
        ),
        layered(json!({ "type": "fully_parallel" }), &two_stage),
        two_stage,
        layered(json!({ "type": "one_reader" }), base),
    ]
}

/// A tensor of a template. Each rank requests a part of its rows, or all of them.
#[derive(Clone, Debug)]
struct Request {
    /// Which of the stored keys, or a key that is not stored.
    key: usize,
    dtype: DType,
    more_rows: i64,
    mismatch_allowed: bool,
    /// Bit `r` says whether rank `r` requests it.
    ranks: u8,
    whole: bool,
}

const KEYS: [&str; 4] = ["a", "b", "c", "absent"];
const SHAPE: [u64; 2] = [5, 3];
const STORED: [DType; 3] = [DType::Float32, DType::Int64, DType::BFloat16];

fn request() -> impl Strategy<Value = Request> {
    let dtype = prop_oneof![
        3 => Just(None),
        1 => Just(Some(DType::Float32)),
        1 => Just(Some(DType::Float64)),
        1 => Just(Some(DType::Int32)),
    ];
    let rows = prop_oneof![3 => Just(0i64), 1 => Just(1), 1 => Just(-2)];
    let key = prop_oneof![5 => 0usize..3, 1 => Just(3)];
    (
        key,
        dtype,
        rows,
        prop::bool::weighted(0.7),
        1u8..8,
        any::<bool>(),
    )
        .prop_map(|(key, dtype, more_rows, mismatch_allowed, ranks, whole)| {
            let stored = STORED.get(key).copied().unwrap_or(DType::Float32);
            Request {
                key,
                dtype: dtype.unwrap_or(stored),
                more_rows,
                mismatch_allowed,
                ranks,
                whole,
            }
        })
}

fn part(rows: u64, ranks: u32, rank: u32) -> Region {
    let (from, len) = local_chunk(rows, ranks.into(), rank.into());
    Region::new([from, 0], [len, SHAPE[1]])
}

fn template(requests: &[Request], ranks: u32, rank: u32) -> StateDict {
    let mut state = StateDict::new();
    for (i, r) in requests.iter().enumerate() {
        if r.ranks >> rank & 1 == 0 {
            continue;
        }
        let rows = SHAPE[0].saturating_add_signed(r.more_rows);
        let region = match r.whole {
            true => Region::whole(&[rows, SHAPE[1]]),
            false => part(rows, ranks, rank),
        };
        let leaf = ShardedTensor::region_of(KEYS[r.key], r.dtype, &[rows, SHAPE[1]], region);
        let leaf = match r.mismatch_allowed {
            true => leaf.with_shape_mismatch_allowed(),
            false => leaf,
        };
        state.insert(format!("t{i}"), leaf);
    }
    state
}

fn stored(key: usize) -> Tensor {
    let numbers = (0..15).map(|i| (i + 20 * key) as f32).collect();
    let tensor = Tensor::from_vec(&SHAPE, numbers).unwrap();
    tensor.cast(STORED[key]).unwrap()
}

/// What can be compared of a load: leaves and notes, or the kind of the error.
fn outcome(loaded: Loaded) -> Result<String, String> {
    match loaded {
        Err(e) => Err(format!("{:?}", e.kind())),
        Ok((state, report)) => {
            let mut leaves = Vec::new();
            state.visit(&mut |path, value| {
                let Value::Tensor(t) = value else {
                    panic!("{value:?} was not requested")
                };
                leaves.push(format!(
                    "{path:?} {} {} {:?}",
                    t.dtype(),
                    t.shape(),
                    t.to_bytes()
                ));
            });
            Ok(format!("{leaves:?} {:?}", report.notes))
        }
    }
}

proptest! {
    #![proptest_config(law(72))]

    #[test]
    fn a_wrapper_changes_nothing_of_the_outcome_of_a_load(
        format in format(), n in 1u32..3, m in 1u32..4,
        requests in prop::collection::vec(request(), 1..4),
        strict in prop::sample::select(&StrictHandling::ALL[..]),
        cast in prop_oneof![Just(Cast::Never), Just(Cast::Lossless), Just(Cast::Any)],
    ) {
        let place = format.place();
        let states = (0..n).map(|rank| {
            let mut state = StateDict::new();
            for key in 0..STORED.len() {
                let region = part(SHAPE[0], n, rank);
                let leaf = ShardedTensor::region_of(KEYS[key], STORED[key], &SHAPE, region.clone());
                state.insert(KEYS[key], leaf.with_data(stored(key).narrow(&region)));
            }
            state
        });
        let saved = save(group(n), states.collect(), place.url(), move |_, save| {
            save.dialect(Dialect::Dcp).strategy(format.save_config())
        });
        saved.into_iter().for_each(|saved| drop(saved.unwrap()));

        // Ranks that share memory hand over memory, others send bytes.
        let ranks = |apart: bool| match apart {
            true => group(m).into_iter().map(|group| Arc::new(Apart::new(group)) as _).collect(),
            false => group(m),
        };
        let load_by = |settings: Json, apart: bool| {
            let templates = (0..m).map(|rank| template(&requests, m, rank)).collect();
            let loaded = load(ranks(apart), templates, place.url(), move |_, load| {
                load.strict(strict).cast(cast).strategy(load_config(&settings))
            });
            loaded.into_iter().map(outcome).collect::<Vec<_>>()
        };
        let base = format.load_settings();
        let plain = load_by(base.clone(), false);
        for settings in wrapped(&base) {
            let name = settings.to_string();
            for apart in [false, true] {
                prop_assert_eq!(load_by(settings.clone(), apart), plain.clone(), "{} {}", name, apart);
            }
        }
    }
}
