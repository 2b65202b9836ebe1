//! Each form becomes the same.

use crate::optimizer::model::{
    STATES, change_gathered, layout, layout_of_chain, not_joined, params, rank_of, saved,
    saved_by_fsdp, saved_chained, saved_in_zarr, saved_with_common_object, whole,
};
use reshard::{
    DType, Dialect, Region, ShardedTensor, StateDict, Tensor, Value,
    blocking::{self, Checkpoint},
    model::Leaf,
};
use reshard_convert::{convert, stored_optimizers};
use reshard_optim::{BucketLayout, ShardingType};
use std::collections::BTreeSet;

fn url(dir: &tempfile::TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

/// The checkpoint at a place, rewritten by parameter for so many ranks.
fn rewritten(from: &str, to: &str, ranks: u32, layout: Option<BucketLayout>) -> Checkpoint {
    let source = Checkpoint::open(from).unwrap();
    let conversion = convert(&source, to).ranks(ranks).canonical_optimizer(true);
    let conversion = match layout {
        Some(layout) => conversion.bucket_layout(layout),
        None => conversion,
    };
    blocking::run(conversion).unwrap();
    Checkpoint::open(to).unwrap()
}

fn has_every_state(got: &Checkpoint) {
    for param in params(0) {
        for state in STATES {
            let key = format!("optimizer.state.{state}.{}", param.key);
            let read = got.tensor(&key).unwrap().read(..).unwrap();
            assert_eq!(
                read.to_vec::<f32>().unwrap(),
                whole(state, param.key).to_vec::<f32>().unwrap(),
                "{key}"
            );
        }
    }
}

/// Which form the common state of an optimizer names.
fn form_of(optimizer: &Value) -> Option<&str> {
    let form = optimizer.get("param_state_sharding_type");
    form.and_then(Value::as_str)
}

/// In Megatron's dialect.
const FORMS: [ShardingType; 5] = [
    ShardingType::DpZeroGatherScatter,
    ShardingType::FullyShardedBucketSpace,
    ShardingType::FullyShardedModelSpace,
    ShardingType::DpReshardable,
    ShardingType::FullyReshardable,
];

#[test]
fn every_form_becomes_the_same_tensors_by_parameter() {
    let dir = tempfile::tempdir().unwrap();
    for form in FORMS {
        for ranks in [1, 3] {
            let (from, to) = (
                url(&dir, &format!("{form}-{ranks}")),
                url(&dir, &format!("{form}-{ranks}-to")),
            );
            saved(form, &from, |_| ());
            let got = rewritten(&from, &to, ranks, form.is_by_bucket().then(layout));
            let mut want = BTreeSet::new();
            for param in params(0) {
                want.insert(param.key.to_owned());
                for state in STATES {
                    let key = format!("optimizer.state.{state}.{}", param.key);
                    let tensor = got.tensor(&key).unwrap_or_else(|e| panic!("{form}: {e}"));
                    assert_eq!(&**tensor.shape(), param.shape, "{form}: {key}");
                    assert!(tensor.flattened_shape().is_none());
                    let read = tensor.read(..).unwrap();
                    assert_eq!(read, whole(state, param.key), "{form}: {key}");
                    want.insert(key);
                }
            }
            let keys: BTreeSet<String> = got
                .metadata()
                .entries()
                .map(|e| e.key().to_owned())
                .collect();
            assert_eq!(keys, want, "{form}");

            // The settings of the lowest group are common to all ranks now.
            let common = Value::from(got.common().unwrap());
            let optimizer = common.get("optimizer").unwrap();
            assert_eq!(form_of(optimizer), Some("fully_reshardable"), "{form}");
            let Value::Dict(entries) = optimizer else {
                panic!("{optimizer:?}")
            };
            let names: BTreeSet<&str> = entries.iter().filter_map(|(k, _)| k.as_str()).collect();
            let all = ["optimizer", "param_state_sharding_type"];
            assert_eq!(names, BTreeSet::from(all), "{form}");
            let groups = optimizer
                .get("optimizer")
                .unwrap()
                .get("param_groups")
                .unwrap();
            let group = &groups.as_seq().unwrap()[0];
            assert_eq!(
                (group.get("lr"), group.get("tp")),
                (Some(&Value::Float(0.5)), Some(&Value::Int(0)))
            );
            assert_eq!(common.get("iteration"), Some(&Value::Int(5)));
            let content = common.get("content_metadata");
            if form == ShardingType::FullyReshardable {
                assert_eq!(content, None);
            } else {
                let said = |name| content.unwrap().get(name).unwrap();
                assert_eq!(
                    said("distrib_optim_sharding_type").as_str(),
                    Some("fully_reshardable")
                );
                assert_eq!(said("chained_optim_avoid_prefix"), &Value::Bool(true));
            }
            assert!(
                got.verify(true, reshard::storage::Progress::default())
                    .unwrap()
                    .damage
                    .is_empty()
            );
            let found = stored_optimizers(got.metadata(), Some(&common));
            assert_eq!(found[0].sharding_type, ShardingType::FullyReshardable);
        }
    }
}

#[test]
fn buckets_of_megatron_0_10_and_before_are_plain_tensors_with_padding() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (url(&dir, "from"), url(&dir, "to"));
    let plain = |leaf: &mut Leaf| {
        if let Leaf::Tensor(t) = leaf
            && let Some(range) = t.flattened_range.take()
        {
            let region = Region::new(
                [t.global_offset[0] + range.start],
                [range.end - range.start],
            );
            let part = ShardedTensor::region_of(&t.key, t.dtype, &t.global_shape, region);
            *t = part.with_data(t.data.clone());
        }
    };
    saved(ShardingType::FullyShardedBucketSpace, &from, |state| {
        state.visit_mut(&mut |_, leaf| plain(leaf));
    });
    let source = Checkpoint::open(&from).unwrap();
    assert!(source.tensors().all(|t| t.flattened_shape().is_none()));
    has_every_state(&rewritten(&from, &to, 1, Some(layout())));
}

