//! What a save has chosen: its writer, before it plans or writes anything.

use crate::{names::WEIGHTS, told::Asked};
use reshard_model::Path;
use reshard_plan::PlannerData;
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

/// Writes files of `torch.save`.
#[derive(Clone, Debug)]
pub(crate) struct TorchSaveWriter {
    pub(crate) target: Target,
    /// The policy that the planner calls.
    pub(crate) policy: Option<Arc<dyn ShardingPolicy>>,
    pub(crate) limits: Limits,
    pub(crate) asked: Asked,
    /// The paths of keys before a planner has renamed any.
    pub(crate) paths: Option<PlannerData>,
    pub(crate) empty: Vec<Path>,
}

impl TorchSaveWriter {
    /// The name of the file, or of the only file of a folder.
    pub(crate) fn file_name(&self) -> &str {
        match &self.target {
            Target::File(name) => name,
            Target::Folder => WEIGHTS,
        }
    }
}
