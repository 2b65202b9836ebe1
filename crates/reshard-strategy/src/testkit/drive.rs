use crate::{
    AsyncStager, DEFAULT_EXCHANGE_MEMORY, LoadCx, LoadFailure, LoadPipelineOptions, LoadReporter,
    LoadShardedStrategy, Loaded, OpenCx, PipelineOptions, PreparedSave, Records, Result, SaveCx,
    SaveShardedStrategy, Saved, StrategyError, agree, stage_save, testkit::Moved,
};
use futures_executor::block_on;
use reshard_comm::{Comm, DEFAULT_DEADLINE, LocalGroup, ProcessGroup, testkit::on_ranks};
use reshard_model::FlatStateDict;
use reshard_plan::{LoadPlanner, SavePlanner};
use reshard_policy::ShardingPolicy;
use reshard_storage::{Durability, FileBody, IfExists, Progress, Store, Transaction};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

/// What one rank brings to a save or load: its strategy, its planner and its leaves.
#[derive(Debug)]
pub struct Rank<S: ?Sized, P: ?Sized> {
    /// The strategy.
    pub strategy: Arc<S>,
    /// The planner.
    pub planner: Arc<P>,
    /// What to save, or the template.
    pub flat: FlatStateDict,
}

/// Saves from as many ranks as are given, each a thread, and commits. Each writes on yet another thread. What a failed save wrote
/// is removed.
///
/// # Panics
/// When a rank panics, or hangs for a minute.
pub fn save_on_ranks(
    store: &Arc<dyn Store>,
    if_exists: IfExists,
    ranks: Vec<Rank<SaveShardedStrategy, dyn SavePlanner>>,
) -> Vec<Result<Saved>> {
    run(store, if_exists, ranks, None)
}

/// [`save_on_ranks`] of a state that each rank stages by its stager, of which there is one a rank. When that is done, each calls
/// `staged` with its number: it may change its state there.
///
/// # Panics
/// When a rank panics, or hangs for a minute.
pub fn save_staged_on_ranks(
    store: &Arc<dyn Store>,
    if_exists: IfExists,
    ranks: Vec<Rank<SaveShardedStrategy, dyn SavePlanner>>,
    stagers: &[Arc<dyn AsyncStager>],
    staged: impl Fn(u32) + Send + Sync + 'static,
) -> Vec<Result<Saved>> {
    assert_eq!(ranks.len(), stagers.len());
    run(
        store,
        if_exists,
        ranks,
        Some(Staging {
            stagers: stagers.to_vec(),
            staged: Arc::new(staged),
        }),
    )
}

/// A stager for each rank, and what each does when its state is staged.
#[derive(Clone)]
pub(super) struct Staging {
    pub(super) stagers: Vec<Arc<dyn AsyncStager>>,
    pub(super) staged: Arc<dyn Fn(u32) + Send + Sync>,
}

impl Staging {
    async fn run(&self, rank: u32, prepared: &mut PreparedSave) -> Result<()> {
        let staged = stage_save(prepared, None, &*self.stagers[rank as usize]).await;
        staged.inspect_err(|e| prepared.give_up(e))?;
        (self.staged)(rank);
        Ok(())
    }
}

fn run(
    store: &Arc<dyn Store>,
    if_exists: IfExists,
    ranks: Vec<Rank<SaveShardedStrategy, dyn SavePlanner>>,
    staging: Option<Staging>,
) -> Vec<Result<Saved>> {
    let groups = LocalGroup::new(ranks.len() as u32).into_iter();
    let seat = |group| Seat::new(Arc::new(group), Arc::clone(store));
    save_on_seats(groups.map(seat).zip(ranks).collect(), if_exists, staging)
}

/// [`save_on_ranks`] where ranks differ in more.
pub(super) fn save_on_seats(
    ranks: Vec<(Seat, Rank<SaveShardedStrategy, dyn SavePlanner>)>,
    if_exists: IfExists,
    staging: Option<Staging>,
) -> Vec<Result<Saved>> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let attempt = format!("testkit-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    on_ranks(ranks, move |(seat, rank)| {
        let (attempt, if_exists, staging) = (attempt.clone(), if_exists.clone(), staging.clone());
        async move { save(seat, &attempt, if_exists, rank, staging).await }
    })
}

