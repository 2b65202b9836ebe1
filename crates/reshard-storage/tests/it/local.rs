//! What a local directory does beyond the contract of every store.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use bytes::Bytes;
use futures::{executor::block_on, future::join_all};
use reshard_model::ErrorKind;
use reshard_storage::{
    Depth, Durability, Extent, FileBody, IfExists, Leftover, Length, LocalStore, Name, Progress,
    Result, StorageError, Store, StoreExt, Written,
    testkit::{Action, ActionLog},
    wait,
};
use std::{
    ffi::OsStr,
    fs, io,
    ops::Range,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

fn name(s: &str) -> Name {
    Name::new(s).unwrap()
}

fn save(store: &LocalStore, attempt: &str, if_exists: IfExists, byte: u8) -> Result<()> {
    block_on(async {
        let transaction = store.begin(attempt, if_exists).await?;
        let body = FileBody::from_bytes(name("data"), vec![byte; 10].into());
        transaction
            .write(vec![body], Durability::Machine, Progress::none())
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

fn listed(dir: &Path) -> Vec<String> {
    let mut all: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    all.sort();
    all
}

#[test]
fn an_empty_directory_is_filled_and_missing_ones_above_are_made() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("empty")).unwrap();
    for place in ["empty", "a/b/c"] {
        save(
            &LocalStore::at(dir.path().join(place)).unwrap(),
            "x",
            IfExists::Refuse,
            1,
        )
        .unwrap();
        assert_eq!(listed(&dir.path().join(place)), ["data", "record"]);
    }
    assert_eq!(listed(dir.path()), ["a", "empty"]);
}

/// Replaces what `save` saves.
fn replace() -> IfExists {
    IfExists::Replace([name("data"), name("record")].into())
}

#[test]
fn what_lies_there_is_refused_unless_it_is_to_be_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::at(dir.path().join("x")).unwrap();
    save(&store, "one", IfExists::Refuse, 1).unwrap();
    let e = save(&store, "two", IfExists::Refuse, 2).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Exists);
    assert!(
        e.to_string()
            .contains(dir.path().join("x").to_str().unwrap()),
        "{e}"
    );
    assert_eq!(listed(dir.path()), ["x"]);
    save(&store, "three", replace(), 3).unwrap();
    assert_eq!(listed(dir.path()), ["x"]);
    assert_eq!(listed(store.path()), ["data", "record"]);
    assert_eq!(fs::read(dir.path().join("x/data")).unwrap(), [3; 10]);
}

#[test]
fn a_file_in_the_way_is_refused_whatever_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("x"), "mine").unwrap();
    let store = LocalStore::at(dir.path().join("x")).unwrap();
    for if_exists in [IfExists::Refuse, replace()] {
        let e = save(&store, "a", if_exists, 1).unwrap_err();
        assert!(matches!(e, StorageError::Unsupported { .. }), "{e}");
    }
    assert_eq!(fs::read(dir.path().join("x")).unwrap(), b"mine");
    assert_eq!(listed(dir.path()), ["x"]);
}

#[test]
fn a_link_stays_and_what_it_points_to_is_written() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("real")).unwrap();
    std::os::unix::fs::symlink("real/ckpt", dir.path().join("latest")).unwrap();
    let store = LocalStore::at(dir.path().join("latest")).unwrap();
    for (i, attempt) in ["a", "b"].into_iter().enumerate() {
        save(&store, attempt, replace(), i as u8).unwrap();
        assert!(
            fs::symlink_metadata(dir.path().join("latest"))
                .unwrap()
                .is_symlink()
        );
        assert_eq!(
            fs::read(dir.path().join("real/ckpt/record")).unwrap(),
            [i as u8]
        );
        assert_eq!(listed(&dir.path().join("real")), ["ckpt"]);
        assert_eq!(block_on(store.files()).unwrap().len(), 2);
    }
    std::os::unix::fs::symlink("around", dir.path().join("around")).unwrap();
    let e = save(
        &LocalStore::at(dir.path().join("around")).unwrap(),
        "a",
        IfExists::Refuse,
        1,
    )
    .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
}

