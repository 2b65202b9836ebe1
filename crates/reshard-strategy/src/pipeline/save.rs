//! The collective part of a save: everything that is decided before a byte moves.

mod prepared;
mod resolve;

use crate::{
    BackendVersion, PreparedSave, Result, SaveCx, SaveShardedStrategy, StorageWriter, StrategyError,
    agree::{self, agree},
    pipeline::{
        gather,
        placement::{self, Offer, Placement, Share, Tasks},
    },
};
use async_trait::async_trait;
use prepared::{Prepared, Step, Work};
use reshard_model::FlatStateDict;
use reshard_plan::{Metadata, PlannerData, SaveContext, SavePlan, WriteItem, paths_of_plan};
use reshard_policy::{ShardingPolicy, describe, gathers};
use resolve::{Cells, Resolver};
use std::sync::Arc;

/// The save strategy of any [`StorageWriter`].
#[derive(Debug)]
pub struct Planned<W> {
    writer: Arc<W>,
}

impl<W: StorageWriter> Planned<W> {
    /// Drives `writer`.
    pub fn new(writer: W) -> Self {
        Self { writer: Arc::new(writer) }
    }
}

#[async_trait]
impl<W: StorageWriter> SaveShardedStrategy for Planned<W> {
    fn key(&self) -> BackendVersion {
        self.writer.key()
    }

    fn can_handle_sharded_objects(&self) -> bool {
        self.writer.can_handle_sharded_objects()
    }

    async fn prepare(&self, state: FlatStateDict, cx: &SaveCx<'_>) -> Result<Box<dyn PreparedSave>> {
        let guard = cx.comm.guard("planning a save");
        let planned = self.plan(state, cx).await;
        // If a rank failed, all ranks have learnt it in a step, so the group stays usable.
        guard.done();
        Ok(Box::new(planned?))
    }
}

impl<W: StorageWriter> Planned<W> {
    /// Decides everything that must be decided before a byte is written.
    async fn plan(&self, mut state: FlatStateDict, cx: &SaveCx<'_>) -> Result<Prepared<W>> {
        let comm = &cx.comm;
        // What this rank offers, or its error: a rank that fails still takes the step `plan`, so that all ranks learn it.
        let policy = self.policy(cx);
        let asked = policy.as_ref().ok().cloned().flatten();
        let offer = policy
            .and_then(|_| self.local_plan(&mut state, cx))
            .and_then(|p| Offer::new(p, &state, asked.as_deref()));
        let resolver =
            Resolver { writer: Arc::clone(&self.writer), planner: Arc::clone(&cx.planner), own: state.len() };
        // The global plan. In a rank-local save each rank makes it from its own offer; the ranks only agree that all of
        // them succeeded. Otherwise the coordinator makes it, and `decided` keeps the part that only it needs.
        let mut decided = None;
        let Share { plan, to_coordinator, give } = if cx.rank_local {
            let share =
                offer.and_then(|o| Ok(self.global_plan(vec![o], asked.as_deref(), cx, &mut decided)?.pop()));
            agree(comm, "plan", share).await?.unwrap_or_default()
        } else {
            agree::decide(comm, "plan", offer, |offers| {
                self.global_plan(offers, asked.as_deref(), cx, &mut decided)
            })
            .await?
        };
        // If a policy wants all items on the coordinator, they are brought there now. The plan already refers to them as
        // leaves after the coordinator's own.
        let (metadata, placement) = decided.unwrap_or_default();
        if to_coordinator {
            let cells = Cells::of(&state);
            let mut brought = FlatStateDict::new();
            let resolve = |item: &WriteItem| resolver.resolve(item, &state, &cells);
            gather::bring(comm, &*self.writer, &give, &resolve, &placement.taken, &mut brought).await?;
            state.extend(brought);
        }
        // The last collective step of planning. The result owns everything, so any thread can write it.
        let finished = cx.planner.finish_plan(plan).map_err(StrategyError::from);
        let plan = agree(comm, "plan", finished).await?;
        Ok(Prepared {
            resolver,
            transaction: Arc::clone(&cx.transaction),
            durability: cx.durability,
            progress: cx.progress.clone(),
            rank: comm.rank().0,
            rank_local: cx.rank_local,
            url: cx.url.to_owned(),
            dialect: cx.dialect,
            work: Some(Work { plan, state }),
            step: Step::Write,
            results: Vec::new(),
            metadata,
            policy: placement.metrics,
        })
    }

    /// The policy of the save, or else the policy in the format's configuration.
    fn policy(&self, cx: &SaveCx<'_>) -> Result<Option<Arc<dyn ShardingPolicy>>> {
        let configured = self.writer.policy();
        let Some(policy) = &cx.policy else { return Ok(configured) };
        let strategy = self.writer.key().to_string();
        if !self.writer.takes_policy() {
            return Err(StrategyError::Unsupported { strategy, what: "a sharding policy".into() });
        }
        if let Some(other) = configured {
            return Err(StrategyError::Invalid(format!(
                "the settings of {strategy} say \"{}\" and the save's policy says \"{}\"; leave one of them, or combine policies by `Then`",
                describe(&*other)?,
                describe(&**policy)?
            )));
        }
        if cx.rank_local && gathers(&**policy)? {
            return Err(StrategyError::Invalid(format!(
                "the policy \"{}\" brings all items to one rank, which ranks that save without each other can't do",
                describe(&**policy)?
            )));
        }
        Ok(Some(Arc::clone(policy)))
    }

    /// Makes DCP's calls up to the gather of the plans, in DCP's order.
    fn local_plan(&self, state: &mut FlatStateDict, cx: &SaveCx<'_>) -> Result<SavePlan> {
        let (rank, is_coordinator) = (cx.comm.rank().0, cx.comm.is_coordinator());
        self.writer.reset(cx.url);
        let meta = self.writer.storage_meta();
        let context = SaveContext::new(rank, is_coordinator).with_storage_meta(meta.as_ref());
        cx.planner.set_up(state, &context)?;
        self.writer.set_up(rank, is_coordinator)?;
        let mut plan = cx.planner.create_local_plan(state, &context)?;
        if !self.writer.object_lists() {
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
        self.writer.prepare_local_plan(plan)
    }

    /// Decides what each rank writes, from the offers of all ranks, or of the one rank of a rank-local save.
    fn global_plan(
        &self,
        offers: Vec<Offer>,
        policy: Option<&dyn ShardingPolicy>,
        cx: &SaveCx<'_>,
        decided: &mut Option<(Metadata, Placement)>,
    ) -> Result<Vec<Share>> {
        let (plans, leaves) = placement::take_apart(offers);
        let (plans, mut metadata) = cx.planner.create_global_plan(plans)?;
        let first = if cx.rank_local { cx.comm.rank().0 } else { 0 };
        let tasks = Tasks { first, coordinator: cx.comm.coordinator().0 };
        let (mut shares, placement) =
            placement::place(policy, plans, &leaves, &mut metadata, tasks, cx.policy_limits)?;
        let plans = shares.iter_mut().map(|s| std::mem::take(&mut s.plan)).collect();
        let plans = self.writer.prepare_global_plan(plans)?;
        *decided = Some((metadata, placement));
        if plans.len() != shares.len() {
            let what = format!("the format made {} plans for {} ranks", plans.len(), shares.len());
            return Err(StrategyError::Internal(what));
        }
        for (share, plan) in shares.iter_mut().zip(plans) {
            share.plan = plan;
        }
        Ok(shares)
    }
}
