//! The collective part of a load, and the order of the others.

mod exchange;
mod lend;
mod objects;
mod transfer;

use crate::{
    BackendVersion, Detection, LoadCx, LoadFailure, LoadNotes, LoadShardedStrategy, Loaded, OpenCx, OwnFile,
    ReadCx, ReadTotals, Result, StorageReader, StrategyError,
    agree::{self, agree},
};
use async_trait::async_trait;
use exchange::{Peers, Stopped, exchange};
use lend::{Loan, tensors};
use objects::objects;
use reshard_model::{FlatStateDict, Sharded};
use reshard_plan::{ExchangeGroup, LoadContext, LoadPlan, Metadata, PlanError, exchange_groups};
use reshard_storage::{Listing, PlaceKind};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, sync::Arc, time::Instant};
use transfer::transfer;

/// How a format opens a checkpoint.
#[async_trait]
pub trait OpenFormat: fmt::Debug + Send + Sync + 'static {
    /// Its name.
    fn key(&self) -> BackendVersion;
    /// Reads what is stored and where.
    ///
    /// # Errors
    /// When it is not a checkpoint of this format, or damaged.
    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>>;
    /// What a file in the place itself is, if programs that write this format call one so. By this alone a format is recognised, and
    /// the files of a damaged or unfinished checkpoint are told from those of others.
    fn own_file(&self, _name: &str) -> Option<OwnFile> {
        None
    }
    /// Whether a place holds a checkpoint of this format, by the names of its files alone: by default, what
    /// [`own_file`](Self::own_file) says of them. It is asked when nothing else in the checkpoint says of which format it is; a
    /// format that is never sure has to be named, or chosen by hand.
    fn detect(&self, top: &Listing) -> Detection {
        let own = top.names().filter_map(|name| self.own_file(name));
        own.map(OwnFile::detected).max().unwrap_or(Detection::No)
    }
    /// Names of files of which most checkpoints of this format have one. They are looked for before the place is listed, which
    /// takes long, or can't be done, where there are many files.
    fn probes(&self) -> &'static [&'static str] {
        &[]
    }
    /// Whether checkpoints of this format can be places of such a kind. Those of most are folders.
    fn lives_in(&self, kind: PlaceKind) -> bool {
        kind == PlaceKind::Folder
    }
    /// Whether it loads sharded objects; if not, it is never asked for any, and the common strategy loads them.
    fn can_handle_sharded_objects(&self) -> bool {
        true
    }
}

/// The load strategy of any format that can be opened.
#[derive(Debug)]
pub struct PlannedLoad<F> {
    format: F,
}

impl<F: OpenFormat> PlannedLoad<F> {
    /// Drives `format`.
    pub fn new(format: F) -> Self {
        Self { format }
    }
}

#[async_trait]
impl<F: OpenFormat> LoadShardedStrategy for PlannedLoad<F> {
    fn key(&self) -> BackendVersion {
        self.format.key()
    }

    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        self.format.open(cx).await
    }

    async fn load(
        &self,
        template: FlatStateDict,
        from: Arc<dyn StorageReader>,
        cx: &LoadCx<'_>,
    ) -> Result<Loaded, Box<LoadFailure>> {
        load_planned(template, &*from, cx).await
    }

    fn detect(&self, top: &Listing) -> Detection {
        self.format.detect(top)
    }

    fn probes(&self) -> &'static [&'static str] {
        self.format.probes()
    }

    fn own_file(&self, name: &str) -> Option<OwnFile> {
        self.format.own_file(name)
    }

    fn lives_in(&self, kind: PlaceKind) -> bool {
        self.format.lives_in(kind)
    }

    fn can_handle_sharded_objects(&self) -> bool {
        self.format.can_handle_sharded_objects()
    }
}

