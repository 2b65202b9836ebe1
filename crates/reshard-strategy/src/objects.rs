//! Handles sharded objects with the common strategy, if the sharded strategy handles none.

mod load;
mod save;

pub(crate) use load::{load, open};
pub(crate) use save::prepare;

use crate::{BackendVersion, StrategyError};
use indexmap::IndexMap;
use reshard_model::{FlatStateDict, Path, Sharded};

/// Separates objects and tensors, each in the order of the state.
fn part(state: FlatStateDict) -> (FlatStateDict, FlatStateDict) {
    state
        .into_iter()
        .partition(|(_, leaf)| matches!(leaf, Sharded::Object(_)))
}

/// Joins both again, in the order of `paths`. Leaves that were added meanwhile come last.
fn join(paths: &[Path], objects: FlatStateDict, tensors: FlatStateDict) -> FlatStateDict {
    let mut parts: IndexMap<Path, Sharded> = objects.into_iter().chain(tensors).collect();
    let mut out = FlatStateDict::with_capacity(parts.len());
    out.extend(
        paths
            .iter()
            .filter_map(|path| parts.swap_remove_entry(path)),
    );
    out.extend(parts);
    out
}

/// The error for an object that no strategy handles. `doing` is `storing` or `loading`.
fn nobody(
    doing: &str,
    key: &str,
    advice: Option<&str>,
    sharded: &BackendVersion,
    common: Option<&BackendVersion>,
) -> StrategyError {
    let strategy = match common {
        Some(common) => format!("{sharded}, nor by {common}, which stores the common state"),
        None => format!("{sharded}, and there is no common strategy that could"),
    };
    StrategyError::Unsupported {
        strategy,
        what: match advice {
            Some(advice) => format!("{doing} the sharded object {key} ({advice})"),
            None => format!("{doing} the sharded object {key}"),
        },
    }
}
