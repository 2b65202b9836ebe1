//! A save from its beginning to its commit.

use super::{
    begin::{Begun, begin},
    builder::Save,
    set_up::SetUp,
};
use crate::{
    CommonForm, Error, Result, SaveReport, alike,
    error::Context,
    formats::default_format,
    report::{Clock, Phase},
    sidecar::{SIDECAR, Sidecar},
    tally::{Tally, gather},
};
use bytes::Bytes;
use reshard_comm::Comm;
use reshard_megatron::{METADATA_JSON, MetadataJson};
use reshard_model::{Dialect, Path, ValueTree};
use reshard_plan::{DefaultSavePlanner, PlannerData};
use reshard_storage::{FileBody, Name, Progress, Transaction};
use reshard_strategy::{
    PreparedSave, Records, SaveCommonStrategy, SaveCx, SaveShardedStrategy, Saved, StrategyError,
    agree,
};
use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
};

const ACT: &str = "saving to";

impl<'a> IntoFuture for Save<'a> {
    type Output = Result<SaveReport>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl Save<'_> {
    async fn run(mut self) -> Result<SaveReport> {
        let mut clock = Clock::start();
        let url = self.url;
        let comm = self.ranks.comm();
        let guard = comm.guard("a save");
        let prepared = self.set_up();
        let begun = begin(&comm, &prepared, url, self.overwrite, self.rule()).await;
        let (Begun { transaction, stays }, coordinators) = match begun {
            Ok(begun) => begun,
            Err(e) => {
                guard.done();
                let own = prepared.err().filter(|_| comm.size() == 1);
                return Err(Error::new(ACT, url, own.unwrap_or(e)));
            }
        };
        let mut setup = prepared.during(ACT, url)?;
        if !comm.is_coordinator() {
            alike::leave_to_coordinator(&coordinators, &setup.plain, &mut setup.parts.flat);
        }
        let transaction = Arc::new(Tally::new(transaction));
        let saved = self.write(&comm, setup, &transaction, &mut clock).await;
        if saved.is_err() && comm.is_coordinator() {
            // Nothing was committed, so nobody needs what was written. If its removal fails, the error must still be the cause.
            let cleared = transaction.rollback().await;
            if let Err(e) = cleared {
                tracing::warn!(error = %e, url, "what a failed save wrote could not be removed");
            }
        }
        guard.done();
        let (saved, empty_dicts) = saved.during(ACT, url)?;
        clock.done(Phase::Commit);
        Ok(SaveReport {
            metadata: saved.metadata,
            ranks: saved.ranks,
            totals: saved.totals,
            policy: saved.policy,
            empty_dicts,
            stays,
            phases: clock.phases(),
        })
    }

    async fn write(
        &mut self,
        comm: &Comm<'_>,
        setup: SetUp,
        transaction: &Arc<Tally>,
        clock: &mut Clock,
    ) -> Result<(Saved, usize), StrategyError> {
        let SetUp {
            sharded,
            common,
            parts,
            ..
        } = setup;
        let planner = self.planner.take().unwrap_or_else(|| {
            Arc::new(default_planner(self.dialect).with_allow_holes(self.rank_local))
        });
        let groups = std::mem::take(&mut self.ranks.groups);
        let mut cx = SaveCx::new(
            *comm,
            &groups,
            Arc::<Tally>::clone(transaction),
            self.url,
            planner,
        );
        (cx.durability, cx.dialect, cx.rank_local) =
            (self.durability, self.dialect, self.rank_local);
        (cx.progress, cx.exchange_memory) = (self.progress.clone(), self.exchange_memory);
        cx.declarations.clone_from(&self.declarations);
        (cx.policy, cx.policy_limits) = (self.policy.take(), self.policy_limits);
        if self.dialect == Dialect::Dcp {
            cx.planner_data = Some(PlannerData::Paths(parts.paths));
        }
        let mut prepared = sharded.prepare(parts.flat, &cx).await?;
        clock.done(Phase::Plan);
        let written = self
            .write_files(&*common, &parts.common, &mut *prepared, &cx)
            .await;
        clock.done(Phase::Write);
        let saved = prepared.finish(written, comm).await?;
        let last = self
            .write_records(&saved, &*sharded, &*common, &parts.dropped_empty, &cx)
            .await;
        // Before the coordinator commits, the records of every rank are written, and it knows every file of every rank.
        let (last, written) = match last {
            Ok(last) => (last, Ok(transaction.take())),
            Err(e) => (None, Err(e)),
        };
        let files = gather(comm, written).await?;
        let committed = if comm.is_coordinator() {
            transaction
                .commit(last, &files, self.durability)
                .await
                .map_err(StrategyError::from)
        } else {
            Ok(())
        };
        agree(comm, "commit", committed).await?;
        Ok((saved, parts.dropped_empty.len()))
    }

    /// Writes common state first, as Megatron Core does.
    async fn write_files(
        &self,
        strategy: &dyn SaveCommonStrategy,
        common: &ValueTree,
        prepared: &mut dyn PreparedSave,
        cx: &SaveCx<'_>,
    ) -> Result<(), StrategyError> {
        let has_file = self.dialect == Dialect::Megatron && self.common_form == CommonForm::File;
        if has_file && cx.comm.is_coordinator() {
            let files = match &self.stored_common {
                Some(stored) => stored.layout()?,
                None => strategy.layout_common(common)?,
            };
            cx.transaction
                .write(files, cx.durability, cx.progress.clone())
                .await?;
        }
        prepared.write().await
    }

    /// Writes the records that describe what was written, except the commit record. The coordinator gets that one back.
    async fn write_records(
        &self,
        saved: &Saved,
        sharded: &dyn SaveShardedStrategy,
        common: &dyn SaveCommonStrategy,
        empty: &[Path],
        cx: &SaveCx<'_>,
    ) -> Result<Option<(Name, Bytes)>, StrategyError> {
        let Records {
            mut files,
            mut commit,
        } = saved.records.clone();
        let me = cx.comm.is_coordinator();

        // The sidecar says what the format's own records can't. It comes before the commit record, so no whole
        // checkpoint lacks it.
        if me && let Some(mut sidecar) = Sidecar::of(commit.as_ref(), &files) {
            let named = self.dialect == Dialect::Megatron || sharded.key() == default_format();
            sidecar.empty_dicts = empty.to_vec();
            sidecar.strategy = (!named).then(|| sharded.key());
            sidecar.policy = saved.policy.as_ref().map(|p| p.description.clone());
            files.insert(0, (Name::new(SIDECAR)?, sidecar.to_bytes()));
        }

        // In Megatron's dialect `metadata.json` completes the checkpoint, so the format's own record becomes a file
        // before it.
        if me && self.dialect == Dialect::Megatron {
            let json = MetadataJson::new(&sharded.key(), &common.key());
            let bytes = if self.common_form == CommonForm::File {
                json.to_bytes()
            } else {
                json.to_short_bytes()
            };
            files.extend(commit.replace((Name::new(METADATA_JSON)?, bytes)));
        }

        // Only the coordinator commits. Records of other ranks are plain files.
        if !me {
            files.extend(commit.take());
        }
        let files: Vec<FileBody> = files
            .into_iter()
            .map(|(n, b)| FileBody::from_bytes(n, b))
            .collect();
        if !files.is_empty() {
            cx.transaction
                .write(files, self.durability, Progress::default())
                .await?;
        }
        Ok(commit)
    }
}

fn default_planner(dialect: Dialect) -> DefaultSavePlanner {
    match dialect {
        Dialect::Megatron => DefaultSavePlanner::DEFAULT,
        _ => DefaultSavePlanner::DCP,
    }
}
