//! The options of a load that all ranks must pass alike.

use super::Load;
use crate::{
    agreement::{PLACE, or_default, place_of, planner_of, settings_of},
    error::OPEN,
    opened::HowToOpen,
};
use reshard_comm::{Comm, Rank};
use reshard_storage::Store;
use reshard_strategy::{AgreedOptions, StrategyError, cause};
use std::sync::Arc;

impl Load<'_> {
    /// Fails on all ranks if they pass different options. Ranks may open different places if all of these are rank-local checkpoints.
    pub(super) async fn agree_on_options(
        &self,
        comm: &Comm<'_>,
        store: &Result<Arc<dyn Store>, StrategyError>,
    ) -> Result<(), StrategyError> {
        if comm.size() == 1 {
            return Ok(());
        }
        let options = self.agreed_options(store.as_ref().ok());
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
        let opened = self.how.open_store(Arc::clone(store)).await;
        opened.is_ok_and(|opened| opened.reader.is_rank_local())
    }

    /// Lists every option that [`OPTIONS`](crate::agreement::OPTIONS) says must agree. A new field of `Load` doesn't compile before it is considered here.
    pub(crate) fn agreed_options(&self, store: Option<&Arc<dyn Store>>) -> AgreedOptions {
        let Self {
            url,
            ranks,
            planner,
            planner_type,
            default,
            verify,
            verify_integrity,
            how:
                HowToOpen {
                    config,
                    settings: _, // only `OpenOptions` sets them
                    format,
                    // Ranks may differ in the rest.
                    registry: _,
                    stores: _,
                    limits: _,
                },
            template: _,
            statefuls: _,
            exchange_memory: _,
            kept_plan: _,
            copy_ahead: _,
            progress: _,
        } = self;
        let planner = planner
            .as_ref()
            .map(|planner| planner_of(planner_type, planner.plan_settings()));
        AgreedOptions::new()
            .with(PLACE, place_of(store, url))
            .with("coordinator", ranks.coordinator)
            .with("strategy", or_default(config.as_deref().map(settings_of)))
            .with("format", or_default(format.as_ref()))
            .with("planner", or_default(planner))
            .with("cast", format_args!("{:?}", default.cast))
            .with("strict", format_args!("{:?}", default.strict))
            .with("verify", verify)
            .with("verify_integrity", verify_integrity)
    }
}
