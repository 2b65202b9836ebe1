//! What is on the disk, and when: a machine that stops at any moment keeps the old version or the new one.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use futures::executor::block_on;
use reshard_storage::{
    Durability, FileBody, IfExists, LocalStore, Name, Progress, Store, StoreExt as _,
    testkit::{Action, ActionLog, MemoryStore},
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

fn name(s: &str) -> Name {
    Name::new(s).unwrap()
}

/// Two ranks write, one commits; the steps that were seen, with paths as `transaction/…`, `place/…` and `.` for the parent.
fn save(parent: &Path, place: &str, if_exists: IfExists, durability: Durability) -> Vec<Action> {
    let log = ActionLog::below(parent);
    let store = LocalStore::at(parent.join(place)).unwrap();
    block_on(async {
        let body = |n: &str| {
            // Several extents, taken by several threads.
            let part = || {
                Box::new(bytes::Bytes::from(vec![7u8; 5 << 20])) as Box<dyn reshard_storage::Extent>
            };
            FileBody::new(name(n), vec![part(), part()])
        };
        let begun = store.begin("x", if_exists).await.unwrap();
        let joined = store.join("x", begun.place().as_deref()).await.unwrap();
        let ranks = [begun, joined];
        for (transaction, files) in ranks.iter().zip([["a", "sub/b"], ["c", "sub/deep/d"]]) {
            let files = files.into_iter().map(body).collect();
            transaction
                .write(files, durability, Progress::none())
                .await
                .unwrap();
        }
        ranks[0]
            .commit(Some((name("record"), vec![1].into())), &[], durability)
            .await
            .unwrap();
    });
    log.seen()
}

/// Position of the last step that is so; `None` when none is.
fn last(log: &[Action], is: impl Fn(&Action) -> bool) -> Option<usize> {
    log.iter().rposition(is)
}

fn first(log: &[Action], is: impl Fn(&Action) -> bool) -> Option<usize> {
    log.iter().position(is)
}

/// That a version that was built at `built` and went to its place by a rename is on the disk in the right order.
fn check(log: &[Action], parent: &Path, built: &Path, place: &Path) {
    let renamed = first(log, |t| matches!(t, Action::Renamed(_, to) if to == place)).unwrap();
    let mut synced = Vec::new();
    for file in ["a", "sub/b", "c", "sub/deep/d", "record"].map(|f| built.join(f)) {
        let wrote = last(log, |t| *t == Action::Wrote(file.clone())).unwrap();
        let sync = first(log, |t| *t == Action::SyncedFile(file.clone()))
            .unwrap_or_else(|| panic!("{} was never synced", file.display()));
        assert!(
            wrote < sync && sync < renamed,
            "{}: written, synced, then committed",
            file.display()
        );
        synced.push((sync, file));
    }
    // The record comes when all others are on the disk.
    let (record, others) = synced.split_last().unwrap();
    assert!(others.iter().all(|(at, _)| *at < record.0));
    let wrote_record = first(log, |t| *t == Action::Wrote(record.1.clone())).unwrap();
    assert!(
        others.iter().all(|(at, _)| *at < wrote_record),
        "the record is written last"
    );
    for (at, file) in &synced {
        // Every directory on the way to a file names it on the disk before anybody can see it.
        for dir in file
            .ancestors()
            .skip(1)
            .take_while(|d| d.starts_with(built))
        {
            let sync = last(&log[..renamed], |t| {
                *t == Action::SyncedDirectory(dir.into())
            });
            assert!(
                sync.is_some_and(|s| s > *at),
                "{} is synced after {}",
                dir.display(),
                file.display()
            );
        }
    }
    let after = first(&log[renamed..], |t| {
        *t == Action::SyncedDirectory(parent.into())
    });
    assert!(
        after.is_some(),
        "the name of the new version is on the disk"
    );
}

#[test]
fn files_and_directories_are_on_the_disk_before_a_version_is_seen_and_its_name_after() {
    let dir = tempfile::tempdir().unwrap();
    let parent = fs::canonicalize(dir.path()).unwrap();
    let place = parent.join("ckpt");
    let log = save(&parent, "ckpt", IfExists::Refuse, Durability::Machine);
    check(&log, &parent, &parent.join(".ckpt.x.tmp"), &place);
}

#[test]
fn a_version_that_replaces_another_is_on_the_disk_before_the_old_one_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let parent = fs::canonicalize(dir.path()).unwrap();
    let place = parent.join("ckpt");
    fs::create_dir(&place).unwrap();
    fs::write(place.join("old"), "old").unwrap();
    fs::write(place.join("README"), "of others").unwrap();
    let replace = IfExists::Replace([name("old")].into());
    let log = save(&parent, "ckpt", replace, Durability::Machine);
    check(&log, &parent, &parent.join(".ckpt.x.tmp"), &place);
    // What was carried over to the new version has its name there, too.
    let renamed = first(
        &log,
        |t| matches!(t, Action::Renamed(_, to) if *to == place),
    )
    .unwrap();
    assert!(
        log[renamed..].contains(&Action::SyncedDirectory(place.clone())),
        "{log:?}"
    );
    assert!(place.join("README").exists() && !place.join("old").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_is_linked_from_another_place_is_on_the_disk_before_the_version_is_seen() {
    for durability in [Durability::Machine, Durability::Process] {
        let dir = tempfile::tempdir().unwrap();
        let parent = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir(parent.join("old")).unwrap();
        fs::write(parent.join("old/a"), "by somebody who waited for no disk").unwrap();
        let old: Arc<dyn Store> = Arc::new(LocalStore::at(parent.join("old")).unwrap());
        let new = LocalStore::at(parent.join("new")).unwrap();
        let log = ActionLog::below(&parent);
        block_on(async {
            let transaction = new.begin("x", IfExists::Refuse).await.unwrap();
            let copy = FileBody::copy_of(name("sub/b"), old, name("a"));
            transaction
                .write(vec![copy], durability, Progress::none())
                .await
                .unwrap();
            transaction.commit(None, &[], durability).await.unwrap();
        });
        let log = log.seen();
        let file = parent.join(".new.x.tmp/sub/b");
        let at = |step: Action| first(&log, |t| *t == step);
        let linked = at(Action::Linked(file.clone())).unwrap();
        let synced = [
            at(Action::SyncedFile(file.clone())),
            at(Action::SyncedDirectory(file.parent().unwrap().into())),
        ];
        let waits = durability == Durability::Machine;
        assert!(
            synced
                .iter()
                .all(|s| s.is_some_and(|s| s > linked) == waits),
            "{durability:?}: {log:?}"
        );
    }
}

#[test]
fn a_file_that_is_copied_from_another_store_is_on_the_disk_when_it_is_written() {
    for durability in [Durability::Machine, Durability::Process] {
        let dir = tempfile::tempdir().unwrap();
        let parent = fs::canonicalize(dir.path()).unwrap();
        let old = MemoryStore::new();
        old.put(name("a"), "in memory".into());
        let new = LocalStore::at(parent.join("new")).unwrap();
        let log = ActionLog::below(&parent);
        block_on(async {
            let transaction = new.begin("x", IfExists::Refuse).await.unwrap();
            let copy = FileBody::copy_of(name("b"), Arc::new(old), name("a"));
            transaction
                .write(vec![copy], durability, Progress::none())
                .await
                .unwrap();
            transaction.commit(None, &[], durability).await.unwrap();
        });
        assert_eq!(fs::read(parent.join("new/b")).unwrap(), b"in memory");
        let synced = log
            .seen()
            .contains(&Action::SyncedFile(parent.join(".new.x.tmp/b")));
        assert_eq!(synced, durability == Durability::Machine);
    }
}

#[test]
fn directories_made_for_a_place_are_named_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let parent = fs::canonicalize(dir.path()).unwrap();
    let log = save(
        &parent,
        "runs/7/ckpt",
        IfExists::Refuse,
        Durability::Machine,
    );
    for made in ["runs", "runs/7"].map(|d| parent.join(d)) {
        let at = first(&log, |t| *t == Action::Made(made.clone())).unwrap();
        let above: PathBuf = made.parent().unwrap().into();
        assert!(
            log[at..].contains(&Action::SyncedDirectory(above)),
            "{}",
            made.display()
        );
    }
}

#[test]
fn a_save_that_need_only_outlive_the_process_waits_for_no_disk() {
    let dir = tempfile::tempdir().unwrap();
    let parent = fs::canonicalize(dir.path()).unwrap();
    let log = save(&parent, "ckpt", IfExists::Refuse, Durability::Process);
    assert!(log.iter().any(|t| matches!(t, Action::Wrote(_))));
    let synced: Vec<_> = log
        .iter()
        .filter(|t| matches!(t, Action::SyncedFile(_) | Action::SyncedDirectory(_)))
        .collect();
    assert!(synced.is_empty(), "{synced:?}");
}

#[test]
fn a_version_that_is_removed_has_another_name_for_good_before_its_files_go() {
    let dir = tempfile::tempdir().unwrap();
    let home = fs::canonicalize(dir.path()).unwrap();
    let place = home.join("x");
    fs::create_dir(&place).unwrap();
    fs::write(place.join("data"), "").unwrap();
    // A file of others goes back to the place after the first steps, and its directory is synced before any file goes.
    fs::write(place.join("README"), "").unwrap();
    let store = LocalStore::at(&place).unwrap();
    let log = ActionLog::below(&home);
    block_on(store.remove_version("a", None, &[name("data")])).unwrap();
    let seen = log.seen();
    let [
        Action::Renamed(from, to),
        Action::SyncedDirectory(parent),
        Action::SyncedDirectory(new),
    ] = &*seen
    else {
        panic!("{seen:?}")
    };
    assert_eq!((from, parent, new), (&place, &home, &place));
    let aside = to.file_name().unwrap().to_str().unwrap();
    assert!(aside.starts_with(".x.a.0-"), "{aside}");
    assert!(place.join("README").exists() && !place.join("data").exists());
}
