//! The collective part of a save: everything that is decided before a byte moves.

mod branch;
mod exchange;
mod limit;
mod local;
mod plans;
mod prepared;
mod resolve;
mod share;
mod structure;
mod written;

pub use prepared::PreparedSave;

use crate::{
    PolicyUse, Result, SaveCx, StorageWriter, StrategyError,
    agree::agree,
    kept::Decided,
    pipeline::exchange::{Apart, Share},
};
use branch::{Branch, Step, Work};
use limit::{Asked, SizeLimit};
use local::Local;
use reshard_model::{FlatStateDict, Value};
use reshard_plan::{SaveContext, SavePlan};
use reshard_policy::{PolicyMetrics, ShardingPolicy, describe, gathers, max_file_bytes};
use resolve::codec;
use share::{Shared, share};
use std::{sync::Arc, time::Duration};
use structure::structure;
use written::Target;

/// Decides what each rank writes with one writer.
///
/// # Collective
/// Every rank calls it, also a rank that could not make its writer. If one rank fails, all ranks get an error that names it.
pub(crate) async fn plan_branch(
    writer: Result<Arc<dyn StorageWriter>>,
    takes_folder: bool,
    mut state: FlatStateDict,
    cx: &SaveCx<'_>,
) -> Result<Branch> {
    let guard = cx.comm.guard("planning a save");
    let mut cx = cx.clone();
    let planned = match writer.and_then(|writer| Ready::new(writer, &mut state, &mut cx)) {
        Ok(ready) => ready.plan(state, takes_folder, &cx).await,
        // A rank that fails still takes the step `plan`, so that all ranks learn it.
        Err(e) => match share(Err(e), &cx).await {
            Err(e) => Err(e),
            Ok(_) => Err(StrategyError::Internal("a failure was lost".into())),
        },
    };
    // If a rank failed, all ranks have learnt it in a step, so the group stays usable.
    guard.done();
    planned
}

/// A rank after its set-up.
struct Ready {
    writer: Arc<dyn StorageWriter>,
    asked: Asked,
    storage_meta: Option<Value>,
}

impl Ready {
    /// Makes DCP's first calls, which every save needs. The context gets the planner of the format.
    fn new(
        writer: Arc<dyn StorageWriter>,
        state: &mut FlatStateDict,
        cx: &mut SaveCx<'_>,
    ) -> Result<Self> {
        cx.planner = writer.planner(Arc::clone(&cx.planner))?;
        let asked = asked(&*writer, cx)?;
        let (rank, is_coordinator) = (cx.comm.rank().0, cx.comm.is_coordinator());
        writer.reset(cx.url);
        let storage_meta = writer.storage_meta();
        let context =
            SaveContext::new(rank, is_coordinator).with_storage_meta(storage_meta.as_ref());
        cx.planner.set_up(state, &context)?;
        writer.set_up(rank, is_coordinator)?;
        Ok(Self {
            writer,
            asked,
            storage_meta,
        })
    }

    fn local<'a>(&'a self, state: &'a FlatStateDict, cx: &'a SaveCx<'a>) -> Result<Local<'a>> {
        let kept = cx.kept_plan.as_deref();
        let structure = match kept {
            Some(_) => structure(&*self.writer, &self.asked, state, cx)?,
            None => None,
        };
        Ok(Local {
            writer: &*self.writer,
            state,
            cx,
            policy: self.asked.policy.as_deref(),
            measures_objects: self.asked.measures_objects,
            storage_meta: self.storage_meta.clone(),
            known: kept.and_then(|kept| kept.known(structure.as_ref()?)),
            structure,
        })
    }

