//! Laws of saves into places that keep versions side by side, as object stores do.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use futures::{
    executor::block_on,
    future::{BoxFuture, join_all},
};
use reshard::{
    Checkpoint, CommonForm, DType, Dialect, ErrorKind, LocalGroup, OpenOptions, Region,
    ShardedTensor, StateDict, Stores, Tensor, ValueTree,
    storage::{
        Durability, FileBody, IfExists, Name, Progress, Store, StoreExt,
        testkit::{Fault, FaultStore, Op, VersionedStore},
    },
};
use reshard_manager::RemainsKind;
use std::{sync::Arc, time::Duration};

const URL: &str = "versioned://place";

/// What a save is told, besides the state.
#[derive(Clone, Copy, Debug, PartialEq)]
struct How {
    dialect: Dialect,
    common: CommonForm,
    overwrite: bool,
}

impl How {
    const DCP: Self = Self {
        dialect: Dialect::Dcp,
        common: CommonForm::File,
        overwrite: false,
    };
    const MEGATRON: Self = Self {
        dialect: Dialect::Megatron,
        ..Self::DCP
    };
    const OBJECT: Self = Self {
        common: CommonForm::Object,
        ..Self::MEGATRON
    };

    fn overwriting(self) -> Self {
        Self {
            overwrite: true,
            ..self
        }
    }
}

/// The state of a rank, which has 4 of 8 rows. All values tell the version.
fn state(version: i64, rank: u64) -> StateDict {
    let mut state = StateDict::new();
    let data = Tensor::from_vec(&[4, 6], vec![version as f32; 24]).unwrap();
    let rows = Region::new([4 * rank, 0], [4, 6]);
    let leaf = ShardedTensor::region_of("w", DType::Float32, &[8, 6], rows).with_data(data);
    state.insert("w", leaf);
    state.insert("step", version);
    state
}

fn save(store: Arc<dyn Store>, version: i64, how: How) -> Result<(), reshard::Error> {
    let groups = LocalGroup::new(2);
    let states = [state(version, 0), state(version, 1)];
    let saves = groups.iter().zip(&states).map(|(group, state)| {
        let save = reshard::save(state, URL)
            .group(group)
            .store(Arc::clone(&store))
            .dialect(how.dialect)
            .common_form(how.common)
            .overwrite(how.overwrite);
        let save: BoxFuture<'_, _> = Box::pin(async { save.await.map(drop) });
        save
    });
    block_on(join_all(saves)).into_iter().collect()
}

fn open(store: &VersionedStore) -> Result<Checkpoint, reshard::Error> {
    let store = Arc::new(store.clone());
    block_on(OpenOptions::new().store(store).open(URL))
}

/// The version that a reader sees; `None` if there is no checkpoint.
///
/// # Panics
/// When it is not one version.
fn version(store: &VersionedStore) -> Option<i64> {
    match open(store) {
        Ok(checkpoint) => Some(whole(&checkpoint)),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => panic!("{e}: {:?}", names(store)),
    }
}

fn whole(checkpoint: &Checkpoint) -> i64 {
    let found: ValueTree = block_on(checkpoint.state()).unwrap();
    let step = found.get("step").unwrap().leaf().unwrap().as_int().unwrap();
    let all = block_on(checkpoint.tensor("w").unwrap().read(..)).unwrap();
    assert_eq!(all.into_vec::<f32>().unwrap(), vec![step as f32; 48]);
    step
}

fn names(store: &VersionedStore) -> Vec<String> {
    let files = block_on(store.files()).unwrap();
    files.into_iter().map(|f| f.name.to_string()).collect()
}

fn folders(store: &VersionedStore) -> Vec<Name> {
    block_on(store.top()).unwrap().folders
}

fn prune(store: &VersionedStore, older_than: Duration) -> reshard_manager::PruneReport {
    let stores = Stores::only(Arc::new(store.clone()) as Arc<dyn Store>);
    let prune = reshard_manager::prune(URL)
        .stores(stores)
        .older_than(older_than);
    block_on(async { prune.await }).unwrap()
}

fn plain(store: &VersionedStore) -> Arc<dyn Store> {
    Arc::new(store.clone())
}

