//! A law of conversions: what two formats both hold comes over and back, whatever the state is.

use crate::formats::states::{
    Case, contents, formats, holds_objects, leaves, open, random, save, strategy,
};
use proptest::prelude::*;
use reshard::{BackendVersion, DType, Dialect, Value, blocking};
use reshard_convert::convert;

/// A type, a shape, and along which axis it is cut, where.
type Drawn = (usize, Vec<u64>, usize, u64);

fn tensors() -> impl Strategy<Value = Vec<Drawn>> {
    let shape = proptest::collection::vec(0u64..5, 0..4);
    let tensor = (any::<usize>(), shape, 0usize..4, 0u64..8);
    proptest::collection::vec(tensor, 1..5)
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        (-1e9f64..1e9).prop_map(Value::from),
        "[a-z .]{0,9}".prop_map(|s| Value::from(&*s)),
        Just(Value::None),
    ];
    leaf.prop_recursive(2, 6, 3, |inner| {
        let list = proptest::collection::vec(inner.clone(), 1..3).prop_map(Value::List);
        let dict = proptest::collection::vec(inner, 1..3).prop_map(|all| {
            let key = |n| Value::from(&*format!("k{n}"));
            Value::Dict(
                all.into_iter()
                    .enumerate()
                    .map(|(n, v)| (key(n), v))
                    .collect(),
            )
        });
        prop_oneof![list, dict]
    })
}

/// The state of two ranks, with what both formats hold.
fn case(drawn: &[Drawn], values: Vec<Value>, both: [&BackendVersion; 2]) -> Case {
    let can = both.map(|format| strategy(format).capabilities());
    let dtypes: Vec<DType> = DType::ALL
        .iter()
        .copied()
        .filter(|d| can.iter().all(|c| c.holds(*d)))
        .collect();
    let of = drawn
        .iter()
        .enumerate()
        .map(|(n, (dtype, shape, axis, at))| {
            let cut = match shape.get(*axis) {
                Some(length) if *length > 1 => Some((*axis, 1 + at % (length - 1))),
                _ => None,
            };
            let dtype = dtypes[dtype % dtypes.len()];
            // Safetensors counts the two numbers of each element along the last axis, so it needs one.
            let shape = match dtype == DType::Float4E2M1FnX2 && shape.is_empty() {
                true => vec![1],
                false => shape.clone(),
            };
            (format!("layer.{n}.w"), dtype, shape, cut)
        });
    let objects = both.iter().all(|f| holds_objects(f, Dialect::Dcp));
    random(
        &of.collect::<Vec<_>>(),
        if objects { values } else { Vec::new() },
    )
}

proptest! {
    // Each case saves once and converts twice.
    #![proptest_config(reshard_model::testkit::law(24))]

    #[test]
    fn any_state_that_two_formats_hold_goes_from_one_to_the_other_and_back(
        drawn in tensors(),
        values in proptest::collection::vec(value(), 0..3),
        from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(),
        ranks in 1u32..4, back_ranks in 1u32..4,
    ) {
        let all = formats();
        let (from, to) = (from.get(&all), to.get(&all));
        let case = case(&drawn, values, [from, to]);
        let dir = tempfile::tempdir().unwrap();
        let [src, there, back] =
            ["src", "there", "back"].map(|name| dir.path().join(name).display().to_string());
        prop_assert!(save(&case, from, &src).is_some());
        let source = open(&src, from);
        prop_assert_eq!(source.tensors().count(), drawn.len());

        blocking::run(convert(&source, &there).to(to.clone()).ranks(ranks)).unwrap();
        let there = open(&there, to);
        prop_assert_eq!(contents(&there), contents(&source));
        prop_assert_eq!(leaves(&there), leaves(&source));

        blocking::run(convert(&there, &back).to(from.clone()).ranks(back_ranks)).unwrap();
        let back = open(&back, from);
        prop_assert_eq!(contents(&back), contents(&source));
        prop_assert_eq!(leaves(&back), leaves(&source));
    }
}
