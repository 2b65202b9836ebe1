use crate::{
    BackendVersion, FileLayout, FinishCx, PreparedSave, RankTotals, Result, SaveCx, SaveShardedStrategy,
    SaveTotals, Saved, StorageInfo, StorageWriter, StrategyError, WriteResult,
    agree::{self, agree},
    cause,
    pipeline::{
        gather,
        placement::{self, Offer, Placement, Share, Tasks},
    },
};
use async_trait::async_trait;
use reshard_comm::{Cause, Comm};
use reshard_model::{Dialect, Dims, ErrorKind, FlatStateDict, Payload, Sharded, Value};
use reshard_plan::{
    DefaultSavePlanner, Entry, Metadata, PieceId, SaveContext, SavePlan, SavePlanner as _, WriteData,
    WriteItem, WriteKind,
};
use reshard_policy::{PolicyMetrics, ShardingPolicy, describe, gathers};
use reshard_storage::{Durability, Length, Name, Progress, Transaction, Written};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

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

    async fn prepare(&self, state: FlatStateDict, cx: &SaveCx<'_>) -> Result<Box<dyn PreparedSave>> {
        let comm = &cx.comm;
        let guard = comm.guard("planning a save");
        let mut state = state;
        let policy = self.policy(cx);
        let asked = policy.as_ref().ok().cloned().flatten();
        let offer = policy
            .and_then(|_| self.local_plan(&mut state, cx))
            .and_then(|p| Offer::new(p, &state, asked.as_deref()));
        let own = state.len();
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
        let (metadata, placement) = decided.unwrap_or_default();
        if to_coordinator {
            let cells = Cells::of(&state);
            let mut brought = FlatStateDict::new();
            let resolve = |item: &WriteItem| self.resolve(item, &state, &cells, own, cx);
            gather::bring(comm, &*self.writer, &give, &resolve, &placement.taken, &mut brought).await?;
            state.extend(brought);
        }
        let laid_out = agree(comm, "layout", self.lay_out(plan, state, own, cx)).await;
        guard.done();
        Ok(Box::new(Prepared {
            writer: Arc::clone(&self.writer),
            transaction: Arc::clone(&cx.transaction),
            durability: cx.durability,
            progress: cx.progress.clone(),
            rank_local: cx.rank_local,
            url: cx.url.to_owned(),
            dialect: cx.dialect,
            layout: laid_out?,
            results: Vec::new(),
            metadata,
            policy: placement.metrics,
        }))
    }
}

impl<W: StorageWriter> Planned<W> {
    /// The save's policy, or that of the format's configuration.
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

    /// DCP's calls up to the exchange of plans, in its order.
    fn local_plan(&self, state: &mut FlatStateDict, cx: &SaveCx<'_>) -> Result<SavePlan> {
        let (rank, is_coordinator) = (cx.comm.rank().0, cx.comm.is_coordinator());
        self.writer.reset(cx.url);
        let meta = self.writer.storage_meta();
        let context = SaveContext::new(rank, is_coordinator).with_storage_meta(meta.as_ref());
        cx.planner.set_up(state, &context)?;
        self.writer.set_up(rank, is_coordinator)?;
        let mut plan = cx.planner.create_local_plan(state, &context)?;
        if plan.planner_data.is_none() {
            plan.planner_data.clone_from(&cx.planner_data);
        }
        self.writer.prepare_local_plan(plan)
    }

