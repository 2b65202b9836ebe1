//! One file of a folder, and files with a common prefix, as places.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use futures::executor::block_on;
use reshard_model::ErrorKind;
use reshard_storage::{
    Depth, Durability, Entry, FileBody, IfExists, LocalStore, Name, PartStore, PlaceKind, Progress,
    Result, StorageError, Store, StoreExt, Transaction, failpoint, testkit::MemoryStore,
};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::{
        fs::{PermissionsExt, symlink},
        process::ExitStatusExt,
    },
    path::Path,
    process::Command,
    sync::Arc,
};

fn name(s: &str) -> Name {
    Name::new(s).unwrap()
}

fn part(path: &Path, kind: PlaceKind) -> Arc<dyn Store> {
    LocalStore::at(path).unwrap().of_kind(kind).unwrap()
}

fn body(n: &str, bytes: &[u8]) -> FileBody {
    FileBody::from_bytes(name(n), bytes.to_vec().into())
}

fn replace(files: &[&str]) -> IfExists {
    IfExists::Replace(files.iter().map(|f| name(f)).collect())
}

fn write(to: &dyn Transaction, files: Vec<FileBody>) -> Result<Vec<Entry>> {
    let written = block_on(to.write(files, Durability::Machine, Progress::none()))?;
    Ok(written
        .iter()
        .map(reshard_storage::Written::entry)
        .collect())
}

/// One version of one file.
fn one(store: &dyn Store, attempt: &str, if_exists: IfExists, bytes: &[u8]) -> Result<()> {
    let transaction = block_on(store.begin(attempt, if_exists))?;
    let outcome = write(&*transaction, vec![body("whatever.bin", bytes)]).and_then(|files| {
        assert_eq!(files[0].name, name("whatever.bin"));
        block_on(transaction.commit(None, &files, Durability::Machine))
    });
    if outcome.is_err() {
        block_on(transaction.rollback()).unwrap();
    }
    outcome
}

/// One version of two files and a record.
fn bundle(store: &dyn Store, attempt: &str, bytes: &[u8]) -> Result<()> {
    let transaction = block_on(store.begin(attempt, IfExists::Refuse))?;
    let outcome = write(
        &*transaction,
        vec![body(".data-0", bytes), body(".data-1", b"")],
    )
    .and_then(|files| {
        let record = (name(".index"), bytes.to_vec().into());
        block_on(transaction.commit(Some(record), &files, Durability::Machine))
    });
    if outcome.is_err() {
        block_on(transaction.rollback()).unwrap();
    }
    outcome
}

/// All files of a folder, hidden ones too.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let store = LocalStore::at(dir).unwrap();
    let read = |e: Entry| {
        let bytes = block_on(store.read(&e.name, 0..e.bytes)).unwrap().to_vec();
        (e.name.to_string(), bytes)
    };
    block_on(store.files())
        .unwrap()
        .into_iter()
        .map(read)
        .collect()
}

fn all(files: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
    files
        .iter()
        .map(|(n, b)| ((*n).into(), b.as_bytes().to_vec()))
        .collect()
}

fn kind<T>(outcome: Result<T>) -> ErrorKind {
    outcome.map(drop).unwrap_err().kind()
}

