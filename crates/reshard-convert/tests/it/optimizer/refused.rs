//! What is refused, before anything is written.

use crate::optimizer::model::{change_gathered, layout, not_joined, rank_of, remove, saved};
use reshard::{
    ErrorKind, ShardedTensor, StateDict, Tensor,
    blocking::{self, Checkpoint},
    model::{Leaf, Value},
};
use reshard_convert::{ConvertError, convert};
use reshard_optim::{BucketLayout, ShardingType};

fn refused(source: &str, layout: Option<BucketLayout>) -> ConvertError {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to").display().to_string();
    let source = Checkpoint::open(source).unwrap();
    let mut conversion = convert(&source, &to).canonical_optimizer(true);
    if let Some(layout) = layout {
        conversion = conversion.bucket_layout(layout);
    }
    let error = blocking::run(conversion).unwrap_err();
    assert!(!std::path::Path::new(&to).exists());
    error
}

struct Saved(tempfile::TempDir);

impl Saved {
    fn new(form: ShardingType, change: impl Fn(&mut StateDict)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        saved(form, &dir.path().join("from").display().to_string(), change);
        Self(dir)
    }

    fn url(&self) -> String {
        self.0.path().join("from").display().to_string()
    }
}

#[test]
fn forms_by_bucket_need_a_layout() {
    for &form in ShardingType::ALL.iter().filter(|f| f.is_by_bucket()) {
        let from = Saved::new(form, |_| ());
        let error = refused(&from.url(), None);
        assert!(
            matches!(error, ConvertError::NoLayout { form: f, .. } if f == form),
            "{error}"
        );
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}

#[test]
fn missing_data_parallel_groups_are_listed() {
    // All of the first group is lost.
    let from = Saved::new(ShardingType::DpReshardable, |state| {
        remove(state, |leaf| match leaf {
            Leaf::Tensor(t) => t.key.contains("dp_group_idx_0"),
            Leaf::Object(o) => o.key.contains("dp_group_idx_0"),
            _ => false,
        });
    });
    let error = refused(&from.url(), Some(layout()));
    assert!(
        matches!(&error, ConvertError::MissingGroups { groups, .. } if groups == "0"),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn a_layout_of_other_buckets_is_refused() {
    let from = Saved::new(ShardingType::DpZeroGatherScatter, |_| ());
    let url = from.url();
    for (change, what) in [
        (
            &(|l: &mut BucketLayout| drop(l.params.remove(0))) as &dyn Fn(&mut BucketLayout),
            "no bucket has the part",
        ),
        (&|l| l.params[0].start = 1 << 60, "it should have"),
        (
            &|l| l.params[0].pieces[0].global_offset[0] = 1,
            "of a tensor of shape",
        ),
        (&|l| l.params[1].start = 3, "where fc1 begins at 3"),
        (&|l| l.params[4].bucket = 9, "it should have"),
        (&|l| l.params.retain(|p| p.dp_group == 0), "dp_group_idx_1"),
        (
            &|l| {
                l.params
                    .iter_mut()
                    .flat_map(|p| &mut p.pieces)
                    .for_each(|p| p.main = true)
            },
            "overlap",
        ),
    ] {
        let mut layout = layout();
        change(&mut layout);
        let error = refused(&url, Some(layout));
        assert!(matches!(error, ConvertError::Layout { .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(what), "{what}: {error}");
    }
}

#[test]
fn a_checkpoint_without_a_distributed_optimizer_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("from").display().to_string();
    let mut state = StateDict::new();
    state.insert(
        "w",
        ShardedTensor::full("w", Tensor::from_vec(&[2], vec![0f32; 2]).unwrap()),
    );
    blocking::save(&state, &url).unwrap();
    let error = refused(&url, None);
    assert!(matches!(error, ConvertError::NoOptimizer { .. }), "{error}");
}

#[test]
fn keys_can_not_be_chosen_at_the_same_time() {
    let from = Saved::new(ShardingType::FullyShardedModelSpace, |_| ());
    let source = Checkpoint::open(from.url()).unwrap();
    let conversion = convert(&source, "unused")
        .canonical_optimizer(true)
        .keys(|_| true);
    assert!(matches!(
        blocking::run(conversion),
        Err(ConvertError::KeysOfOptimizer)
    ));
}

#[test]
fn buckets_of_the_layout_and_stored_ones_are_the_same() {
    let from = Saved::new(ShardingType::DpReshardable, |_| ());
    let mut other = layout();
    for param in other.params.iter_mut().filter(|p| p.bucket == 1) {
        param.bucket = 9;
    }
    let error = refused(&from.url(), Some(other)).to_string();
    assert!(
        error.contains("the layout has bucket 9 of buffer 0 of group 0, but it is not stored"),
        "{error}"
    );
    let mut fewer = layout();
    fewer.params.retain(|p| p.bucket == 0);
    let error = refused(&from.url(), Some(fewer)).to_string();
    assert!(
        error
            .contains("bucket 1 of buffer 0 of group 0 is stored, but the layout does not have it"),
        "{error}"
    );
}

#[test]
fn flattened_parts_are_held_against_the_layout_where_they_lie_in_the_bucket() {
    let from = Saved::new(ShardingType::FullyShardedBucketSpace, |_| ());
    // The second rank of the first bucket has elements 64..72, which belong to one parameter.
    let mut other = layout();
    other.params[1].start = 70;
    let error = refused(&from.url(), Some(other)).to_string();
    assert!(
        error.contains("64..72") && error.contains("(70..78)"),
        "{error}"
    );
}

#[test]
fn two_items_can_not_get_one_key() {
    let from = Saved::new(ShardingType::FullyShardedModelSpace, |state| {
        let data = Tensor::from_vec(&[1], vec![0f32]).unwrap();
        let key = "optimizer.state.param.norm";
        state.insert(
            "other",
            ShardedTensor::replicated(key, data, rank_of(state)),
        );
    });
    let error = refused(&from.url(), None);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let said = error.to_string();
    assert!(
        said.contains("optimizer.state.fp32_param.norm")
            && said.contains("would be stored as optimizer.state.param.norm"),
        "{said}"
    );
}

/// Buckets that are not joined have a tensor each, so their number and their lengths are known.
#[test]
fn a_layout_that_does_not_fit_to_buckets_that_are_not_joined_is_refused() {
    let refused = |change: &dyn Fn(&mut Vec<Tensor>)| {
        let from = Saved::new(ShardingType::DpZeroGatherScatter, |state| {
            change_gathered(state, |tp, value| *value = not_joined(tp, change));
        });
        let error = refused(&from.url(), Some(layout()));
        assert!(matches!(error, ConvertError::Layout { .. }), "{error}");
        error.to_string()
    };
    let said = refused(&|tensors| drop(tensors.pop()));
    assert!(
        said.contains("has 1 buckets, but the layout has 2"),
        "{said}"
    );
    let said = refused(&|tensors| tensors[0] = Tensor::from_vec(&[3], vec![0f32; 3]).unwrap());
    assert!(
        said.contains("by the layout bucket 0 has 72 elements, but its shape is [3], 72 of them"),
        "{said}"
    );
    let said = refused(&|tensors| tensors.swap(0, 1));
    assert!(said.contains("by the layout bucket 1 has"), "{said}");
}

#[test]
fn a_number_before_the_padding_that_the_layout_does_not_have_is_refused() {
    let mut layout = layout();
    let shorter = layout.params.iter_mut().rfind(|p| p.dp_group == 0).unwrap();
    shorter.start += 64;
    let from = Saved::new(ShardingType::DpZeroGatherScatter, |state| {
        change_gathered(state, |tp, value| *value = not_joined(tp, |_| ()));
    });
    let said = refused(&from.url(), Some(layout)).to_string();
    assert!(said.contains("of them before the padding"), "{said}");
}

#[test]
fn gathered_state_that_is_neither_joined_nor_by_bucket_is_refused() {
    let from = Saved::new(ShardingType::DpZeroGatherScatter, |state| {
        change_gathered(state, |_, value| {
            if let Value::Dict(entries) = value {
                entries.retain(|(name, _)| name.as_str() != Some("buckets_coalesced"));
            }
        });
    });
    let error = refused(&from.url(), Some(layout()));
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let said = error.to_string();
    assert!(
        said.contains("should have lists of tensors, one for each bucket"),
        "{said}"
    );
}