#[test]
fn a_version_lies_in_its_folder_and_its_record_has_a_fixed_name() {
    for (how, top) in [
        (How::DCP, &[".metadata"][..]),
        (How::MEGATRON, &[".metadata", "common.pt", "metadata.json"]),
        (How::OBJECT, &[".metadata", "metadata.json"]),
    ] {
        let store = VersionedStore::new();
        save(plain(&store), 1, how).unwrap();
        assert_eq!(version(&store), Some(1));
        let [folder] = &*folders(&store) else {
            panic!("{:?}", names(&store))
        };
        let inside = ["__0_0.distcp", "__1_0.distcp", "reshard.json"];
        let want = top.iter().map(|name| (*name).to_owned());
        let want = want.chain(inside.map(|name| format!("{folder}/{name}")));
        let mut want: Vec<String> = want.collect();
        want.sort();
        assert_eq!(names(&store), want);
        let checkpoint = open(&store).unwrap();
        assert!(matches!(block_on(checkpoint.sidecar()), (Some(_), None)));
    }
}

#[test]
fn an_overwriting_save_changes_the_record_alone_and_readers_of_the_old_version_go_on() {
    for how in [How::DCP, How::OBJECT] {
        let store = VersionedStore::new();
        save(plain(&store), 1, how).unwrap();
        let before = names(&store);
        let reader = open(&store).unwrap();
        let e = save(plain(&store), 2, how).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Exists, "{e}");
        save(plain(&store), 2, how.overwriting()).unwrap();
        assert_eq!(version(&store), Some(2));
        let now = names(&store);
        assert!(before.iter().all(|name| now.contains(name)));
        let old = block_on(reader.tensor("w").unwrap().read(..)).unwrap();
        assert_eq!(old.into_vec::<f32>().unwrap(), vec![1.; 48]);

        // Who may still read it, is not disturbed by a prune that spares what is young.
        let report = prune(&store, Duration::from_secs(60));
        assert_eq!((report.removed.len(), report.kept.len()), (0, 1));
        assert_eq!(report.kept[0].0.kind, RemainsKind::Version);
        assert_eq!(names(&store), now);
        store.age(Duration::from_secs(120));
        let report = prune(&store, Duration::from_secs(60));
        assert_eq!((report.removed.len(), report.kept.len()), (1, 0));
        assert_eq!(folders(&store).len(), 1);
        assert_eq!(version(&store), Some(2));
        assert!(block_on(reader.tensor("w").unwrap().read(..)).is_err());
    }
}

#[test]
fn the_age_of_a_replaced_version_counts_from_the_next_one() {
    let store = VersionedStore::new();
    save(plain(&store), 1, How::DCP).unwrap();
    store.age(Duration::from_secs(3600));
    save(plain(&store), 2, How::DCP.overwriting()).unwrap();
    assert!(prune(&store, Duration::from_secs(60)).removed.is_empty());
    store.age(Duration::from_secs(120));
    assert_eq!(prune(&store, Duration::from_secs(60)).removed.len(), 1);
    assert_eq!(version(&store), Some(2));
}

#[test]
fn an_attempt_that_was_killed_replaces_no_version() {
    let store = VersionedStore::new();
    save(plain(&store), 1, How::DCP).unwrap();
    store.age(Duration::from_secs(3600));
    let killed = FaultStore::new(plain(&store));
    killed.die(10, Fault::Before);
    save(Arc::new(killed), 2, How::DCP.overwriting()).unwrap_err();
    assert_eq!((folders(&store).len(), version(&store)), (2, Some(1)));
    store.age(Duration::from_secs(3600));
    save(plain(&store), 3, How::DCP.overwriting()).unwrap();

    let report = prune(&store, Duration::from_secs(60));
    assert!(
        report.removed.is_empty(),
        "replaced a moment ago: {report:?}"
    );
    store.age(Duration::from_secs(120));
    assert_eq!(prune(&store, Duration::from_secs(60)).removed.len(), 2);
    assert_eq!(version(&store), Some(3));
}

