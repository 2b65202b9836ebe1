//! What the system itself sees when a version replaces another: not what the code says of itself, but what the kernel tells
//! those who watch the directory.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use futures::executor::block_on;
use reshard_storage::{Durability, FileBody, IfExists, LocalStore, Name, Progress, Store};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use std::{fs, mem::MaybeUninit, os::unix::fs::MetadataExt, path::Path};

fn name(s: &str) -> Name {
    Name::new(s).unwrap()
}

fn save(place: &Path, attempt: &str, byte: u8) {
    let store = LocalStore::at(place).unwrap();
    block_on(async {
        let if_exists = IfExists::Replace([name("data"), name("record")].into());
        let transaction = store.begin(attempt, if_exists).await.unwrap();
        let body = FileBody::from_bytes(name("data"), vec![byte; 10].into());
        let written = transaction
            .write(vec![body], Durability::Machine, Progress::none())
            .await
            .unwrap();
        transaction
            .commit(
                Some((name("record"), vec![byte].into())),
                &[written[0].entry()],
                Durability::Machine,
            )
            .await
            .unwrap();
    });
}

/// Names that come and go in a directory while something is done, in order; those of one rename have the same number.
fn seen(dir: &Path, work: impl FnOnce()) -> Vec<(String, &'static str, usize)> {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    let kinds =
        WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO;
    inotify::add_watch(&watch, dir, kinds).unwrap();
    work();
    let (mut out, mut cookies) = (Vec::new(), Vec::new());
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&watch, &mut buffer);
    while let Ok(event) = events.next() {
        let kind = match event.events() {
            e if e.contains(ReadFlags::MOVED_FROM) => "from",
            e if e.contains(ReadFlags::MOVED_TO) => "to",
            e if e.contains(ReadFlags::CREATE) => "made",
            e if e.contains(ReadFlags::DELETE) => "removed",
            _ => "other",
        };
        if !cookies.contains(&event.cookie()) {
            cookies.push(event.cookie());
        }
        let number = cookies.iter().position(|c| *c == event.cookie()).unwrap();
        out.push((
            event.file_name().unwrap().to_str().unwrap().to_owned(),
            kind,
            number,
        ));
    }
    out
}

fn told<'e>(events: &'e [(String, &'static str, usize)]) -> Vec<(&'e str, &'static str, usize)> {
    events
        .iter()
        .map(|(name, kind, number)| (name.as_str(), *kind, *number))
        .collect()
}

#[test]
fn a_version_replaces_another_by_one_exchange_and_the_place_is_never_missing() {
    let dir = tempfile::tempdir().unwrap();
    let parent = fs::canonicalize(dir.path()).unwrap();
    let place = parent.join("x");
    save(&place, "first", 1);
    let number = || fs::metadata(&place).unwrap().ino();
    let old = number();
    let events = seen(&parent, || save(&place, "second", 2));
    // The name tells which two directories are exchanged.
    let aside = format!(".x.second.{:x}-{old:x}.old", number());
    // The new version comes to the place before the old one leaves it: only an exchange does that. Nothing else happens to the
    // place, before or after.
    assert_eq!(
        told(&events),
        [
            (".x.second.tmp", "made", 0),
            (".x.second.tmp", "from", 1),
            (&*aside, "to", 1),
            (&*aside, "from", 2),
            ("x", "to", 2),
            ("x", "from", 3),
            (&*aside, "to", 3),
            (&*aside, "removed", 0),
        ]
    );
    assert_eq!(fs::read(place.join("data")).unwrap(), [2; 10]);
}

#[test]
fn a_first_version_comes_to_its_place_by_one_rename() {
    let dir = tempfile::tempdir().unwrap();
    let parent = fs::canonicalize(dir.path()).unwrap();
    let events = seen(&parent, || save(&parent.join("x"), "first", 1));
    assert_eq!(
        told(&events),
        [
            (".x.first.tmp", "made", 0),
            (".x.first.tmp", "from", 1),
            ("x", "to", 1)
        ]
    );
}
