use super::*;
use futures::executor::block_on;
use reshard::StateDict;
use reshard_object_store::ObjectStorePlace;
use reshard_storage::testkit::{Fault, FaultStore, MemoryStore, Op};

fn store(place: &Arc<dyn Store>, looks: bool) -> ResumableStore {
    let resume = Resume {
        identity: Identity::default(),
        live: looks.then(|| Live::Folders(BTreeSet::new())),
        every: 0,
    };
    ResumableStore::new(Arc::clone(place), Stores::default(), resume)
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
    let place: Arc<dyn Store> = Arc::new(ObjectStorePlace::in_memory());
    let attempt = |n: u64| format!("{n}-1a2b3c4d5e6f7081-0");
    let begin = |looks: bool, n: u64| {
        let store = store(&place, looks);
        let begun = block_on(store.begin(&attempt(n), IfExists::Refuse)).unwrap();
        (store, begun)
    };
    let (_, first) = begin(false, 1);
    let unfinished = FileBody::from_bytes(
        Name::new(format!("{}/c", attempt(1))).unwrap(),
        Bytes::from_static(b"nobody names it"),
    );
    write(&first, &["a"]);
    block_on(place.begin(&attempt(1), IfExists::Replace([].into())))
        .map(|t| block_on(t.write(vec![unfinished], Durability::Process, Progress::none())))
        .unwrap()
        .unwrap();

    let (store, second) = begin(true, 2);
    assert_eq!(second.folder().unwrap().as_str(), attempt(1));
    let files = write(&second, &["a", "b", "c"]);
    assert_eq!(store.resumed(), Resumed { files: 1, bytes: 7 });
    block_on(first.rollback()).unwrap();
    let record = |text| Some((Name::new("record").unwrap(), Bytes::from_static(text)));
    block_on(second.commit(record(b"done"), &files, Durability::Process)).unwrap();
    // Nor when it comes too late.
    let late = block_on(first.commit(record(b"late"), &[], Durability::Process));
    assert!(late.is_err());
    block_on(first.rollback()).unwrap();
    for file in &files {
        let got = block_on(place.read(&file.name, 0..file.bytes)).unwrap();
        assert_eq!(got, "content");
    }
}

#[test]
fn after_an_error_no_more_files_are_begun() {
    let place: Arc<dyn Store> = Arc::new(ObjectStorePlace::in_memory());
    let faulty = FaultStore::new(Arc::clone(&place));
    faulty.fail(Op::Write, 0, Fault::Before);
    let store = store(&(Arc::new(faulty) as Arc<dyn Store>), false);
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
