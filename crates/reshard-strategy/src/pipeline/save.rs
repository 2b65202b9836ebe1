//! The collective part of a save: everything that is decided before a byte moves.

mod exchange;
mod prepared;
mod resolve;
mod written;

use crate::{
    BackendVersion, KeptDeclarations, PreparedSave, Result, SaveCx, SaveShardedStrategy,
    StorageWriter, StrategyError,
    agree::{self, agree},
    declared::{Heard, Told},
    pipeline::{
        exchange::{Apart, Share},
        placement::{self, Offer, Tasks},
    },
};
use async_trait::async_trait;
use prepared::{Prepared, Step, Work};
use reshard_model::FlatStateDict;
use reshard_plan::{
    Declared, Metadata, PlannerData, SaveContext, SavePlan, paths_of_plan, save_exchange_groups,
};
use reshard_policy::{PolicyMetrics, ShardingPolicy, describe, gathers};
use resolve::{Cells, codec};
use std::sync::Arc;
use written::Target;

/// What the caller keeps of declarations. Ranks that save by themselves send none.
fn kept<'a>(cx: &'a SaveCx<'_>) -> Option<&'a KeptDeclarations> {
    cx.declarations.as_deref().filter(|_| !cx.rank_local)
}

/// The save strategy of any [`StorageWriter`].
#[derive(Debug)]
pub struct Planned<W> {
    writer: Arc<W>,
}

