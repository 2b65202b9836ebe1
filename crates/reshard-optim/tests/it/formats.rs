//! Keys of optimizer state, and the forms that they tell.

use crate::state::{dict, floats};
use proptest::prelude::*;
use reshard::{
    DType, ShardedTensor, StateDict, Value,
    model::{Path, ShardedTensorFactory, Step, Swiglu},
};
use reshard_optim::{
    BucketId, BucketLayout, BucketParam, BucketPiece, OptimizerKey, ParamId, ShardingType,
    StoredKey, StoredOptimizer, param_id_to_sharded_param_map, stored_optimizers,
};

const BUCKET: &str = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0.exp_avg";

fn found(keys: &[&str], flattened: bool, common: Option<&Value>) -> Vec<StoredOptimizer> {
    let keys = keys.iter().map(|key| StoredKey { key, flattened });
    stored_optimizers(keys, common)
}

fn said(form: &str) -> Value {
    dict(vec![("param_state_sharding_type".into(), form.into())])
}

#[test]
fn names_are_megatrons_and_come_back() {
    for &form in ShardingType::ALL {
        assert_eq!(form.name().parse(), Ok(form));
    }
    let error = "fully_sharded"
        .parse::<ShardingType>()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("dp_zero_gather_scatter, fully_sharded_bucket_space"),
        "{error}"
    );
}

#[test]
fn keys_alone_tell_the_form() {
    use ShardingType as T;
    let zero = "optimizer.distributed.dp_group_idx_3.param_state/shard_0_1";
    for (keys, flattened, form) in [
        (&[BUCKET][..], false, Some(T::DpReshardable)),
        (&[BUCKET], true, Some(T::FullyShardedBucketSpace)),
        (&[zero], false, Some(T::DpZeroGatherScatter)),
        (
            &["optimizer.state.fp32_param.w"],
            true,
            Some(T::FullyShardedModelSpace),
        ),
        (
            &["optimizer.state.param.w"],
            false,
            Some(T::FullyReshardable),
        ),
        (
            &[
                "optimizer.state.w.exp_avg",
                "optimizer.param_to_group_meta.w.lr",
            ],
            false,
            Some(T::FsdpDtensor),
        ),
        // An optimizer without distribution.
        (
            &["optimizer.state.fp32_param.w", "optimizer.state.exp_avg.w"],
            false,
            None,
        ),
        (&["decoder.weight"], false, None),
    ] {
        let got = found(keys, flattened, None);
        assert_eq!(got.first().map(|o| o.sharding_type), form, "{keys:?}");
    }
}

#[test]
fn what_common_state_says_counts_more_than_keys() {
    for &form in ShardingType::ALL {
        let common = dict(vec![("optimizer".into(), said(form.name()))]);
        let got = found(&[BUCKET], false, Some(&common));
        let [one] = &got[..] else { panic!("{got:?}") };
        assert_eq!((one.sharding_type, &*one.prefix), (form, ""));
        assert_eq!(one.path, Some(Path::from(&[Step::from("optimizer")][..])));
    }
    // A name that is not known leaves the keys.
    let common = dict(vec![("optimizer".into(), said("of the future"))]);
    let got = found(&[BUCKET], false, Some(&common));
    assert_eq!(got[0].sharding_type, ShardingType::DpReshardable);
    assert_eq!(got[0].path, None);
}

#[test]
fn each_optimizer_of_a_chain_has_its_own_form_and_groups() {
    let chained = |i: u64, group: u64| {
        format!(
            "chained_{i}.optimizer.distributed.dp_group_idx_{group}.gbuf_idx_0.dtype_x.bucket_idx_0.param"
        )
    };
    let keys = [chained(0, 0), chained(0, 1), chained(1, 0), chained(1, 2)];
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let children = dict(vec![
        (Value::Int(0), said("dp_reshardable")),
        (Value::Int(1), said("dp_reshardable")),
    ]);
    let common = dict(vec![("optimizer".into(), children)]);
    let got = found(&keys, false, Some(&common));
    let texts: Vec<String> = got.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "chained_0 dp_reshardable, 2 data-parallel groups",
            "chained_1 dp_reshardable, 2 data-parallel groups (missing: 1)",
        ]
    );
    let path = got[1].path.clone().unwrap().to_string();
    assert_eq!(path, "optimizer.1");
}

