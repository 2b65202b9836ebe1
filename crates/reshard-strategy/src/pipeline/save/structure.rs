//! All on which the plan of a save depends on one rank.

use super::{limit::Asked, resolve::object_lengths};
use crate::{Result, SaveCx, StorageWriter, pipeline::structure::Structure};
use reshard_model::{FlatStateDict, Sharded};
use reshard_policy::plan_settings;
use std::collections::BTreeSet;

/// All on which the plan of this rank depends, but the data of leaves. `None` if that is not known.
///
/// It holds for this process only. Types are told apart by their ids.
pub(super) fn structure(
    writer: &dyn StorageWriter,
    Asked {
        policy,
        limit,
        measures_objects,
        ..
    }: &Asked,
    state: &FlatStateDict,
    cx: &SaveCx<'_>,
) -> Result<Option<Vec<u8>>> {
    let (Some(format), Some(planner)) = (writer.plan_settings(), cx.planner.plan_settings()) else {
        return Ok(None);
    };
    let policy = match policy.as_deref().map(plan_settings).transpose()? {
        Some(None) => return Ok(None),
        Some(Some(settings)) => settings,
        None => String::new(),
    };
    let mut out = Structure::of(state);
    let names = [writer.name(), cx.planner.name()];
    for text in names.into_iter().chain([&*format, &*planner, &*policy]) {
        out.text(text);
    }
    out.text(&writer.key().to_string());
    out.text(&format!(
        "{:?} {:?} {} {}",
        cx.options.policy_limits,
        cx.options.dialect,
        cx.options.rank_local,
        cx.options.validate_access_integrity
    ));
    out.text(&format!("{limit:?}"));
    if *measures_objects {
        out.text(&format!("{:?}", object_lengths(writer, state)?));
    }
    out.ranks(&cx.comm);
    out.planner_data(cx.planner_data.as_ref());
    out.declares(&cx.declares)?;
    Ok(Some(out.done()))
}

/// Whether two leaves hold one piece. Whether they contradict each other, planners decide by their data.
pub(super) fn holds_a_piece_twice(state: &FlatStateDict) -> bool {
    let mut seen = BTreeSet::new();
    state.values().any(|leaf| match leaf {
        // Cells of an array may have several leaves, whatever they hold, and empty pieces are never written.
        Sharded::Object(o) => o.is_item() && !seen.insert((&*o.key, &o.global_offset)),
        Sharded::Tensor(t) if t.region().is_empty() => false,
        Sharded::Tensor(t) => !seen.insert((&*t.key, &t.global_offset)),
    })
}

#[cfg(test)]
mod tests;