#[test]
fn a_rank_joins_where_the_version_was_begun_wherever_a_link_leads_by_now() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("latest");
    ["one", "two"]
        .iter()
        .for_each(|d| fs::create_dir(dir.path().join(d)).unwrap());
    for place in ["latest", "latest/ckpt"] {
        std::os::unix::fs::symlink("one", &link).unwrap();
        let store = LocalStore::at(dir.path().join(place)).unwrap();
        block_on(async {
            let begun = store.begin("a", IfExists::Refuse).await.unwrap();
            fs::remove_file(&link).unwrap();
            std::os::unix::fs::symlink("two", &link).unwrap();
            // Where the link leads by now there is nothing to join, and nothing is made.
            let e = store.join("a", None).await.unwrap_err();
            assert!(matches!(e, StorageError::NotJoined { .. }), "{e}");
            let joined = store.join("a", begun.place().as_deref()).await.unwrap();
            assert_eq!(joined.place(), begun.place());
            let mut written = Vec::new();
            for (transaction, file) in [(&begun, "mine"), (&joined, "theirs")] {
                let body = FileBody::from_bytes(name(file), vec![1; 10].into());
                written.extend(
                    transaction
                        .write(vec![body], Durability::Process, Progress::none())
                        .await
                        .unwrap(),
                );
            }
            let files: Vec<_> = written.iter().map(Written::entry).collect();
            begun
                .commit(
                    Some((name("record"), vec![1].into())),
                    &files,
                    Durability::Process,
                )
                .await
                .unwrap();
        });
        fs::remove_file(&link).unwrap();
        let made = dir.path().join(place.replace("latest", "one"));
        assert_eq!(listed(&made), ["mine", "record", "theirs"]);
        assert!(listed(&dir.path().join("two")).is_empty());
        fs::remove_dir_all(made).unwrap();
        fs::create_dir_all(dir.path().join("one")).unwrap();
        assert_eq!(listed(dir.path()), ["one", "two"]);
    }
}

#[test]
fn a_mounted_root_is_refused_before_anything_is_written() {
    for place in ["/", "/proc"] {
        let store = LocalStore::at(place).unwrap();
        let e = block_on(store.begin("a", replace())).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    }
}

#[test]
fn leftovers_are_those_of_this_place_only() {
    let dir = tempfile::tempdir().unwrap();
    for d in [
        ".x.one.tmp",
        ".x.two.tmp",
        ".x.four.1-2.old",
        ".x.y.one.tmp",
        ".xx.one.tmp",
        ".x..tmp",
        "x.one.tmp",
    ] {
        fs::create_dir(dir.path().join(d)).unwrap();
    }
    // A version that was replaced has its number in its name.
    let three = dir.path().join("three");
    fs::create_dir(&three).unwrap();
    let number = fs::metadata(&three).unwrap().ino();
    fs::rename(
        &three,
        dir.path().join(format!(".x.three.1-{number:x}.old")),
    )
    .unwrap();
    let ours = dir.path().join(".x.one.tmp/data");
    fs::write(&ours, [0; 7]).unwrap();
    let when = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    fs::File::options()
        .write(true)
        .open(&ours)
        .unwrap()
        .set_modified(when)
        .unwrap();
    // What bears such a name and is no directory is not ours.
    fs::write(dir.path().join(".x.five.tmp"), "").unwrap();
    std::os::unix::fs::symlink(
        dir.path().join(".xx.one.tmp"),
        dir.path().join(".x.six.tmp"),
    )
    .unwrap();
    let store = LocalStore::at(dir.path().join("x")).unwrap();
    let left = block_on(store.leftovers()).unwrap();
    let told: Vec<_> = left
        .iter()
        .map(|l| (l.attempt.as_str(), l.replaced, l.bytes))
        .collect();
    assert_eq!(
        told,
        [("one", false, 7), ("three", true, 0), ("two", false, 0)]
    );
    assert!(left[0].path.ends_with("/.x.one.tmp"));
    assert_eq!(left[0].modified, Some(when));
    block_on(store.remove_leftover(&left[0])).unwrap();
    block_on(store.remove_leftover(&left[1])).unwrap();
    assert_eq!(
        block_on(store.leftovers()).unwrap().len(),
        2,
        "a replaced version may hold files of others"
    );
    let four = dir.path().join(".x.four.1-2.old").display().to_string();
    block_on(store.finish_replacing(&Leftover::new("four", four).replaced(), &[])).unwrap();
    assert!(
        dir.path().join(".x.four.1-2.old").exists(),
        "another directory than the one that is meant"
    );
    for bad in ["", "../x", "a.b", "a/b"] {
        assert_eq!(
            block_on(store.remove_leftover(&Leftover::new(bad, "/x")))
                .unwrap_err()
                .kind(),
            ErrorKind::Invalid
        );
        assert_eq!(
            block_on(store.begin(bad, IfExists::Refuse))
                .unwrap_err()
                .kind(),
            ErrorKind::Invalid
        );
    }
}

