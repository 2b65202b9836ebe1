//! The planners of PyTorch's page, as the documentation of `reshard-plan` has them. What they save is loaded by PyTorch, and
//! the other way round.

use reshard::{
    DType, Data, ShardedObject, ShardedTensor, Tensor,
    model::{FlatStateDict, Sharded},
    plan::{
        DefaultSavePlanner, LoadContext, LoadPlanner, Metadata, PlannerData, Result, SaveContext,
        SavePlan, SavePlanner, WriteData, WriteItem, WriteKind,
    },
};

/// A planner to save with.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Saving {
    Rename,
    Fp16,
    Ddp,
    Extra,
}

/// A planner to load with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Loading {
    Rename,
    Materialize,
}

/// Keys get a prefix.
#[derive(Debug)]
pub(crate) struct RenamePlanner;

impl SavePlanner for RenamePlanner {
    fn base(&self) -> &dyn SavePlanner {
        &DefaultSavePlanner::DCP
    }

    fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
        let mut plan = self.base().create_local_plan(state, cx)?;
        plan.items
            .iter_mut()
            .for_each(|item| item.key = format!("foo_{}", item.key).into());
        Ok(plan)
    }
}

/// What was saved under other keys is read into the leaves that have the old ones.
#[derive(Debug)]
pub(crate) struct RenamedPlanner;

impl LoadPlanner for RenamedPlanner {
    fn set_up(&self, template: &mut FlatStateDict, _: &LoadContext<'_>) -> Result<()> {
        for leaf in template.values_mut() {
            let (Sharded::Tensor(ShardedTensor { key, .. })
            | Sharded::Object(ShardedObject { key, .. })) = leaf;
            *key = format!("foo_{key}").into();
        }
        Ok(())
    }
}

/// All tensors are stored as float16.
#[derive(Debug)]
pub(crate) struct FP16Planner;

impl SavePlanner for FP16Planner {
    fn base(&self) -> &dyn SavePlanner {
        &DefaultSavePlanner::DCP
    }

    fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
        let mut plan = self.base().create_local_plan(state, cx)?;
        for item in &mut plan.items {
            if let WriteKind::Tensor(t) = &mut item.kind {
                t.dtype = DType::Float16;
            }
        }
        Ok(plan)
    }

    fn transform_object(&self, item: &WriteItem, data: WriteData) -> Result<WriteData> {
        Ok(match self.base().transform_object(item, data)? {
            WriteData::Tensor(Data::Host(t)) => WriteData::Tensor(t.cast(DType::Float16)?.into()),
            other => other,
        })
    }
}

/// What all ranks have equally is dealt out in turns.
#[derive(Debug)]
pub(crate) struct DDPLoadBalancingPlanner;

impl SavePlanner for DDPLoadBalancingPlanner {
    fn base(&self) -> &dyn SavePlanner {
        &DefaultSavePlanner::DCP
    }

    fn create_global_plan(&self, mut plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata)> {
        let items = std::mem::take(&mut plans[0].items);
        let ranks = plans.len();
        plans.iter_mut().for_each(|p| p.items.clear());
        items
            .into_iter()
            .enumerate()
            .for_each(|(i, item)| plans[i % ranks].items.push(item));
        self.base().create_global_plan(plans)
    }
}

/// Every rank says something, and the checkpoint keeps it.
#[derive(Debug)]
pub(crate) struct SaveExtraDataPlanner;

impl SavePlanner for SaveExtraDataPlanner {
    fn base(&self) -> &dyn SavePlanner {
        &DefaultSavePlanner::DCP
    }

    fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
        let plan = self.base().create_local_plan(state, cx)?;
        Ok(plan.with_planner_data(PlannerData::Str("per-rank-data".into())))
    }

    fn create_global_plan(&self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata)> {
        let (plans, metadata) = self.base().create_global_plan(plans)?;
        let all = plans
            .iter()
            .filter_map(|p| p.planner_data.clone())
            .collect();
        Ok((
            plans,
            metadata.with_planner_data(Some(PlannerData::List(all))),
        ))
    }
}

/// A template without memory gets it from the planner.
#[derive(Debug)]
pub(crate) struct MetaModelMaterialize;

impl LoadPlanner for MetaModelMaterialize {
    fn set_up(&self, template: &mut FlatStateDict, cx: &LoadContext<'_>) -> Result<()> {
        self.base().set_up(template, cx)?;
        for leaf in template.values_mut() {
            if let Sharded::Tensor(t) = leaf {
                t.data = Tensor::zeros(&t.key, t.dtype, &t.local_shape)?.into();
            }
        }
        Ok(())
    }
}
