//! The collective part of a save: everything that is decided before a byte moves.

mod exchange;
mod limit;
mod local;
mod plans;
mod prepared;
mod resolve;
mod share;
mod structure;
mod written;

use crate::{
    BackendVersion, Capabilities, PreparedSave, Result, SaveCx, SaveShardedStrategy, StorageWriter,
    StrategyError,
    agree::agree,
    kept::{Decided, Known},
    pipeline::exchange::{Apart, Share},
};
use async_trait::async_trait;
use limit::{Asked, SizeLimit};
use local::Local;
use prepared::{Prepared, Step, Work};
use reshard_model::{FlatStateDict, Value};
use reshard_plan::{SaveContext, SavePlan};
use reshard_policy::{PolicyMetrics, describe, gathers, max_file_bytes};
use resolve::codec;
use share::{Shared, share};
use std::{sync::Arc, time::Duration};
use structure::structure;
use written::Target;

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

    fn capabilities(&self) -> Capabilities {
        let lists = self.writer.object_lists();
        self.writer.capabilities().with_object_lists(lists)
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
        let kept = cx.kept_plan.as_deref();
        // A rank that fails still takes the step `plan`, so that all ranks learn it.
        let (asked, refused) = match self.asked(cx) {
            Ok(asked) => (asked, Ok(())),
            Err(e) => (Asked::default(), Err(e)),
        };
        let policy = asked.policy.as_deref();
        let local = refused
            .and_then(|()| self.set_up(&mut state, cx))
            .and_then(|storage_meta| {
                let structure = match kept {
                    Some(_) => structure(&*self.writer, &asked, &state, cx)?,
                    None => None,
                };
                Ok(Local {
                    writer: &*self.writer,
                    state: &state,
                    cx,
                    policy,
                    measures_objects: asked.measures_objects,
                    storage_meta,
                    structure,
                })
            });

        // What was decided for this structure before, or is decided now.
        // For a plan that is known nobody asks the policy.
        let mut asking_took = None;
        let decided = match share(local, policy, &*self.writer, cx).await? {
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
                let plan = agree(comm, "plan", self.finish_plan(plan, cx)).await?;
                let decided = Arc::new(Decided {
                    plan: Arc::new(plan),
                    exchange,
                    metadata,
                    policy,
                });
                if let (Some(kept), Some((structure, of_all))) = (kept, keep) {
                    kept.keep(Known {
                        structure,
                        of_all,
                        decided: Arc::clone(&decided),
                    });
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
        Ok(Prepared {
            writer: Arc::clone(&self.writer),
            planner: Arc::clone(&cx.planner),
            target: self.target(cx, asked.limit),
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
                .or(asked.of_one_file)
                .map(|mut metrics| {
                    metrics.duration = asking_took.unwrap_or(metrics.duration);
                    metrics
                }),
        })
    }

    /// Where this rank writes its files.
    fn target(&self, cx: &SaveCx<'_>, limit: Option<SizeLimit>) -> Target {
        let takes_folder = self.writer.capabilities().takes_folder();
        Target {
            transaction: Arc::clone(&cx.transaction),
            durability: cx.options.durability,
            progress: cx.options.progress.clone(),
            folder: takes_folder.then(|| cx.transaction.folder()).flatten(),
            limit,
        }
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
    fn asked(&self, cx: &SaveCx<'_>) -> Result<Asked> {
        let configured = self.writer.policy();
        let Some(policy) = &cx.policy else {
            let limit = configured.as_deref().map(max_file_bytes).transpose()?;
            let bytes = limit.flatten().or_else(|| self.writer.max_file_bytes());
            return Ok(Asked {
                policy: configured,
                limit: bytes.map(|bytes| SizeLimit {
                    bytes,
                    is_one_file: false,
                }),
                ..Asked::default()
            });
        };
        let strategy = self.writer.key().to_string();
        let limit = max_file_bytes(&**policy)?.map(|bytes| SizeLimit {
            bytes,
            is_one_file: self.writer.is_one_file(),
        });
        if self.writer.is_one_file() && limit.is_some() {
            return Ok(Asked {
                limit,
                of_one_file: Some(PolicyMetrics::of_one_file(describe(&**policy)?)),
                ..Asked::default()
            });
        }
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

    /// Makes DCP's first calls, which every save needs. Returns the data of the storage for planners.
    fn set_up(&self, state: &mut FlatStateDict, cx: &SaveCx<'_>) -> Result<Option<Value>> {
        let (rank, is_coordinator) = (cx.comm.rank().0, cx.comm.is_coordinator());
        self.writer.reset(cx.url);
        let meta = self.writer.storage_meta();
        let context = SaveContext::new(rank, is_coordinator).with_storage_meta(meta.as_ref());
        cx.planner.set_up(state, &context)?;
        self.writer.set_up(rank, is_coordinator)?;
        Ok(meta)
    }
}