async fn save(
    seat: Seat,
    attempt: &str,
    if_exists: IfExists,
    rank: Rank<SaveShardedStrategy, dyn SavePlanner>,
    staging: Option<Staging>,
) -> Result<Saved> {
    let Seat {
        group,
        store,
        exchange_memory,
        deadline,
        policy,
    } = seat;

    let comm = Comm::new(&*group).with_deadline(deadline);
    let transaction = store
        .begin(attempt, if_exists)
        .await
        .map_err(StrategyError::from);
    let transaction = agree(&comm, "begin", transaction).await?;
    let saved = async {
        let options = PipelineOptions {
            exchange_memory,
            ..PipelineOptions::default()
        };
        let given = (&options, policy);
        let mut prepared = prepare(&comm, rank, &transaction, &store.url(), given).await?;

        // A failed staging still goes through `finish`, where the other ranks wait for this one.
        let staged = match &staging {
            Some(staging) => staging.run(comm.rank().0, &mut prepared).await,
            None => Ok(()),
        };
        let (prepared, written) = match staged {
            Ok(()) => elsewhere(prepared),
            Err(e) => (prepared, Err(e)),
        };
        let saved = prepared.finish(written, &comm).await?;
        let committed = match comm.is_coordinator() {
            true => commit(&transaction, &saved).await,
            false => Ok(()),
        };
        agree(&comm, "commit", committed).await?;
        Ok(saved)
    };

    // Files of a failed save go away. One rank does that for all, since the transaction is common.
    let saved: Result<Saved> = saved.await;
    if saved.is_err() && comm.is_coordinator() {
        transaction.rollback().await?;
    }
    saved
}

/// All that a strategy is given but the group is gone when the save is prepared.
async fn prepare(
    comm: &Comm<'_>,
    rank: Rank<SaveShardedStrategy, dyn SavePlanner>,
    transaction: &Arc<dyn Transaction>,
    url: &str,
    (options, policy): (&PipelineOptions, Option<Arc<dyn ShardingPolicy>>),
) -> Result<PreparedSave> {
    let (groups, url) = (BTreeMap::new(), url.to_owned());
    let transaction = Arc::clone(transaction);
    let mut cx = SaveCx::new(options, *comm, &groups, transaction, &url, rank.planner);
    cx.policy = policy;
    rank.strategy.prepare(rank.flat, &cx).await
}

/// Writes on a thread of its own.
fn elsewhere(mut prepared: PreparedSave) -> (PreparedSave, Result<()>) {
    let write = move || {
        let written = block_on(prepared.write());
        (prepared, written)
    };
    std::thread::spawn(write)
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

async fn commit(transaction: &Arc<dyn Transaction>, saved: &Saved) -> Result<()> {
    let Records { files, commit, .. } = saved.records.clone();
    let files = files
        .into_iter()
        .map(|(name, bytes)| FileBody::from_bytes(name, bytes))
        .collect();
    transaction
        .write(files, Durability::Process, Progress::none())
        .await?;
    Ok(transaction.commit(commit, &[], Durability::Process).await?)
}

/// Loads onto as many ranks as are given, each a thread.
///
/// # Panics
/// When a rank panics, or hangs for a minute.
pub fn load_on_ranks(
    store: &Arc<dyn Store>,
    ranks: Vec<Rank<LoadShardedStrategy, dyn LoadPlanner>>,
) -> Vec<Result<Loaded, LoadFailure>> {
    let groups = LocalGroup::new(ranks.len() as u32).into_iter();
    let seat = |group| Seat::new(Arc::new(group), Arc::clone(store));
    load_on_seats(groups.map(seat).zip(ranks).collect())
}

/// What one rank saves or loads with.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) group: Arc<dyn ProcessGroup>,
    pub(super) store: Arc<dyn Store>,
    pub(super) exchange_memory: u64,
    pub(super) deadline: Duration,
    pub(super) policy: Option<Arc<dyn ShardingPolicy>>,
}

impl Seat {
    pub(super) fn new(group: Arc<dyn ProcessGroup>, store: Arc<dyn Store>) -> Self {
        Self {
            group,
            store,
            exchange_memory: DEFAULT_EXCHANGE_MEMORY,
            deadline: DEFAULT_DEADLINE,
            policy: None,
        }
    }
}

/// [`load_on_ranks`] where ranks differ in more.
pub(super) fn load_on_seats(
    ranks: Vec<(Seat, Rank<LoadShardedStrategy, dyn LoadPlanner>)>,
) -> Vec<Result<Loaded, LoadFailure>> {
    on_ranks(ranks, move |(seat, rank)| async move {
        let Seat {
            group,
            store,
            exchange_memory,
            deadline,
            policy: _,
        } = seat;
        let (comm, groups) = (Comm::new(&*group).with_deadline(deadline), BTreeMap::new());
        let opened = rank.strategy.open(&OpenCx::new(Arc::clone(&store))).await;
        let reader = match agree(&comm, "open", opened).await {
            Ok(reader) => reader,
            Err(error) => {
                return Err(LoadFailure::of_plan(error, rank.flat));
            }
        };
        let moved = Moved::default();
        let options = LoadPipelineOptions {
            exchange_memory,
            progress: LoadReporter::new(moved.tell()),
            ..LoadPipelineOptions::default()
        };
        let cx = LoadCx::new(&options, comm, &groups, store, rank.planner);
        let loaded = rank.strategy.load(rank.flat, reader, &cx).await;
        if loaded.is_ok() {
            moved.check();
        }
        loaded.map_err(|failure| *failure)
    })
}
