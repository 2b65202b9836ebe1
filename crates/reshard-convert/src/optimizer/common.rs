//! What of an optimizer is common state.

use crate::{ConvertError, Result};
use reshard::{Checkpoint, Dialect, Value, model::Step};
use reshard_optim::{OptimizerKey, ShardingType, StoredOptimizer};

/// What a group stores of its buckets, which mean nothing any more.
const OF_BUCKETS: [&str; 3] = [
    "per_bucket_numel",
    "per_bucket_numel_unpadded",
    "param_state",
];

/// Names the new form in common state, and moves what each data-parallel group has stored of the rest of the optimizer there, as
/// Megatron Core has it in that form: all ranks store the same. Says whether anything changed.
pub(super) async fn change(
    common: &mut Value,
    checkpoint: &Checkpoint,
    optimizer: &StoredOptimizer,
) -> Result<bool> {
    if checkpoint.dialect() != Dialect::Megatron
        || optimizer.sharding_type == ShardingType::FullyReshardable
    {
        return Ok(false);
    }
    let path = match &optimizer.path {
        Some(path) => path.0.clone(),
        None => path_of(&optimizer.prefix),
    };
    let clash = || {
        ConvertError::Optimizer {
        src: checkpoint.url().into(),
        what: "common state has something else where a dict of the optimizer, or `content_metadata`, should be"
            .into(),
    }
    };
    let dict = dict_at(common, &path).ok_or_else(clash)?;
    if optimizer.sharding_type.is_by_bucket() {
        for (name, key) in rest_of_lowest_group(checkpoint, optimizer) {
            let value = checkpoint.object(&key).await.map_err(ConvertError::Read)?;
            // The cell of an array is a list with one element.
            let value = match value {
                Value::List(mut cell) if cell.len() == 1 => cell.pop().unwrap_or(Value::None),
                other => other,
            };
            put(dict, &name, value);
        }
    }
    let form = ShardingType::FullyReshardable.name();
    put(dict, "param_state_sharding_type", form.into());

    // Megatron's training program asks this for the form, and for whether keys of a chain have prefixes.
    let content = [Step::from("content_metadata")];
    let dict = dict_at(common, &content).ok_or_else(clash)?;
    put(dict, "distrib_optim_sharding_type", form.into());
    put(dict, "chained_optim_avoid_prefix", Value::Bool(true));
    Ok(true)
}

/// Where Megatron's training program has an optimizer.
fn path_of(prefix: &str) -> Vec<Step> {
    let index = prefix.trim_end_matches('.').strip_prefix("chained_");
    let index = index.and_then(|i| i.parse().ok()).map(Step::Index);
    [Step::from("optimizer")].into_iter().chain(index).collect()
}

/// Names and keys of what the lowest group has stored besides buckets.
fn rest_of_lowest_group(
    checkpoint: &Checkpoint,
    optimizer: &StoredOptimizer,
) -> Vec<(String, String)> {
    let lowest = optimizer.dp_groups.first();
    let of_group = |key: &str| match OptimizerKey::parse(key)? {
        OptimizerKey::Group {
            prefix,
            dp_group,
            name,
        } if *prefix == *optimizer.prefix
            && Some(&dp_group) == lowest
            && !OF_BUCKETS.contains(&name) =>
        {
            Some((name.to_owned(), key.to_owned()))
        }
        _ => None,
    };
    checkpoint.objects().filter_map(of_group).collect()
}

/// The entries of the dict at a path, which is made if it is not there.
fn dict_at<'v>(value: &'v mut Value, path: &[Step]) -> Option<&'v mut Vec<(Value, Value)>> {
    if matches!(value, Value::None) {
        *value = Value::Dict(Vec::new());
    }
    let Value::Dict(entries) = value else {
        return None;
    };
    let Some((step, rest)) = path.split_first() else {
        return Some(entries);
    };
    let key = match step {
        Step::Key(k) => Value::Str(k.clone()),
        Step::Index(i) => Value::Int(i64::try_from(*i).ok()?),
    };
    let at = match entries.iter().position(|(k, _)| *k == key) {
        Some(at) => at,
        None => {
            entries.push((key, Value::None));
            entries.len() - 1
        }
    };
    dict_at(&mut entries.get_mut(at)?.1, rest)
}

fn put(dict: &mut Vec<(Value, Value)>, name: &str, value: Value) {
    match dict.iter_mut().find(|(k, _)| k.as_str() == Some(name)) {
        Some((_, old)) => *old = value,
        None => dict.push((name.into(), value)),
    }
}