#[test]
fn a_leftover_is_removed_only_under_its_own_name_and_beside_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::at(dir.path().join("x")).unwrap();
    for d in [".x.one.tmp", ".x.two.tmp", ".y.one.tmp", "away/.x.one.tmp"] {
        fs::create_dir_all(dir.path().join(d)).unwrap();
    }
    let remove = |attempt: &str, name: &str| {
        let path = dir.path().join(name).display().to_string();
        block_on(store.remove_leftover(&Leftover::new(attempt, path))).unwrap();
    };
    for (attempt, name) in [
        ("one", ".x.two.tmp"),
        ("one", ".y.one.tmp"),
        ("one", "x"),
        ("one", ".."),
    ] {
        remove(attempt, name);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4);
    // What lies elsewhere stays, whatever is said of it.
    remove("one", "away/.x.one.tmp");
    assert!(dir.path().join("away/.x.one.tmp").exists() && !dir.path().join(".x.one.tmp").exists());
}

#[test]
fn the_names_beside_a_place_are_listed_once_however_many_leftovers_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let home = fs::canonicalize(dir.path()).unwrap();
    for n in 0..20 {
        fs::create_dir(home.join(format!(".x.a{n}.tmp"))).unwrap();
        let old = home.join("old");
        fs::create_dir(&old).unwrap();
        let number = fs::metadata(&old).unwrap().ino();
        fs::rename(&old, home.join(format!(".x.b{n}.1-{number:x}.old"))).unwrap();
    }
    fs::create_dir(home.join("x")).unwrap();
    let store = LocalStore::at(home.join("x")).unwrap();
    let log = ActionLog::below(&home);
    for left in block_on(store.leftovers()).unwrap() {
        block_on(store.remove_leftover(&left)).unwrap();
        block_on(store.finish_replacing(&left, &[])).unwrap();
    }
    let listings = log
        .seen()
        .into_iter()
        .filter(|t| matches!(t, Action::Listed(_)))
        .count();
    assert_eq!((listings, fs::read_dir(&home).unwrap().count()), (1, 1));
}

#[test]
fn a_named_pipe_does_not_block_a_reader() {
    let dir = tempfile::tempdir().unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.path().join("p"),
        rustix::fs::FileType::Fifo,
        mode,
        0,
    )
    .unwrap();
    let store = LocalStore::at(dir.path()).unwrap();
    let e = block_on(store.read(&name("p"), 0..1)).unwrap_err();
    assert!(
        e.kind() == ErrorKind::Corrupt && e.to_string().contains("named pipe"),
        "{e}"
    );
    assert!(block_on(store.files()).unwrap().is_empty());
    let e = block_on(store.len(&name("p"))).unwrap_err();
    assert!(matches!(e, StorageError::NoFile { .. }), "{e}");
    assert_eq!(
        block_on(store.list(None, Depth::All)).unwrap().others[&name("p")],
        "it is a named pipe"
    );
}

