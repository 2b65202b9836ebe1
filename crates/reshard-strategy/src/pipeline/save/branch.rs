//! What one writer writes of a planned save: staging, writing and finishing it.

use super::{
    exchange::exchange,
    resolve::Source,
    written::{Target, check_written, lay_out},
};
use crate::{
    FileLayout, FinishCx, PipelineOptions, Records, Result, SaveTotals, Saved, StorageInfo,
    StorageWriter, StrategyError, Traffic, WriteResult, agree, cause,
    pipeline::exchange::{Apart, Stopped},
    staging::{KeyedData, put_data, take_data},
};
use reshard_comm::{Cause, Comm, CommError};
use reshard_model::{BoxError, DType, Data, Dims, FlatStateDict, Region, TensorSource};
use reshard_plan::{Metadata, SavePlan, SavePlanner, WriteData, WriteItem, WriteKind};
use reshard_policy::PolicyMetrics;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// One writer with its plan. It borrows nothing: another thread can write it, and finish it with the group.
pub(crate) struct Branch {
    pub(super) writer: Arc<dyn StorageWriter>,
    pub(super) planner: Arc<dyn SavePlanner>,
    pub(super) target: Target,
    pub(super) rank: u32,
    pub(super) options: PipelineOptions,
    pub(super) url: String,
    /// `None` once it is written.
    pub(super) work: Option<Work>,
    /// The ranks with which this one exchanges items while it writes. `None` without an exchange, or once it is over.
    pub(super) peers: Option<Apart>,
    /// The step that was begun last.
    pub(super) step: Step,
    /// Where the items lie. Known once they are written.
    pub(super) results: Vec<WriteResult>,
    /// What this rank heard from its peers, if it stopped because a peer failed.
    pub(super) heard: Option<CommError>,
    pub(super) metadata: Arc<Metadata>,
    pub(super) policy: Option<PolicyMetrics>,
}

/// The local steps of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Staging,
    Layout,
    Write,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Staging => "stage",
            Self::Layout => "layout",
            Self::Write => "write",
        }
    }
}

/// What a rank hands in when it is done.
#[derive(Serialize, Deserialize)]
enum Part {
    Written(Vec<WriteResult>),
    /// It stopped because its peers did, or can't be heard any more. The rank that has failed hands in why.
    Stopped(Cause),
}

impl Part {
    /// Fails if a rank has stopped and no rank says why.
    fn results(self) -> Result<Vec<WriteResult>, Cause> {
        match self {
            Self::Written(results) => Ok(results),
            Self::Stopped(cause) => Err(cause),
        }
    }
}

/// What this rank writes.
pub(super) struct Work {
    pub(super) plan: Arc<SavePlan>,
    pub(super) state: FlatStateDict,
}

impl Work {
    /// The leaves that tensors come from, also those that this rank gives to others.
    fn wanted(&self) -> BTreeSet<u32> {
        let given = self.plan.exchange.gives.iter().map(|give| &give.item);
        let items = self.plan.items.iter().chain(given);
        let tensors = items.filter(|i| i.tensor().is_some());
        tensors.map(|i| i.source).collect()
    }
}

impl Branch {
    /// The cause for the other ranks if a local step failed. They learn it in the step `write`, whichever step it was.
    fn told(&self, e: &StrategyError) -> Cause {
        let cause = cause(e);
        match self.step {
            Step::Write => cause,
            step => Cause {
                message: format!("in `{}`: {}", step.name(), cause.message),
                ..cause
            },
        }
    }

    pub(super) fn take_data(&mut self) -> Result<Vec<KeyedData>> {
        self.step = Step::Staging;
        let work = self.work.as_mut().ok_or_else(written_already)?;
        let wanted = work.wanted();
        Ok(take_data(&mut work.state, &wanted))
    }

    pub(super) fn put_data(&mut self, copies: Vec<Data>) -> Result<()> {
        let work = self.work.as_mut().ok_or_else(written_already)?;
        let wanted = work.wanted();
        put_data(&mut work.state, &wanted, copies)?;
        // What fails from here on, fails in writing.
        self.step = Step::Write;
        Ok(())
    }

    pub(super) fn give_up(&mut self, why: &StrategyError) {
        self.work = None;
        if let Some(peers) = self.peers.take() {
            peers.give_up(self.told(why));
        }
    }

    pub(super) async fn write(&mut self) -> Result<()> {
        self.step = Step::Layout;
        let Work { plan, state } = self.work.take().ok_or_else(written_already)?;
        let parts = (Arc::clone(&self.writer), Arc::clone(&self.planner));
        let source = Source::new(parts, state, self.target.copy_ahead);
        let Some(peers) = self.peers.take() else {
            let resolve = |item: &WriteItem| match item.taken() {
                // Without an exchange group only a dry run has items of other ranks.
                Some(_) => stand_in(&*self.writer, item),
                None => source.resolve(item),
            };
            let FileLayout {
                files,
                items,
                copied,
            } = lay_out(
                &*self.writer,
                (self.rank, self.target.limit),
                &plan,
                &resolve,
            )?;
            self.step = Step::Write;
            let written = self.target.write(files).await?;
            self.results = FileLayout::results(items, copied, &written)?;
            return Ok(());
        };
        let (laid_out, exchanged) =
            exchange(&peers, plan, source, self.rank, self.target.clone()).await;
        if laid_out {
            self.step = Step::Write;
        }
        match exchanged {
            Ok(results) => self.results = results,
            // A rank that stopped because a peer failed has no cause of its own to report.
            Err(stopped) => {
                if let Stopped::There(e) | Stopped::Lost(e) = &stopped {
                    self.heard = Some(e.clone());
                }
                peers.done();
                return Err(stopped.into_error());
            }
        }
        peers.done();
        Ok(())
    }

