//! The collective part of a load, and the order of its other parts.

mod exchange;
mod lend;
mod objects;
mod transfer;

use crate::{
    BackendVersion, Detection, ExchangeTimes, LoadCx, LoadFailure, LoadNotes, LoadShardedStrategy,
    Loaded, OpenCx, OwnFile, ReadCx, Result, StorageReader, StrategyError, Traffic,
    agree::{self, agree},
    pipeline::exchange::{Peers, Share, Stopped},
};
use async_trait::async_trait;
use exchange::{Exchange, exchange};
use lend::{Loan, tensors};
use objects::objects;
use reshard_model::{ErrorKind, FlatStateDict, Sharded};
use reshard_plan::{Entry, LoadContext, LoadPlan, Metadata, PlanError, Problem, exchange_groups};
use reshard_storage::{Listing, PlaceKind};
use std::{fmt, sync::Arc, time::Instant};
use transfer::transfer;

/// How a format opens a checkpoint.
#[async_trait]
pub trait OpenFormat: fmt::Debug + Send + Sync + 'static {
    /// Its name.
    fn key(&self) -> BackendVersion;
    /// Reads the description of a checkpoint: what is stored, and where.
    ///
    /// # Errors
    /// The place has no checkpoint of this format, or a damaged one.
    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>>;
    /// What a file directly in the place is, if the programs of this format give a file such a name. Only this decides
    /// whether a format is recognised, and which files belong to a damaged or unfinished checkpoint.
    fn own_file(&self, _name: &str) -> Option<OwnFile> {
        None
    }
    /// Whether a place holds a checkpoint of this format, by the names of its files alone. By default it uses
    /// [`own_file`](Self::own_file). It is called if nothing else in the checkpoint names the format. A format that never
    /// answers `Yes` is found only if the checkpoint names it or the user chooses it.
    fn detect(&self, top: &Listing) -> Detection {
        let own = top.names().filter_map(|name| self.own_file(name));
        own.map(OwnFile::detected).max().unwrap_or(Detection::No)
    }
    /// File names of which most checkpoints of this format have one. They are looked for before the place is listed,
    /// because listing many files takes long or is impossible.
    fn probes(&self) -> &'static [&'static str] {
        &[]
    }
    /// Whether a checkpoint of this format can be a place of this kind. For most formats this is a folder.
    fn lives_in(&self, kind: PlaceKind) -> bool {
        kind == PlaceKind::Folder
    }
    /// Whether it loads sharded objects. If not, the common strategy loads them. The default is that it does.
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