#[test]
fn a_place_may_have_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let name = OsStr::from_bytes(b"odd \xff%");
    let store = LocalStore::at(dir.path().join(name)).unwrap();
    block_on(store.begin("dead", IfExists::Refuse)).unwrap();
    save(&store, "one", IfExists::Refuse, 1).unwrap();
    save(&store, "two", replace(), 2).unwrap();
    assert_eq!(fs::read(dir.path().join(name).join("record")).unwrap(), [2]);
    let left = block_on(store.leftovers()).unwrap();
    assert_eq!(
        left.iter().map(|l| l.attempt.as_str()).collect::<Vec<_>>(),
        ["dead"]
    );
    assert!(
        LocalStore::open(&left[0].path).unwrap().path().is_dir(),
        "{}",
        left[0].path
    );
    block_on(store.remove_leftover(&left[0])).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn removing_follows_no_link() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("x")).unwrap();
    fs::create_dir_all(dir.path().join("mine")).unwrap();
    fs::write(dir.path().join("mine/data"), "mine").unwrap();
    std::os::unix::fs::symlink("../mine", dir.path().join("x/d")).unwrap();
    std::os::unix::fs::symlink("../mine/data", dir.path().join("x/link")).unwrap();
    let store = LocalStore::at(dir.path().join("x")).unwrap();
    // Whether that is an error or nothing at all: what lies behind the link stays.
    let outcome = block_on(store.remove(&[name("d/data")]));
    assert_eq!(
        fs::read(dir.path().join("mine/data")).unwrap(),
        b"mine",
        "{outcome:?}"
    );
    block_on(store.remove(&[name("link")])).unwrap();
    assert_eq!(
        (
            listed(&dir.path().join("x")),
            listed(&dir.path().join("mine"))
        ),
        (vec!["d".into()], vec!["data".into()])
    );
}

#[test]
fn a_link_to_a_file_is_that_file_and_one_to_a_directory_is_not_entered() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("x");
    for d in ["x/sub", "other"] {
        fs::create_dir_all(dir.path().join(d)).unwrap();
        fs::write(dir.path().join(d).join("data"), d).unwrap();
    }
    std::os::unix::fs::symlink("../other/data", place.join("file")).unwrap();
    std::os::unix::fs::symlink("../../other/data", place.join("sub/file")).unwrap();
    std::os::unix::fs::symlink("../other", place.join("dir")).unwrap();
    let store = LocalStore::at(&place).unwrap();
    block_on(async {
        let pinned = store.pinned().await.unwrap().unwrap();
        for store in [&store as &dyn Store, &*pinned] {
            for file in ["file", "sub/file"].map(name) {
                assert_eq!(&store.read(&file, 0..5).await.unwrap()[..], b"other");
                assert_eq!(store.len(&file).await.unwrap(), Some(5));
                assert!(store.modified(&file).await.unwrap().is_some());
            }
            let behind = name("dir/data");
            let e = store.read(&behind, 0..5).await.unwrap_err();
            assert!(
                matches!(&e, StorageError::LinkedDirectory { directory, .. } if directory == "dir"),
                "{e}"
            );
            let e = store.len(&behind).await.unwrap_err();
            assert!(matches!(e, StorageError::LinkedDirectory { .. }), "{e}");
            let all: Vec<_> = store
                .files()
                .await
                .unwrap()
                .into_iter()
                .map(|e| (e.name, e.bytes))
                .collect();
            assert_eq!(
                all,
                [("file", 5), ("sub/data", 5), ("sub/file", 5)].map(|(n, b)| (name(n), b))
            );
            let links = store.links().await.unwrap();
            let links: Vec<_> = links
                .iter()
                .map(|l| (l.name.as_str(), &*l.target, l.followed))
                .collect();
            let dir = ("dir", "../other", false);
            assert_eq!(
                links,
                [
                    dir,
                    ("file", "../other/data", true),
                    ("sub/file", "../../other/data", true)
                ]
            );
        }
    });
}

