//! Replacing takes the old version's files away and nothing else.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use futures::executor::block_on;
use reshard_model::ErrorKind;
use reshard_storage::{
    Durability, FileBody, IfExists, LocalStore, Name, Progress, StorageError, Store, StoreExt,
    Transaction,
};
use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, chown, symlink},
        process::CommandExt,
    },
    path::Path,
    process::Command,
    sync::Arc,
};
use tempfile::TempDir;

fn name(s: &str) -> Name {
    Name::new(s).unwrap()
}

const FILES: [&str; 3] = ["data", "d/more", "record"];

fn begin(store: &LocalStore, attempt: &str) -> Result<Arc<dyn Transaction>, StorageError> {
    block_on(store.begin(attempt, IfExists::Replace(FILES.map(name).into())))
}

/// Writes files of one byte and commits.
fn finish(
    transaction: &Arc<dyn Transaction>,
    byte: u8,
    files: &[&str],
) -> Result<(), StorageError> {
    let bodies = files
        .iter()
        .map(|f| FileBody::from_bytes(name(f), vec![byte; 10].into()))
        .collect();
    block_on(async {
        transaction
            .write(bodies, Durability::Machine, Progress::none())
            .await?;
        transaction
            .commit(
                Some((name("record"), vec![byte].into())),
                &[],
                Durability::Machine,
            )
            .await
    })
}

fn save(store: &LocalStore, attempt: &str, byte: u8) {
    finish(&begin(store, attempt).unwrap(), byte, &["data", "d/more"]).unwrap();
}

/// A version in a directory `x` that has a parent of its own.
fn saved() -> (TempDir, LocalStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::at(dir.path().join("x")).unwrap();
    save(&store, "first", 1);
    (dir, store)
}

fn beside(dir: &Path) -> Vec<String> {
    let mut all: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    all.sort();
    all
}

#[test]
fn what_is_of_others_stays_also_when_it_came_while_the_save_ran() {
    let (dir, store) = saved();
    let x = store.path();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "precious").unwrap();
    fs::write(x.join("README.md"), "read me").unwrap();
    fs::create_dir_all(x.join("logs/deep/empty")).unwrap();
    fs::write(x.join("logs/deep/today"), "today").unwrap();
    fs::write(x.join("d/notes"), "notes").unwrap();
    fs::write(x.join(OsStr::from_bytes(b"odd \xff\\")), "odd").unwrap();
    symlink("../outside", x.join("link")).unwrap();
    symlink("nowhere", x.join("dangling")).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        x.join("pipe"),
        rustix::fs::FileType::Fifo,
        mode,
        0,
    )
    .unwrap();
    fs::set_permissions(x.join("logs"), fs::Permissions::from_mode(0o711)).unwrap();

    let inode = |dir| fs::metadata(x.join(dir)).unwrap().ino();
    let (theirs, shared) = (inode("logs"), inode("d"));

    let transaction = begin(&store, "second").unwrap();
    fs::write(x.join("late"), "late").unwrap();
    fs::write(x.join("logs/later"), "later").unwrap();
    finish(&transaction, 2, &["data"]).unwrap();

    assert_eq!(beside(dir.path()), ["outside", "x"]);
    assert_eq!(
        (
            fs::read(x.join("data")).unwrap(),
            fs::read(x.join("record")).unwrap()
        ),
        (vec![2; 10], vec![2])
    );
    assert!(
        !x.join("d/more").exists(),
        "a file of the old version that the new one has not"
    );
    for (file, text) in [
        ("README.md", "read me"),
        ("logs/deep/today", "today"),
        ("logs/later", "later"),
        ("d/notes", "notes"),
        ("late", "late"),
        ("link/precious", "precious"),
    ] {
        assert_eq!(fs::read_to_string(x.join(file)).unwrap(), text);
    }
    assert_eq!(
        fs::read_to_string(x.join(OsStr::from_bytes(b"odd \xff\\"))).unwrap(),
        "odd"
    );
    assert!(x.join("logs/deep/empty").is_dir());
    assert_eq!(
        inode("logs"),
        theirs,
        "what is of others as a whole is the same directory, with all that is known of it"
    );
    assert_ne!(
        inode("d"),
        shared,
        "one with files of the old version is another one"
    );
    assert_eq!(
        fs::metadata(x.join("logs")).unwrap().permissions().mode() & 0o7777,
        0o711
    );
    assert!(
        fs::symlink_metadata(x.join("dangling"))
            .unwrap()
            .is_symlink()
    );
    assert!(fs::symlink_metadata(x.join("link")).unwrap().is_symlink());
    assert_eq!(beside(&outside), ["precious"]);
    assert!(!fs::metadata(x.join("pipe")).unwrap().is_file());
}

