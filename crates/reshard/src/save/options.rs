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
/// Each public field is an option as it is set: a method of `Save` sets it.
#[derive(Default, derive_setters::Setters)]
#[setters(
    generate_private = false,
    generate_delegates(ty = "super::Save<'_>", field = "options")
)]
pub(crate) struct SaveOptions {
    pub(crate) url: String,
    /// Those that formats see.
    pub(crate) pipeline: PipelineOptions,
    pub(crate) dialect_is_chosen: bool,
    /// Where common state goes in Megatron Core's dialect.
    pub common_form: CommonForm,
    /// Megatron Core's description of what the checkpoint holds. It is kept as `content_metadata` in the common state.
    #[setters(into, strip_option)]
    pub content_metadata: Option<Value>,
    pub(crate) stored_common: Option<StoredCommon>,
    pub(crate) empty_dicts: Vec<Path>,
    pub(crate) notes: BTreeMap<String, String>,
    /// Sets the save strategy: settings of a format, with or without layers around it. The default is that of the
    /// [registry](reshard_strategy::Registry::default_of): `torch_dist` with its default settings.
    #[setters(into, strip_option)]
    pub strategy: Option<SaveShardedStrategy>,
    pub(crate) common: Option<Arc<dyn SaveCommonStrategy>>,
    pub(crate) planner: Option<Arc<dyn SavePlanner>>,
    pub(crate) policy: Option<Arc<dyn ShardingPolicy>>,
    /// Whether to replace an existing checkpoint. The old checkpoint stays whole until the new one is complete; then
    /// its files are removed. Other files in its directory stay: a README, logs, also files that came during the save.
    pub overwrite: bool,
    /// If plain tensors differ between ranks, stores the coordinator's. Set this option to the same value on every rank.
    ///
    /// A plain tensor is a tensor that is not declared as a [`ShardedTensor`](crate::ShardedTensor): a leaf, or a part
    /// of one. The checkpoint holds it once. So by default it must have the same type, shape and bytes on all ranks;
    /// otherwise the save fails on all of them. To compare, each rank computes a CRC-32 of its plain tensors. Tensors in
    /// device memory are copied to the host once more for this. A rank that is alone computes nothing. Values that are
    /// not tensors are not compared.
    ///
    /// - In [`Dialect::Megatron`] plain tensors are common state, and the coordinator's is saved. If another rank has a
    ///   tensor that the coordinator lacks, the tensor would be lost, so the save fails. With this option nothing is
    ///   compared.
    /// - In [`Dialect::Dcp`] a tensor that only some ranks have is saved, and these ranks must agree. With this option
    ///   the other ranks leave differing tensors to the coordinator. If the coordinator lacks a differing tensor, the
    ///   save still fails.
    /// - With [`rank_local`](Self::rank_local) the rules are the same, because reshard opens the files of all ranks as
    ///   one checkpoint. In PyTorch each rank reads only what it wrote itself, so it misses the tensors that were left
    ///   to the coordinator.
    ///
    /// ```
    /// use futures::{executor::block_on, future::join_all};
    /// use reshard::{LocalGroup, StateDict, Tensor};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = dir.path().join("ckpt").display().to_string();
    /// let mut states = vec![StateDict::new(), StateDict::new()];
    /// for (rank, state) in states.iter_mut().enumerate() {
    ///     state.insert("seed", Tensor::from_vec(&[1], vec![rank as i64])?);
    /// }
    /// let groups = LocalGroup::new(2);
    /// let save = |meant: bool| {
    ///     let ranks = groups.iter().zip(&states);
    ///     let each = ranks.map(|(group, state)| {
    ///         let save = reshard::save(state, &url).group(group).coordinators_plain_tensors(meant);
    ///         async { save.await }
    ///     });
    ///     block_on(join_all(each))
    /// };
    /// assert!(save(false).iter().all(|saved| saved.is_err()));
    /// assert!(save(true).iter().all(|saved| saved.is_ok()));
    /// # Ok(())
    /// # }
    /// ```
    pub coordinators_plain_tensors: bool,
    pub(crate) kept_plan: Option<Arc<KeptPlan>>,
    /// Whether all replicas of a piece are compared by a CRC-32 of their elements, before all but one are dropped. A difference is an error
    /// that names keys, regions and ranks: the ranks of the job have diverged. Each rank reads all its pieces once for that, before
    /// this call goes on, also if the save is asynchronous. Pieces of [`Data::Lazy`](reshard_model::Data::Lazy) and objects are not compared, nor
    /// are replicas that ranks cut differently. The default is not to compare. Set it to the same value on every rank.
    ///
    /// ```
    /// use reshard::{LocalGroup, ShardedTensor, StateDict, Tensor, blocking};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let place = dir.path().join("step-1");
    /// let saves = std::thread::scope(|scope| {
    ///     let ranks = LocalGroup::new(2).into_iter().zip([0u32, 1]).map(|(group, rank)| {
    ///         let place = &place;
    ///         scope.spawn(move || {
    ///             // On rank 1 a bit has flipped.
    ///             let weight = Tensor::from_vec(&[2], vec![1f32, 2. + rank as f32]).unwrap();
    ///             let mut state = StateDict::new();
    ///             state.insert_piece(ShardedTensor::replicated("weight", weight, rank));
    ///             blocking::run(reshard::save(&state, place).group(&group).check_replicas(true))
    ///         })
    ///     });
    ///     let ranks: Vec<_> = ranks.collect();
    ///     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    /// });
    /// let error = saves[0].as_ref().unwrap_err().to_string();
    /// assert!(error.contains("weight [0:2]: rank 1 differs from rank 0"), "{error}");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub check_replicas: bool,
    pub(crate) flatten: Flatten,
    /// Whether the values of common state are compared between ranks, in [`Dialect::Megatron`]. The coordinator's are saved. A rank whose
    /// values differ says so in a warning of `tracing` and in [`SaveReport::common_differs`](crate::SaveReport::common_differs); that is
    /// no error. If all are equal, ranks exchange 32 bytes. The default is that they are compared. Tensors are compared by
    /// [other rules](Self::coordinators_plain_tensors).
    pub compare_common: bool,
    /// Whether to write Megatron Core's `integrity.json` with the SHA-256 of each file, in [`Dialect::Megatron`]. Each rank reads back what it
    /// has written, which comes from the page cache if that is large enough. The file is a part of the same new version, so that no whole
    /// checkpoint lacks it. `verify` checks it, and loads do with [`verify_integrity`](crate::Load::verify_integrity). The default is not to.
    /// Set it to the same value on every rank.
    pub integrity: bool,
    pub(crate) preprocess_common: Option<Preprocess>,
    /// Whether it goes on while the caller changes its state.
    pub(crate) asynchronous: bool,
    /// Sets whether [`SaveReport::metadata`](crate::SaveReport::metadata) is returned on every rank, as DCP's `save` returns it. The default is
    /// no, because sending it to thousands of ranks takes time. All ranks must pass the same.
    pub metadata_on_all_ranks: bool,
    /// Which data an asynchronous save copies before the caller goes on. The default is all ([`Staging::Copy`]).
    pub staging: Staging,
    /// Copies with this stager, instead of the one of the [`AsyncSaver`](crate::AsyncSaver) or
    /// [`AsyncCallsQueue`](crate::AsyncCallsQueue). Only an asynchronous save copies anything.
    #[setters(strip_option)]
    pub stager: Option<Arc<dyn AsyncStager>>,
    /// The registry in which to find the strategy of common state; by default the linked strategies.
    #[setters(strip_option)]
    pub registry: Option<Registry>,
    /// The stores in which to look up the URL; by default the linked stores.
    #[setters(strip_option)]
    pub stores: Option<Stores>,
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