#[test]
fn a_form_that_common_state_names_again_and_again_has_its_groups_once() {
    const MANY: i64 = 20_000;
    let keys: Vec<String> = (0..MANY)
        .map(|i| format!("optimizer.distributed.dp_group_idx_{i}.param_state"))
        .collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let again = |form: &str| (0..MANY).map(|i| (Value::Int(i), said(form))).collect();
    for (form, optimizers, groups) in [
        ("dp_zero_gather_scatter", 1, MANY as usize),
        // An optimizer of a chain may have no prefix, but then it has no buckets either.
        ("fully_reshardable", MANY as usize, 0),
    ] {
        let common = dict(vec![("optimizer".into(), dict(again(form)))]);
        let found = found(&keys, false, Some(&common));
        assert_eq!(found.len(), optimizers);
        let all: usize = found.iter().map(|o| o.dp_groups.len()).sum();
        assert_eq!(all, groups);
    }
}

#[test]
fn missing_groups_are_those_between_and_those_that_the_parallelism_asks_for() {
    let key =
        |group: u64| format!("optimizer.distributed.dp_group_idx_{group}.param_state/shard_0_1");
    let keys = [key(1), key(5)];
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let args = dict(vec![
        ("tensor_model_parallel_size".into(), Value::Int(4)),
        ("pipeline_model_parallel_size".into(), Value::Int(2)),
    ]);
    let common = dict(vec![
        ("args".into(), args),
        ("optimizer".into(), said("dp_zero_gather_scatter")),
    ]);
    let got = &found(&keys, false, Some(&common))[0];
    assert_eq!(got.missing_dp_groups, [0..1, 2..5, 6..8]);
    assert_eq!(got.missing_text(), "0, 2..5, 6..8");
    assert_eq!(found(&keys, false, None)[0].missing_dp_groups, [0..1, 2..5]);
    // Experts have another parallelism, so nothing is known of the groups of a chain but the highest.
    let chained = format!("chained_1.{}", key(0));
    let got = found(
        &[&chained],
        false,
        Some(&dict(vec![(
            "args".into(),
            common.get("args").unwrap().clone(),
        )])),
    );
    assert!(got[0].missing_dp_groups.is_empty());
    // Forms by parameter have no groups that could be missing.
    let common = dict(vec![
        ("args".into(), common.get("args").unwrap().clone()),
        ("optimizer".into(), said("fully_reshardable")),
    ]);
    assert!(
        found(&["optimizer.state.param.w"], false, Some(&common))[0]
            .missing_dp_groups
            .is_empty()
    );
}

fn piece(global: u64, offset: u64, len: u64) -> BucketPiece {
    BucketPiece {
        key: "w".into(),
        shape: [len].into(),
        global_shape: [global].into(),
        global_offset: [offset].into(),
        main: true,
    }
}

fn param(start: u64, pieces: Vec<BucketPiece>) -> BucketParam {
    BucketParam {
        chained: None,
        dp_group: 0,
        gbuf: 0,
        bucket: 0,
        start,
        pieces,
    }
}