#[test]
fn what_has_a_name_that_the_new_version_takes_is_kept_aside_and_told() {
    let (dir, store) = saved();
    let number = || fs::metadata(store.path()).unwrap().ino();
    let old = number();
    let transaction = begin(&store, "second").unwrap();
    for file in ["new", "README.md"] {
        fs::write(store.path().join(file), "mine").unwrap();
    }
    let e = finish(&transaction, 2, &["data", "new"]).unwrap_err();
    let StorageError::NotCarried {
        path,
        kept,
        count: 1,
        first,
        ..
    } = &e
    else {
        panic!("{e}")
    };
    assert_eq!(
        (path.as_str(), first.as_str()),
        (store.path().to_str().unwrap(), "new")
    );
    assert!(e.to_string().contains("exists"), "{e}");
    // The new version is there, whole; giving it up comes too late.
    block_on(transaction.rollback()).unwrap();
    assert_eq!(fs::read(store.path().join("new")).unwrap(), [2; 10]);
    assert_eq!(fs::read(store.path().join("README.md")).unwrap(), b"mine");
    assert_eq!(fs::read(Path::new(kept).join("new")).unwrap(), b"mine");
    assert_eq!(
        beside(dir.path()),
        [&*format!(".x.second.{:x}-{old:x}.old", number()), "x"]
    );
    assert_eq!(
        beside(Path::new(kept)),
        ["new"],
        "the old version itself is gone"
    );
    // Nothing takes it away; when the name is free it goes where it was.
    let left = block_on(store.leftovers()).unwrap().pop().unwrap();
    let again = block_on(store.finish_replacing(&left, &FILES.map(name))).unwrap_err();
    assert!(matches!(again, StorageError::NotCarried { .. }), "{again}");
    fs::remove_file(store.path().join("new")).unwrap();
    block_on(store.finish_replacing(&left, &FILES.map(name))).unwrap();
    assert_eq!(fs::read(store.path().join("new")).unwrap(), b"mine");
    assert_eq!(beside(dir.path()), ["x"]);
}

#[test]
fn a_directory_where_the_old_version_had_a_file_is_of_others() {
    let (dir, store) = saved();
    let transaction = begin(&store, "second").unwrap();
    fs::remove_file(store.path().join("data")).unwrap();
    fs::create_dir(store.path().join("data")).unwrap();
    fs::write(store.path().join("data/mine"), "mine").unwrap();
    finish(&transaction, 2, &[]).unwrap();
    assert_eq!(fs::read(store.path().join("data/mine")).unwrap(), b"mine");
    assert_eq!(beside(dir.path()), ["x"]);
}

#[test]
fn of_two_that_replace_one_place_the_later_one_fails_and_nothing_is_lost() {
    let (dir, store) = saved();
    fs::write(store.path().join("README.md"), "read me").unwrap();
    let (a, b) = (begin(&store, "a").unwrap(), begin(&store, "b").unwrap());
    finish(&a, 2, &["data", "d/more"]).unwrap();
    // Of what lies there now it does not know which files are a checkpoint's.
    let e = finish(&b, 3, &["data"]).unwrap_err();
    assert!(matches!(e, StorageError::Changed { .. }), "{e}");
    block_on(b.rollback()).unwrap();
    assert_eq!(fs::read(store.path().join("record")).unwrap(), [2]);
    assert_eq!(beside(store.path()), ["README.md", "d", "data", "record"]);
    assert_eq!(beside(dir.path()), ["x"]);
}

#[test]
fn what_came_where_nothing_was_when_it_was_looked_at_is_not_replaced() {
    let (dir, store) = saved();
    let aside = dir.path().join("aside");
    fs::rename(store.path(), &aside).unwrap();
    let looked = block_on(store.resolved()).unwrap().unwrap();
    fs::rename(&aside, store.path()).unwrap();
    let e = block_on(looked.begin("a", IfExists::Replace([].into()))).unwrap_err();
    assert!(matches!(e, StorageError::Changed { .. }), "{e}");
    assert_eq!(beside(store.path()), ["d", "data", "record"]);
    assert_eq!(beside(dir.path()), ["x"]);
}

#[test]
fn another_directory_under_the_name_of_the_transaction_is_not_committed() {
    let (dir, store) = saved();
    let transaction = begin(&store, "a").unwrap();
    // What is written goes to the directory that was made, wherever it is now.
    let built = dir.path().join(".x.a.tmp");
    fs::rename(&built, dir.path().join("aside")).unwrap();
    fs::create_dir(&built).unwrap();
    let e = finish(&transaction, 2, &["data", "d/more"]).unwrap_err();
    assert!(matches!(e, StorageError::Incomplete { .. }), "{e}");
    assert_eq!(fs::read(store.path().join("record")).unwrap(), [1]);
    assert_eq!(fs::read(dir.path().join("aside/record")).unwrap(), [2]);
}

