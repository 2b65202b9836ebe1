//! The options of a save, and which of them all ranks must pass alike.

use crate::{
    CommonForm,
    agreement::{PLACE, or_default, place_of, planner_of, settings_of},
    consistent::Preprocess,
};
use reshard_comm::{Cause, Comm, Rank};
use reshard_model::{Flatten, Path, Value};
use reshard_open::StoredCommon;
use reshard_plan::SavePlanner;
use reshard_policy::ShardingPolicy;
use reshard_storage::{StorageError, Store, Stores};
use reshard_strategy::{
    AgreedOptions, AsyncStager, KeptPlan, PipelineOptions, Registry, SaveCommonStrategy,
    SaveShardedStrategy, Staging, StrategyError, cause,
};
use std::{collections::BTreeMap, sync::Arc};

/// The format and the place of a save.
pub(crate) struct Target {
    pub(super) registry: Registry,
    pub(super) sharded: SaveShardedStrategy,
    /// Other settings are checked before it has to be open.
    pub(super) store: Result<Arc<dyn Store>, StorageError>,
}

/// What the caller has set. [`Save`](super::Save) says what each option means. It is made by the builder, and borrowed by every part of the save.
#[derive(Default)]
pub(crate) struct SaveOptions {
    pub(crate) url: String,
    /// Those that formats see.
    pub(crate) pipeline: PipelineOptions,
    pub(crate) dialect_is_chosen: bool,
    pub(crate) common_form: CommonForm,
    pub(crate) content_metadata: Option<Value>,
    pub(crate) stored_common: Option<StoredCommon>,
    pub(crate) empty_dicts: Vec<Path>,
    pub(crate) notes: BTreeMap<String, String>,
    pub(crate) strategy: Option<SaveShardedStrategy>,
    pub(crate) common: Option<Arc<dyn SaveCommonStrategy>>,
    pub(crate) planner: Option<Arc<dyn SavePlanner>>,
    pub(crate) policy: Option<Arc<dyn ShardingPolicy>>,
    pub(crate) overwrite: bool,
    pub(crate) coordinators_plain_tensors: bool,
    pub(crate) kept_plan: Option<Arc<KeptPlan>>,
    pub(crate) check_replicas: bool,
    pub(crate) flatten: Flatten,
    pub(crate) compare_common: bool,
    pub(crate) integrity: bool,
    pub(crate) preprocess_common: Option<Preprocess>,
    /// Whether it goes on while the caller changes its state.
    pub(crate) asynchronous: bool,
    pub(crate) metadata_on_all_ranks: bool,
    pub(crate) staging: Staging,
    pub(crate) stager: Option<Arc<dyn AsyncStager>>,
    pub(crate) registry: Option<Registry>,
    pub(crate) stores: Option<Stores>,
}

impl SaveOptions {
    /// The defaults, for a save to this place.
    pub(crate) fn of(url: String) -> Self {
        Self {
            url,
            compare_common: true,
            ..Self::default()
        }
    }

    /// Fails on all ranks if they pass different options. Ranks of a rank-local save may have different places.
    pub(super) async fn agree(
        &self,
        comm: &Comm<'_>,
        target: &Result<Target, StrategyError>,
    ) -> Result<(), StrategyError> {
        if comm.size() == 1 {
            return Ok(());
        }
        let options = self.agreed(comm.coordinator(), target.as_ref().ok());
        let found = options.compare(comm).await?;
        if found.is_empty() || (self.pipeline.rank_local && found.is_only(PLACE)) {
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

    /// Lists every option that must agree by `docs/ranks.md`. A new option doesn't compile before it is considered here.
    pub(crate) fn agreed(&self, coordinator: Rank, target: Option<&Target>) -> AgreedOptions {
        let Self {
            url,
            pipeline,
            common_form,
            content_metadata,
            stored_common,
            empty_dicts,
            strategy,
            common,
            planner,
            policy,
            overwrite,
            coordinators_plain_tensors,
            check_replicas,
            flatten,
            compare_common,
            integrity,
            asynchronous,
            metadata_on_all_ranks,
            // Ranks may differ in the rest.
            dialect_is_chosen: _,
            notes: _,
            kept_plan: _,
            preprocess_common: _,
            staging: _,
            stager: _,
            registry: _,
            stores: _,
        } = self;
        let PipelineOptions {
            dialect,
            durability,
            rank_local,
            dry_run,
            validate_access_integrity,
            policy_limits,
            exchange_memory: _,
            copy_ahead: _,
            progress: _,
        } = pipeline;
        let store = target.and_then(|target| target.store.as_ref().ok());
        let planner = planner.as_deref();
        let planner = planner.map(|planner| planner_of(planner.name(), planner.plan_settings()));
        let common_strategy = common.as_ref().map(|common| common.key());
        let empty_dicts: Vec<String> = empty_dicts.iter().map(ToString::to_string).collect();
        let content = content_metadata.as_ref();
        AgreedOptions::new()
            .with(PLACE, place_of(store, url))
            .with("coordinator", coordinator)
            .with("strategy", or_default(strategy.as_ref().map(settings_of)))
            .with("dialect", dialect)
            .with("common_strategy", or_default(common_strategy))
            .with("common_form", format_args!("{common_form:?}"))
            .with(
                "content_metadata",
                or_default(content.map(|content| format!("{content:?}"))),
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
            .with("metadata_on_all_ranks", metadata_on_all_ranks)
    }
}