#[test]
fn when_a_file_changed_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let when = SystemTime::UNIX_EPOCH + Duration::new(1_234_567, 890);
    fs::write(dir.path().join("a"), "a").unwrap();
    fs::File::options()
        .write(true)
        .open(dir.path().join("a"))
        .unwrap()
        .set_modified(when)
        .unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    let store = LocalStore::at(dir.path()).unwrap();
    assert_eq!(block_on(store.modified(&name("a"))).unwrap(), Some(when));
    for nothing in ["b", "a/b"] {
        assert_eq!(block_on(store.modified(&name(nothing))).unwrap(), None);
    }
    assert!(block_on(store.modified(&name("d"))).is_err());
}

#[test]
fn names_that_are_none_are_left_out_of_lists() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("b")).unwrap();
    for f in ["a", "b/c", "back\\slash"] {
        fs::write(dir.path().join(f), f).unwrap();
    }
    std::os::unix::fs::symlink(dir.path(), dir.path().join("b/circle")).unwrap();
    std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
    std::os::unix::fs::symlink("nothing", dir.path().join("broken")).unwrap();
    let all = block_on(LocalStore::at(dir.path()).unwrap().files()).unwrap();
    let all: Vec<_> = all.iter().map(|e| (e.name.as_str(), e.bytes)).collect();
    assert_eq!(all, [("a", 1), ("b/c", 3), ("link", 1)]);
}

/// Bytes that are read from another store when they are wanted.
struct Lazy(LocalStore, u64, u64);

impl Extent for Lazy {
    fn length(&self) -> Length {
        Length::Exact(self.2 - self.1)
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        if self.1 == self.2 {
            return None;
        }
        let range = self.1..self.2.min(self.1 + 1_000);
        self.1 = range.end;
        Some(wait(self.0.read(&name("data"), range)).map_err(io::Error::other))
    }
}

#[test]
fn many_ranks_whose_bytes_come_from_another_store_do_not_wait_for_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let source = LocalStore::at(dir.path().join("source")).unwrap();
    let bytes: Bytes = (0..100_000u32).map(|i| (i / 7) as u8).collect();
    fs::create_dir(source.path()).unwrap();
    fs::write(source.path().join("data"), &bytes).unwrap();
    let copy = LocalStore::at(dir.path().join("copy")).unwrap();
    block_on(async {
        let transaction = copy.begin("a", IfExists::Refuse).await.unwrap();
        let writes = (0..16).map(|rank| {
            let extents = (0..100)
                .map(|i| Box::new(Lazy(source.clone(), i * 1_000, (i + 1) * 1_000)) as _)
                .collect();
            let body = FileBody::new(name(&format!("{rank}")), extents);
            transaction.write(vec![body], Durability::Process, Progress::none())
        });
        join_all(writes)
            .await
            .into_iter()
            .for_each(|w| assert_eq!(w.unwrap()[0].bytes, 100_000));
        transaction
            .commit(
                Some((name("record"), Bytes::new())),
                &[],
                Durability::Process,
            )
            .await
            .unwrap();
        for rank in 0..16 {
            assert_eq!(
                copy.read(&name(&format!("{rank}")), 0..100_000)
                    .await
                    .unwrap(),
                bytes
            );
        }
    });
}

/// Blocks of odd sizes: empty ones, tiny ones, one that is longer than a stride.
struct Odd(Bytes, usize);

impl Extent for Odd {
    fn length(&self) -> Length {
        Length::Exact(self.0.len() as u64)
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        let sizes = [0, 1, 3, 600_000, 2, 20 << 20, 0, 5];
        let n = sizes[self.1 % sizes.len()].min(self.0.len());
        self.1 += 1;
        (!self.0.is_empty()).then(|| Ok(self.0.split_to(n)))
    }
}

