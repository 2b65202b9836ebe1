//! A planner around the planner of a save: pieces are cut where chunks of the array end, and each chunk gets one writing rank.

mod chunks;
mod shapes;

use crate::{names::ZARR_JSON, version::Form, zarray};
use chunks::by_chunks;
use reshard_model::FlatStateDict;
use reshard_plan::{Metadata, PlanError, Result, SaveContext, SavePlan, SavePlanner, WriteItem};
use reshard_storage::Name;
use std::sync::Arc;

pub(crate) use shapes::{ChunkShapes, grid_of};

/// Around the planner of a save.
#[derive(Debug)]
pub(crate) struct ByChunks {
    pub(crate) base: Arc<dyn SavePlanner>,
    pub(crate) form: Form,
}

impl SavePlanner for ByChunks {
    fn base(&self) -> &dyn SavePlanner {
        &*self.base
    }

    fn plan_settings(&self) -> Option<String> {
        let base = self.base.plan_settings()?;
        Some(format!(
            "by chunks of {:?} around {:?} {base}",
            self.form,
            (*self.base).type_id()
        ))
    }

    fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
        let mut plan = self.base.create_local_plan(state, cx)?;
        for item in &plan.items {
            storable(item, self.form)?;
        }
        plan.storage_data = ChunkShapes::declared(&plan.items, state).pack()?;
        Ok(plan)
    }

    fn create_global_plan(&self, mut plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata)> {
        let mut declared = ChunkShapes::default();
        for plan in &mut plans {
            let of_rank = ChunkShapes::unpack(&std::mem::take(&mut plan.storage_data))?;
            for (key, chunk) in of_rank.0 {
                // The lowest rank counts.
                declared.0.entry(key).or_insert(chunk);
            }
        }
        let (plans, metadata) = self.base.create_global_plan(plans)?;
        by_chunks(plans, metadata, &declared, self.form)
    }
}

/// Fails for what can't be stored in an array.
fn storable(item: &WriteItem, form: Form) -> Result<()> {
    let unsupported = |what: String| PlanError::Unsupported {
        key: item.key.to_string(),
        what,
    };
    let Some(t) = item.tensor() else {
        let what = "a zarr checkpoint holds no objects in this dialect; save only tensors, or choose another format";
        return Err(unsupported(what.into()));
    };
    if (form.version().spelling)(t.dtype).is_none() {
        let what = format!(
            "the format {} has no name for {}; cast the tensor, or choose another format",
            form.version().info.key(),
            t.dtype
        );
        return Err(unsupported(what));
    }
    if t.region.ndim() > zarray::MAX_AXES {
        let what = format!(
            "it has {} axes, and an array has at most {}",
            t.region.ndim(),
            zarray::MAX_AXES
        );
        return Err(unsupported(what));
    }
    if item.key.split('/').next() == Some(form.version().record) {
        let what = format!(
            "{} is the name of a file of the checkpoint",
            form.version().record
        );
        return Err(unsupported(what));
    }
    if matches!(form, Form::V3 { .. }) && item.key.split('/').any(|part| part == ZARR_JSON) {
        let what = format!("{} is the name of a description", ZARR_JSON);
        return Err(unsupported(what));
    }
    match Name::new(&*item.key) {
        Ok(_) => Ok(()),
        Err(e) => Err(unsupported(format!(
            "an array lies in a folder that is named like its key, and {e}"
        ))),
    }
}