    pub(super) async fn finish(mut self, written: Result<()>, comm: &Comm<'_>) -> Result<Saved> {
        let results = std::mem::take(&mut self.results);
        if let Err(e) = &written {
            self.give_up(e);
        }
        if self.options.rank_local {
            return self.finish_alone(written.map(|()| results), comm).await;
        }
        let mut lengths = Vec::new();
        // The coordinator checks all results before the format makes its records of them. It keeps records and totals in
        // `saved`; the other ranks only get the sums.
        let mut saved = Saved {
            items: results.len() as u64,
            ..Saved::default()
        };
        let (writer, metadata, url) = (&self.writer, &self.metadata, &*self.url);
        let PipelineOptions {
            dialect, dry_run, ..
        } = self.options;
        let part = match (&written, &self.heard) {
            (Ok(()), _) => Ok(Part::Written(results)),
            (Err(_), Some(heard)) => Ok(Part::Stopped(heard.to_cause())),
            (Err(e), None) => Err(self.told(e)),
        };
        let totals = comm.all_reduce("write", part, |parts: Vec<Part>| {
            let results = parts
                .into_iter()
                .map(Part::results)
                .collect::<Result<Vec<_>, Cause>>()?;
            check_written(metadata, &results)?;
            let cx = FinishCx::new(url, dialect, metadata, &results);
            // Records contain checksums and lengths of data that a dry run does not read.
            if !dry_run {
                saved.records = writer.finish(&cx).map_err(|e| cause(&e))?;
            }
            saved.ranks = results.iter().map(|p| totals(p)).collect();
            lengths = file_lengths(results.iter().flatten());
            Ok(SaveTotals::of(&saved.ranks))
        });
        saved.totals = totals.await.map_err(|e| agree::theirs(comm, e, written))?;
        if comm.is_coordinator() {
            saved.metadata = Some(self.metadata);
            let policy = self.policy.or_else(|| saved.records.policy.take());
            let policy = policy.or_else(|| self.writer.policy_metrics());
            saved.policy = policy.map(|metrics| metrics.of_files(&lengths));
        }
        Ok(saved)
    }

    /// Finishes a rank-local save, in which each rank has a record of its own items.
    async fn finish_alone(
        self,
        written: Result<Vec<WriteResult>>,
        comm: &Comm<'_>,
    ) -> Result<Saved> {
        let records = written
            .as_ref()
            .map_err(|e| self.told(e))
            .and_then(|results| {
                let own = std::slice::from_ref(results);
                let cx = FinishCx::new(&self.url, self.options.dialect, &self.metadata, own)
                    .of_rank(comm.rank().0);
                let records = match self.options.dry_run {
                    true => Records::default(),
                    false => self.writer.finish(&cx).map_err(|e| cause(&e))?,
                };
                Ok((records, totals(results)))
            });
        let items = written.as_ref().map_or(0, |results| results.len() as u64);
        let lengths = file_lengths(written.iter().flatten());
        let (records, mine) = match records {
            Ok((records, totals)) => (records, Ok(totals)),
            Err(cause) => (Records::default(), Err(cause)),
        };
        let mut ranks = Vec::new();
        let summed = comm.all_reduce("write", mine, |all: Vec<Traffic>| {
            ranks = all;
            Ok(SaveTotals::of(&ranks))
        });
        let totals = summed.await.map_err(|e| agree::theirs(comm, e, written))?;
        let metadata = Some(self.metadata);
        Ok(Saved {
            records,
            metadata,
            items,
            ranks,
            totals,
            policy: self.policy.map(|metrics| metrics.of_files(&lengths)),
        })
    }
}

/// What a dry run lays out in place of an item that another rank would give.
fn stand_in(writer: &dyn StorageWriter, item: &WriteItem) -> Result<WriteData> {
    Ok(match &item.kind {
        WriteKind::Tensor(t) => WriteData::Tensor(Data::Lazy(Arc::new(Zeros {
            dtype: t.dtype,
            shape: t.region.lengths.clone(),
        }))),
        &WriteKind::Object { bytes_hint } => WriteData::Object(writer.blank_object(bytes_hint)?),
    })
}

/// The elements of a tensor of another rank in a dry run.
struct Zeros {
    dtype: DType,
    shape: Dims,
}

impl TensorSource for Zeros {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> Dims {
        self.shape.clone()
    }

    fn read(&self, _: &Region, out: &mut [u8]) -> std::result::Result<(), BoxError> {
        out.fill(0);
        Ok(())
    }
}

fn written_already() -> StrategyError {
    StrategyError::Internal(
        "a prepared save can be written only once, and staged only before that".into(),
    )
}

/// The lengths of files, by the ends of the items in them.
fn file_lengths<'r>(results: impl Iterator<Item = &'r WriteResult>) -> Vec<u64> {
    let mut files: BTreeMap<&str, u64> = BTreeMap::new();
    for part in results.flat_map(|result| &result.parts) {
        let end = files.entry(part.file.as_str()).or_default();
        *end = part.range.end.max(*end);
    }
    files.into_values().collect()
}

fn totals(results: &[WriteResult]) -> Traffic {
    let parts = || results.iter().flat_map(|p| &p.parts);
    let files: BTreeSet<&str> = parts().map(|p| p.file.as_str()).collect();
    let bytes = parts().map(StorageInfo::length).sum();
    Traffic::written(results.len() as u64, bytes, files.len() as u64)
}
