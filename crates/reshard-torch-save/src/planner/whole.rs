//! What the planner knows, and how it refuses.

use crate::chosen::TorchSaveWriter;
use reshard_plan::{PlanError, SavePlanner};
use std::sync::Arc;

/// Around the planner of a save.
#[derive(Debug)]
pub(crate) struct WholeTensors {
    pub(crate) base: Arc<dyn SavePlanner>,
    pub(crate) writer: TorchSaveWriter,
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
