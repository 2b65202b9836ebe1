mod meanwhile;

use super::*;
use claim::CLAIM;
use futures::executor::block_on;
use meanwhile::Meanwhile;
use reshard::{Dialect, ErrorKind, OpenOptions, ShardedTensor, StateDict, Tensor};
use reshard_object_store::ObjectStorePlace;
use reshard_storage::testkit::{Fault, FaultStore, MemoryStore, Op};
use std::{sync::mpsc, thread, time::SystemTime};

/// The destination of a conversion, which has its journal there.
fn store(place: &Arc<dyn Store>, looks: bool, every: u64) -> ResumableStore {
    let state = State {
        dst: place.url(),
        stores: Stores::only(Arc::clone(place)),
        live: looks.then(|| Live::Folders(BTreeSet::new())),
        every,
        count: AtomicU64::new(1),
        ..State::default()
    };
    ResumableStore {
        inner: Arc::clone(place),
        state: Arc::new(state),
    }
}

fn in_memory() -> Arc<dyn Store> {
    Arc::new(ObjectStorePlace::in_memory())
}

/// What each process calls its attempt.
fn attempt(n: u64) -> String {
    format!("{n}-1a2b3c4d5e6f7081-0")
}

/// The process `n` begins a version, or goes on with one.
fn begin(place: &Arc<dyn Store>, looks: bool, n: u64) -> (ResumableStore, Arc<dyn Transaction>) {
    let store = store(place, looks, 0);
    let begun = block_on(store.begin(&attempt(n), IfExists::Refuse)).unwrap();
    (store, begun)
}

fn commit(version: &Arc<dyn Transaction>, files: &[Entry]) -> Result<()> {
    let record = Some((Name::new("record").unwrap(), Bytes::from_static(b"done")));
    block_on(version.commit(record, files, Durability::Process))
}

fn are_whole(place: &Arc<dyn Store>, files: &[Entry]) {
    for file in files {
        let got = block_on(place.read(&file.name, 0..file.bytes)).unwrap();
        assert_eq!(got, "content", "{}", file.name);
    }
}

fn write(version: &Arc<dyn Transaction>, names: &[&str]) -> Vec<Entry> {
    let folder = version.folder().unwrap();
    let body = |name: &&str| {
        let name = Name::new(format!("{folder}/{name}")).unwrap();
        FileBody::from_bytes(name, Bytes::from_static(b"content"))
    };
    let files = names.iter().map(body).collect();
    let written = block_on(version.write(files, Durability::Process, Progress::none()));
    written.unwrap().iter().map(Written::entry).collect()
}

#[test]
fn an_attempt_that_was_taken_over_removes_nothing_when_it_fails() {
    let place = in_memory();
    let (_, first) = begin(&place, false, 1);
    let unfinished = FileBody::from_bytes(
        Name::new(format!("{}/c", attempt(1))).unwrap(),
        Bytes::from_static(b"nobody names it"),
    );
    write(&first, &["a"]);
    block_on(place.begin(&attempt(1), IfExists::Replace([].into())))
        .map(|t| block_on(t.write(vec![unfinished], Durability::Process, Progress::none())))
        .unwrap()
        .unwrap();

    let (store, second) = begin(&place, true, 2);
    assert_eq!(second.folder().unwrap().as_str(), attempt(1));
    let files = write(&second, &["a", "b", "c"]);
    assert_eq!(store.resumed(), Resumed { files: 1, bytes: 7 });
    block_on(first.rollback()).unwrap();
    commit(&second, &files).unwrap();
    // Nor when it comes too late.
    assert!(commit(&first, &[]).is_err());
    block_on(first.rollback()).unwrap();
    are_whole(&place, &files);
}

#[test]
fn each_process_that_goes_on_claims_the_attempt_anew_so_that_it_is_young() {
    let place = in_memory();
    let (_, first) = begin(&place, false, 1);
    write(&first, &["a"]);
    begin(&place, true, 2);
    let modified = || {
        let left = block_on(place.leftovers()).unwrap();
        assert_eq!((left.len(), &*left[0].attempt), (1, &*attempt(1)));
        left[0].modified.unwrap()
    };
    let before = SystemTime::now();
    assert!(modified() <= before);
    begin(&place, true, 3);
    assert!(modified() >= before);
}

