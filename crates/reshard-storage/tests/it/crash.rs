//! A process that is killed at any named step of a save leaves the old version or the new one, wholly.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use futures::executor::block_on;
use reshard_storage::{
    Durability, FileBody, IfExists, LocalStore, Name, Progress, Store, StoreExt, failpoint,
};
use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, ExitStatus},
};

const PLACE: &str = "RESHARD_TEST_PLACE";
const BYTE: &str = "RESHARD_TEST_BYTE";

fn name(s: &str) -> Name {
    Name::new(s).unwrap()
}

/// Saves a version whose files are all of one byte.
fn save(place: &Path, byte: u8) {
    let store = LocalStore::at(place).unwrap();
    block_on(async {
        let if_exists = IfExists::Replace(["a", "d/b", "record"].map(name).into());
        let transaction = store.begin(&format!("by-{byte}"), if_exists).await.unwrap();
        let file = |n: &str| FileBody::from_bytes(name(n), vec![byte; 3 << 20].into());
        transaction
            .write(
                vec![file("a"), file("d/b")],
                Durability::Machine,
                Progress::none(),
            )
            .await
            .unwrap();
        transaction
            .commit(
                Some((name("record"), vec![byte; 9].into())),
                &[],
                Durability::Machine,
            )
            .await
            .unwrap();
    });
}

/// Run by the tests below in a process of its own; by itself it has nothing to do.
#[test]
fn child() {
    if let (Some(place), Ok(byte)) = (std::env::var_os(PLACE), std::env::var(BYTE)) {
        save(place.as_ref(), byte.parse().unwrap());
    }
}

fn save_and_crash(place: &Path, byte: u8, step: &str) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child", "--test-threads=1"])
        .env(PLACE, place)
        .env(BYTE, byte.to_string())
        .env(failpoint::VARIABLE, step)
        .output()
        .unwrap()
        .status
}

/// What is not of the checkpoint.
const OTHERS: [&str; 2] = ["d/notes", "logs/today"];

/// The byte of the version that is there; `None` when there is none.
fn version(place: &Path) -> Option<u8> {
    let store = LocalStore::at(place).unwrap();
    let mut all = block_on(store.files()).unwrap();
    all.retain(|e| !OTHERS.contains(&e.name.as_str()));
    if all.is_empty() {
        return None;
    }
    let names: Vec<_> = all.iter().map(|e| e.name.as_str()).collect();
    assert_eq!(names, ["a", "d/b", "record"], "a version is there wholly");
    let mut bytes: Vec<u8> = Vec::new();
    for e in all {
        bytes.extend(block_on(store.read(&e.name, 0..e.bytes)).unwrap());
    }
    bytes.dedup();
    assert_eq!(bytes.len(), 1, "files of one version");
    Some(bytes[0])
}

#[test]
fn a_crash_at_any_step_leaves_the_old_or_the_new_version() {
    for replacing in [false, true] {
        let (mut before, mut after) = (0, 0);
        for step in failpoint::STEPS {
            let dir = tempfile::tempdir().unwrap();
            let place = dir.path().join("ckpt");
            if replacing {
                save(&place, 1);
                fs::create_dir(place.join("logs")).unwrap();
                OTHERS
                    .iter()
                    .for_each(|f| fs::write(place.join(f), f).unwrap());
            }
            let status = save_and_crash(&place, 2, step);
            if failpoint::REPLACING.contains(step) && !replacing {
                assert!(status.success());
            } else {
                assert_eq!(status.signal(), Some(9), "{step} was not met: {status}");
            }
            match version(&place) {
                Some(2) => after += 1,
                old => {
                    assert_eq!(old, replacing.then_some(1), "{step}");
                    before += 1;
                }
            }
            // What is left over shows, can be removed, and does not disturb the next save.
            let store = LocalStore::at(&place).unwrap();
            for left in block_on(store.leftovers()).unwrap() {
                assert_eq!(left.replaced, version(&place) == Some(2), "{step}");
                match left.replaced {
                    true => {
                        block_on(store.finish_replacing(&left, &["a", "d/b", "record"].map(name)))
                    }
                    false => block_on(store.remove_leftover(&left)),
                }
                .unwrap();
            }
            assert!(block_on(store.leftovers()).unwrap().is_empty());
            for other in OTHERS.iter().filter(|_| replacing) {
                assert_eq!(
                    fs::read_to_string(place.join(other)).unwrap(),
                    *other,
                    "{step}"
                );
            }
            save(&place, 3);
            assert_eq!(version(&place), Some(3));
            assert_eq!(
                OTHERS.iter().filter(|f| place.join(f).exists()).count(),
                if replacing { 2 } else { 0 }
            );
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
        // The new version is there from the rename or exchange on, and not before; a save that never meets the step goes through.
        let exchanged = failpoint::STEPS
            .iter()
            .position(|s| *s == "commit.exchanged")
            .unwrap();
        let early = failpoint::STEPS[..exchanged]
            .iter()
            .filter(|s| replacing || !failpoint::REPLACING.contains(s));
        let early = early.count();
        assert_eq!((before, after), (early, failpoint::STEPS.len() - early));
    }
}