#[test]
fn a_name_that_leaves_no_room_for_that_of_the_old_version_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    // Of 255 bytes `.NAME.b.tmp` takes some, and the numbers of two directories more.
    for (length, fits) in [(200, true), (245, false)] {
        let store = LocalStore::at(dir.path().join("x".repeat(length))).unwrap();
        save(&store, "a", 1);
        match begin(&store, "b") {
            Ok(transaction) => {
                assert!(fits);
                block_on(transaction.rollback()).unwrap();
            }
            Err(e) => {
                assert!(!fits && e.kind() == ErrorKind::Unsupported, "{e}");
                assert!(e.to_string().contains("too long"), "{e}");
            }
        }
        assert_eq!(beside(dir.path()), ["x".repeat(length)]);
        fs::remove_dir_all(store.path()).unwrap();
    }
}

const PLACE: &str = "RESHARD_TEST_HOME_PLACE";

/// Run by the test below with a home of its own; by itself it has nothing to do.
#[test]
fn child() {
    if let Some(place) = std::env::var_os(PLACE) {
        let e = begin(&LocalStore::at(Path::new(&place)).unwrap(), "second").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert!(e.to_string().contains("home"), "{e}");
    }
}

#[test]
fn a_home_and_what_lies_above_it_are_never_replaced() {
    let (dir, store) = saved();
    let home = store.path().join("home");
    fs::create_dir(&home).unwrap();
    symlink(&home, dir.path().join("to-home")).unwrap();
    for home in [store.path(), &home, &dir.path().join("to-home")] {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again
            .args(["--exact", "replace::child", "--test-threads=1"])
            .env("HOME", home)
            .env(PLACE, store.path());
        let out = again.output().unwrap();
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stdout)
        );
    }
    assert_eq!(fs::read(store.path().join("record")).unwrap(), [1]);
    assert_eq!(beside(dir.path()), ["to-home", "x"]);
}

/// The user that checks what only the owner of everything could do.
const NOBODY: u32 = 65534;

/// Runs a test again as somebody who is not root, with a directory of his own.
fn as_nobody(test: &str, prepare: impl FnOnce(&Path), work: impl FnOnce(&Path)) {
    const MARK: &str = "RESHARD_TEST_NOBODY";
    if let Some(home) = std::env::var_os(MARK) {
        return work(Path::new(&home));
    }
    let home = tempfile::tempdir().unwrap();
    if !rustix::process::geteuid().is_root() {
        return work(home.path());
    }
    chown(home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    prepare(home.path());
    let mut again = Command::new(std::env::current_exe().unwrap());
    again
        .args(["--exact", &format!("replace::{test}"), "--test-threads=1"])
        .env(MARK, home.path())
        .uid(NOBODY)
        .gid(NOBODY);
    let out = again.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("1 passed"), "{text}");
}

fn allow(dir: &Path, mode: u32) {
    fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_place_that_may_not_be_written_to_is_refused_before_anything_is_written() {
    let test = "a_place_that_may_not_be_written_to_is_refused_before_anything_is_written";
    as_nobody(
        test,
        |_| {},
        |home| {
            let store = LocalStore::at(home.join("x")).unwrap();
            save(&store, "first", 1);
            fs::write(store.path().join("README"), "mine").unwrap();
            for mode in [0o555, 0o577] {
                allow(store.path(), mode);
                let e = begin(&store, "second").unwrap_err();
                let told = e.to_string();
                assert!(
                    matches!(e, StorageError::Unsupported { .. }) && told.contains("chmod u+rwx"),
                    "{told}"
                );
                assert_eq!(beside(home), ["x"]);
            }
            allow(store.path(), 0o700);
            save(&store, "second", 2);
            assert_eq!(fs::read(store.path().join("README")).unwrap(), b"mine");
        },
    );
}

#[test]
fn a_place_of_another_user_is_refused_if_the_new_version_could_not_be_written_to() {
    let test = "a_place_of_another_user_is_refused_if_the_new_version_could_not_be_written_to";
    let prepare = |home: &Path| {
        for (dir, mode) in [("x", 0o575), ("y", 0o775)] {
            let store = LocalStore::at(home.join(dir)).unwrap();
            save(&store, "first", 1);
            chown(store.path(), None, Some(NOBODY)).unwrap();
            allow(store.path(), mode);
        }
    };
    as_nobody(test, prepare, |home| {
        // Without another user there is nothing to try.
        if home.join("x").exists() {
            let store = |dir: &str| LocalStore::at(home.join(dir)).unwrap();
            let e = begin(&store("x"), "second").unwrap_err().to_string();
            assert!(
                e.contains("its owner has no permission to write to it"),
                "{e}"
            );
            // The directories in it are not his.
            let e = begin(&store("y"), "second").unwrap_err().to_string();
            assert!(
                e.contains("permission to move the directory d in it"),
                "{e}"
            );
        }
    });
}