#[test]
fn one_file_is_written_and_replaced_in_one_step_among_others() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("notes"), "mine").unwrap();
    let store = part(&dir.path().join("model.st"), PlaceKind::File);
    assert!(store.url().ends_with("/model.st"));
    assert!(block_on(store.files()).unwrap().is_empty());
    let transaction = block_on(store.begin("one", IfExists::Refuse)).unwrap();
    let written = write(&*transaction, vec![body("x", b"first")]).unwrap();
    assert_eq!(block_on(transaction.written()).unwrap(), written);
    assert!(
        block_on(store.files()).unwrap().is_empty(),
        "nobody sees it yet"
    );
    assert_eq!(block_on(store.leftovers()).unwrap().len(), 1);
    block_on(transaction.commit(None, &written, Durability::Machine)).unwrap();
    block_on(transaction.rollback()).unwrap();
    let seen = block_on(store.list(None, Depth::All)).unwrap();
    assert_eq!(
        (seen.files, seen.folders),
        (
            vec![Entry {
                name: name("model.st"),
                bytes: 5
            }],
            vec![]
        )
    );
    assert_eq!(
        files(dir.path()),
        all(&[("model.st", "first"), ("notes", "mine")])
    );
    // What lies beside it is not of this place.
    assert_eq!(block_on(store.len(&name("notes"))).unwrap(), None);
    assert_eq!(
        kind(block_on(store.read(&name("notes"), 0..1))),
        ErrorKind::NotFound
    );

    assert_eq!(
        kind(one(&*store, "two", IfExists::Refuse, b"no")),
        ErrorKind::Exists
    );
    fs::set_permissions(
        dir.path().join("model.st"),
        fs::Permissions::from_mode(0o640),
    )
    .unwrap();
    let pinned = block_on(store.pinned()).unwrap().unwrap();
    one(&*store, "three", replace(&["model.st"]), b"second").unwrap();
    assert_eq!(
        files(dir.path()),
        all(&[("model.st", "second"), ("notes", "mine")])
    );
    let mode = fs::metadata(dir.path().join("model.st"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(
        mode & 0o777,
        0o640,
        "who could read the old one can read the new one"
    );
    // A reader that was there before reads what was there.
    assert_eq!(block_on(pinned.len(&name("model.st"))).unwrap(), Some(5));
    assert_eq!(
        &block_on(pinned.read(&name("model.st"), 0..5)).unwrap()[..],
        b"first"
    );
    assert!(block_on(store.leftovers()).unwrap().is_empty());
}

#[test]
fn one_file_takes_no_more_than_one_and_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let store = part(&dir.path().join("model.st"), PlaceKind::File);
    let transaction = block_on(store.begin("one", IfExists::Refuse)).unwrap();
    assert_eq!(
        kind(write(&*transaction, vec![body("a", b""), body("b", b"")])),
        ErrorKind::Unsupported
    );
    let mut both = write(&*transaction, vec![body("a", b"1")]).unwrap();
    let joined = block_on(store.join("one", transaction.place().as_deref())).unwrap();
    let e = write(&*joined, vec![body("a", b"2")])
        .unwrap_err()
        .to_string();
    assert!(e.contains("a is written twice"), "{e}");
    both.extend(write(&*joined, vec![body("b", b"2")]).unwrap());
    let e = block_on(transaction.commit(None, &both, Durability::Process)).unwrap_err();
    assert!(e.to_string().contains("writes 2 files"), "{e}");
    let record = Some((name("record"), b"".to_vec().into()));
    assert_eq!(
        kind(block_on(transaction.commit(
            record,
            &[],
            Durability::Process
        ))),
        ErrorKind::Unsupported
    );
    block_on(joined.rollback()).unwrap();
    assert!(fs::read_dir(dir.path()).unwrap().next().is_none());
    // Without a file there is nothing to commit, and what was cut is not committed.
    let transaction = block_on(store.begin("two", IfExists::Refuse)).unwrap();
    assert_eq!(
        kind(block_on(transaction.commit(None, &[], Durability::Process))),
        ErrorKind::Unsupported
    );
    let mut written = write(&*transaction, vec![body("a", b"1")]).unwrap();
    written[0].bytes = 2;
    let e = block_on(transaction.commit(None, &written, Durability::Process)).unwrap_err();
    assert!(matches!(e, StorageError::Incomplete { .. }), "{e}");
    assert!(!dir.path().join("model.st").exists());
    let e = block_on(store.join("three", None)).unwrap_err();
    assert!(matches!(e, StorageError::NotJoined { .. }), "{e}");
}

#[test]
fn what_is_no_file_is_not_replaced_and_links_stay() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("model.st");
    fs::create_dir(&place).unwrap();
    let store = part(&place, PlaceKind::File);
    assert!(
        block_on(store.files()).unwrap().is_empty(),
        "a directory is no file"
    );
    let e = one(&*store, "one", replace(&["model.st"]), b"1")
        .unwrap_err()
        .to_string();
    assert!(e.contains("a directory lies there, not a file"), "{e}");
    fs::remove_dir(&place).unwrap();
    // A link stays, and what it leads to is replaced.
    fs::write(dir.path().join("real"), "old").unwrap();
    symlink("real", &place).unwrap();
    let transaction = block_on(store.begin("two", replace(&["model.st"]))).unwrap();
    let written = write(&*transaction, vec![body("x", b"new")]).unwrap();
    block_on(transaction.commit(None, &written, Durability::Process)).unwrap();
    assert_eq!(fs::read_link(&place).unwrap(), Path::new("real"));
    assert_eq!(
        files(dir.path()),
        all(&[("model.st", "new"), ("real", "new")])
    );
}