    /// From what all ranks offer, or the one rank of a rank-local save, to what each writes.
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
            return Err(StrategyError::Invalid(what));
        }
        for (share, plan) in shares.iter_mut().zip(plans) {
            share.plan = plan;
        }
        Ok(shares)
    }

    /// What an item is made of. Leaves from `own` on were brought here by other ranks, whose planners have seen them already.
    fn resolve(
        &self,
        item: &WriteItem,
        state: &FlatStateDict,
        cells: &Cells,
        own: usize,
        cx: &SaveCx<'_>,
    ) -> Result<WriteData> {
        if item.source as usize >= own && (item.source as usize) < state.len() {
            return Ok(DefaultSavePlanner::DEFAULT.lookup_object(item, state)?);
        }
        let one = |item: &WriteItem| -> Result<WriteData> {
            Ok(cx.planner.transform_object(item, cx.planner.lookup_object(item, state)?)?)
        };
        match item.kind {
            WriteKind::Object { .. } if self.writer.object_lists() => cells.list(item, &one),
            _ => one(item),
        }
    }

    fn lay_out(
        &self,
        plan: SavePlan,
        state: FlatStateDict,
        own: usize,
        cx: &SaveCx<'_>,
    ) -> Result<FileLayout> {
        let plan = cx.planner.finish_plan(plan)?;
        let cells = Cells::of(&state);
        let resolve = |item: &WriteItem| self.resolve(item, &state, &cells, own, cx);
        let layout = self.writer.layout(cx.comm.rank().0, &plan, &resolve)?;
        check_layout(&plan, &layout)?;
        Ok(layout)
    }
}

/// The leaves of each cell of an object array; several leaves of one cell on one rank are stored as one list.
struct Cells(BTreeMap<String, Vec<u32>>);

impl Cells {
    fn of(state: &FlatStateDict) -> Self {
        let mut out: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (i, leaf) in state.values().enumerate() {
            if let Sharded::Object(o) = leaf
                && !o.is_item()
            {
                out.entry(o.unique_key()).or_default().push(i as u32);
            }
        }
        Self(out)
    }

    fn list(&self, item: &WriteItem, one: &dyn Fn(&WriteItem) -> Result<WriteData>) -> Result<WriteData> {
        // A planner may have renamed the item; its source tells the cell all the same.
        let Some(sources) = self.0.values().find(|v| v.contains(&item.source)) else { return one(item) };
        let mut values = Vec::new();
        for &source in sources {
            match one(&WriteItem { source, ..item.clone() })? {
                WriteData::Object(Payload::Value(v)) => values.push(v),
                // Carried over as it was stored, list and all.
                encoded if sources.len() == 1 => return Ok(encoded),
                _ => {
                    let what = format!("{}: several leaves of one cell can't be stored undecoded", item.key);
                    return Err(StrategyError::Invalid(what));
                }
            }
        }
        Ok(WriteData::Object(Payload::Value(Value::List(values))))
    }
}

/// Every planned item lies somewhere, and nothing else does.
fn check_layout(plan: &SavePlan, layout: &FileLayout) -> Result<()> {
    let copied = layout.copied.iter().map(|p| &p.id);
    let mut places: BTreeSet<&PieceId> = layout.items.iter().map(|(id, _)| id).chain(copied).collect();
    for item in &plan.items {
        if !places.remove(&item.id()) {
            return Err(StrategyError::Internal(format!("the format gave no place to {}", item.id())));
        }
    }
    match places.first() {
        Some(id) => {
            Err(StrategyError::Internal(format!("the format gave a place to {id}, which was not planned")))
        }
        None => Ok(()),
    }
}

struct Prepared<W> {
    writer: Arc<W>,
    transaction: Arc<dyn Transaction>,
    durability: Durability,
    progress: Progress,
    rank_local: bool,
    url: String,
    dialect: Dialect,
    layout: FileLayout,
    /// Where items lie; known when they are written.
    results: Vec<WriteResult>,
    metadata: Metadata,
    policy: Option<PolicyMetrics>,
}

#[async_trait]
impl<W: StorageWriter> PreparedSave for Prepared<W> {
    async fn stage(&mut self) -> Result<()> {
        Ok(())
    }

    async fn write(&mut self) -> Result<()> {
        let FileLayout { files, items, copied } = std::mem::take(&mut self.layout);
        let planned: Vec<(Name, Option<Length>)> =
            files.iter().map(|f| (f.name.clone(), f.length())).collect();
        let written = self.transaction.write(files, self.durability, self.progress.clone()).await?;
        check_files(&planned, &written)?;
        self.results = FileLayout::results(items, copied, &written)?;
        Ok(())
    }

