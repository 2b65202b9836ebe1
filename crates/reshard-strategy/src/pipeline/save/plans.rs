//! The local plan of a rank, and the global plan of all.

use super::resolve::Cells;
use crate::{
    Result, SaveCx, StorageWriter, StrategyError,
    pipeline::{
        exchange::Share,
        placement::{self, Offer, Tasks},
    },
};
use reshard_model::{FlatStateDict, Value};
use reshard_plan::{
    Metadata, PlannerData, SaveContext, SavePlan, paths_of_plan, save_exchange_groups,
};
use reshard_policy::{PolicyMetrics, ShardingPolicy};

/// Makes DCP's calls after these, up to the gather of the plans, in DCP's order.
pub(super) fn local_plan(
    writer: &dyn StorageWriter,
    state: &FlatStateDict,
    storage_meta: Option<&Value>,
    cx: &SaveCx<'_>,
) -> Result<SavePlan> {
    let context = SaveContext::new(cx.comm.rank().0, cx.comm.is_coordinator())
        .with_storage_meta(storage_meta);
    let mut plan = cx.planner.create_local_plan(state, &context)?;
    if !writer.object_lists() {
        Cells::of(state).one_leaf_each(state)?;
    }
    if plan.planner_data.is_none() {
        plan.planner_data = match &cx.planner_data {
            Some(PlannerData::Paths(paths)) => {
                Some(PlannerData::Paths(paths_of_plan(paths, &plan, state)))
            }
            other => other.clone(),
        };
    }
    writer.prepare_local_plan(plan)
}

/// What is decided for all ranks.
pub(super) struct Global {
    pub(super) shares: Vec<Share<SavePlan>>,
    pub(super) metadata: Metadata,
    pub(super) policy: Option<PolicyMetrics>,
}

/// Decides what each rank writes, from the offers of all ranks, or of the one rank of a rank-local save.
pub(super) fn global_plan(
    writer: &dyn StorageWriter,
    offers: Vec<Offer>,
    policy: Option<&dyn ShardingPolicy>,
    cx: &SaveCx<'_>,
) -> Result<Global> {
    let (plans, leaves) = placement::take_apart(offers);
    let (plans, mut metadata) = cx.planner.create_global_plan(plans)?;
    let first = if cx.options.rank_local {
        cx.comm.rank().0
    } else {
        0
    };
    let tasks = Tasks {
        first,
        coordinator: cx.comm.coordinator().0,
    };
    let ranks = plans.len();
    let (plans, metrics) = placement::place(
        writer,
        policy,
        plans,
        &leaves,
        &mut metadata,
        (tasks, cx.options.policy_limits),
    )?;
    let plans = writer.prepare_global_plan(plans)?;
    if plans.len() != ranks {
        let what = format!("the format made {} plans for {ranks} ranks", plans.len());
        return Err(StrategyError::Internal(what));
    }
    let shares = Share::all(plans, |plan| plan.exchange.is_empty(), save_exchange_groups)?;
    Ok(Global {
        shares,
        metadata,
        policy: metrics,
    })
}