#[test]
fn who_has_lost_an_attempt_to_another_process_does_not_commit_it() {
    let place = in_memory();
    let (_, first) = begin(&place, false, 1);
    let files = write(&first, &["a", reshard::SIDECAR]);
    let (_, second) = begin(&place, true, 2);
    let (_, third) = begin(&place, true, 3);
    for lost in [&first, &second] {
        let e = commit(lost, &files).unwrap_err();
        assert!(e.to_string().contains("has taken over its files"), "{e}");
        assert!(e.to_string().contains(&place.url()), "{e}");
        assert_eq!(e.kind(), ErrorKind::Unavailable);
        block_on(lost.rollback()).unwrap();
    }
    let record = Name::new("record").unwrap();
    assert!(!block_on(place.exists(&record)).unwrap());
    are_whole(&place, &files);
    write(&third, &["a", reshard::SIDECAR]);
    commit(&third, &files).unwrap();
    are_whole(&place, &files);
}

#[test]
fn a_claim_that_nobody_can_have_written_is_of_another_process() {
    let place = in_memory();
    let (_, first) = begin(&place, false, 1);
    let files = write(&first, &["a"]);
    let long = FileBody::from_bytes(
        Name::new(format!("{}/{CLAIM}", attempt(1))).unwrap(),
        vec![b'x'; 2_000].into(),
    );
    let other = block_on(place.begin(&attempt(1), IfExists::Refuse)).unwrap();
    block_on(other.write(vec![long], Durability::Process, Progress::none())).unwrap();
    let e = commit(&first, &files).unwrap_err();
    assert!(e.to_string().contains("has taken over its files"), "{e}");
}

#[test]
fn what_is_committed_between_two_looks_of_others_stays_whole() {
    let place = in_memory();
    // When the first process has found no claim, the second one goes on with its files.
    let (begun, taken) = mpsc::channel();
    let also = Arc::clone(&place);
    let between = Meanwhile::after_the_claim_is_read(&place, move || {
        let second = thread::spawn(move || begin(&also, true, 2).1);
        begun.send(second.join().unwrap()).unwrap();
    });
    let (_, first) = begin(&between, false, 1);
    let files = write(&first, &["a", reshard::SIDECAR]);
    commit(&first, &files).unwrap();
    let second = taken.try_recv().unwrap();
    assert_eq!(second.folder().unwrap().as_str(), attempt(1));
    are_whole(&place, &files);
    let same = write(&second, &["a", reshard::SIDECAR]);
    assert_eq!(same, files);
    are_whole(&place, &files);
    // The record is there already, with the same bytes.
    commit(&second, &files).unwrap();
    are_whole(&place, &files);
}

#[test]
fn an_attempt_that_is_committed_while_another_process_looks_at_it_is_not_taken_over() {
    let place = in_memory();
    let (committed, wait_committed) = mpsc::channel();
    let (looked, wait_looked) = mpsc::channel();
    let (ended, end) = mpsc::channel();
    let also = Arc::clone(&place);
    // The second process has read the journals, and then the first one commits.
    let second = move || {
        let between = Meanwhile::before_a_version_is_begun(&also, move || {
            looked.send(()).unwrap();
            wait_committed.recv().unwrap();
        });
        let replace = IfExists::Replace([].into());
        let begun = block_on(store(&between, true, 0).begin(&attempt(2), replace));
        ended.send(begun.map(drop)).unwrap();
    };
    let between = Meanwhile::after_the_claim_is_read(&place, move || {
        thread::spawn(second);
        wait_looked.recv().unwrap();
    });
    let mut state = StateDict::new();
    let data = Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
    state.insert("w", ShardedTensor::full("w", data));
    let save = reshard::save(&state, place.url())
        .dialect(Dialect::Dcp)
        .store(Arc::new(store(&between, false, 0)));
    block_on(async { save.await }).unwrap();
    // If nothing has happened, nobody waits for it.
    drop(between);
    let files = block_on(place.list(None, Depth::All)).unwrap();
    committed.send(()).unwrap();
    let e = end.recv().unwrap().unwrap_err();
    assert!(e.to_string().contains("has committed"), "{e}");
    assert!(e.to_string().contains(&place.url()), "{e}");
    // Of the second process only its claim is there.
    let mut now = block_on(place.list(None, Depth::All)).unwrap();
    now.files.retain(|e| !e.name.as_str().ends_with(CLAIM));
    assert_eq!(now, files);
    let open = OpenOptions::new().store(Arc::clone(&place));
    let saved = block_on(open.open(place.url())).unwrap();
    let found = block_on(saved.verify(true, Default::default())).unwrap();
    assert_eq!(found.damage, []);
}

