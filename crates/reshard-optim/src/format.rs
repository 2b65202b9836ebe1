//! The forms in which Megatron Core's distributed optimizer is stored.

use crate::OptimizerKey;
use reshard_model::{Path, Step, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
};
use strum::VariantArray as _;

/// The form in which Megatron Core's distributed optimizer is stored, by Megatron's names (`param_state_sharding_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[derive(strum::Display, strum::EnumString, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
#[strum(parse_err_ty = ParseShardingTypeError, parse_err_fn = ParseShardingTypeError::new)]
pub enum ShardingType {
    /// One object with all state of each data-parallel group. It fits the same tensor and pipeline parallelism only.
    DpZeroGatherScatter,
    /// Flattened ranges of one tensor per bucket of gradients; until 0.14. It fits the same tensor and pipeline parallelism only.
    FullyShardedBucketSpace,
    /// Flattened ranges of one tensor per parameter and state; 0.8 to 0.15.
    FullyShardedModelSpace,
    /// One tensor per bucket of gradients; since 0.15. It fits the same tensor and pipeline parallelism only.
    DpReshardable,
    /// One tensor per parameter and state, in the sharding of the model; since 0.15. It fits any parallelism.
    FullyReshardable,
    /// `DTensor`s of Megatron-FSDP, by parameter; since 0.14.
    FsdpDtensor,
}

impl ShardingType {
    /// All of them.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Megatron's name.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether the state is stored by bucket, so that only a layout says which elements belong to which parameter.
    pub fn is_by_bucket(self) -> bool {
        matches!(
            self,
            Self::DpZeroGatherScatter | Self::FullyShardedBucketSpace | Self::DpReshardable
        )
    }
}

/// A text that is not the name of a form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a form of Megatron Core's distributed optimizer; they are {all}", all = names().join(", "))]
pub struct ParseShardingTypeError(pub String);

/// The names of all forms.
fn names() -> Vec<&'static str> {
    ShardingType::ALL.iter().map(|form| form.name()).collect()
}

impl ParseShardingTypeError {
    fn new(text: &str) -> Self {
        Self(text.into())
    }
}

/// An item of a checkpoint, as far as [`stored_optimizers`] looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredKey<'a> {
    /// Its key.
    pub key: &'a str,
    /// Whether it is a tensor that is stored flattened.
    pub flattened: bool,
}

/// A distributed optimizer in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredOptimizer {
    /// The form.
    pub sharding_type: ShardingType,
    /// What its keys begin with: `chained_{i}.` or nothing.
    pub prefix: Box<str>,
    /// Where its dict is in common state. It is not known of forms that are recognised by their keys alone.
    pub path: Option<Path>,
    /// The data-parallel groups of which something is stored. Only the forms by bucket have any.
    pub dp_groups: BTreeSet<u64>,
    /// The data-parallel groups that should be there and are not, as ranges in ascending order.
    pub missing_dp_groups: Vec<Range<u64>>,
}

impl StoredOptimizer {
    /// The missing groups as text: `1, 4..7`. Empty if none is missing.
    pub fn missing_text(&self) -> String {
        let one = |r: &Range<u64>| match r.end - r.start {
            1 => r.start.to_string(),
            _ => format!("{}..{}", r.start, r.end),
        };
        let all: Vec<String> = self.missing_dp_groups.iter().map(one).collect();
        all.join(", ")
    }
}

/// The form, the missing groups if there are any, and the prefix if it has one.
impl fmt::Display for StoredOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.prefix.is_empty() {
            write!(f, "{} ", self.prefix.trim_end_matches('.'))?;
        }
        write!(f, "{}", self.sharding_type)?;
        match self.dp_groups.len() {
            0 => {}
            1 => write!(f, ", 1 data-parallel group")?,
            n => write!(f, ", {n} data-parallel groups")?,
        }
        if !self.missing_dp_groups.is_empty() {
            write!(f, " (missing: {})", self.missing_text())?;
        }
        Ok(())
    }
}

/// What keys with one prefix tell.
#[derive(Default)]
struct Seen {
    dp_groups: BTreeSet<u64>,
    zero: bool,
    bucket: bool,
    flattened_bucket: bool,
    main_param: bool,
    flattened_state: bool,
    fsdp: bool,
}

impl Seen {
    fn add(&mut self, key: &OptimizerKey<'_>, flattened: bool) {
        match key {
            OptimizerKey::Bucket { bucket, .. } => {
                self.dp_groups.insert(bucket.dp_group);
                self.bucket = true;
                self.flattened_bucket |= flattened;
            }
            OptimizerKey::Group { dp_group, name, .. } => {
                self.dp_groups.insert(*dp_group);
                self.zero |= *name == "param_state";
            }
            OptimizerKey::State { rest, .. } => {
                self.main_param |= rest.starts_with("param.");
                self.flattened_state |= flattened;
            }
            OptimizerKey::GroupMeta { .. } => self.fsdp = true,
        }
    }

