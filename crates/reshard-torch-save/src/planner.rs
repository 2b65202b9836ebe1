//! A planner around the planner of a save: each file gets one writing rank, which gets all pieces of its tensors.

mod files;
mod whole;

pub(crate) use whole::WholeTensors;

use crate::{
    chosen::TorchSaveWriter,
    told::{Told, pack, unpack},
};
use files::assign;
use reshard_model::{FlatStateDict, Step};
use reshard_plan::{
    Metadata, PlanError, PlannerData, Result, SaveContext, SavePlan, SavePlanner, WriteItem,
};
use reshard_policy::describe;
use std::collections::BTreeSet;
use whole::{invalid, unsupported};

impl SavePlanner for WholeTensors {
    fn base(&self) -> &dyn SavePlanner {
        &*self.base
    }

    fn plan_settings(&self) -> Option<String> {
        let base = self.base.plan_settings()?;
        let TorchSaveWriter { target, empty, .. } = &self.writer;
        let policy = match &self.writer.policy {
            Some(policy) => Some(policy.plan_settings()?),
            None => None,
        };
        let of = self.base.name();
        Some(format!(
            "whole tensors in {target:?} by {policy:?} with {empty:?} around {of} {base}"
        ))
    }

    fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
        let mut plan = self.base.create_local_plan(state, cx)?;
        plan.items.iter().try_for_each(storable)?;
        let mut told = Told {
            policy: self.described()?,
            ..Told::default()
        };
        for item in &plan.items {
            let ints = self.ints(item, state, plan.planner_data.as_ref());
            if !ints.is_empty() {
                told.ints.insert(item.key.clone(), ints);
            }
        }
        plan.storage_data = pack(&told)?;
        Ok(plan)
    }

    fn create_global_plan(&self, mut plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata)> {
        let (mut all, mine) = (Told::default(), self.described()?);
        for (rank, plan) in plans.iter_mut().enumerate() {
            let told: Told = unpack(&std::mem::take(&mut plan.storage_data))?;
            if told.policy != mine {
                let what = format!(
                    "rank {rank} was given {}, but the coordinator {}; give all ranks the same",
                    named(told.policy.as_deref()),
                    named(mine.as_deref())
                );
                return Err(invalid("", what));
            }
            for (key, ints) in told.ints {
                all.ints.entry(key).or_insert(ints);
            }
        }
        let (plans, metadata) = self.base.create_global_plan(plans)?;
        let plans = assign(&self.writer, &all, plans, &metadata)?;
        Ok((plans, metadata))
    }
}

impl WholeTensors {
    fn described(&self) -> Result<Option<String>> {
        let described = self.writer.policy.as_deref().map(describe).transpose();
        described.map_err(PlanError::planner)
    }

    /// Which steps of an item's path are int keys of dicts: those that the state has as numbers, and the path of the key as text.
    fn ints(
        &self,
        item: &WriteItem,
        state: &FlatStateDict,
        own: Option<&PlannerData>,
    ) -> BTreeSet<u16> {
        let Some((path, leaf)) = state.get_index(item.source as usize) else {
            return BTreeSet::new();
        };
        let known = match own {
            Some(own) => own.path(&item.key),
            None => {
                let all = self.writer.paths.as_ref();
                all.and_then(|all| all.path(&leaf.unique_key()))
            }
        };
        let Some(known) = known.filter(|known| known.0.len() == path.0.len()) else {
            return BTreeSet::new();
        };
        let steps = (0u16..).zip(path.0.iter().zip(&known.0));
        let ints = steps.filter(|(_, both)| matches!(both, (Step::Index(_), Step::Key(_))));
        ints.map(|(n, _)| n).collect()
    }
}

fn named(policy: Option<&str>) -> String {
    policy.map_or("no policy".into(), |p| format!("the policy \"{p}\""))
}

/// Fails for what a file of `torch.save` can't hold.
fn storable(item: &WriteItem) -> Result<()> {
    match item.tensor().and_then(|t| t.original_shape.as_ref()) {
        None => Ok(()),
        Some(_) => {
            let what = "it is a part of a flattened tensor, and a file of torch.save holds whole tensors; choose another format";
            Err(unsupported(&item.key, what))
        }
    }
}