/// Fills a template from any reader.
pub(crate) async fn load_planned(
    mut template: FlatStateDict,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> Result<Loaded, Box<LoadFailure>> {
    // The guard tells the other ranks if this one panics or is dropped. A failed plan was already agreed on.
    let guard = cx.comm.guard("loading");
    let start = Instant::now();
    let Planned { plan, peers } = match plan(&mut template, from, cx).await {
        Ok(planned) => planned,
        Err(error) => {
            guard.done();
            return Err(Box::new(LoadFailure { error, template }));
        }
    };
    // Then the local part. Its outcome is not returned yet, because the other ranks wait for it in the step `read`.
    let decided = start.elapsed();
    let (template, read) = fill(template, &plan, peers.as_ref(), from, cx).await;
    let moved = start.elapsed() - decided;
    // A rank that stopped because a peer failed has no cause of its own to report.
    let (mine, heard) = match read {
        Ok(totals) => (Ok(totals), None),
        Err(stopped) => {
            let (mine, heard) = stopped.parted();
            (mine.map(|()| Moved::default()), heard)
        }
    };
    let moves = agree(&cx.comm, "read", mine).await;
    let moves = moves.and_then(|moves| heard.map_or(Ok(moves), |e| Err(e.into())));
    guard.done();
    match moves {
        Ok((totals, exchange)) => Ok(Loaded {
            notes: notes(&plan, &template, from.metadata()),
            totals,
            state: template,
            decided,
            moved,
            exchange,
        }),
        Err(error) => Err(Box::new(LoadFailure { error, template })),
    }
}

/// A plan that all ranks have agreed on.
struct Planned {
    plan: LoadPlan,
    peers: Option<Peers>,
}

/// Makes DCP's calls up to `finish_plan`, in DCP's order.
async fn plan(
    template: &mut FlatStateDict,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> Result<Planned> {
    let (rank, is_coordinator) = (cx.comm.rank().0, cx.comm.is_coordinator());
    let context =
        LoadContext::new(from.metadata(), rank, is_coordinator).with_elsewhere(&cx.elsewhere);
    // `set_up` may change the template. If the load fails, the caller must get back what it gave.
    let given = template.clone();
    // The local plan, or its error: a rank that fails still takes the step `plan`, so that all ranks learn it.
    let local = (|| -> Result<LoadPlan> {
        from.reset(&cx.store.url());
        cx.planner.set_up(template, &context)?;
        from.set_up(rank, is_coordinator)?;
        let plan = cx
            .planner
            .create_local_plan(template, &context)
            .map_err(|e| explained(e, from))?;
        not_lacking(&plan, template, from)?;
        // Items of one tensor share its key, which may be long. So it is looked up once.
        let mut last = None;
        for key in tensors(&plan).map(|i| &i.piece.key) {
            if !last.is_some_and(|last| Arc::ptr_eq(last, key)) {
                from.permits(key)?;
            }
            last = Some(key);
        }
        from.prepare_local_plan(plan)
    })();
    let planned = agree::decide(&cx.comm, "plan", local, |plans| {
        let plans = from.prepare_global_plan(cx.planner.create_global_plan(plans, &context)?)?;
        Share::all(
            plans,
            |plan| plan.exchange.is_empty(),
            |plans| exchange_groups(plans, from.metadata()),
        )
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

/// Calls `finish_plan`, which may change anything except the exchange. Then splits off the exchange groups.
async fn finish(share: Share<LoadPlan>, cx: &LoadCx<'_>) -> Result<Planned> {
    let Share { plan, exchange } = share;
    let agreed = exchange.map(|_| plan.exchange.clone()).unwrap_or_default();
    let finished = cx
        .planner
        .finish_plan(plan)
        .map_err(StrategyError::from)
        .and_then(|plan| {
            if plan.exchange == agreed {
                return Ok(plan);
            }
            let what =
                "a planner's finish_plan must not change an exchange, because other ranks rely on it";
            Err(StrategyError::Invalid(what.into()))
        });
    let plan = agree(&cx.comm, "plan", finished).await?;
    let peers = match exchange {
        None => None,
        Some(group) => Peers::of(group, &cx.comm).await?,
    };
    Ok(Planned { plan, peers })
}

/// The error of a plan. If the format knows why a key can't be read, it is that reason.
fn explained(e: PlanError, from: &dyn StorageReader) -> StrategyError {
    let PlanError::Load(problems) = &e else {
        return e.into();
    };
    // Where what is said of a tensor contradicts itself, a hole or another shape only follows from that.
    let contradiction = |p: &Problem| match from.permits(p.key()) {
        Err(e) if e.kind() == ErrorKind::Corrupt => Some(e),
        _ => None,
    };
    let why = || problems.0.iter().find_map(|p| from.why_not(p.key()));
    match problems.0.iter().find_map(contradiction) {
        Some(contradiction) => contradiction,
        None => why().map_or_else(|| e.into(), |what| unsupported(what, from)),
    }
}

/// A partial load may skip a leaf that is not stored. It must not skip a leaf that is stored but can't be loaded.
fn not_lacking(plan: &LoadPlan, template: &FlatStateDict, from: &dyn StorageReader) -> Result<()> {
    let not_stored = plan
        .not_stored
        .iter()
        .filter_map(|i| template.get_index(*i as usize));
    let mut whys = not_stored.filter_map(|(_, leaf)| match leaf {
        Sharded::Tensor(t) => from.why_not(&t.key),
        Sharded::Object(o) => from.why_not(&o.unique_key()),
    });
    whys.next()
        .map_or(Ok(()), |what| Err(unsupported(what, from)))
}

fn unsupported(what: String, from: &dyn StorageReader) -> StrategyError {
    StrategyError::Unsupported {
        strategy: from.key().to_string(),
        what,
    }
}

fn notes(plan: &LoadPlan, template: &FlatStateDict, metadata: &Metadata) -> LoadNotes {
    let leaf = |i: &u32| template.get_index(*i as usize).map(|(_, leaf)| leaf);
    let entries: Vec<Entry<'_>> = match plan.not_requested.is_empty() {
        true => Vec::new(),
        false => metadata.entries().collect(),
    };
    let stored = |at: &u32| entries.get(*at as usize).map(|e| e.key().to_owned());
    LoadNotes {
        not_stored: (plan.not_stored.iter().filter_map(leaf))
            .map(|leaf| leaf.unique_key().into_owned())
            .collect(),
        not_requested: plan.not_requested.iter().filter_map(stored).collect(),
        casts: plan
            .recasts
            .iter()
            .map(|r| {
                (
                    leaf(&r.dest).map_or_else(String::new, |leaf| leaf.key().into()),
                    r.from,
                    r.to,
                )
            })
            .collect(),
    }
}

/// What was read, and how long ranks read for each other.
type Moved = (Traffic, ExchangeTimes);

/// Moves the bytes. It returns the template whatever happens.
async fn fill(
    template: FlatStateDict,
    plan: &LoadPlan,
    peers: Option<&Peers>,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> (FlatStateDict, Result<Moved, Stopped>) {
    let how = ReadCx::new(cx.verify, &cx.progress).with_storage_data(&plan.storage_data);
    // First this rank's own reads. An error is not returned yet, because peers of an exchange may wait for this rank.
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
    // Then the exchange, in which a failed rank tells its peers.
    let read = match peers {
        Some(peers) => exchange(peers, plan, read, from, &how, cx).await,
        None => read
            .map(|(totals, _)| Exchange {
                totals,
                ..Exchange::default()
            })
            .map_err(Stopped::Here),
    };
    // Peers may still fill what this rank has lent them, if one of them failed.
    if let (Ok(loan), Some(_)) = (&loan, peers) {
        loan.is_returned(cx.comm.deadline()).await;
    }
    // The template gets its buffers back in any case. Objects are put into leaves, so they come after that.
    let loan = match loan {
        Ok(loan) => loan,
        Err(template) => return (template, read.map(|read| (read.totals, read.times))),
    };
    let begun = Instant::now();
    let (mut template, given_back) = loan.give_back(read.is_ok());
    let devices = begun.elapsed();
    let read = match read.and_then(|read| Ok(given_back.map(|()| read)?)) {
        Ok(Exchange {
            totals,
            objects: there,
            mut times,
        }) => {
            times.devices = devices;
            let read = objects(&mut template, plan, there, from, &how, cx).await;
            read.map(|()| (totals, times)).map_err(Stopped::Here)
        }
        Err(e) => Err(e),
    };
    // The planner may see tensors only when all of them are complete.
    let committed = read.and_then(|totals| {
        tensors(plan)
            .try_for_each(|i| cx.planner.commit_tensor(i))
            .map_err(StrategyError::from)?;
        Ok(totals)
    });
    (template, committed)
}
