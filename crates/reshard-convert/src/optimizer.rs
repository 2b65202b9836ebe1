//! The state of Megatron Core's distributed optimizer, rewritten by parameter; and items that a map renames.

use crate::{ConvertError, Result, tensor::Carried};
use buckets::Buckets;
use reshard::{
    Checkpoint, Value,
    model::{Path, Step},
    plan::{Entry, Metadata},
};
use reshard_optim::{BucketLayout, OptimizerKey, ShardingType, StoredKey, StoredOptimizer};
use std::collections::BTreeMap;

mod buckets;
mod common;
mod stored;
mod zero;

/// What the source's optimizer becomes.
#[derive(Debug, Default)]
pub(crate) struct Canonical {
    /// The keys of the source that something else stands for.
    changes: BTreeMap<String, Change>,
    /// Tensors that are made of buckets.
    pub(crate) made: Vec<Carried>,
    /// Common state, if it changes.
    pub(crate) common: Option<Value>,
    /// Whether keys come from a map, so that the source's nesting and empty dicts say nothing of them.
    pub(crate) is_mapped: bool,
}

/// What becomes of an item of the source.
#[derive(Debug)]
enum Change {
    /// It gets another key.
    Rename(String),
    /// Its content is elsewhere.
    Drop,
}

impl Canonical {
    /// The key under which an item of the source is carried over, if it is.
    pub(crate) fn key<'k>(&'k self, key: &'k str) -> Option<&'k str> {
        match self.changes.get(key) {
            None => Some(key),
            Some(Change::Rename(to)) => Some(to),
            Some(Change::Drop) => None,
        }
    }

    /// The path of an item that gets another key: in PyTorch's dialect a checkpoint keeps it.
    pub(crate) fn path(&self, key: &str) -> Option<Path> {
        let Some(Change::Rename(to)) = self.changes.get(key) else {
            return None;
        };
        let (name, param) = to.strip_prefix("optimizer.state.")?.split_once('.')?;
        let steps = ["optimizer", "state", name, param].map(Step::from);
        Some(Path::from(&steps[..]))
    }

