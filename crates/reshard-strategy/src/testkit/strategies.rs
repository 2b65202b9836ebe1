use super::{
    Cut, Observer, Rank, check_sample,
    checks::{checksums_are_those_of_elements, damage_is_found},
    drive::save_on_ranks,
    exchange::what_ranks_read_for_each_other_is_what_each_would_read,
    exchange_of_saves::what_ranks_write_for_each_other_is_what_each_would_write,
    flat::regions_of_flattened_ranges_are_read,
    left::{addresses, failed, files, nothing_is_left},
    load_on_ranks,
    phases::phases_can_be_parted,
    sample, sample_template,
};
use crate::{
    BackendVersion, Detection, LoadFailure, LoadShardedStrategy, Loaded, OpenCx, Result,
    SaveShardedStrategy, Saved,
};
use bytes::Bytes;
use futures_executor::block_on;
use reshard_comm::CommError;
use reshard_model::{
    DType, ErrorKind, FlatStateDict, Path, Sharded, ShardedTensor, Tensor, testkit::Rule,
};
use reshard_plan::{DefaultLoadPlanner, DefaultSavePlanner, LoadPlanner, SavePlanner};
use reshard_storage::{
    IfExists, Listing, Name, Progress, Store, StoreExt,
    testkit::{Fault, FaultStore, MemoryStore, Op},
};
use std::sync::Arc;

/// Runs every rule of a save strategy and the load strategy that reads what it wrote, each with several ranks.
///
/// The strategies must be able to save and load ordinary tensors of every element type, through any planner, also one that reads
/// boxes of flattened ranges ([`FlatView`](crate::FlatView)); sharded objects only if they say so.
///
/// # Panics
/// When a rule is broken. The text has the name of the rule, and the item whose documentation has it.
pub fn save_load_contract(
    save: &(impl Clone + Into<SaveShardedStrategy>),
    load: &(impl Clone + Into<LoadShardedStrategy>),
) {
    let save: &SaveShardedStrategy = &save.clone().into();
    let load: &LoadShardedStrategy = &load.clone().into();
    let pair = Pair { save, load };
    rule("configuration.is_data", "SaveFormat::settings").check(|| pair.configuration_is_data());
    rule(
        "compatibility.others_are_refused",
        "LoadShardedStrategy::check_compatibility",
    )
    .check(|| pair.other_formats_and_newer_versions_are_refused());
    rule("resharding.n_save_m_load", "LoadShardedStrategy::load")
        .check(|| pair.what_n_ranks_save_m_ranks_load());
    rule("phases.can_be_parted", "PreparedSave").check(|| phases_can_be_parted(save, load));
    rule("loads.flattened_ranges", "FlatView")
        .check(|| regions_of_flattened_ranges_are_read(save, load));
    rule("exchange.of_loads", "LoadPlan")
        .check(|| what_ranks_read_for_each_other_is_what_each_would_read(save, load));
    rule("exchange.of_saves", "SavePlan")
        .check(|| what_ranks_write_for_each_other_is_what_each_would_write(save, load));
    rule(
        "saves.an_empty_state_is_a_checkpoint",
        "SaveShardedStrategy::prepare",
    )
    .check(|| pair.an_empty_state_is_a_checkpoint());
    rule(
        "saves.ranks_without_leaves_take_part",
        "SaveShardedStrategy::prepare",
    )
    .check(|| pair.ranks_without_leaves_take_part());
    rule("metadata.tells_what_is_stored", "StorageReader::metadata")
        .check(|| pair.what_is_stored_is_told());
    rule("saves.equal_states_give_equal_bytes", "SaveShardedStrategy")
        .check(|| pair.equal_states_give_equal_bytes());
    rule("saves.replace_all_of_the_old", "StorageReader::owns")
        .check(|| pair.a_new_version_replaces_all_of_the_old_one());
    rule(
        "saves.a_refusal_changes_nothing",
        "SaveShardedStrategy::prepare",
    )
    .check(|| pair.a_refused_save_changes_nothing());
    rule("failures.of_a_rank_fail_all", "PreparedSave")
        .check(|| pair.a_failing_rank_fails_all_and_leaves_nothing());
    rule("failures.of_a_write_fail_all", "PreparedSave")
        .check(|| pair.a_write_that_fails_fails_all_and_leaves_nothing());
    rule("loads.a_missing_key_is_named", "LoadFailure")
        .check(|| pair.a_missing_key_is_named_and_the_template_comes_back());
    rule("loads.a_failed_read_gives_the_template_back", "LoadFailure")
        .check(|| pair.a_read_that_fails_gives_the_template_back());
    rule("loads.damage_is_an_error_or_harmless", "StorageReader")
        .check(|| pair.damage_is_an_error_or_does_no_harm());
    rule("checks.find_damage", "StorageReader::verifier").check(|| {
        let store = store();
        pair.save(&store, Cut::Rows, 2);
        damage_is_found(load, &store);
    });
    rule(
        "checks.checksums_of_elements",
        "StorageReader::element_checksums",
    )
    .check(|| {
        let store = store();
        pair.save(&store, Cut::Columns, 2);
        checksums_are_those_of_elements(load, &store);
    });
    rule("claims.element_types", "Capabilities::dtypes").check(|| pair.every_type_comes_back());
    rule("claims.objects", "Capabilities::no_sharded_objects")
        .check(|| pair.objects_keep_their_keys());
    rule("claims.own_files", "StorageReader::owns").check(|| pair.files_are_its_own());
    rule("claims.policies", "StorageWriter::policy_use").check(|| pair.policies_decide_on_files());
    rule("loads.no_checkpoint_says_so", "LoadFormat::open")
        .check(|| pair.a_place_without_a_checkpoint_says_so());
}