#[test]
fn a_file_that_somebody_has_put_there_meanwhile_stays() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("model.st");
    let theirs = || {
        fs::write(dir.path().join("theirs"), "theirs").unwrap();
        fs::rename(dir.path().join("theirs"), &place).unwrap();
    };
    let store = part(&place, PlaceKind::File);
    let changed = |outcome: Result<()>| {
        let e = outcome.unwrap_err();
        assert!(
            matches!(
                e,
                StorageError::Changed { .. } | StorageError::Exists { .. }
            ),
            "{e}"
        );
        assert_eq!(files(dir.path()), all(&[("model.st", "theirs")]));
    };
    // Where nothing was, before the version is begun and before it is committed.
    let resolved = block_on(store.resolved()).unwrap().unwrap();
    theirs();
    changed(one(&*resolved, "one", replace(&[]), b"mine"));
    fs::remove_file(&place).unwrap();
    let commit = |if_exists| {
        let transaction = block_on(store.begin("two", if_exists)).unwrap();
        let written = write(&*transaction, vec![body("x", b"mine")]).unwrap();
        theirs();
        let outcome = block_on(transaction.commit(None, &written, Durability::Process));
        block_on(transaction.rollback()).unwrap();
        outcome
    };
    changed(commit(IfExists::Refuse));
    // Where there was one.
    changed(commit(replace(&["model.st"])));
}

#[test]
fn files_with_a_prefix_become_visible_with_their_record() {
    let dir = tempfile::tempdir().unwrap();
    let others = [("ckpt-10.index", "other"), ("notes", "mine")];
    others
        .iter()
        .for_each(|(n, b)| fs::write(dir.path().join(n), b).unwrap());
    let store = part(&dir.path().join("ckpt-1"), PlaceKind::Prefix);
    let first = block_on(store.begin("one", IfExists::Refuse)).unwrap();
    let second = block_on(store.join("one", first.place().as_deref())).unwrap();
    let mut written = write(&*first, vec![body(".data-0", b"0")]).unwrap();
    written.extend(write(&*second, vec![body(".data-1", b"11")]).unwrap());
    assert_eq!(
        kind(write(&*second, vec![body("a/b", b"")])),
        ErrorKind::Unsupported
    );
    assert_eq!(block_on(store.len(&name(".data-0"))).unwrap(), None);
    assert_eq!(
        kind(block_on(first.commit(None, &written, Durability::Process))),
        ErrorKind::Unsupported
    );
    let record = (name(".index"), b"idx".to_vec().into());
    block_on(first.commit(Some(record), &written, Durability::Machine)).unwrap();
    let mine = [
        ("ckpt-1.data-0", "0"),
        ("ckpt-1.data-1", "11"),
        ("ckpt-1.index", "idx"),
    ];
    assert_eq!(files(dir.path()), all(&[&mine[..], &others[..]].concat()));
    let seen = block_on(store.list(None, Depth::One)).unwrap();
    assert_eq!(
        seen.names().collect::<Vec<_>>(),
        [".data-0", ".data-1", ".index"]
    );
    // A file of `ckpt-10` can't be named from here.
    assert_eq!(block_on(store.len(&name("0.index"))).unwrap(), None);
    assert_eq!(
        kind(write(&*second, vec![body("0.index", b"")])),
        ErrorKind::Unsupported
    );
    assert_eq!(
        &block_on(store.read(&name(".data-1"), 0..2)).unwrap()[..],
        b"11"
    );
    let ranges = block_on(store.read_ranges(vec![(name(".index"), 1..2)]))
        .unwrap()
        .0;
    assert_eq!(&ranges[0][..], b"d");
    // Nothing of it is replaced, and a version that can't be linked as a whole leaves nothing.
    assert_eq!(
        kind(block_on(store.begin("two", replace(&[".index"])))),
        ErrorKind::Unsupported
    );
    fs::remove_file(dir.path().join("ckpt-1.data-0")).unwrap();
    assert_eq!(kind(bundle(&*store, "three", b"3")), ErrorKind::Exists);
    assert_eq!(files(dir.path()), all(&[&mine[1..], &others[..]].concat()));
    block_on(store.remove(&[name(".index"), name("none")])).unwrap();
    assert!(!dir.path().join("ckpt-1.index").exists());
}