    /// What a map makes: these tensors, and the objects under these keys. Nothing else of the source is carried over.
    pub(crate) fn mapped(
        source: &Checkpoint,
        made: Vec<Carried>,
        objects: &BTreeMap<String, String>,
    ) -> Self {
        let change = |entry: Entry<'_>| {
            let to = objects.get(entry.key()).cloned().map(Change::Rename);
            (entry.key().to_owned(), to.unwrap_or(Change::Drop))
        };
        Self {
            changes: source.metadata().entries().map(change).collect(),
            made,
            common: None,
            is_mapped: true,
        }
    }

    /// Works out what the optimizer of a checkpoint becomes. Reads objects, and no tensors.
    pub(crate) async fn of(checkpoint: &Checkpoint, layout: Option<&BucketLayout>) -> Result<Self> {
        let common = checkpoint.common().await.map_err(ConvertError::Read)?;
        let mut common = Value::from(common);
        let optimizers = stored_optimizers(checkpoint.metadata(), Some(&common));
        let src = checkpoint.url();
        if optimizers.is_empty() {
            return Err(ConvertError::NoOptimizer { src: src.into() });
        }
        complete(src, &optimizers)?;
        let by_bucket = |o: &&StoredOptimizer| o.sharding_type.is_by_bucket();
        let buckets = match optimizers.iter().find(by_bucket) {
            None => None,
            Some(o) => {
                let layout = layout.ok_or_else(|| ConvertError::NoLayout {
                    src: src.into(),
                    form: o.sharding_type,
                })?;
                Some(Buckets::of(checkpoint, &optimizers, layout).await?)
            }
        };
        let mut out = Self::default();
        out.rename_and_drop(checkpoint, &optimizers);
        let mut changed = false;
        for optimizer in &optimizers {
            changed |= common::change(&mut common, checkpoint, optimizer).await?;
        }
        out.common = changed.then_some(common);
        if let Some(buckets) = buckets {
            out.made = buckets.made(src)?;
        }
        out.has_no_clash(checkpoint)?;
        Ok(out)
    }

    fn rename_and_drop(&mut self, checkpoint: &Checkpoint, optimizers: &[StoredOptimizer]) {
        let form = |prefix: &str| {
            let of = |o: &&StoredOptimizer| *o.prefix == *prefix;
            optimizers.iter().find(of).map(|o| o.sharding_type)
        };
        for entry in checkpoint.metadata().entries() {
            let Some(key) = OptimizerKey::parse(entry.key()) else {
                continue;
            };
            let change = match (form(key.prefix()), key) {
                (Some(ShardingType::FullyShardedModelSpace), OptimizerKey::State { rest, .. }) => {
                    Some(Change::Rename(match rest.strip_prefix("fp32_param.") {
                        Some(param) => format!("optimizer.state.param.{param}"),
                        None => format!("optimizer.state.{rest}"),
                    }))
                }
                (Some(ShardingType::FsdpDtensor), OptimizerKey::State { rest, .. }) => {
                    let parts = rest
                        .rsplit_once('.')
                        .filter(|_| matches!(entry, Entry::Tensor(_)));
                    parts.map(|(param, name)| {
                        Change::Rename(format!("optimizer.state.{name}.{param}"))
                    })
                }
                // Buckets that are read, and objects of which one becomes common state. Anything else stays as it is.
                (Some(form), OptimizerKey::Bucket { .. }) if form.is_by_bucket() => {
                    matches!(entry, Entry::Tensor(_)).then_some(Change::Drop)
                }
                (Some(form), OptimizerKey::Group { .. }) if form.is_by_bucket() => {
                    matches!(entry, Entry::Object(..)).then_some(Change::Drop)
                }
                _ => None,
            };
            if let Some(change) = change {
                self.changes.insert(entry.key().into(), change);
            }
        }
    }

    /// No two items may get one key.
    fn has_no_clash(&self, checkpoint: &Checkpoint) -> Result<()> {
        let mut keys: BTreeMap<&str, &str> = BTreeMap::new();
        let entries: Vec<String> = checkpoint
            .metadata()
            .entries()
            .map(|e| e.key().into())
            .collect();
        let carried = entries
            .iter()
            .filter_map(|key| Some((self.key(key)?, key.as_str())));
        let made = self.made.iter().map(|t| (t.key(), "a bucket"));
        for (key, from) in carried.chain(made) {
            if let Some(other) = keys.insert(key, from) {
                return Err(ConvertError::Optimizer {
                    src: checkpoint.url().into(),
                    what: format!("both {other} and {from} would be stored as {key}"),
                });
            }
        }
        Ok(())
    }
}

/// Recognises the distributed optimizers of Megatron Core in a checkpoint, as [`reshard_optim::stored_optimizers`] does.
pub fn stored_optimizers(metadata: &Metadata, common: Option<&Value>) -> Vec<StoredOptimizer> {
    let keys = metadata.entries().map(|entry| match entry {
        Entry::Tensor(t) => StoredKey {
            key: t.key(),
            flattened: t.original_shape().is_some(),
        },
        Entry::Object(_, key) => StoredKey {
            key,
            flattened: false,
        },
    });
    reshard_optim::stored_optimizers(keys, common)
}

/// Fails if data-parallel groups are missing: their parameters would be missing, too.
fn complete(src: &str, optimizers: &[StoredOptimizer]) -> Result<()> {
    match optimizers.iter().find(|o| !o.missing_dp_groups.is_empty()) {
        None => Ok(()),
        Some(o) => Err(ConvertError::MissingGroups {
            src: src.into(),
            form: o.sharding_type,
            groups: o.missing_text(),
        }),
    }
}