    async fn finish(self: Box<Self>, written: Result<()>, comm: &Comm<'_>) -> Result<Saved> {
        let me = *self;
        if me.rank_local {
            let records = written.and_then(|()| {
                let own = std::slice::from_ref(&me.results);
                me.writer
                    .finish(&FinishCx::new(&me.url, me.dialect, &me.metadata, own).of_rank(comm.rank().0))
            });
            let mine = records.as_ref().map(|_| totals(&me.results)).map_err(cause);
            let mut ranks = Vec::new();
            let summed = comm.all_reduce("write", mine, |all: Vec<RankTotals>| {
                ranks = all;
                Ok(SaveTotals::of(&ranks))
            });
            let totals = summed.await?;
            let metadata = Some(Arc::new(me.metadata));
            return Ok(Saved { records: records?, metadata, ranks, totals, policy: me.policy });
        }
        let mut saved = Saved::default();
        let (writer, metadata, url, dialect) = (&me.writer, &me.metadata, &*me.url, me.dialect);
        let part = written.map(|()| me.results).map_err(|e| cause(&e));
        saved.totals = comm
            .all_reduce("write", part, |results: Vec<Vec<WriteResult>>| {
                check_written(metadata, &results)?;
                let cx = FinishCx::new(url, dialect, metadata, &results);
                saved.records = writer.finish(&cx).map_err(|e| cause(&e))?;
                saved.ranks = results.iter().map(|p| totals(p)).collect();
                Ok(SaveTotals::of(&saved.ranks))
            })
            .await?;
        if comm.is_coordinator() {
            saved.metadata = Some(Arc::new(me.metadata));
            saved.policy = me.policy;
        }
        Ok(saved)
    }
}

fn totals(results: &[WriteResult]) -> RankTotals {
    let parts = || results.iter().flat_map(|p| &p.parts);
    let files: BTreeSet<&str> = parts().map(|p| p.file.as_str()).collect();
    let bytes = parts().map(StorageInfo::length).sum();
    RankTotals { items: results.len() as u64, bytes, files: files.len() as u64 }
}

/// The store has written the files that it was given, as long as they were to be.
fn check_files(planned: &[(Name, Option<Length>)], written: &[Written]) -> Result<()> {
    if written.len() != planned.len() {
        let what = format!("{} of {} planned files were written", written.len(), planned.len());
        return Err(StrategyError::Internal(what));
    }
    for ((name, length), w) in planned.iter().zip(written) {
        if w.name != *name {
            let what = format!("{} was written where {name} was planned", w.name);
            return Err(StrategyError::Internal(what));
        }
        if !length.is_some_and(|length| length.allows(w.bytes)) {
            let what = format!("{} bytes were written, not as planned", w.bytes);
            return Err(StrategyError::corrupt(name, None, what));
        }
    }
    Ok(())
}

/// Commit only if every planned item was written, and once: a lost writer must not become a checkpoint with holes.
fn check_written(metadata: &Metadata, results: &[Vec<WriteResult>]) -> Result<(), Cause> {
    let wrong = |what: String| Err(Cause::new(ErrorKind::Internal, format!("{what}; nothing is committed")));
    let mut written: BTreeMap<&str, Vec<Option<&Dims>>> = BTreeMap::new();
    for PieceId { key, offset } in results.iter().flatten().map(|r| &r.id) {
        written.entry(key).or_default().push(offset.as_ref());
    }
    for entry in metadata.entries() {
        let mut wanted: Vec<Option<Dims>> = match &entry {
            Entry::Object(..) => vec![None],
            Entry::Tensor(t) => t.chunks().map(|(_, region)| Some(region.offsets)).collect(),
        };
        let mut found = written.remove(entry.key()).unwrap_or_default();
        wanted.sort_unstable();
        found.sort_unstable();
        if !wanted.iter().map(Option::as_ref).eq(found.iter().copied()) {
            let (found, wanted) = (found.len(), wanted.len());
            return wrong(format!("{}: {found} items were written where {wanted} were planned", entry.key()));
        }
    }
    match written.first_key_value() {
        Some((key, _)) => wrong(format!("{key}: an item was written that was not planned")),
        None => Ok(()),
    }
}
