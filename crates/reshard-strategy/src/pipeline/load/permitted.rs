//! What a checkpoint lets a plan read.

use super::lend::tensors;
use crate::{Result, StorageReader, StrategyError};
use reshard_model::{FlatStateDict, Sharded};
use reshard_plan::LoadPlan;
use std::sync::Arc;

/// The keys of the tensors that a plan asks for. Items of one tensor share its key, which may be long.
pub(super) fn keys_of(plan: &LoadPlan) -> Vec<Arc<str>> {
    let mut keys: Vec<Arc<str>> = Vec::new();
    for key in tensors(plan).map(|i| &i.piece.key) {
        if !keys.last().is_some_and(|last| Arc::ptr_eq(last, key)) {
            keys.push(Arc::clone(key));
        }
    }
    keys
}

/// Fails if a leaf is stored but can't be loaded. `keys` are those of the plan's tensors.
pub(super) fn permitted(
    plan: &LoadPlan,
    keys: &[Arc<str>],
    template: &FlatStateDict,
    from: &dyn StorageReader,
) -> Result<()> {
    not_lacking(plan, template, from)?;
    keys.iter().try_for_each(|key| from.permits(key))
}

/// A partial load may skip a leaf that is not stored. It must not skip a leaf that is stored but can't be loaded.
fn not_lacking(plan: &LoadPlan, template: &FlatStateDict, from: &dyn StorageReader) -> Result<()> {
    let not_stored = plan
        .not_stored
        .iter()
        .filter_map(|i| template.get_index(*i as usize));
    let mut whys = not_stored.filter_map(|(_, leaf)| match leaf {
        Sharded::Tensor(t) => from.why_not(&t.key),
        Sharded::Object(o) => from.why_not(&o.unique_key()),
    });
    whys.next()
        .map_or(Ok(()), |what| Err(unsupported(what, from)))
}

pub(super) fn unsupported(what: String, from: &dyn StorageReader) -> StrategyError {
    StrategyError::Unsupported {
        strategy: from.key().to_string(),
        what,
    }
}
