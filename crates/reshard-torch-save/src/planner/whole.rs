//! What the planner knows, and how it refuses.

use crate::told::Asked;
use reshard_model::Path;
use reshard_plan::{PlanError, PlannerData, SavePlanner};
use reshard_policy::{Limits, ShardingPolicy};
use std::sync::Arc;

/// What is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// One file of this name.
    File(String),
    /// A folder, with one file unless a policy decides otherwise.
    Folder,
}

/// Around the planner of a save.
#[derive(Debug)]
pub(crate) struct WholeTensors {
    pub(crate) base: Arc<dyn SavePlanner>,
    pub(crate) target: Target,
    pub(crate) policy: Option<Arc<dyn ShardingPolicy>>,
    pub(crate) limits: Limits,
    pub(crate) asked: Asked,
    /// The paths of keys before a planner has renamed any.
    pub(crate) paths: Option<PlannerData>,
    pub(crate) empty: Vec<Path>,
}

pub(super) fn invalid(key: &str, what: impl Into<String>) -> PlanError {
    PlanError::Invalid {
        key: key.into(),
        what: what.into(),
    }
}

pub(super) fn unsupported(key: &str, what: impl Into<String>) -> PlanError {
    PlanError::Unsupported {
        key: key.into(),
        what: what.into(),
    }
}