impl<W: StorageWriter> Planned<W> {
    /// Drives `writer`.
    pub fn new(writer: W) -> Self {
        Self {
            writer: Arc::new(writer),
        }
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

    async fn prepare(
        &self,
        state: FlatStateDict,
        cx: &SaveCx<'_>,
    ) -> Result<Box<dyn PreparedSave>> {
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
        let (mut whole, mut digest) = (true, None);
        let offer = policy
            .and_then(|_| self.local_plan(&mut state, cx))
            .and_then(|plan| {
                let told;
                (told, digest) = Told::of(&*cx.planner, &state, kept(cx))?;
                whole = !matches!(told, Told::Same(_));
                Offer::new(plan, &state, asked.as_deref(), told)
            });
        // `decided` keeps the part of the global plan that only the coordinator needs.
        let mut decided = None;
        let again = || (!whole).then(|| Declared::of(&state));
        let (share, keeps) = self
            .share(offer, again, asked.as_deref(), cx, &mut decided)
            .await?;
        if let Some(kept) = kept(cx) {
            kept.arrived(digest.filter(|_| keeps));
        }
        // The last collective steps of planning. The result owns everything, so any thread can write it. An exchange has a
        // group of its own, because it runs beside the steps of the whole group.
        let Share { plan, exchange } = share;
        let plan = agree(comm, "plan", self.finish_plan(plan, cx)).await?;
        let peers = match exchange {
            None => None,
            Some(group) => Apart::of(group, comm, cx.exchange_memory).await?,
        };
        let (metadata, policy) = decided.unwrap_or_default();
        Ok(Prepared {
            writer: Arc::clone(&self.writer),
            planner: Arc::clone(&cx.planner),
            target: Target {
                transaction: Arc::clone(&cx.transaction),
                durability: cx.durability,
                progress: cx.progress.clone(),
            },
            rank: comm.rank().0,
            rank_local: cx.rank_local,
            url: cx.url.to_owned(),
            dialect: cx.dialect,
            work: Some(Work { plan, state }),
            peers,
            step: Step::Write,
            results: Vec::new(),
            heard: None,
            metadata,
            policy,
        })
    }

    /// The global plan: this rank's share of it, and whether the coordinator keeps declarations. In a rank-local save each rank makes
    /// it from its own offer; the ranks only agree that all of them succeeded.
    async fn share(
        &self,
        offer: Result<Offer>,
        again: impl FnOnce() -> Option<Declared> + Send,
        policy: Option<&dyn ShardingPolicy>,
        cx: &SaveCx<'_>,
        decided: &mut Option<(Metadata, Option<PolicyMetrics>)>,
    ) -> Result<(Share<SavePlan>, bool)> {
        let (comm, planner, kept) = (&cx.comm, &*cx.planner, kept(cx));
        let mut global = |offers, heard: Heard| {
            heard.validate(planner, kept)?;
            self.global_plan(offers, policy, cx, decided)
        };
        if cx.rank_local {
            let share = offer.and_then(|mut offer| {
                let told = std::mem::take(&mut offer.told);
                let heard = Heard::of(planner, vec![told], None)?;
                Ok(global(vec![offer], heard)?.pop())
            });
            let none = || StrategyError::Internal("a rank-local save has no plan".into());
            let share = share.and_then(|share| share.ok_or_else(none));
            return Ok((agree(comm, "plan", share).await?, false));
        }
        // The coordinator gives no shares if it does not know what a rank told in another save. Then these ranks tell it again.
        let mut waiting = None;
        let keeps = kept.is_some();
        let shares = agree::decide(comm, "plan", offer, |mut offers: Vec<Offer>| {
            let told = offers.iter_mut().map(|o| std::mem::take(&mut o.told));
            let heard = Heard::of(planner, told.collect(), kept)?;
            if !heard.is_whole() {
                let none = offers.iter().map(|_| (None, keeps)).collect();
                waiting = Some((offers, heard));
                return Ok(none);
            }
            let shares = global(offers, heard)?.into_iter();
            Ok(shares.map(|share| (Some(share), keeps)).collect())
        });
        let (share, keeps) = shares.await?;
        if let Some(share) = share {
            return Ok((share, keeps));
        }
        let share = agree::decide(comm, "plan", Ok(again()), |again: Vec<Option<Declared>>| {
            let lost = || StrategyError::Internal("a plan has lost its offers".into());
            let (offers, heard) = waiting.take().ok_or_else(lost)?;
            global(offers, heard.and(again))
        });
        Ok((share.await?, keeps))
    }

    /// Calls the planner's `finish_plan`. It may change anything except the exchange and the items that other ranks give, because
    /// other ranks rely on these.
    fn finish_plan(&self, plan: SavePlan, cx: &SaveCx<'_>) -> Result<SavePlan> {
        let agreed = plan.exchange.clone();
        let taken: Vec<_> = plan
            .taken_items()?
            .into_iter()
            .map(|(_, item)| item.clone())
            .collect();
        let plan = cx.planner.finish_plan(plan)?;
        let items = plan.taken_items()?.into_iter().map(|(_, item)| item);
        if plan.exchange != agreed || !items.eq(&taken) {
            let what = "a planner's finish_plan must not change an exchange, because other ranks rely on it";
            return Err(StrategyError::Invalid(what.into()));
        }
        plan.by_file()?;
        let mut exchanged = agreed.gives.iter().map(|give| &give.item).chain(&taken);
        if exchanged.any(|item| item.tensor().is_none()) {
            codec(&*self.writer)?;
        }
        Ok(plan)
    }

    /// The policy of the save, or else the policy in the format's configuration.
    fn policy(&self, cx: &SaveCx<'_>) -> Result<Option<Arc<dyn ShardingPolicy>>> {
        let configured = self.writer.policy();
        let Some(policy) = &cx.policy else {
            return Ok(configured);
        };
        let strategy = self.writer.key().to_string();
        if !self.writer.takes_policy() {
            return Err(StrategyError::Unsupported {
                strategy,
                what: "a sharding policy".into(),
            });
        }
        if let Some(other) = configured {
            return Err(StrategyError::Invalid(format!(
                "the settings of {strategy} have the policy \"{}\", and the save has the policy \"{}\"; leave one of them out, or combine them with `Then`",
                describe(&*other)?,
                describe(&**policy)?
            )));
        }
        if cx.rank_local && gathers(&**policy)? {
            return Err(StrategyError::Invalid(format!(
                "the policy \"{}\" brings all items to one rank, which is not possible in a rank-local save",
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
        decided: &mut Option<(Metadata, Option<PolicyMetrics>)>,
    ) -> Result<Vec<Share<SavePlan>>> {
        let (plans, leaves) = placement::take_apart(offers);
        let (plans, mut metadata) = cx.planner.create_global_plan(plans)?;
        let first = if cx.rank_local { cx.comm.rank().0 } else { 0 };
        let tasks = Tasks {
            first,
            coordinator: cx.comm.coordinator().0,
        };
        let ranks = plans.len();
        let (plans, metrics) = placement::place(
            policy,
            plans,
            &leaves,
            &mut metadata,
            tasks,
            cx.policy_limits,
        )?;
        let plans = self.writer.prepare_global_plan(plans)?;
        *decided = Some((metadata, metrics));
        if plans.len() != ranks {
            let what = format!("the format made {} plans for {ranks} ranks", plans.len());
            return Err(StrategyError::Internal(what));
        }
        Share::all(plans, |plan| plan.exchange.is_empty(), save_exchange_groups)
    }
}
