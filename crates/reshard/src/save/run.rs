//! A save from its beginning to its commit.

use super::{
    begin::{Agreed, Begun, begin},
    builder::Save,
    pending::{ACT, CommonFile, PendingSave, Version},
    set_up::SetUp,
};
use crate::{
    CommonForm, Result, SaveReport, advice, alike,
    report::{Clock, Phase},
    tally::Tally,
};
use reshard_comm::Comm;
use reshard_model::{Dialect, Flatten};
use reshard_open::{Context, Error};
use reshard_plan::{DefaultSavePlanner, PlannerData};
use reshard_strategy::{PipelineOptions, PreparedSave, SaveCx, StrategyError};
use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
};

impl<'a> IntoFuture for Save<'a> {
    type Output = Result<SaveReport>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl Save<'_> {
    /// All phases, one after the other. Nothing is staged, because the caller waits.
    async fn run(self) -> Result<SaveReport> {
        let comm = self.ranks.comm();
        let guard = comm.guard("a save");
        let saved = match self.plan(&comm).await {
            Ok(mut pending) => {
                pending.write().await;
                pending.finish(&comm).await
            }
            Err(e) => Err(e),
        };
        guard.done();
        saved
    }

    /// Begins a new version of the place, and plans what each rank writes into it.
    ///
    /// # Collective
    /// If a rank fails, all ranks get an error, and nothing is left of the new version.
    pub(crate) async fn plan(mut self, comm: &Comm<'_>) -> Result<PendingSave> {
        let url = self.options.url.clone();
        let url = &*url;
        let mut clock = Clock::start("save", comm.rank(), url);
        // Nothing is begun before all ranks know that they want the same.
        let target = self.find_target();
        if let Err(e) = self.options.agree(comm, &target).await {
            clock.failed(Phase::Plan, &e);
            return Err(Error::new(ACT, url, e));
        }
        let set_up = match target.and_then(|target| self.set_up(target)) {
            Ok(set_up) => self.list_place(set_up).await,
            Err(e) => Err(e),
        };
        let begun = begin(comm, &set_up, &self.options).await;
        let Agreed {
            begun:
                Begun {
                    transaction,
                    stays,
                    side_by_side,
                },
            left,
            common_differs,
        } = match begun {
            Ok(begun) => begun,
            Err(e) => {
                let own = set_up.err().filter(|_| comm.size() == 1);
                clock.failed(Phase::Plan, own.as_ref().unwrap_or(&e));
                let e = own.unwrap_or(e);
                let advice = advice::of_save(comm.size(), self.options.overwrite, &e);
                return Err(Error::new(ACT, url, e).with_advice(advice));
            }
        };
        let mut set_up = set_up.during(ACT, url)?;
        if !comm.is_coordinator() {
            alike::leave_to_coordinator(&left, &set_up.plain, &mut set_up.parts.flat);
        }
        let place = Arc::clone(set_up.place());
        let transaction = Arc::new(Tally::new(transaction, place, comm));
        let prepared = self.prepare(comm, &mut set_up, &transaction).await;
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(e) => {
                clock.failed(Phase::Plan, &e);
                transaction.clear(url).await;
                let advice = advice::of_save(comm.size(), self.options.overwrite, &e);
                return Err(Error::new(ACT, url, e).with_advice(advice));
            }
        };
        clock.done(Phase::Plan);
        let common_file = self.common_file(comm, &mut set_up);
        // It concerns data that a dry run does not read.
        let last_check = self.last_check.filter(|_| !self.options.pipeline.dry_run);
        let version = Version {
            transaction,
            _in_flight: set_up.in_flight,
            backend: set_up.sharded.key(),
            common: set_up.common,
            side_by_side,
            kind: set_up.kind,
            registry: set_up.registry,
            empty_dicts: set_up.parts.dropped_empty,
            stays,
            common_differs,
            common_files: Vec::new(),
            options: self.options,
        };
        Ok(PendingSave {
            version,
            common_file,
            prepared,
            last_check,
            written: None,
            clock,
        })
    }

    /// Plans the sharded leaves.
    async fn prepare(
        &self,
        comm: &Comm<'_>,
        set_up: &mut SetUp,
        transaction: &Arc<Tally>,
    ) -> Result<PreparedSave, StrategyError> {
        let options = &self.options;
        let PipelineOptions {
            dialect,
            rank_local,
            ..
        } = options.pipeline;
        let default = || Arc::new(default_planner(dialect).with_allow_holes(rank_local)) as _;
        let planner = options.planner.clone().unwrap_or_else(default);
        let mut cx = SaveCx::new(
            &options.pipeline,
            *comm,
            &self.ranks.groups,
            Arc::<Tally>::clone(transaction),
            &options.url,
            planner,
        );
        cx.kept_plan.clone_from(&options.kept_plan);
        cx.policy.clone_from(&options.policy);
        if dialect == Dialect::Dcp && options.flatten == Flatten::default() {
            cx.planner_data = Some(PlannerData::Paths(std::mem::take(&mut set_up.parts.paths)));
        }
        cx.empty_dicts.clone_from(&set_up.parts.dropped_empty);
        let state = std::mem::take(&mut set_up.parts.flat);
        set_up.sharded.prepare(state, &cx).await
    }

    /// The common state that the coordinator writes as a file.
    fn common_file(&self, comm: &Comm<'_>, set_up: &mut SetUp) -> CommonFile {
        let has_file = self.options.pipeline.dialect == Dialect::Megatron
            && self.options.common_form == CommonForm::File;
        match self.options.stored_common.clone() {
            _ if !has_file || !comm.is_coordinator() => CommonFile::None,
            Some(stored) => CommonFile::Stored(stored),
            None => CommonFile::State(std::mem::take(&mut set_up.parts.common)),
        }
    }
}

fn default_planner(dialect: Dialect) -> DefaultSavePlanner {
    match dialect {
        Dialect::Megatron => DefaultSavePlanner::DEFAULT,
        _ => DefaultSavePlanner::DCP,
    }
}
