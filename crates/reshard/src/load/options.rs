//! The options of a load, and which of them all ranks must pass alike.

use crate::agreement::{PLACE, or_default, place_of, planner_of, settings_of};
use reshard_comm::{Comm, Rank};
use reshard_open::{OPEN, opened::OpenOptions};
use reshard_plan::{DefaultLoadPlanner, LoadPlanner};
use reshard_storage::Store;
use reshard_strategy::{AgreedOptions, KeptLoadPlan, LoadPipelineOptions, StrategyError, cause};
use std::sync::Arc;

/// Whether leaves of a key need not be stored.
pub(super) type OptionalKeys = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// What the caller has set. [`Load`](crate::Load) says what each option means. It is made by the builder, and borrowed by every part of the load.
#[derive(Default)]
pub(crate) struct LoadOptions {
    pub(super) url: String,
    pub(super) open: OpenOptions,
    pub(super) planner: Option<Arc<dyn LoadPlanner>>,
    pub(super) default: DefaultLoadPlanner,
    pub(super) verify_integrity: bool,
    pub(super) optional: Option<OptionalKeys>,
    pub(super) kept_plan: Option<Arc<KeptLoadPlan>>,
}

impl LoadOptions {
    /// The defaults, for a load from this place.
    pub(super) fn of(url: String) -> Self {
        Self {
            url,
            ..Self::default()
        }
    }

    /// The caller's planner, or the default one with what the caller has set.
    pub(super) fn planner(&self) -> Arc<dyn LoadPlanner> {
        let planner = self.planner.clone();
        planner.unwrap_or_else(|| Arc::new(self.default))
    }

    /// Fails on all ranks if they pass different options. Ranks may open different places if all of these are rank-local checkpoints.
    pub(super) async fn agree(
        &self,
        comm: &Comm<'_>,
        store: &Result<Arc<dyn Store>, StrategyError>,
    ) -> Result<(), StrategyError> {
        if comm.size() == 1 {
            return Ok(());
        }
        let options = self.agreed(comm.coordinator(), store.as_ref().ok());
        let found = options.compare(comm).await?;
        if found.is_empty() {
            return Ok(());
        }
        if found.is_only(PLACE) {
            // A place that a rank can't open is why it differs.
            let local = match store {
                Ok(store) => Ok(self.is_rank_local(store).await),
                Err(e) => Err(cause(e)),
            };
            let comm = comm.with_coordinator(Rank(0));
            let all = |local: Vec<bool>| Ok(local.into_iter().all(|local| local));
            if comm.all_reduce(OPEN, local, all).await? {
                return Ok(());
            }
        }
        Err(options.refuse(comm, &found).await)
    }

    /// Whether the place is a rank-local checkpoint. A place that is no checkpoint is none.
    async fn is_rank_local(&self, store: &Arc<dyn Store>) -> bool {
        let opened = self.open.open_store(Arc::clone(store)).await;
        opened.is_ok_and(|opened| opened.reader.is_rank_local())
    }

    /// Lists every option that must agree by `docs/ranks.md`. A new option doesn't compile before it is considered here.
    pub(crate) fn agreed(
        &self,
        coordinator: Rank,
        store: Option<&Arc<dyn Store>>,
    ) -> AgreedOptions {
        let Self {
            url,
            open:
                OpenOptions {
                    strategy,
                    settings: _, // a load has no such option
                    format,
                    load,
                    // Ranks may differ in the rest.
                    registry: _,
                    stores: _,
                    limits: _,
                },
            planner,
            default,
            verify_integrity,
            optional: _,
            kept_plan: _,
        } = self;
        let LoadPipelineOptions {
            verify,
            exchange_memory: _,
            copy_ahead: _,
            progress: _,
        } = load;
        let planner = planner.as_deref();
        let planner = planner.map(|planner| planner_of(planner.name(), planner.plan_settings()));
        AgreedOptions::new()
            .with(PLACE, place_of(store, url))
            .with("coordinator", coordinator)
            .with("strategy", or_default(strategy.as_ref().map(settings_of)))
            .with("format", or_default(format.as_ref()))
            .with("planner", or_default(planner))
            .with("cast", format_args!("{:?}", default.cast))
            .with("strict", format_args!("{:?}", default.strict))
            .with("verify", verify)
            .with("verify_integrity", verify_integrity)
    }
}
