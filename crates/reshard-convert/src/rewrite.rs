//! DCP's planner for checkpoints that are rewritten.

use crate::{keys::Keys, optimizer::Canonical, source::Source};
use reshard::{
    Checkpoint, Dialect,
    model::FlatStateDict,
    plan::{
        Annotations, DefaultSavePlanner, Metadata, PlannerData, Result, SaveContext, SavePlan,
        SavePlanner, TensorProperties, WriteKind,
    },
};
use std::sync::Arc;

/// A planner that keeps the source's nesting and tensor properties.
#[derive(Clone, Debug)]
pub(crate) struct Rewrite {
    base: DefaultSavePlanner,
    source: Arc<Metadata>,
    /// Shared by the planners of all ranks, because it is long if there are many keys.
    planner_data: Arc<Option<PlannerData>>,
    /// What the copy states beside its tensors and objects.
    annotations: Arc<Annotations>,
}

impl Rewrite {
    pub(crate) fn of(
        checkpoint: &Checkpoint,
        keys: &Keys<'_>,
        canonical: &Canonical,
        carried: &Source,
        annotations: Annotations,
    ) -> Self {
        let source = Arc::clone(checkpoint.metadata());
        let megatrons = [checkpoint.dialect(), carried.dialect].contains(&Dialect::Megatron);
        let planner_data = match (&carried.paths, source.planner_data()) {
            (Some(paths), _) => Some(paths.clone()),
            // The conversion makes these paths itself, and nobody needs them.
            _ if megatrons => None,
            (_, Some(PlannerData::Paths(paths))) => {
                let kept = paths.iter().filter(|(k, _)| keys.has(k));
                let renamed = kept.filter_map(|(k, path)| {
                    let path = canonical.path(k).unwrap_or_else(|| path.clone());
                    Some((canonical.key(k)?.into(), path))
                });
                Some(PlannerData::Paths(renamed.collect()))
            }
            (_, other) => other.cloned(),
        };
        Self {
            base: DefaultSavePlanner::DCP,
            source,
            planner_data: Arc::new(planner_data),
            annotations: Arc::new(annotations),
        }
    }
}

impl SavePlanner for Rewrite {
    fn base(&self) -> &dyn SavePlanner {
        &self.base
    }

    fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
        let mut plan = self.base.create_local_plan(state, cx)?;
        for item in &mut plan.items {
            if let (Some(from), WriteKind::Tensor(to)) =
                (self.source.tensor(&item.key), &mut item.kind)
            {
                let TensorProperties {
                    requires_grad,
                    pin_memory,
                    ..
                } = from.properties();
                // The elements are written row-major, whatever order they had.
                to.properties = TensorProperties {
                    requires_grad,
                    pin_memory,
                    ..TensorProperties::default()
                };
            }
        }
        Ok(plan)
    }

    fn create_global_plan(&self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata)> {
        let (plans, metadata) = self.base.create_global_plan(plans)?;
        Ok((
            plans,
            metadata
                .with_planner_data(Option::clone(&self.planner_data))
                .with_annotations(Annotations::clone(&self.annotations)),
        ))
    }
}
