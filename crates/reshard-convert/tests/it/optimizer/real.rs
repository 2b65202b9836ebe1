//! Checkpoints that Megatron Core wrote.

use reshard::{
    DType, Value,
    blocking::{self, Checkpoint},
    model::Dims,
};
use reshard_convert::{convert, stored_optimizers};
use reshard_optim::{BucketLayout, BucketParam, BucketPiece, ShardingType};

/// `None` if the fixtures are of another folder, which lacks it.
fn fixture(name: &str) -> Option<Checkpoint> {
    let folder = reshard_model::testkit::fixture(&format!("megatron/{name}"))?;
    let url = folder.join("ckpt").display().to_string();
    Some(Checkpoint::open(&url).unwrap())
}

fn found(source: &Checkpoint) -> (ShardingType, Vec<u64>) {
    let common = Value::from(source.common().unwrap());
    let by_common = stored_optimizers(source.metadata(), Some(&common));
    let [one] = &by_common[..] else {
        panic!("{by_common:?}")
    };
    // The keys alone say the same.
    let by_keys = stored_optimizers(source.metadata(), None);
    assert_eq!(by_keys[0].sharding_type, one.sharding_type);
    (one.sharding_type, one.dp_groups.iter().copied().collect())
}

#[test]
fn flattened_state_by_parameter_is_unflattened_and_renamed() {
    let Some(source) = fixture("mc012_dist_opt_model_space_w4") else {
        return;
    };
    assert_eq!(
        found(&source),
        (ShardingType::FullyShardedModelSpace, vec![])
    );
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to").display().to_string();
    blocking::run(convert(&source, &to).ranks(2).canonical_optimizer(true)).unwrap();
    let got = Checkpoint::open(&to).unwrap();
    for (old, new) in [
        ("fp32_param", "param"),
        ("exp_avg", "exp_avg"),
        ("exp_avg_sq", "exp_avg_sq"),
    ] {
        let old = source
            .tensor(&format!("optimizer.state.{old}.decoder.weight"))
            .unwrap();
        let new = got
            .tensor(&format!("optimizer.state.{new}.decoder.weight"))
            .unwrap();
        assert!(old.flattened_shape().is_some() && new.flattened_shape().is_none());
        assert_eq!(**new.shape(), [2, 8, 4]);
        assert_eq!(
            new.read(..).unwrap().to_bytes(),
            old.read(..).unwrap().to_bytes()
        );
    }
    let common = Value::from(got.common().unwrap());
    let optimizer = common.get("optimizer").unwrap();
    let form = optimizer
        .get("param_state_sharding_type")
        .and_then(Value::as_str);
    assert_eq!(form, Some("fully_reshardable"));
    let groups = optimizer
        .get("optimizer")
        .and_then(|o| o.get("param_groups"));
    assert_eq!(
        groups.and_then(|g| g.as_seq()?[0].get("step")),
        Some(&Value::Int(5))
    );
}

/// Its parts are 0..3, 3..4 and 4..7 on the first rank, and 7..9, 9..10 and 10..13 on the second; the second of each is padding.
fn parameters(splits: &[(u64, u64, &str)]) -> BucketLayout {
    let param = |(start, len, key): &(u64, u64, &str)| BucketParam {
        chained: None,
        dp_group: 0,
        gbuf: 0,
        bucket: 0,
        start: *start,
        pieces: vec![BucketPiece {
            key: (*key).into(),
            shape: [*len].into(),
            global_shape: [*len].into(),
            global_offset: Dims::from([0]),
            main: true,
        }],
    };
    BucketLayout {
        params: splits.iter().map(param).collect(),
    }
}

#[test]
fn state_by_bucket_is_cut_where_the_layout_says() {
    let Some(source) = fixture("mc016_dp_reshardable_w2") else {
        return;
    };
    assert_eq!(found(&source), (ShardingType::DpReshardable, vec![0]));
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to").display().to_string();
    let layout = parameters(&[(0, 3, "a"), (3, 6, "b"), (10, 3, "c")]);
    blocking::run(
        convert(&source, &to)
            .canonical_optimizer(true)
            .bucket_layout(layout),
    )
    .unwrap();
    let got = Checkpoint::open(&to).unwrap();
    let bucket = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0";
    for state in ["param", "exp_avg", "exp_avg_sq"] {
        let all = source
            .tensor(&format!("{bucket}.{state}"))
            .unwrap()
            .read(..)
            .unwrap()
            .to_vec::<f32>()
            .unwrap();
        for (key, range) in [("a", 0..3), ("b", 3..9), ("c", 10..13)] {
            let tensor = got
                .tensor(&format!("optimizer.state.{state}.{key}"))
                .unwrap();
            assert_eq!(tensor.dtype(), DType::Float32);
            assert_eq!(
                tensor.read(..).unwrap().to_vec::<f32>().unwrap(),
                all[range]
            );
        }
    }
    assert_eq!(got.objects().count(), 0);
    let common = Value::from(got.common().unwrap());
    let optimizer = common.get("optimizer").unwrap();
    let groups = optimizer
        .get("optimizer")
        .and_then(|o| o.get("param_groups"));
    assert_eq!(
        groups.and_then(|g| g.as_seq()?[0].get("step")),
        Some(&Value::Int(3))
    );
}

#[test]
fn a_layout_that_does_not_fit_the_stored_parts_is_refused() {
    let Some(source) = fixture("mc016_dp_reshardable_w2") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to").display().to_string();
    for (splits, what) in [
        // 0..3 is one stored part, so no parameter ends in it.
        (&[(0, 2, "a"), (2, 7, "b"), (10, 3, "c")][..], "0..3"),
        // A parameter that begins in a stored part.
        (&[(0, 3, "a"), (5, 4, "b"), (10, 3, "c")], "3..7"),
        (&[(0, 3, "a")], "its parameters end at 3"),
        (&[(0, 14, "a")], "its parameters end at 14"),
    ] {
        let conversion = convert(&source, &to)
            .canonical_optimizer(true)
            .bucket_layout(parameters(splits));
        let error = blocking::run(conversion).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    assert!(!std::path::Path::new(&to).exists());
}
