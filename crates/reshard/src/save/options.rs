//! The options of a save that all ranks must pass alike.

use super::{builder::Save, set_up::Target};
use crate::{
    agreement::{PLACE, or_default, place_of, planner_of, settings_of},
    common::StoredCommon,
};
use reshard_comm::{Cause, Comm, Rank};
use reshard_model::Flatten;
use reshard_strategy::{AgreedOptions, StrategyError, cause};

impl Save<'_> {
    /// Fails on all ranks if they pass different options. Ranks of a rank-local save may have different places.
    pub(super) async fn agree_on_options(
        &self,
        comm: &Comm<'_>,
        target: &Result<Target, StrategyError>,
    ) -> Result<(), StrategyError> {
        if comm.size() == 1 {
            return Ok(());
        }
        let options = self.agreed_options(target.as_ref().ok());
        let found = options.compare(comm).await?;
        if found.is_empty() || (self.rank_local && found.is_only(PLACE)) {
            return Ok(());
        }
        // A format or place that a rank can't open is why they differ.
        let ready = match target {
            Ok(target) => match &target.store {
                Ok(_) => Ok(()),
                Err(e) => Err(Cause::from_error(e.kind(), e)),
            },
            Err(e) => Err(cause(e)),
        };
        let comm = comm.with_coordinator(Rank(0));
        comm.agree("options", ready).await?;
        Err(options.refuse(&comm, &found).await)
    }

    /// Lists every option that [`OPTIONS`](crate::agreement::OPTIONS) says must agree. A new field of `Save` doesn't compile before it is considered here.
    pub(crate) fn agreed_options(&self, target: Option<&Target>) -> AgreedOptions {
        let Self {
            url,
            ranks,
            dialect,
            common_form,
            content_metadata,
            stored_common,
            empty_dicts,
            config,
            common,
            planner,
            planner_type,
            policy,
            policy_limits,
            overwrite,
            dry_run,
            durability,
            rank_local,
            coordinators_plain_tensors,
            validate_access_integrity,
            check_replicas,
            flatten,
            compare_common,
            integrity,
            asynchronous,
            // Ranks may differ in the rest.
            state: _,
            dialect_is_chosen: _,
            notes: _,
            progress: _,
            last_check: _,
            exchange_memory: _,
            kept_plan: _,
            preprocess_common: _,
            statefuls: _,
            staging: _,
            stager: _,
            registry: _,
            stores: _,
        } = self;
        let store = target.and_then(|target| target.store.as_ref().ok());
        let planner = planner
            .as_ref()
            .map(|planner| planner_of(planner_type, planner.plan_settings()));
        let common_strategy = common.as_ref().map(|common| common.key());
        let empty_dicts: Vec<String> = empty_dicts.iter().map(ToString::to_string).collect();
        AgreedOptions::new()
            .with(PLACE, place_of(store, url))
            .with("coordinator", ranks.coordinator)
            .with("strategy", or_default(config.as_deref().map(settings_of)))
            .with("dialect", dialect)
            .with("common_strategy", or_default(common_strategy))
            .with("common_form", format_args!("{common_form:?}"))
            .with(
                "content_metadata",
                or_default(
                    content_metadata
                        .as_ref()
                        .map(|content| format!("{content:?}")),
                ),
            )
            .with(
                "stored_common",
                or_default(stored_common.as_ref().map(StoredCommon::fingerprint)),
            )
            .with("empty_dicts", format_args!("{empty_dicts:?}"))
            .with("planner", or_default(planner))
            .with("policy", or_default(policy.as_deref().map(settings_of)))
            .with("max_slices", format_args!("{:?}", policy_limits.max_slices))
            .with("max_files", format_args!("{:?}", policy_limits.max_files))
            .with("overwrite", overwrite)
            .with("dry_run", dry_run)
            .with("durability", format_args!("{durability:?}"))
            .with("rank_local", rank_local)
            .with("coordinators_plain_tensors", coordinators_plain_tensors)
            .with("validate_access_integrity", validate_access_integrity)
            .with("check_replicas", check_replicas)
            .with("flatten", *flatten == Flatten::default())
            .with("compare_common", compare_common)
            .with("integrity", integrity)
            .with("start", asynchronous)
    }
}