#[test]
fn gathered_buckets_of_megatron_0_6_have_a_tensor_each() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (url(&dir, "from"), url(&dir, "to"));
    saved(ShardingType::DpZeroGatherScatter, &from, |state| {
        change_gathered(state, |tp, value| *value = not_joined(tp, |_| ()));
    });
    has_every_state(&rewritten(&from, &to, 2, Some(layout())));
}

/// Megatron Core 0.12 can store this form in zarr only, where cells of the bucket's grid are whole: they say nothing of parameters.
#[test]
fn buckets_in_zarr_are_rewritten_whatever_their_chunks() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (url(&dir, "from"), url(&dir, "to"));
    saved_in_zarr(ShardingType::FullyShardedBucketSpace, &from);
    has_every_state(&rewritten(&from, &to, 2, Some(layout())));
}

#[test]
fn common_state_that_is_an_object_stays_one() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (url(&dir, "from"), url(&dir, "to"));
    saved_with_common_object(&from);
    let got = rewritten(&from, &to, 1, Some(layout()));
    assert_eq!(
        got.objects().collect::<Vec<_>>(),
        ["common_state/shard_0_1"]
    );
    assert!(!dir.path().join("to/common.pt").exists());
    let common = Value::from(got.common().unwrap());
    let optimizer = common.get("optimizer").unwrap();
    assert_eq!(form_of(optimizer), Some("fully_reshardable"));
    assert!(
        optimizer
            .get("optimizer")
            .unwrap()
            .get("param_groups")
            .is_some()
    );
}

#[test]
fn what_is_not_known_of_a_group_is_carried_over() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (url(&dir, "from"), url(&dir, "to"));
    let key = "optimizer.distributed.dp_group_idx_0.of_the_future";
    saved(ShardingType::DpReshardable, &from, |state| {
        let data = Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
        state.insert("new", ShardedTensor::replicated(key, data, rank_of(state)));
    });
    let got = rewritten(&from, &to, 1, Some(layout()))
        .tensor(key)
        .unwrap();
    assert_eq!(got.read(..).unwrap().to_vec::<f32>().unwrap(), [1., 2.]);
}