#[test]
fn a_save_that_is_killed_anywhere_leaves_the_old_or_the_new_version() {
    for (how, old) in [
        (How::DCP, None),
        (How::DCP.overwriting(), Some(1)),
        (How::OBJECT, None),
        (How::OBJECT.overwriting(), Some(1)),
        (How::MEGATRON, None),
    ] {
        for fault in [Fault::Before, Fault::After] {
            let mut ended = false;
            for n in 0..200 {
                let store = VersionedStore::new();
                if let Some(old) = old {
                    save(plain(&store), old, how).unwrap();
                }
                let reader = old.map(|_| open(&store).unwrap());
                let killed = FaultStore::new(plain(&store));
                killed.die(n, fault);
                let saved = save(Arc::new(killed.clone()), 2, how);
                let found = version(&store);
                let told = format!(
                    "{how:?} {fault:?} at call {n}: {saved:?} {:?}",
                    names(&store)
                );
                assert!(found == old || found == Some(2), "{found:?} {told}");
                assert!(saved.is_err() || found == Some(2), "{told}");
                if let Some(reader) = reader {
                    let tensor = block_on(reader.tensor("w").unwrap().read(..)).unwrap();
                    assert_eq!(tensor.into_vec::<f32>().unwrap(), vec![1.; 48], "{told}");
                }
                ended = killed.calls() <= n;
                if ended {
                    break;
                }
                // A save to a new place asks for a place that is empty, except for folders of attempts.
                if found.is_none() && (how == How::MEGATRON || n % 2 == 0) {
                    if !names(&store).is_empty() {
                        prune(&store, Duration::ZERO);
                    }
                    assert!(names(&store).is_empty(), "{told}: {:?}", names(&store));
                    save(plain(&store), 3, how).unwrap();
                    assert_eq!(version(&store), Some(3), "{told}");
                    continue;
                }
                if how == How::MEGATRON {
                    continue;
                }
                save(plain(&store), 3, how.overwriting()).unwrap();
                assert_eq!(version(&store), Some(3), "{told}");
                prune(&store, Duration::ZERO);
                assert_eq!(version(&store), Some(3), "{told}");
                assert_eq!(folders(&store).len(), 1, "{told} {:?}", names(&store));
            }
            assert!(ended, "{how:?}: more calls than were tried");
        }
    }
}