/// Fills a template out of any reader.
pub(crate) async fn load_planned(
    mut template: FlatStateDict,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> Result<Loaded, Box<LoadFailure>> {
    let guard = cx.comm.guard("loading");
    let start = Instant::now();
    let Planned { plan, peers } = match plan(&mut template, from, cx).await {
        Ok(planned) => planned,
        Err(error) => {
            guard.done();
            return Err(Box::new(LoadFailure { error, template }));
        }
    };
    let decided = start.elapsed();
    let (template, read) = fill(template, &plan, peers.as_ref(), from, cx).await;
    let moved = start.elapsed() - decided;
    // Ranks that only heard of a failure have none of their own to tell.
    let (mine, heard) = match read {
        Ok(totals) => (Ok(totals), None),
        Err(Stopped::Here(e)) => (Err(e), None),
        Err(Stopped::There(e)) => (Ok(ReadTotals::default()), Some(e)),
    };
    let totals = agree(&cx.comm, "read", mine).await;
    let totals = totals.and_then(|totals| heard.map_or(Ok(totals), |e| Err(e.into())));
    guard.done();
    match totals {
        Ok(totals) => Ok(Loaded { notes: notes(&plan, &template), totals, state: template, decided, moved }),
        Err(error) => Err(Box::new(LoadFailure { error, template })),
    }
}

/// What a rank gets of the global plan.
#[derive(Serialize, Deserialize)]
struct Share {
    plan: LoadPlan,
    /// When any rank has an exchange: the ranks with which this one has to do.
    exchange: Option<Option<ExchangeGroup>>,
}

/// The shares of all ranks. What one hands out is what another waits for, or there is an error here and no rank waits.
fn shares(plans: Vec<LoadPlan>, metadata: &Metadata) -> Result<Vec<Share>> {
    if plans.iter().all(|plan| plan.exchange.is_empty()) {
        return Ok(plans.into_iter().map(|plan| Share { plan, exchange: None }).collect());
    }
    let groups = exchange_groups(&plans, metadata)?;
    Ok(plans.into_iter().zip(groups).map(|(plan, group)| Share { plan, exchange: Some(group) }).collect())
}

/// A plan that stands on all ranks.
struct Planned {
    plan: LoadPlan,
    peers: Option<Peers>,
}

/// DCP's calls up to `finish_plan`, in its order.
async fn plan(template: &mut FlatStateDict, from: &dyn StorageReader, cx: &LoadCx<'_>) -> Result<Planned> {
    let (rank, is_coordinator) = (cx.comm.rank().0, cx.comm.is_coordinator());
    let context = LoadContext::new(from.metadata(), rank, is_coordinator);
    // What `set_up` changes, a failed load must not keep: the caller gets back what it gave.
    let given = template.clone();
    let local = (|| -> Result<LoadPlan> {
        from.reset(&cx.store.url());
        cx.planner.set_up(template, &context)?;
        from.set_up(rank, is_coordinator)?;
        let plan = cx.planner.create_local_plan(template, &context).map_err(|e| explained(e, from))?;
        not_lacking(&plan, template, from)?;
        tensors(&plan).try_for_each(|i| from.permits(&i.piece.key))?;
        from.prepare_local_plan(plan)
    })();
    let planned = agree::decide(&cx.comm, "plan", local, |plans| {
        let plans = from.prepare_global_plan(cx.planner.create_global_plan(plans, &context)?)?;
        shares(plans, from.metadata())
    })
    .await;
    let finished = match planned {
        Ok(share) => finish(share, cx).await,
        Err(e) => Err(e),
    };
    if finished.is_err() {
        *template = given;
    }
    finished
}

/// The planner's last word, which the exchange is not.
async fn finish(share: Share, cx: &LoadCx<'_>) -> Result<Planned> {
    let Share { plan, exchange } = share;
    let agreed = exchange.map(|_| plan.exchange.clone()).unwrap_or_default();
    let finished = cx.planner.finish_plan(plan).map_err(StrategyError::from).and_then(|plan| {
        if plan.exchange == agreed {
            return Ok(plan);
        }
        let what = "a planner's finish_plan may not change an exchange, on which other ranks count";
        Err(StrategyError::Invalid(what.into()))
    });
    let plan = agree(&cx.comm, "plan", finished).await?;
    let peers = match exchange {
        None => None,
        Some(group) => Peers::of(group, &cx.comm).await?,
    };
    Ok(Planned { plan, peers })
}

/// A plan's error, with what the format knows of the keys.
fn explained(e: PlanError, from: &dyn StorageReader) -> StrategyError {
    let why = match &e {
        PlanError::Load(problems) => problems.0.iter().find_map(|p| from.why_not(p.key())),
        _ => None,
    };
    why.map_or_else(|| e.into(), |what| unsupported(what, from))
}

/// A partial load leaves alone what is not stored; what is stored, and can't be loaded, is not that.
fn not_lacking(plan: &LoadPlan, template: &FlatStateDict, from: &dyn StorageReader) -> Result<()> {
    let missing = plan.missing.iter().filter_map(|i| template.get_index(*i as usize));
    let mut whys = missing.filter_map(|(_, leaf)| match leaf {
        Sharded::Tensor(t) => from.why_not(&t.key),
        Sharded::Object(o) => from.why_not(&o.unique_key()),
    });
    whys.next().map_or(Ok(()), |what| Err(unsupported(what, from)))
}

fn unsupported(what: String, from: &dyn StorageReader) -> StrategyError {
    StrategyError::Unsupported { strategy: from.key().to_string(), what }
}

fn notes(plan: &LoadPlan, template: &FlatStateDict) -> LoadNotes {
    let key = |i: &u32| template.get_index(*i as usize).map_or_else(String::new, |(_, s)| s.key().into());
    LoadNotes {
        unexpected: plan.unexpected.iter().map(|k| k.to_string()).collect(),
        missing: plan.missing.iter().map(&key).collect(),
        casts: plan.recasts.iter().map(|r| (key(&r.dest), r.from, r.to)).collect(),
    }
}

/// Moves bytes; the template comes back whatever happens.
async fn fill(
    template: FlatStateDict,
    plan: &LoadPlan,
    peers: Option<&Peers>,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> (FlatStateDict, Result<ReadTotals, Stopped>) {
    let how = ReadCx::new(cx.verify, &cx.progress).with_storage_data(&plan.storage_data);
    // What this rank reads for itself, then what it exchanges. A rank that fails tells its peers, which wait for it.
    let (loan, read) = match Loan::take(template, plan) {
        Ok(loan) => {
            let read = match loan.places(plan, from.metadata()) {
                Ok(places) => transfer(places, from, &how, cx).await,
                Err(e) => Err(e),
            };
            (Ok(loan), read)
        }
        Err(failure) => (Err(failure.template), Err(failure.error)),
    };
    let read = match peers {
        Some(peers) => exchange(peers, plan, read, from, &how, cx).await,
        None => read.map(|(totals, _)| (totals, BTreeMap::new())).map_err(Stopped::Here),
    };
    let loan = match loan {
        Ok(loan) => loan,
        Err(template) => return (template, read.map(|(totals, _)| totals)),
    };
    let (mut template, given_back) = loan.give_back(read.is_ok());
    let read = match read.and_then(|read| Ok(given_back.map(|()| read)?)) {
        Ok((totals, there)) => {
            let read = objects(&mut template, plan, there, from, &how, cx).await;
            read.map(|()| totals).map_err(Stopped::Here)
        }
        Err(e) => Err(e),
    };
    let committed = read.and_then(|totals| {
        tensors(plan).try_for_each(|i| cx.planner.commit_tensor(i)).map_err(StrategyError::from)?;
        Ok(totals)
    });
    (template, committed)
}