#[test]
fn a_part_of_any_store_is_read_as_a_place() {
    let folder = MemoryStore::new();
    for (n, b) in [
        ("a.st", "file"),
        ("c-1.index", "i"),
        ("c-1.data", "dd"),
        ("c-1/x", "deeper"),
    ] {
        folder.put(name(n), b.as_bytes().into());
    }
    let folder: Arc<dyn Store> = Arc::new(folder);
    let file = PartStore::file("memory://f/a.st", Arc::clone(&folder), name("a.st"));
    assert_eq!(
        block_on(file.files()).unwrap(),
        [Entry {
            name: name("a.st"),
            bytes: 4
        }]
    );
    let prefix = PartStore::prefix("memory://f/c-1", Arc::clone(&folder), "c-1");
    let names: Vec<_> = block_on(prefix.files())
        .unwrap()
        .into_iter()
        .map(|e| e.name.to_string())
        .collect();
    assert_eq!(names, [".data", ".index"]);
    assert!(
        block_on(prefix.list(Some(&name("x")), Depth::All))
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        &block_on(prefix.read(&name(".data"), 0..2)).unwrap()[..],
        b"dd"
    );
    for part in [file, prefix] {
        assert_eq!(
            kind(block_on(part.begin("one", IfExists::Refuse))),
            ErrorKind::Unsupported
        );
        assert_eq!(
            kind(block_on(part.read(&name("c-1.index"), 0..1))),
            ErrorKind::NotFound
        );
    }
    assert!(
        folder.of_kind(PlaceKind::File).is_none(),
        "it has no such places"
    );
}

#[test]
fn what_a_link_to_a_file_points_to_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("step-1.st"), dir.path().join("model.st"));
    for made_before in [false, true] {
        if made_before {
            fs::write(&file, "old").unwrap();
        }
        symlink("step-1.st", &link).unwrap();
        let store = part(&link, PlaceKind::File);
        one(&*store, "one", replace(&[]), b"new").unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("step-1.st"));
        fs::remove_file(&link).unwrap();
        assert_eq!(files(dir.path()), all(&[("step-1.st", "new")]));
        fs::remove_file(&file).unwrap();
    }
}

const PLACE: &str = "RESHARD_TEST_PLACE";

/// Run by the test below in a process of its own; by itself it has nothing to do.
#[test]
fn child() {
    let Some(place) = std::env::var_os(PLACE) else {
        return;
    };
    let place = Path::new(&place);
    match place.file_name().unwrap().to_str().unwrap() {
        "model.st" => one(&*part(place, PlaceKind::File), "two", replace(&[]), b"new").unwrap(),
        _ => bundle(&*part(place, PlaceKind::Prefix), "two", b"new").unwrap(),
    }
}

/// The step at which a process that writes there was killed, if it met it; what is left over is cleared away.
fn crash(place: &Path, kind: PlaceKind, step: &str) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "parts::child", "--test-threads=1"])
        .env(PLACE, place)
        .env(failpoint::VARIABLE, step);
    let status = child.output().unwrap().status;
    assert!(
        status.success() || status.signal() == Some(9),
        "{step}: {status}"
    );
    let store = part(place, kind);
    for left in block_on(store.leftovers()).unwrap() {
        assert!(!left.replaced);
        block_on(store.remove_leftover(&left)).unwrap();
        block_on(store.finish_replacing(&left, &[])).unwrap();
    }
    assert!(block_on(store.leftovers()).unwrap().is_empty());
    !status.success()
}

#[test]
fn a_crash_at_any_step_leaves_the_old_or_the_new_version() {
    let whole = [("c.data-0", "new"), ("c.data-1", ""), ("c.index", "new")];
    for (file, kind, old, new, killed) in [
        (
            "model.st",
            PlaceKind::File,
            &[][..],
            &[("model.st", "new")][..],
            [5, 2],
        ),
        (
            "model.st",
            PlaceKind::File,
            &[("model.st", "old")],
            &[("model.st", "new")],
            [5, 3],
        ),
        ("c", PlaceKind::Prefix, &[], &whole, [8, 2]),
    ] {
        let (mut before, mut after) = (0, 0);
        for step in failpoint::STEPS {
            let dir = tempfile::tempdir().unwrap();
            old.iter()
                .for_each(|(n, b)| fs::write(dir.path().join(n), b).unwrap());
            let killed = crash(&dir.path().join(file), kind, step);
            let found = files(dir.path());
            let is_new = found == all(new);
            assert!(is_new || found == all(old), "{step}: {found:?}");
            assert!(
                is_new || killed,
                "{step} was not met, and the save went through"
            );
            if killed {
                *(if is_new { &mut after } else { &mut before }) += 1;
            }
        }
        assert_eq!([before, after], killed, "{kind:?}");
    }
}