    /// Decides everything that must be decided before a byte is written.
    async fn plan(
        self,
        state: FlatStateDict,
        takes_folder: bool,
        cx: &SaveCx<'_>,
    ) -> Result<Branch> {
        let comm = &cx.comm;
        let kept = cx.kept_plan.as_deref();
        // What was decided for this structure before, or is decided now.
        // For a plan that is known nobody asks the policy.
        let mut asking_took = None;
        let decided = match share(self.local(&state, cx), cx).await? {
            Shared::Known(decided) => {
                if cx.options.rank_local {
                    agree(comm, "plan", Ok(())).await?;
                }
                if let Some(kept) = kept {
                    kept.used();
                }
                asking_took = Some(Duration::ZERO);
                decided
            }
            Shared::New {
                share,
                metadata,
                policy,
                keep,
            } => {
                let Share { plan, exchange } = *share;
                let plan = agree(comm, "plan", finish_plan(&*self.writer, plan, cx)).await?;
                let decided = Arc::new(Decided {
                    plan: Arc::new(plan),
                    exchange,
                    metadata,
                    policy,
                });
                if let (Some(kept), Some((structure, of_all))) = (kept, keep) {
                    kept.keep(structure, of_all, &decided);
                }
                decided
            }
        };

        // The last collective step of planning. The result owns everything, so any thread can write it. An exchange has a
        // group of its own, because it runs beside the steps of the whole group.
        let peers = match decided.exchange {
            Some(group) if !cx.options.dry_run => {
                Apart::of(group, comm, cx.options.exchange_memory).await?
            }
            _ => None,
        };
        Ok(Branch {
            target: target(takes_folder, self.asked.limit, cx),
            writer: self.writer,
            planner: Arc::clone(&cx.planner),
            rank: comm.rank().0,
            options: cx.options.clone(),
            url: cx.url.to_owned(),
            work: Some(Work {
                plan: Arc::clone(&decided.plan),
                state,
            }),
            peers,
            step: Step::Write,
            results: Vec::new(),
            heard: None,
            metadata: Arc::clone(&decided.metadata),
            policy: decided
                .policy
                .clone()
                .or(self.asked.of_one_file)
                .map(|mut metrics| {
                    metrics.duration = asking_took.unwrap_or(metrics.duration);
                    metrics
                }),
        })
    }
}

/// Where this rank writes its files.
fn target(takes_folder: bool, limit: Option<SizeLimit>, cx: &SaveCx<'_>) -> Target {
    Target {
        transaction: Arc::clone(&cx.transaction),
        durability: cx.options.durability,
        progress: cx.options.progress.clone(),
        folder: takes_folder.then(|| cx.transaction.folder()).flatten(),
        limit,
        copy_ahead: cx.options.copy_ahead,
    }
}

/// Calls the planner's `finish_plan`. It may change anything except the exchange and the items that other ranks give, because
/// other ranks rely on these.
fn finish_plan(writer: &dyn StorageWriter, plan: SavePlan, cx: &SaveCx<'_>) -> Result<SavePlan> {
    let agreed = plan.exchange.clone();
    let taken: Vec<_> = plan
        .taken_items()?
        .into_iter()
        .map(|(_, item)| item.clone())
        .collect();
    let plan = cx.planner.finish_plan(plan)?;
    let items = plan.taken_items()?.into_iter().map(|(_, item)| item);
    if plan.exchange != agreed || !items.eq(&taken) {
        let what =
            "a planner's finish_plan must not change an exchange, because other ranks rely on it";
        return Err(StrategyError::Invalid(what.into()));
    }
    plan.by_file()?;
    let mut exchanged = agreed.gives.iter().map(|give| &give.item).chain(&taken);
    if exchanged.any(|item| item.tensor().is_none()) {
        codec(writer)?;
    }
    Ok(plan)
}

/// The policy of the save, or else the policy in the format's configuration.
fn asked(writer: &dyn StorageWriter, cx: &SaveCx<'_>) -> Result<Asked> {
    let (configured, takes) = (writer.policy(), writer.policy_use());
    let Some(policy) = &cx.policy else {
        return Ok(Asked {
            limit: configured.as_deref().map(limit).transpose()?.flatten(),
            policy: configured,
            ..Asked::default()
        });
    };
    let strategy = writer.key().to_string();
    let limit = limit(&**policy)?;
    if takes == PolicyUse::Format {
        return Ok(Asked {
            limit,
            ..Asked::default()
        });
    }
    if let (PolicyUse::Limit, Some(limit)) = (takes, limit) {
        return Ok(Asked {
            limit: Some(SizeLimit {
                is_one_file: true,
                ..limit
            }),
            of_one_file: Some(PolicyMetrics::of_one_file(describe(&**policy)?)),
            ..Asked::default()
        });
    }
    if takes != PolicyUse::Pipeline {
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
    if cx.options.rank_local && gathers(&**policy)? {
        return Err(StrategyError::Invalid(format!(
            "the policy \"{}\" brings all items to one rank, which is not possible in a rank-local save",
            describe(&**policy)?
        )));
    }
    Ok(Asked {
        policy: Some(Arc::clone(policy)),
        limit,
        measures_objects: true,
        of_one_file: None,
    })
}

/// The limit of a policy on the length of files.
fn limit(policy: &dyn ShardingPolicy) -> Result<Option<SizeLimit>> {
    let bytes = max_file_bytes(policy)?;
    Ok(bytes.map(|bytes| SizeLimit {
        bytes,
        is_one_file: false,
    }))
}