fn rule(name: &'static str, written: &'static str) -> Rule {
    let of = "the strategy";
    Rule { of, name, written }
}

pub(super) struct Pair<'c> {
    pub(super) save: &'c SaveShardedStrategy,
    pub(super) load: &'c LoadShardedStrategy,
}

pub(super) fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

impl Pair<'_> {
    pub(super) fn saver(&self) -> Arc<SaveShardedStrategy> {
        Arc::new(self.save.clone())
    }

    fn loader(&self) -> Arc<LoadShardedStrategy> {
        Arc::new(self.load.clone())
    }

    pub(super) fn objects(&self) -> bool {
        self.saver().can_handle_sharded_objects() && self.loader().can_handle_sharded_objects()
    }

    pub(super) fn save_flats(
        &self,
        store: &Arc<dyn Store>,
        how: IfExists,
        flats: Vec<FlatStateDict>,
    ) -> Vec<Result<Saved>> {
        let planner: Arc<dyn SavePlanner> = Arc::new(DefaultSavePlanner::DEFAULT);
        let rank = |flat| Rank {
            strategy: self.saver(),
            planner: Arc::clone(&planner),
            flat,
        };
        save_on_ranks(store, how, flats.into_iter().map(rank).collect())
    }

    fn save(&self, store: &Arc<dyn Store>, cut: Cut, ranks: u32) {
        let flats = (0..ranks)
            .map(|r| sample(cut, r, ranks, self.objects()))
            .collect();
        for outcome in self.save_flats(store, IfExists::Refuse, flats) {
            outcome.unwrap();
        }
    }

    pub(super) fn load_flats(
        &self,
        store: &Arc<dyn Store>,
        flats: Vec<FlatStateDict>,
    ) -> Vec<Result<Loaded, LoadFailure>> {
        let planner: Arc<dyn LoadPlanner> = Arc::new(DefaultLoadPlanner::DEFAULT);
        let rank = |flat| Rank {
            strategy: self.loader(),
            planner: Arc::clone(&planner),
            flat,
        };
        load_on_ranks(store, flats.into_iter().map(rank).collect())
    }

    fn template(&self, cut: Cut, rank: u32, ranks: u32, saved: u32) -> FlatStateDict {
        sample_template(cut, rank, ranks, self.objects().then_some(saved))
    }

    fn configuration_is_data(&self) {
        let json = serde_json::to_value(self.save).unwrap();
        let again: SaveShardedStrategy = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(again.key(), self.save.key());
        assert_eq!(serde_json::to_value(again).unwrap(), json);
        let json = serde_json::to_value(self.load).unwrap();
        let again: LoadShardedStrategy = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(again.key(), self.load.key());
        assert_eq!(serde_json::to_value(again).unwrap(), json);
    }

    fn other_formats_and_newer_versions_are_refused(&self) {
        let loader = self.loader();
        let BackendVersion { backend, version } = self.saver().key();
        loader.check_compatibility(&self.saver().key()).unwrap();
        for other in [
            BackendVersion::new("another", 1),
            BackendVersion::new(&backend, version + 1000),
        ] {
            let e = loader.check_compatibility(&other).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        }
    }

    fn what_n_ranks_save_m_ranks_load(&self) {
        for (n, saved_by) in Cut::ALL.into_iter().enumerate() {
            let from = [3, 2, 1][n];
            let store = store();
            self.save(&store, saved_by, from);
            for (cut, ranks) in [
                (Cut::Rows, 2),
                (Cut::Columns, 3),
                (Cut::Replicated, 1),
                (Cut::Rows, 1),
            ] {
                let templates: Vec<FlatStateDict> = (0..ranks)
                    .map(|r| self.template(cut, r, ranks, from))
                    .collect();
                let before: Vec<_> = templates.iter().map(addresses).collect();
                for (loaded, before) in self.load_flats(&store, templates).into_iter().zip(before) {
                    let state = loaded.map_err(|f| f.error).unwrap().state;
                    check_sample(&state);
                    let after = addresses(&state);
                    assert!(
                        before.iter().all(|(p, a)| after.get(p) == Some(a)),
                        "buffers are filled in place"
                    );
                }
            }
        }
    }

    fn an_empty_state_is_a_checkpoint(&self) {
        let store = store();
        for outcome in self.save_flats(&store, IfExists::Refuse, vec![FlatStateDict::new(); 2]) {
            outcome.unwrap();
        }
        let loaded = self.load_flats(&store, vec![FlatStateDict::new(); 3]);
        assert!(
            loaded
                .into_iter()
                .all(|l| l.map_err(|f| f.error).unwrap().state.is_empty())
        );
    }

    fn ranks_without_leaves_take_part(&self) {
        let store = store();
        let flats = vec![
            FlatStateDict::new(),
            sample(Cut::Rows, 0, 1, false),
            FlatStateDict::new(),
        ];
        for outcome in self.save_flats(&store, IfExists::Refuse, flats) {
            outcome.unwrap();
        }
        let templates = vec![
            FlatStateDict::new(),
            sample_template(Cut::Columns, 0, 1, None),
        ];
        for loaded in self.load_flats(&store, templates) {
            check_sample(&loaded.map_err(|f| f.error).unwrap().state);
        }
    }

    fn what_is_stored_is_told(&self) {
        let store = store();
        self.save(&store, Cut::Rows, 2);
        let reader = block_on(self.loader().open(&OpenCx::new(Arc::clone(&store)))).unwrap();
        assert_eq!(reader.key(), self.saver().key());
        if self.objects() && self.loader().common.is_none() {
            let written = self.saver().capabilities().codec;
            assert_eq!(reader.codec().name(), written, "the codec of objects");
        }
        let metadata = reader.metadata();
        for (path, leaf) in sample(Cut::Replicated, 0, 1, false) {
            let Sharded::Tensor(t) = leaf else { continue };
            let stored = metadata
                .tensor(&t.key)
                .unwrap_or_else(|| panic!("{path} is not told"));
            assert_eq!((stored.dtype(), stored.shape()), (t.dtype, t.global_shape));
        }
        let there = files(&store);
        let within = |p: &crate::StorageInfo| p.range.end <= there[&p.file].len() as u64;
        for (chunk, _) in metadata.tensors().flat_map(|t| t.chunks()) {
            assert!(reader.locate_chunk(chunk).iter().all(within));
        }
        for (object, _) in metadata.objects() {
            assert!(reader.locate_object(object).iter().all(within));
        }
        self.is_recognised(&store, &*reader);
        for full in [false, true] {
            let report = block_on(reader.verify(full, &Progress::none())).unwrap();
            assert!(
                report.damage.is_empty() && report.unchecked.is_empty(),
                "{report:?}"
            );
        }
    }

    /// A format that recognises its checkpoints at all does so by all names, by those that it wants to be looked for, and not by
    /// nothing.
    fn is_recognised(&self, store: &Arc<dyn Store>, reader: &dyn crate::StorageReader) {
        let (loader, top) = (self.loader(), block_on(store.top()).unwrap());
        assert_eq!(
            loader.info().detect(&Listing::default()),
            Detection::No,
            "nothing lies there"
        );

        // A format without a sign of its own is allowed, but then it may not ask for files to look at.
        let probes = loader.info().probes;
        assert!(
            probes.iter().all(|name| Name::new(*name).is_ok()),
            "{probes:?} are names"
        );
        if loader.info().detect(&top) == Detection::No {
            return assert!(
                probes.is_empty(),
                "who looks for {probes:?} recognises what it has written"
            );
        }
        assert_eq!(
            loader.info().detect(&top),
            Detection::Yes,
            "it is a whole checkpoint"
        );

        // Names that a format claims without reading anything must be those that its reader owns.
        for file in top
            .files
            .iter()
            .filter(|f| loader.info().own_file(f.name.as_str()).is_some())
        {
            assert!(
                reader.owns(&file.name),
                "{} has a name of this format",
                file.name
            );
        }
        for nothing in ["", "README.md", "sub/README.md"] {
            let own = loader.info().own_file(nothing);
            assert_eq!(own, None, "{nothing:?} is no file of this format");
        }

        // A caller may list only the probes, so they must be enough.
        let probed = top
            .files
            .into_iter()
            .filter(|f| probes.contains(&f.name.as_str()))
            .collect();
        if !probes.is_empty() {
            assert_eq!(
                loader.info().detect(&Listing::of(probed)),
                Detection::Yes,
                "by {probes:?} alone"
            );
        }
    }

    fn equal_states_give_equal_bytes(&self) {
        let [a, b] = [store(), store()];
        self.save(&a, Cut::Columns, 3);
        self.save(&b, Cut::Columns, 3);
        assert_eq!(files(&a), files(&b));
    }

    fn a_new_version_replaces_all_of_the_old_one(&self) {
        let store = store();
        let old = |r| {
            let mut flat = sample(Cut::Rows, r, 3, false);
            let extra = ShardedTensor::full("old", Tensor::from_vec(&[3], vec![1u8; 3]).unwrap());
            if r == 2 {
                flat.insert(Path(vec!["old".into()]), Sharded::Tensor(extra));
            }
            flat
        };
        for outcome in self.save_flats(&store, IfExists::Refuse, (0..3).map(old).collect()) {
            outcome.unwrap();
        }
        let new = vec![sample(Cut::Rows, 0, 1, false)];
        let replaced = files(&store).into_keys().collect();
        for outcome in self.save_flats(&store, IfExists::Replace(replaced), new) {
            outcome.unwrap();
        }
        let reader = block_on(self.loader().open(&OpenCx::new(Arc::clone(&store)))).unwrap();
        assert!(reader.metadata().tensor("old").is_none());
        let loaded = self.load_flats(&store, vec![sample_template(Cut::Columns, 0, 1, None)]);
        loaded
            .into_iter()
            .for_each(|l| check_sample(&l.map_err(|f| f.error).unwrap().state));
    }

    fn a_refused_save_changes_nothing(&self) {
        let store = store();
        self.save(&store, Cut::Rows, 2);
        let before = files(&store);
        let again = (0..2).map(|r| sample(Cut::Columns, r, 2, false)).collect();
        let e = failed(self.save_flats(&store, IfExists::Refuse, again));
        assert_eq!(e.kind(), ErrorKind::Exists);
        assert_eq!(files(&store), before);
    }

    fn a_failing_rank_fails_all_and_leaves_nothing(&self) {
        for hook in [
            "planner.set_up",
            "planner.create_local_plan",
            "planner.finish_plan",
            "planner.lookup_object",
        ] {
            let store = store();

            // Only one rank fails, and not the coordinator, so the others learn of it through the group alone.
            let rank = |r: u32| {
                let observer = Observer::new(move |h| {
                    if r == 1 && h == hook {
                        Err("a fault".into())
                    } else {
                        Ok(())
                    }
                });
                let planner =
                    Arc::new(observer.on(DefaultSavePlanner::DEFAULT)) as Arc<dyn SavePlanner>;
                Rank {
                    strategy: self.saver(),
                    planner,
                    flat: sample(Cut::Rows, r, 3, false),
                }
            };
            let e = failed(save_on_ranks(
                &store,
                IfExists::Refuse,
                (0..3).map(rank).collect(),
            ));

            // Every rank must name the one that failed.
            let CommError::Ranks { causes, .. } = &e else {
                panic!("{hook}: {e}")
            };
            assert_eq!(
                causes.keys().map(|r| r.0).collect::<Vec<_>>(),
                [1],
                "{hook}: {e}"
            );
            assert!(e.to_string().contains("a fault"), "{hook}: {e}");
            nothing_is_left(&store);
        }
    }

    fn a_write_that_fails_fails_all_and_leaves_nothing(&self) {
        for fault in [Fault::Before, Fault::After] {
            let inner = store();
            let faulty = FaultStore::new(Arc::clone(&inner));
            faulty.fail(Op::Write, 1, fault);
            let faulty: Arc<dyn Store> = Arc::new(faulty);
            let flats = (0..3).map(|r| sample(Cut::Rows, r, 3, false)).collect();
            let e = failed(self.save_flats(&faulty, IfExists::Refuse, flats));
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
            nothing_is_left(&inner);
        }
    }

    fn a_missing_key_is_named_and_the_template_comes_back(&self) {
        let store = store();
        self.save(&store, Cut::Rows, 2);
        let templates: Vec<FlatStateDict> = (0..2)
            .map(|r| {
                let mut flat = sample_template(Cut::Rows, r, 2, None);
                for key in ["nowhere.a", "nowhere.b"] {
                    let leaf = ShardedTensor::template(key, DType::Int8, &[2]);
                    flat.insert(Path(vec![key.into()]), Sharded::Tensor(leaf));
                }
                flat
            })
            .collect();
        let before: Vec<_> = templates.iter().map(addresses).collect();
        let mut errors = Vec::new();
        for (outcome, before) in self.load_flats(&store, templates).into_iter().zip(before) {
            let LoadFailure {
                error,
                template,
                decided,
            } = outcome.map(drop).unwrap_err();
            assert_eq!(addresses(&template), before);
            assert_eq!(decided, None);
            errors.push(Err::<(), _>(error));
        }
        let e = failed(errors);
        assert_eq!(e.kind(), ErrorKind::NotFound);
        assert!(
            e.to_string().contains("nowhere.a") && e.to_string().contains("nowhere.b"),
            "{e}"
        );
    }

    fn a_read_that_fails_gives_the_template_back(&self) {
        let inner = store();
        self.save(&inner, Cut::Rows, 2);
        for op in [Op::ReadInto, Op::ReadRanges, Op::Read] {
            // Not every format calls all of these, nor as often; a fault that is not met does no harm.
            for nth in 0..4 {
                let faulty = FaultStore::new(Arc::clone(&inner));
                faulty.fail(op, nth, Fault::Before);
                let faulty: Arc<dyn Store> = Arc::new(faulty);
                let templates: Vec<FlatStateDict> = (0..2)
                    .map(|r| sample_template(Cut::Columns, r, 2, None))
                    .collect();
                let before: Vec<_> = templates.iter().map(addresses).collect();
                for (outcome, before) in self.load_flats(&faulty, templates).into_iter().zip(before)
                {
                    let flat = match outcome {
                        Ok(loaded) => {
                            check_sample(&loaded.state);
                            loaded.state
                        }
                        Err(failure) => failure.template,
                    };
                    let after = addresses(&flat);
                    assert!(
                        before.iter().all(|(p, a)| after.get(p) == Some(a)),
                        "a buffer was lost: {op:?}"
                    );
                }
            }
        }
    }

    fn damage_is_an_error_or_does_no_harm(&self) {
        let sound = store();
        self.save(&sound, Cut::Rows, 2);
        let all = files(&sound);
        for (name, bytes) in &all {
            for part in 1..8usize {
                let mut flipped = bytes.to_vec();
                let at = bytes.len() * part / 8;
                let Some(byte) = flipped.get_mut(at) else {
                    continue;
                };
                *byte ^= 0x10;
                for damaged in [Bytes::from(flipped), bytes.slice(..at)] {
                    let store = MemoryStore::new();
                    all.iter()
                        .for_each(|(n, b)| store.put(n.clone(), b.clone()));
                    store.put(name.clone(), damaged);
                    let store: Arc<dyn Store> = Arc::new(store);
                    let template = sample_template(Cut::Rows, 0, 1, None);
                    for loaded in self
                        .load_flats(&store, vec![template])
                        .into_iter()
                        .flatten()
                    {
                        check_sample(&loaded.state);
                    }
                }
            }
        }
    }

    fn a_place_without_a_checkpoint_says_so(&self) {
        let e = block_on(self.loader().open(&OpenCx::new(store()))).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    }
}