#[test]
fn what_could_not_change_in_one_step_is_refused_before_anything_is_written() {
    let refused = |old: How, new: How, why: &str| {
        let store = VersionedStore::new();
        save(plain(&store), 1, old).unwrap();
        let before = names(&store);
        let e = save(plain(&store), 2, new.overwriting()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert!(e.to_string().contains(why), "{e}");
        assert_eq!(names(&store), before);
        assert_eq!(version(&store), Some(1));
    };
    refused(How::MEGATRON, How::MEGATRON, "CommonForm::Object");
    refused(How::MEGATRON, How::OBJECT, "metadata.json or common.pt");
    refused(How::DCP, How::OBJECT, "another dialect");
    refused(How::OBJECT, How::DCP, "metadata.json would stay");
}

#[test]
fn what_killed_attempts_left_is_in_nobodys_way() {
    let store = VersionedStore::new();
    let killed = FaultStore::new(plain(&store));
    // After the data were written.
    killed.die(6, Fault::Before);
    save(Arc::new(killed), 1, How::DCP).unwrap_err();
    assert_eq!((folders(&store).len(), version(&store)), (1, None));
    save(plain(&store), 2, How::DCP).unwrap();
    assert_eq!(version(&store), Some(2));
    let report = prune(&store, Duration::ZERO);
    assert_eq!(report.removed.len(), 1, "{report:?}");
    assert_eq!((folders(&store).len(), version(&store)), (1, Some(2)));
}

#[test]
fn a_place_with_nothing_but_killed_attempts_is_pruned() {
    let store = VersionedStore::new();
    let killed = FaultStore::new(plain(&store));
    killed.die(6, Fault::Before);
    save(Arc::new(killed), 1, How::DCP).unwrap_err();
    assert_eq!(prune(&store, Duration::ZERO).removed.len(), 1);
    assert!(names(&store).is_empty());
}

const DAY: Duration = Duration::from_secs(24 * 3600);

fn leave_uploads(store: &VersionedStore, names: &[&str]) {
    for name in names {
        store.leave_upload(Name::new(*name).unwrap());
    }
}

fn uploads(store: &VersionedStore) -> Vec<String> {
    let left = block_on(store.unfinished_uploads()).unwrap();
    left.into_iter().map(|u| u.name.to_string()).collect()
}

#[test]
fn uploads_that_were_never_finished_are_aborted_if_they_are_old() {
    let store = VersionedStore::new();
    save(plain(&store), 1, How::DCP).unwrap();
    let names = ["1-1a2b3c4d5e6f7081-0/a", "beside"];
    leave_uploads(&store, &names);
    store.age(DAY);
    leave_uploads(&store, &["1-1a2b3c4d5e6f7081-1/new"]);

    let stores = Stores::only(plain(&store));
    let dry = reshard_manager::prune(URL).stores(stores).dry_run(true);
    let dry = block_on(async { dry.await }).unwrap();
    assert_eq!(uploads(&store).len(), 3);
    let report = prune(&store, DAY);
    assert_eq!(report.removed.len(), 2, "{report:?}");
    assert_eq!(dry.removed.len(), 2, "{dry:?}");
    for (removed, name) in report.removed.iter().zip(names) {
        assert_eq!(removed.kind, RemainsKind::Upload);
        assert!(removed.path.ends_with(name), "{removed:?}");
        assert!(removed.age.is_some_and(|age| age >= DAY), "{removed:?}");
    }
    assert_eq!(report.kept.len(), 1, "{report:?}");
    assert_eq!(uploads(&store), ["1-1a2b3c4d5e6f7081-1/new"]);
    assert_eq!(prune(&store, Duration::ZERO).removed.len(), 1);
    assert!(uploads(&store).is_empty());
    assert_eq!(version(&store), Some(1));
}

#[test]
fn where_no_checkpoint_is_only_uploads_of_saves_are_aborted() {
    let store = VersionedStore::new();
    leave_uploads(&store, &["1-1a2b3c4d5e6f7081-0/a", "data/of/others"]);
    let report = prune(&store, Duration::ZERO);
    assert_eq!(report.removed.len(), 1, "{report:?}");
    assert_eq!(uploads(&store), ["data/of/others"]);
    // Now nothing is of a save.
    let stores = Stores::only(plain(&store));
    let again = reshard_manager::prune(URL)
        .stores(stores)
        .older_than(Duration::ZERO);
    let e = block_on(async { again.await }).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    assert_eq!(uploads(&store), ["data/of/others"]);
}

/// A single file that no save has committed yet was copied to its place.
#[test]
fn an_upload_of_the_place_itself_is_aborted_beside_what_a_killed_save_left() {
    let left_by_a_save = |store: &VersionedStore| {
        let attempt = "1-1a2b3c4d5e6f7081-0";
        let killed = block_on(store.begin(attempt, IfExists::Refuse)).unwrap();
        let name = Name::new(format!("{attempt}/object")).unwrap();
        let object = FileBody::from_bytes(name, (&b"whole"[..]).into());
        let written = killed.write(vec![object], Durability::Process, Progress::none());
        block_on(written).unwrap();
    };
    let file = || Name::new("one.safetensors").unwrap();
    let store = VersionedStore::new();
    left_by_a_save(&store);
    store.leave_upload_of_place(file());
    store.age(DAY);
    leave_uploads(&store, &["data/of/others"]);
    let report = prune(&store, DAY);
    let kinds: Vec<_> = report.removed.iter().map(|r| r.kind).collect();
    assert!(kinds.contains(&RemainsKind::Upload), "{report:?}");
    assert_eq!((kinds.len(), report.kept.len()), (2, 0), "{report:?}");
    assert_eq!(uploads(&store), ["data/of/others"]);
    assert!(names(&store).is_empty());

    // One that is young may still run.
    let store = VersionedStore::new();
    left_by_a_save(&store);
    store.leave_upload_of_place(file());
    let report = prune(&store, DAY);
    assert_eq!(
        (report.removed.len(), report.kept.len()),
        (0, 2),
        "{report:?}"
    );
    // Without anything of a save it may be of somebody else.
    let store = VersionedStore::new();
    store.leave_upload_of_place(file());
    let stores = Stores::only(plain(&store));
    let none = reshard_manager::prune(URL)
        .stores(stores)
        .older_than(Duration::ZERO);
    let e = block_on(async { none.await }).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    assert_eq!(uploads(&store).len(), 1);
}

#[test]
fn a_prune_that_can_not_reach_the_uploads_fails_and_removes_nothing() {
    let store = VersionedStore::new();
    save(plain(&store), 1, How::DCP).unwrap();
    save(plain(&store), 2, How::DCP.overwriting()).unwrap();
    leave_uploads(&store, &["a"]);
    for op in [Op::UnfinishedUploads, Op::AbortUpload] {
        let faulty = FaultStore::new(plain(&store));
        faulty.fail(op, 0, Fault::Before);
        let stores = Stores::only(Arc::new(faulty) as Arc<dyn Store>);
        let prune = reshard_manager::prune(URL)
            .stores(stores)
            .older_than(Duration::ZERO);
        let e = block_on(async { prune.await }).unwrap_err();
        assert!(e.rest().removed.is_empty(), "{e}");
        assert_eq!((folders(&store).len(), uploads(&store).len()), (2, 1));
    }
}

/// What a save in Megatron Core's dialect leaves that is killed before its last file.
fn killed_before_its_record() -> VersionedStore {
    let whole = FaultStore::new(plain(&VersionedStore::new()));
    whole.die(u64::MAX, Fault::Before);
    save(Arc::new(whole.clone()), 1, How::MEGATRON).unwrap();
    let killed = (0..whole.calls()).rev().find_map(|n| {
        let store = VersionedStore::new();
        let killed = FaultStore::new(plain(&store));
        killed.die(n, Fault::Before);
        // After the commit nothing fails that matters.
        let failed = save(Arc::new(killed), 1, How::MEGATRON).is_err();
        let lacks_record = !names(&store).contains(&"metadata.json".to_owned());
        (failed && lacks_record).then_some(store)
    });
    let store = killed.unwrap();
    let top = block_on(store.top()).unwrap();
    assert_eq!(top.names().collect::<Vec<_>>(), [".metadata", "common.pt"]);
    store
}

#[test]
fn files_outside_of_the_folder_of_a_killed_attempt_go_with_it_when_all_are_old() {
    let store = killed_before_its_record();
    let before = names(&store);
    let report = prune(&store, Duration::from_secs(60));
    assert!(report.removed.is_empty(), "{report:?}");
    assert_eq!(names(&store), before);
    store.age(Duration::from_secs(120));
    // One of its files is young, so it may still be running.
    let common = Name::new("common.pt").unwrap();
    let bytes = block_on(store.read_all(&common, 1 << 20)).unwrap().unwrap();
    store.put(common, bytes);
    assert!(prune(&store, Duration::from_secs(60)).removed.is_empty());
    assert_eq!(names(&store), before);
    store.age(Duration::from_secs(120));
    let report = prune(&store, Duration::from_secs(60));
    let removed: Vec<_> = report.removed.iter().map(|r| &*r.path).collect();
    assert_eq!(removed[..2], [".metadata", "common.pt"]);
    assert_eq!((removed.len(), names(&store).len()), (3, 0));
}

#[test]
fn what_lies_beside_a_killed_attempt_and_is_not_its_own_may_be_a_checkpoint_that_nobody_knows() {
    let refused = |store: &VersionedStore| {
        let before = names(store);
        let stores = Stores::only(plain(store));
        let prune = reshard_manager::prune(URL).stores(stores);
        let prune = prune.older_than(Duration::ZERO);
        let e = block_on(async { prune.await }).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
        assert_eq!(names(store), before);
    };
    let store = killed_before_its_record();
    store.put(Name::new("other.index").unwrap(), "theirs".into());
    refused(&store);

    // A live checkpoint, as a program sees it that does not know its format.
    let store = VersionedStore::new();
    save(plain(&store), 1, How::DCP).unwrap();
    let record = Name::new(".metadata").unwrap();
    let bytes = block_on(store.read_all(&record, 1 << 20)).unwrap().unwrap();
    block_on(store.remove(&[record])).unwrap();
    store.put(Name::new("other.index").unwrap(), bytes);
    refused(&store);
}

#[test]
fn a_kept_plan_keeps_no_folder() {
    let store = VersionedStore::new();
    let kept = Arc::new(reshard::KeptPlan::default());
    for version in 1..4 {
        let mut state = StateDict::new();
        let data = Tensor::from_vec(&[8, 6], vec![version as f32; 48]).unwrap();
        state.insert("w", ShardedTensor::full("w", data));
        state.insert("step", version);
        let save = reshard::save(&state, URL)
            .store(plain(&store))
            .dialect(Dialect::Dcp)
            .kept_plan(&kept)
            .overwrite(true);
        block_on(async { save.await }).unwrap();
        assert_eq!(self::version(&store), Some(version));
    }
    prune(&store, Duration::ZERO);
    assert_eq!((folders(&store).len(), version(&store)), (1, Some(3)));
}

#[test]
fn empty_dicts_come_back() {
    let store = VersionedStore::new();
    let mut state = StateDict::new();
    state.insert("step", 1);
    state.insert_tree("empty", StateDict::new());
    let save = reshard::save(&state, URL)
        .store(plain(&store))
        .dialect(Dialect::Dcp);
    block_on(async { save.await }).unwrap();
    let found = block_on(open(&store).unwrap().state()).unwrap();
    assert!(found.get("empty").is_some());
}
