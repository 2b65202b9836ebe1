//! Sharded objects of a strategy that handles none: the common strategy does.

mod load;
mod save;

pub use load::load_with_objects;
pub use save::save_with_objects;

use crate::{BackendVersion, StrategyError};
use indexmap::IndexMap;
use reshard_model::{FlatStateDict, Path, Sharded};

/// Objects, and tensors; each in the order of the state.
fn part(state: FlatStateDict) -> (FlatStateDict, FlatStateDict) {
    state.into_iter().partition(|(_, leaf)| matches!(leaf, Sharded::Object(_)))
}

/// Both again, in the order of `paths`; what came to them meanwhile goes behind.
fn join(paths: &[Path], objects: FlatStateDict, tensors: FlatStateDict) -> FlatStateDict {
    let mut parts: IndexMap<Path, Sharded> = objects.into_iter().chain(tensors).collect();
    let mut out = FlatStateDict::with_capacity(parts.len());
    out.extend(paths.iter().filter_map(|path| parts.swap_remove_entry(path)));
    out.extend(parts);
    out
}

/// Nobody handles this object.
fn nobody(
    doing: &str,
    key: &str,
    sharded: &BackendVersion,
    common: Option<&BackendVersion>,
) -> StrategyError {
    let strategy = match common {
        Some(common) => format!("{sharded}, nor by {common}, which has the common state"),
        None => format!("{sharded}, and there is no common strategy that could do it"),
    };
    StrategyError::Unsupported { strategy, what: format!("{doing} the sharded object {key}") }
}