#[test]
fn what_is_removed_before_an_attempt_is_claimed_is_written_again() {
    let place = in_memory();
    let (_, first) = begin(&place, false, 1);
    write(&first, &["a", "b"]);
    let name = Name::new(format!("{}/a", attempt(1))).unwrap();
    let also = Arc::clone(&place);
    let between = Meanwhile::before_a_version_is_begun(&place, move || {
        let removed = thread::spawn(move || block_on(also.remove(&[name])));
        removed.join().unwrap().unwrap();
    });
    let (store, second) = begin(&between, true, 2);
    let files = write(&second, &["a", "b"]);
    assert_eq!(store.resumed(), Resumed { files: 1, bytes: 7 });
    commit(&second, &files).unwrap();
    are_whole(&place, &files);
}

#[test]
fn after_an_error_no_more_files_are_begun() {
    let place = in_memory();
    let faulty = FaultStore::new(Arc::clone(&place));
    faulty.fail(Op::Write, 0, Fault::Before);
    let store = store(&(Arc::new(faulty) as Arc<dyn Store>), false, 0);
    let attempt = "1-1a2b3c4d5e6f7081-0";
    let version = block_on(store.begin(attempt, IfExists::Refuse)).unwrap();
    let body = |n| {
        let name = Name::new(format!("{attempt}/{n}")).unwrap();
        FileBody::from_bytes(name, Bytes::from_static(b"content"))
    };
    let files = (0..100).map(body).collect();
    let e = block_on(version.write(files, Durability::Process, Progress::none())).unwrap_err();
    assert!(e.to_string().contains("injected"), "{e}");
    // At most those that had begun at the same time.
    let there = block_on(place.list(None, Depth::All)).unwrap().files.len();
    assert!(there < place.hints().concurrency, "{there} were written");
}

/// A place that says nothing of the versions of its files.
fn without_versions() -> Checkpoint {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut state = StateDict::new();
    state.insert("step", 1);
    let save = reshard::save(&state, "memory://source").store(Arc::clone(&store));
    block_on(async { save.await }).unwrap();
    block_on(OpenOptions::new().store(store).open("memory://source")).unwrap()
}

#[test]
fn a_source_of_which_nobody_can_tell_whether_it_has_changed_is_not_resumed_from() {
    let source = without_versions();
    let stores = Stores::only(Arc::new(MemoryStore::new()) as Arc<dyn Store>);
    let place = |looks| {
        let journal = Journal {
            options: "none".into(),
            looks,
            ..Journal::default()
        };
        block_on(place(&source, "memory://dst", &stores, &journal))
    };
    let e = place(true).unwrap_err();
    assert!(e.to_string().contains("neither tags nor times"), "{e}");
    assert!(place(false).unwrap().is_none(), "nor is a journal kept");
}

#[test]
fn files_count_as_finished_by_eight_mebibytes() {
    let attempt = attempt(1);
    let calls = |files: u64| {
        let counted = FaultStore::new(in_memory());
        let place: Arc<dyn Store> = Arc::new(counted.clone());
        let store = store(&place, false, GROUP);
        let version = block_on(store.begin(&attempt, IfExists::Refuse)).unwrap();
        let before = counted.calls();
        let body = |n| {
            let name = Name::new(format!("{attempt}/{n}")).unwrap();
            FileBody::from_bytes(name, vec![7; 1 << 20].into())
        };
        let bodies = (0..files).map(body).collect();
        block_on(version.write(bodies, Durability::Process, Progress::none())).unwrap();
        counted.calls() - before
    };
    assert_eq!((calls(9) - calls(8), calls(17) - calls(8)), (1, 2));
}

#[test]
fn a_finished_file_of_which_any_bit_has_changed_is_written_again() {
    let names = ["a", "b"];
    for bit in 0..8 * b"content".len() {
        let place = in_memory();
        let (_, first) = begin(&place, false, 1);
        write(&first, &names);
        // Another program writes over it, with the same length.
        let mut changed = b"content".to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        let name = Name::new(format!("{}/a", attempt(1))).unwrap();
        let other = block_on(place.begin(&attempt(1), IfExists::Replace([].into()))).unwrap();
        let body = FileBody::from_bytes(name, changed.into());
        block_on(other.write(vec![body], Durability::Process, Progress::none())).unwrap();

        let (store, second) = begin(&place, true, 2);
        let files = write(&second, &names);
        assert_eq!(store.resumed(), Resumed { files: 1, bytes: 7 }, "bit {bit}");
        commit(&second, &files).unwrap();
        are_whole(&place, &files);
    }
}