    /// The form that the keys alone tell. State by parameter that is not flattened may also be that of an optimizer without
    /// distribution, which calls its float32 copies differently.
    fn sharding_type(&self) -> Option<ShardingType> {
        use ShardingType as T;
        let found = [
            (self.fsdp, T::FsdpDtensor),
            (self.flattened_bucket, T::FullyShardedBucketSpace),
            (self.bucket, T::DpReshardable),
            (self.zero, T::DpZeroGatherScatter),
            (self.flattened_state, T::FullyShardedModelSpace),
            (self.main_param, T::FullyReshardable),
        ];
        found
            .into_iter()
            .find_map(|(seen, form)| seen.then_some(form))
    }
}

/// Dicts in common state are looked through to this depth.
const DEEPEST: usize = 8;

/// The key in common state that names the form.
const SHARDING_TYPE: &str = "param_state_sharding_type";

/// The dicts of common state that name a form, with their paths.
fn named(value: &Value, path: &mut Vec<Step>, out: &mut Vec<(Path, ShardingType)>) {
    let Value::Dict(entries) = value else { return };
    if path.len() > DEEPEST {
        return;
    }
    let form = value
        .get(SHARDING_TYPE)
        .and_then(|v| v.as_str()?.parse().ok());
    if let Some(form) = form {
        out.push((Path(path.clone()), form));
    }
    for (key, value) in entries {
        let step = match key {
            Value::Str(s) => Step::Key(s.clone()),
            Value::Int(i) => match u64::try_from(*i) {
                Ok(i) => Step::Index(i),
                Err(_) => continue,
            },
            _ => continue,
        };
        path.push(step);
        named(value, path, out);
        path.pop();
    }
}

/// Recognises the distributed optimizers in a checkpoint: by what common state says, and else by the keys of its items. The order
/// is that of the prefixes.
///
/// The data-parallel groups that should be there are 0 to the highest one. If common state has Megatron's `args`, and the keys have no
/// prefix, there is one group for each tensor-parallel rank of each pipeline stage.
pub fn stored_optimizers<'a>(
    keys: impl IntoIterator<Item = StoredKey<'a>>,
    common: Option<&Value>,
) -> Vec<StoredOptimizer> {
    let mut seen: BTreeMap<&str, Seen> = BTreeMap::new();
    for StoredKey { key, flattened } in keys {
        if let Some(key) = OptimizerKey::parse(key) {
            seen.entry(key.prefix()).or_default().add(&key, flattened);
        }
    }
    let mut found = Vec::new();
    if let Some(common) = common {
        named(common, &mut Vec::new(), &mut found);
    }

    // An optimizer of a chain lies at its index. Its keys have a prefix, unless its form needs none.
    let mut out: Vec<StoredOptimizer> = Vec::new();
    let (mut named, mut by_bucket) = (BTreeSet::new(), BTreeSet::new());
    for (path, sharding_type) in found {
        let prefix = match path.0.last() {
            Some(Step::Index(i)) => Some(format!("chained_{i}.")),
            _ => None,
        };
        let prefix = prefix
            .filter(|p| seen.contains_key(&**p))
            .unwrap_or_default();
        named.insert(prefix.clone());
        let mut dp_groups = BTreeSet::new();
        if sharding_type.is_by_bucket() {
            // Two optimizers can't have the same buckets. Common state may name millions, so their groups are not copied.
            if !by_bucket.insert(prefix.clone()) {
                continue;
            }
            if let Some(keys) = seen.get_mut(&*prefix) {
                dp_groups = std::mem::take(&mut keys.dp_groups);
            }
        }
        out.push(StoredOptimizer {
            sharding_type,
            prefix: prefix.into(),
            path: Some(path),
            dp_groups,
            missing_dp_groups: Vec::new(),
        });
    }
    for (prefix, keys) in seen {
        if let Some(sharding_type) = keys.sharding_type()
            && !named.contains(prefix)
        {
            out.push(StoredOptimizer {
                sharding_type,
                prefix: prefix.into(),
                path: None,
                dp_groups: keys.dp_groups,
                missing_dp_groups: Vec::new(),
            });
        }
    }
    out.sort_by(|a, b| a.prefix.cmp(&b.prefix));
    for optimizer in &mut out {
        if optimizer.sharding_type.is_by_bucket() {
            let all = common
                .filter(|_| optimizer.prefix.is_empty())
                .and_then(model_parallel);
            optimizer.missing_dp_groups = missing(&optimizer.dp_groups, all.unwrap_or(0));
        }
    }
    out
}

/// Tensor-parallel ranks times pipeline stages.
fn model_parallel(common: &Value) -> Option<u64> {
    let args = common.get("args")?;
    let size = |name| u64::try_from(args.get(name)?.as_int()?).ok();
    size("tensor_model_parallel_size")?.checked_mul(size("pipeline_model_parallel_size")?)
}

/// The numbers below `all`, or below the highest one that is there, that are not there.
fn missing(there: &BTreeSet<u64>, all: u64) -> Vec<Range<u64>> {
    let mut out = Vec::new();
    let mut next = 0;
    for &group in there {
        if group > next {
            out.push(next..group);
        }
        next = group.saturating_add(1);
    }
    if next < all {
        out.push(next..all);
    }
    out
}
