//! Storage that fails while a run saves, verifies and removes.

use crate::states::{names, newest_is, save_in, steps, stride};
use reshard::{LocalGroup, Stores, storage::removed_place};
use reshard_manager::{Saver, Verify};
use reshard_storage::{
    LocalStore, Store,
    testkit::{Fault, FaultStore, Op},
};
use std::{path::Path, sync::Arc};

/// A saver, and the faults that its stores have.
fn faulty(dir: &Path, verify: Verify) -> (Saver, FaultStore) {
    let faults = FaultStore::new(Arc::new(LocalStore::at(dir).unwrap()));
    let around = faults.clone();
    let stores = Stores::linked()
        .unwrap()
        .around(move |store: Arc<dyn Store>| Arc::new(around.around(store)) as Arc<dyn Store>);
    let saver = Saver::new(dir).keep(1).verify(verify).stores(stores);
    (saver, faults)
}

/// Saves from as many ranks as there are savers. The first error, or the warnings.
fn save(savers: &[Saver], step: u64) -> Result<Vec<String>, String> {
    let groups = LocalGroup::new(u32::try_from(savers.len()).unwrap());
    let mut warnings = Vec::new();
    for saved in save_in(&groups, savers, step) {
        warnings = saved.map_err(|e| e.to_string())?.warnings;
    }
    Ok(warnings)
}

/// Kills the storage at each call of the save of a third step. The second checkpoint is there, or the third. A save that succeeded is there.
fn at_every_call(ranks: usize, verify: Verify, fault: Fault) {
    let mut goes_on = true;
    // Runs begin at different calls.
    let mut at = ranks as u64 % stride();
    let (mut failed, mut warned) = (0, 0);
    while goes_on {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path();
        let (saver, faults) = faulty(dir, verify);
        let mut savers = vec![saver];
        savers.extend((1..ranks).map(|_| Saver::new(dir).keep(1).verify(verify)));
        for step in [1, 2] {
            assert_eq!(save(&savers, step), Ok(vec![]));
        }
        assert_eq!(steps(dir), [2]);
        faults.die(faults.calls() + at, fault);
        let before = faults.calls();
        let saved = save(&savers, 3);
        goes_on = faults.calls() > before + at;
        let newest = steps(dir).pop().unwrap();
        match &saved {
            Ok(warnings) => {
                assert_eq!(newest, 3, "call {at}");
                warned += usize::from(!warnings.is_empty());
            }
            Err(e) => {
                failed += 1;
                assert!(
                    e.contains("injected fault") || e.contains("lost"),
                    "call {at}: {e}"
                );
            }
        }
        newest_is(dir, newest);

        // The storage is well again.
        let savers: Vec<_> = (0..ranks)
            .map(|_| Saver::new(dir).keep(1).verify(verify))
            .collect();
        assert_eq!(save(&savers, 4), Ok(vec![]), "call {at}, {saved:?}");
        newest_is(dir, 4);
        assert_eq!(steps(dir), [4], "call {at}, {saved:?}");
        assert!(
            names(dir).iter().all(|name| removed_place(name).is_none()),
            "{:?}",
            names(dir)
        );
        at += stride();
    }
    assert!(
        at > 10 && failed > 1 && warned > 0,
        "{at} calls, {failed} failed, {warned} warned"
    );
}

#[test]
fn storage_that_fails_at_any_call_leaves_the_newest_good_checkpoint() {
    at_every_call(1, Verify::Quick, Fault::Before);
    at_every_call(1, Verify::No, Fault::After);
}

#[test]
fn storage_of_the_coordinator_that_fails_at_any_call_leaves_the_newest_good_checkpoint() {
    at_every_call(2, Verify::Full, Fault::Before);
    at_every_call(2, Verify::Quick, Fault::After);
}

#[test]
fn a_removal_that_fails_is_a_warning_and_the_next_save_tries_again() {
    for fault in [Fault::Before, Fault::After] {
        let home = tempfile::tempdir().unwrap();
        let (saver, faults) = faulty(home.path(), Verify::No);
        let savers = [saver];
        assert_eq!(save(&savers, 1), Ok(vec![]));
        faults.fail(Op::RemoveVersion, 0, fault);
        let warnings = save(&savers, 2).unwrap();
        let [warning] = &*warnings else {
            panic!("{warnings:?}")
        };
        assert!(
            warning.contains("step 1 stays") && warning.contains("injected fault"),
            "{warning}"
        );
        assert_eq!(save(&savers, 3), Ok(vec![]));
        assert_eq!(steps(home.path()), [3]);
    }
}

#[test]
fn what_could_not_be_verified_removes_nothing() {
    let mut unverified = 0;
    for nth in 0..30 {
        let home = tempfile::tempdir().unwrap();
        let (saver, faults) = faulty(home.path(), Verify::Full);
        let savers = [saver];
        assert_eq!(save(&savers, 1), Ok(vec![]));
        faults.fail(Op::Read, nth, Fault::Before);
        let Ok(warnings) = save(&savers, 2) else {
            continue;
        };
        if warnings.iter().any(|w| w.contains("could not be verified")) {
            assert_eq!(steps(home.path()), [1, 2]);
            unverified += 1;
        }
    }
    assert!(unverified > 1, "{unverified}");
}

#[test]
fn what_a_killed_removal_has_left_is_cleared_away_by_the_next_save() {
    use std::os::unix::fs::MetadataExt as _;
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    let saver = || [Saver::new(dir).keep(1)];
    save(&saver(), 1).unwrap();
    let aside = |step: u64| {
        let place = dir.join(format!("step-{step}"));
        let inode = std::fs::metadata(&place).unwrap().ino();
        let aside = dir.join(format!(".step-{step}.1-1a2b3c4d5e6f7081-0.0-{inode:x}.old"));
        std::fs::rename(place, &aside).unwrap();
        aside
    };
    // All but the last file is gone already.
    let left = aside(1);
    for name in ["__0_0.distcp", "common.pt", ".metadata", "metadata.json"] {
        std::fs::remove_file(left.join(name)).unwrap();
    }
    assert_eq!(steps(dir), [0; 0]);
    // That of somebody else stays.
    save(&[Saver::new(dir).owner("b")], 2).unwrap();
    let others = aside(2);
    assert_eq!(save(&saver(), 3), Ok(vec![]));
    assert!(!left.exists() && others.join("reshard.json").exists());
    assert_eq!(names(dir).len(), 2, "{:?}", names(dir));
}