#[test]
fn blocks_of_any_size_arrive_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::at(dir.path().join("x")).unwrap();
    let bytes: Bytes = (0..30_000_000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8)
        .collect();
    block_on(async {
        let transaction = store.begin("a", IfExists::Refuse).await.unwrap();
        let mut extents: Vec<Box<dyn Extent>> =
            vec![Box::new(Odd(bytes.clone(), 0)), Box::new(Bytes::new())];
        extents.extend((0..5_000).map(|i| Box::new(bytes.slice(i * 7..i * 7 + i % 300)) as _));
        extents.push(Box::new(Odd(bytes.slice(..2_000_000), 3)));
        let want: Vec<u8> = bytes
            .iter()
            .copied()
            .chain((0..5_000).flat_map(|i| bytes.slice(i * 7..i * 7 + i % 300)))
            .chain(bytes.slice(..2_000_000))
            .collect();
        let written = transaction
            .write(
                vec![FileBody::new(name("a"), extents)],
                Durability::Process,
                Progress::none(),
            )
            .await
            .unwrap();
        assert_eq!(written[0].bytes, want.len() as u64);
        transaction
            .commit(
                Some((name("record"), Bytes::new())),
                &[],
                Durability::Process,
            )
            .await
            .unwrap();
        assert!(store.read(&name("a"), 0..want.len() as u64).await.unwrap() == want);
    });
}

struct Panics;

impl Extent for Panics {
    fn length(&self) -> Length {
        Length::Exact(1)
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        panic!("a broken extent")
    }
}

#[test]
fn an_extent_that_panics_is_an_error_and_nothing_is_committed() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::at(dir.path().join("x")).unwrap();
    block_on(async {
        let transaction = store.begin("a", IfExists::Refuse).await.unwrap();
        let body = FileBody::new(name("a"), vec![Box::new(Panics)]);
        let e = transaction
            .write(vec![body], Durability::Process, Progress::none())
            .await
            .unwrap_err();
        assert_eq!(e.to_string(), "an I/O task panicked: a broken extent");
        transaction.rollback().await.unwrap();
    });
    assert!(listed(dir.path()).is_empty());
}

#[test]
fn a_version_is_committed_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::at(dir.path().join("x")).unwrap();
    block_on(async {
        let transaction = store.begin("a", replace()).await.unwrap();
        transaction
            .commit(Some((name("r"), Bytes::new())), &[], Durability::Process)
            .await
            .unwrap();
        let e = transaction
            .commit(Some((name("r"), Bytes::new())), &[], Durability::Process)
            .await
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    });
}

#[test]
fn of_attempts_that_race_for_a_free_place_one_wins() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(LocalStore::at(dir.path().join("x")).unwrap());
    let threads: Vec<_> = (0..8u8)
        .map(|i| {
            let store = Arc::clone(&store);
            std::thread::spawn(move || {
                save(&store, &format!("t{i}"), IfExists::Refuse, i).map(|()| i)
            })
        })
        .collect();
    let outcomes: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    let winners: Vec<u8> = outcomes
        .iter()
        .filter_map(|o| o.as_ref().ok().copied())
        .collect();
    assert_eq!(winners.len(), 1);
    assert!(
        outcomes
            .iter()
            .filter_map(|o| o.as_ref().err())
            .all(|e| e.kind() == ErrorKind::Exists)
    );
    assert_eq!(
        fs::read(dir.path().join("x/data")).unwrap(),
        [winners[0]; 10]
    );
}

#[test]
fn a_range_may_be_empty_and_not_end_before_it_starts() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), "bytes").unwrap();
    let store = LocalStore::at(dir.path()).unwrap();
    let read = |range| block_on(store.read(&name("a"), range)).map(|b| b.to_vec());
    assert_eq!(
        (read(3..3).unwrap(), read(3..4).unwrap()),
        (vec![], b"e".to_vec())
    );
    let backwards = Range { start: 4, end: 3 };
    assert!(read(backwards).unwrap_err().to_string().contains("4..3"));
}

#[test]
fn parts_of_8_mib_suit_it_and_gaps_of_2_kib_are_read_along() {
    let hints = LocalStore::at("/").unwrap().hints();
    assert_eq!((hints.part_size, hints.coalesce_gap), (8 << 20, 2 << 10));
    assert!(hints.concurrency > 0);
}