#[test]
fn a_layout_that_contradicts_itself_is_refused() {
    let layout = |params| BucketLayout { params };
    layout(vec![
        param(0, vec![piece(8, 0, 4), piece(8, 4, 4)]),
        param(8, vec![piece(2, 0, 2)]),
    ])
    .validate()
    .unwrap();
    for (params, what) in [
        (
            vec![param(0, vec![piece(8, 5, 4)])],
            "a piece of shape [4] at [5] of a tensor of shape [8]",
        ),
        (
            vec![
                param(0, vec![piece(8, 0, 4)]),
                param(3, vec![piece(8, 0, 4)]),
            ],
            "begins at 3",
        ),
        (
            vec![param(u64::MAX, vec![piece(8, 0, 4)])],
            "too many elements",
        ),
    ] {
        let error = layout(params).validate().unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn parameters_of_a_bucket_begin_at_multiples_of_64_and_factories_have_pieces() {
    let mut model = StateDict::new();
    let norm = ShardedTensor::replicated("norm", floats(&[7], &[0.; 7]), [0, 1, 0]);
    model.insert("norm", norm);
    let whole = ShardedTensor::declare("fc1", DType::BFloat16, &[4, 2], &[(0, 1, 2)], 0).unwrap();
    model.insert(
        "fc1",
        ShardedTensorFactory::swiglu(whole, Swiglu::OneKey).unwrap(),
    );
    let layer =
        ShardedTensor::declare("layers.w", DType::BFloat16, &[2, 3], &[(0, 1, 2)], 1).unwrap();
    model.insert("w", layer);
    let ids = [(ParamId(0), "norm"), (ParamId(1), "fc1"), (ParamId(2), "w")];
    let params = param_id_to_sharded_param_map(&model, ids).unwrap();
    let mut layout = BucketLayout::new();
    layout
        .add_bucket(
            Some(1),
            BucketId {
                dp_group: 1,
                gbuf: 0,
                bucket: 2,
            },
            params.iter(),
        )
        .unwrap();
    layout.validate().unwrap();
    let starts: Vec<u64> = layout.params.iter().map(|p| p.start).collect();
    assert_eq!(starts, [0, 64, 128]);
    assert!(!layout.params[0].pieces[0].main);
    let halves: Vec<String> = layout.params[1]
        .pieces
        .iter()
        .map(|p| p.region().to_string())
        .collect();
    assert_eq!(halves, ["[2:4, 0:2]", "[6:8, 0:2]"]);
    let stacked = &layout.params[2].pieces[0];
    assert_eq!(
        (stacked.region().to_string(), stacked.global_shape.len()),
        ("[1:2, 0:2, 0:3]".into(), 3)
    );
    assert_eq!(layout.params[2].place().0, "chained_1.");
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn no_text_makes_a_key_panic(text in "(chained_[0-9]{1,22}\\.)?(optimizer\\.)?(distributed\\.dp_group_idx_|state\\.)?[0-9a-z_./é]{0,30}") {
        let _ = OptimizerKey::parse(&text);
    }

    #[test]
    fn a_key_of_a_bucket_says_what_it_was_made_of(
        chained in prop::option::of(any::<u64>()), dp_group: u64, gbuf: u64, bucket: u64, name in "[a-z_.0-9]{1,12}",
    ) {
        let prefix = chained.map(|i| format!("chained_{i}.")).unwrap_or_default();
        let key = format!(
            "{prefix}optimizer.distributed.dp_group_idx_{dp_group}.gbuf_idx_{gbuf}.dtype_(torch.float8_e4m3fn, torch.float32).bucket_idx_{bucket}.{name}"
        );
        let want = OptimizerKey::Bucket {
            prefix: &prefix,
            bucket: BucketId { dp_group, gbuf, bucket },
            dtype: "(torch.float8_e4m3fn, torch.float32)",
            name: &name,
        };
        prop_assert_eq!(OptimizerKey::parse(&key), Some(want));
    }

    #[test]
    fn missing_groups_and_stored_ones_are_all_up_to_the_highest(groups in prop::collection::btree_set(0u64..40, 1..12)) {
        let keys: Vec<String> = groups.iter().map(|g| format!("optimizer.distributed.dp_group_idx_{g}.param_state")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let got = &found(&keys, false, None)[0];
        let mut all: Vec<u64> = got.missing_dp_groups.iter().cloned().flatten().chain(got.dp_groups.iter().copied()).collect();
        all.sort();
        prop_assert_eq!(all, (0..=*groups.last().unwrap()).collect::<Vec<_>>());
    }

    #[test]
    fn no_layout_panics(
        start: u64, shape in prop::collection::vec(any::<u64>(), 0..4), global in prop::collection::vec(any::<u64>(), 0..4),
        offset in prop::collection::vec(any::<u64>(), 0..4),
    ) {
        let piece = BucketPiece { key: "w".into(), shape: shape.into(), global_shape: global.into(), global_offset: offset.into(), main: true };
        let layout = BucketLayout { params: vec![param(start, vec![piece.clone()]), param(0, vec![piece])] };
        // What passes can be walked.
        if layout.validate().is_ok() {
            prop_assert!(layout.params.iter().all(|p| p.end().is_some()));
        }
    }
}