#[test]
fn optimizers_of_a_chain_lose_their_prefixes_and_keep_their_settings() {
    let dir = tempfile::tempdir().unwrap();
    for form in [
        ShardingType::DpReshardable,
        ShardingType::DpZeroGatherScatter,
        ShardingType::FullyShardedModelSpace,
    ] {
        let (from, to) = (
            url(&dir, &format!("{form}")),
            url(&dir, &format!("{form}-to")),
        );
        saved_chained(form, &from);
        let got = rewritten(&from, &to, 2, Some(layout_of_chain()));
        for param in params(0) {
            for state in STATES {
                for expert in ["", "expert."] {
                    let key = format!("optimizer.state.{state}.{expert}{}", param.key);
                    let read = got.tensor(&key).unwrap().read(..).unwrap();
                    assert_eq!(read, whole(state, param.key), "{form}: {key}");
                }
            }
        }
        assert!(
            got.metadata()
                .entries()
                .all(|e| !e.key().contains("chained"))
        );
        let common = Value::from(got.common().unwrap());
        let Some(Value::Dict(chain)) = common.get("optimizer") else {
            panic!("{common:?}")
        };
        assert_eq!(chain.len(), 2);
        for (_, optimizer) in chain {
            assert_eq!(form_of(optimizer), Some("fully_reshardable"));
            assert!(
                optimizer
                    .get("optimizer")
                    .unwrap()
                    .get("param_groups")
                    .is_some()
            );
        }
    }
}

#[test]
fn what_was_converted_loads_with_another_parallelism() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (url(&dir, "from"), url(&dir, "to"));
    saved(ShardingType::DpReshardable, &from, |_| ());
    rewritten(&from, &to, 1, Some(layout()));
    // Four tensor-parallel ranks: two rows of eight each, and only of the second layer.
    let region = Region::new([1, 4, 0], [1, 2, 3]);
    let key = "optimizer.state.exp_avg.layers.w";
    let leaf = ShardedTensor::region_of(key, DType::Float32, &[2, 8, 3], region.clone());
    let mut template = StateDict::new();
    template.insert("m", leaf);
    let loaded = blocking::load(template, &to).unwrap();
    let got = loaded
        .get("m")
        .unwrap()
        .leaf()
        .unwrap()
        .as_tensor()
        .unwrap()
        .to_vec::<f32>()
        .unwrap();
    let want = whole("exp_avg", "layers.w").narrow(&region);
    assert_eq!(got, want.to_vec::<f32>().unwrap());
}

#[test]
fn state_by_parameter_of_megatron_fsdp_gets_the_names_of_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (url(&dir, "from"), url(&dir, "to"));
    saved_by_fsdp(&from);
    let source = Checkpoint::open(&from).unwrap();
    let found = stored_optimizers(source.metadata(), None);
    assert_eq!(found[0].sharding_type, ShardingType::FsdpDtensor);
    let got = rewritten(&from, &to, 2, None);
    assert_eq!(got.dialect(), Dialect::Dcp);
    for key in ["embedding.w", "layers.w", "fc1", "norm"] {
        for name in ["exp_avg", "exp_avg_sq"] {
            let tensor = got
                .tensor(&format!("optimizer.state.{name}.{key}"))
                .unwrap();
            assert_eq!(tensor.read(..).unwrap(), whole(name, key));
        }
    }
    // The tree that the checkpoint keeps follows the new keys, and what was not renamed stays.
    let state = Value::from(got.state().unwrap());
    let optimizer = state.get("optimizer").unwrap();
    assert!(
        optimizer
            .get("state")
            .unwrap()
            .get("exp_avg")
            .unwrap()
            .get("layers.w")
            .is_some()
    );
    let meta = optimizer
        .get("param_to_group_meta")
        .unwrap()
        .get("layers.w")
        .unwrap();
    assert_eq!(meta.get("lr"), Some(&Value::Float(0.5)));
}

#[test]
fn a_layout_is_the_same_after_json() {
    let text = serde_json::to_string(&layout()).unwrap();
    assert_eq!(
        serde_json::from_str::<BucketLayout>(&text).unwrap(),
        layout()
    );
    assert!(text.starts_with(r#"{"params":[{"dp_group":0,"gbuf":0,"bucket":0,"start":0,"pieces":[{"key":"norm","shape":[7],"#), "{text}");
}
