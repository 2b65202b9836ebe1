//! The planner of a save, around another one.

use crate::{
    place::{Empty, Files},
    texts, torchao,
};
use reshard_plan::{Metadata, PlanError, SavePlan, SavePlanner};
use std::sync::Arc;

/// Puts facts of the global metadata into the data of the first plan, because the writer needs them before its first file: tensors without
/// elements, which have no items, and texts.
#[derive(Debug)]
pub(crate) struct WithEmpty {
    pub(crate) base: Arc<dyn SavePlanner>,
}

impl SavePlanner for WithEmpty {
    fn base(&self) -> &dyn SavePlanner {
        &*self.base
    }

    fn plan_settings(&self) -> Option<String> {
        let base = self.base.plan_settings()?;
        let of = self.base.name();
        Some(format!("with empty tensors around {of} {base}"))
    }

    fn create_global_plan(
        &self,
        plans: Vec<SavePlan>,
    ) -> reshard_plan::Result<(Vec<SavePlan>, Metadata)> {
        let (mut plans, metadata) = self.base.create_global_plan(plans)?;
        let empty = metadata.tensors().filter(|t| t.shape().contains(&0));
        let empty = empty.map(|t| Empty {
            key: t.key().into(),
            dtype: t.dtype(),
            shape: t.shape(),
        });
        let mut texts = texts::of_all_files(metadata.annotations());
        texts.extend(torchao::texts(&metadata)?);
        let files = Files {
            empty: empty.collect(),
            texts,
            ..Files::default()
        };
        if let Some(first) = plans.first_mut() {
            first.storage_data = files.pack().map_err(PlanError::planner)?;
        }
        Ok((plans, metadata))
    }
}
