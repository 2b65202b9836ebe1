//! A process that is killed at any named step of a save leaves the old version or the new one, wholly.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use futures::executor::block_on;
use reshard_storage::{Durability, FileBody, IfExists, LocalStore, Name, Progress, Store, failpoint};
use std::{
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, ExitStatus},
};

const PLACE: &str = "RESHARD_TEST_PLACE";
const BYTE: &str = "RESHARD_TEST_BYTE";

/// Saves a version whose files are all of one byte.
fn save(place: &Path, byte: u8) {
    let store = LocalStore::at(place).unwrap();
    let name = |s: &str| Name::new(s).unwrap();
    block_on(async {
        let stage = store.stage(&format!("by-{byte}"), IfExists::Replace).await.unwrap();
        let file = |n: &str| FileBody::from_bytes(name(n), vec![byte; 3 << 20].into());
        stage.write(vec![file("a"), file("d/b")], Durability::Machine, Progress::none()).await.unwrap();
        stage.publish((name("record"), vec![byte; 9].into()), Durability::Machine).await.unwrap();
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
        .args(["--exact", "child", "--test-threads=1"])
        .env(PLACE, place)
        .env(BYTE, byte.to_string())
        .env(failpoint::VARIABLE, step)
        .output()
        .unwrap()
        .status
}

/// The byte of the version that is there; `None` when there is none.
fn version(place: &Path) -> Option<u8> {
    let store = LocalStore::at(place).unwrap();
    let all = block_on(store.list()).unwrap();
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
            }
            let status = save_and_crash(&place, 2, step);
            if *step == "publish.old_removed" && !replacing {
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
                block_on(store.remove_leftover(&left.attempt)).unwrap();
            }
            assert!(block_on(store.leftovers()).unwrap().is_empty());
            save(&place, 3);
            assert_eq!(version(&place), Some(3));
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        }
        // The new version is there from the rename on, and not before.
        let renamed = failpoint::STEPS.iter().position(|s| *s == "publish.renamed").unwrap();
        assert_eq!((before, after), (renamed, failpoint::STEPS.len() - renamed));
    }
}
