//! One rank.

use crate::states::{names, newest_is, state, steps};
use reshard::{
    Dialect, ErrorKind, Stores, blocking, torch_save::TorchSaveConfig, zarr::ZarrConfig,
};
use reshard_manager::{Error, Saver, Verify};
use reshard_storage::{LocalStore, Store, testkit::MemoryStore};
use std::{fs, path::Path, sync::Arc};

fn save(saver: &reshard_manager::blocking::Saver, step: u64) -> Vec<u64> {
    let saved = saver.save(step, &state(step), |save| save).unwrap();
    assert_eq!(saved.warnings, [""; 0]);
    assert_eq!((saved.step, &saved.url), (step, &saver.url(step)));
    saved.removed
}

#[test]
fn point_3_train_and_resume() {
    let home = tempfile::tempdir().unwrap();
    let run = home.path().join("run");
    let saver = || Saver::new(&run).every(10).keep(3).blocking();
    assert_eq!(saver().latest().unwrap(), None);
    let first = saver();
    let due: Vec<u64> = (0..=50).filter(|step| first.is_due(*step)).collect();
    assert_eq!(due, [10, 20, 30, 40, 50]);
    let removed: Vec<_> = due.iter().map(|step| save(&first, *step)).collect();
    assert_eq!(removed, [vec![], vec![], vec![], vec![10], vec![20]]);
    assert_eq!(names(&run), ["step-30", "step-40", "step-50"]);
    newest_is(&run, 50);
    // The next run.
    let next = saver();
    let newest = next.latest().unwrap().unwrap();
    assert_eq!((newest.number, &*newest.name), (50, "step-50"));
    assert_eq!(save(&next, 60), [30]);
    newest_is(&run, 60);
}

#[test]
fn all_stay_unless_a_number_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::new(dir.path()).blocking();
    (1..5).for_each(|step| assert_eq!(save(&saver, step), [0; 0]));
    assert_eq!(steps(dir.path()), [1, 2, 3, 4]);
}

#[test]
fn multiples_stay_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::new(dir.path()).keep(1).keep_every(3).blocking();
    (1..9).for_each(|step| drop(save(&saver, step)));
    assert_eq!(steps(dir.path()), [3, 6, 8]);
}

#[test]
fn other_names_and_every_format_in_folders() {
    let dir = tempfile::tempdir().unwrap();
    let saver = || {
        Saver::new(dir.path())
            .keep(1)
            .pattern("iter_{n:07}".parse().unwrap())
            .blocking()
    };
    for (step, dialect) in [(1, Dialect::Dcp), (2, Dialect::Megatron)] {
        let saved = saver().save(step, &state(step), |save| save.dialect(dialect));
        assert_eq!(saved.unwrap().warnings, [""; 0]);
    }
    let zarr = saver().save(3, &state(3), |save| save.strategy(ZarrConfig::default()));
    assert_eq!(zarr.unwrap().removed, [2]);
    assert_eq!(save(&saver(), 4), [3]);
    assert_eq!(names(dir.path()), ["iter_0000004"]);
}

#[test]
fn what_it_did_not_write_stays() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let at = |name: &str| dir.join(name);
    let saver = || Saver::new(dir).keep(1).owner("a").blocking();
    save(&saver(), 1);
    // A copy of its own checkpoint under another number, in a folder that others may name.
    copy(&at("step-1"), &at("step-0"));
    // No note; the note of another saver; a folder of another name; a file of others.
    blocking::save(&state(2), at("step-2")).unwrap();
    save(&Saver::new(dir).owner("b").blocking(), 3);
    copy(&at("step-1"), &at("best-1"));
    fs::create_dir(at("step-1/logs")).unwrap();
    fs::write(at("step-1/logs/today"), "log").unwrap();
    assert_eq!(save(&saver(), 4), [1]);
    assert_eq!(save(&saver(), 5), [4]);
    assert_eq!(
        names(dir),
        ["best-1", "step-0", "step-1", "step-2", "step-3", "step-5"]
    );
    assert_eq!(names(&at("step-1")), ["logs"]);
    assert_eq!(fs::read_to_string(at("step-1/logs/today")).unwrap(), "log");
    assert_eq!(steps(dir), [0, 2, 3, 5]);
    // The note alone is not enough: it has to belong to what lies there.
    fs::copy(at("step-5/reshard.json"), at("kept")).unwrap();
    fs::remove_dir_all(at("step-5")).unwrap();
    let mut other = reshard::StateDict::new();
    other.insert("other", reshard::Value::Int(1.into()));
    blocking::run(reshard::save(&other, at("step-5")).dialect(Dialect::Dcp)).unwrap();
    fs::rename(at("kept"), at("step-5/reshard.json")).unwrap();
    let saved = saver().save(6, &state(6), |save| save).unwrap();
    let [warning] = &*saved.warnings else {
        panic!("{saved:?}")
    };
    assert!(
        warning.contains("step 5 stays") && warning.contains("belongs to another version"),
        "{warning}"
    );
    assert_eq!((saved.removed, steps(dir)), (vec![], vec![0, 2, 3, 5, 6]));
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for name in names(from) {
        fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
}

#[test]
fn an_earlier_step_than_the_newest_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::new(dir.path()).keep(1).blocking();
    save(&saver, 9);
    let e = saver.save(8, &state(8), |save| save).unwrap_err();
    assert!(
        matches!(
            e,
            Error::Newer {
                step: 8,
                newest: 9,
                ..
            }
        ),
        "{e}"
    );
    assert!(
        e.to_string().contains("move the newer checkpoints away"),
        "{e}"
    );
    assert_eq!(e.kind(), ErrorKind::Exists);
    // The same step is replaced only if that is asked for.
    let e = saver.save(9, &state(9), |save| save).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Exists, "{e}");
    saver
        .save(9, &state(9), |save| save.overwrite(true))
        .unwrap();
    newest_is(dir.path(), 9);
}

/// Spoils what a save has written, before it is committed.
fn spoil(dir: &Path) {
    for name in names(dir) {
        let data = dir.join(&name).join("__0_0.distcp");
        if name.ends_with(".tmp") {
            let mut bytes = fs::read(&data).unwrap();
            let element = 7f32.to_le_bytes();
            let at = bytes.windows(4).position(|w| w == element).unwrap();
            bytes[at] ^= 1;
            fs::write(data, bytes).unwrap();
        }
    }
}

#[test]
fn a_damaged_new_checkpoint_removes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    let saver = Saver::new(&path).keep(1).verify(Verify::Full).blocking();
    save(&saver, 6);
    let spoilt = path.clone();
    let e = saver.save(7, &state(7), move |save| {
        save.before_commit(move || {
            spoil(&spoilt);
            async { Ok(()) }
        })
    });
    let e = e.unwrap_err();
    assert!(matches!(&e, Error::Damaged { .. }), "{e}");
    assert!(
        e.to_string().contains("older ones are not removed") && e.to_string().contains("CRC-32"),
        "{e}"
    );
    assert_eq!((e.kind(), steps(&path)), (ErrorKind::Corrupt, vec![6, 7]));
    // It takes no place of a good one, and goes with the old ones.
    assert_eq!(save(&saver, 8), [6, 7]);
    newest_is(&path, 8);
}

#[test]
fn a_damaged_checkpoint_takes_no_place_of_a_good_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    let saver = Saver::new(&path).keep(2).verify(Verify::Full).blocking();
    save(&saver, 6);
    let spoilt = path.clone();
    let e = saver.save(7, &state(7), move |save| {
        save.before_commit(move || {
            spoil(&spoilt);
            async { Ok(()) }
        })
    });
    assert!(e.is_err());
    assert_eq!(save(&saver, 8), [7]);
    assert_eq!(steps(&path), [6, 8]);
}

#[test]
fn settings_without_a_meaning_are_refused_before_anything_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let saver = || Saver::new(dir.path());
    for (saver, why) in [
        (saver().every(0), "`every` is 0"),
        (saver().keep(0), "`keep` is 0"),
        (saver().keep(1).keep_every(0), "`keep_every` is 0"),
        (saver().keep_every(5), "no effect without `keep`"),
    ] {
        let saver = saver.blocking();
        assert!(saver.is_due(1));
        let e = saver.save(1, &state(1), |save| save).unwrap_err();
        assert!(e.to_string().contains(why), "{e}");
        assert_eq!(e.kind(), ErrorKind::Invalid);
    }
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn single_files_are_refused_because_they_have_no_room_for_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::new(dir.path())
        .pattern("step-{n}.pt".parse().unwrap())
        .blocking();
    let e = saver.save(1, &state(1), |save| {
        save.strategy(TorchSaveConfig::default())
            .dialect(Dialect::Dcp)
    });
    let e = e.unwrap_err();
    assert!(
        e.to_string().contains("has no room for `reshard.json`"),
        "{e}"
    );
    assert_eq!(
        (e.kind(), names(dir.path()).len()),
        (ErrorKind::Unsupported, 0)
    );
}

#[test]
fn a_place_where_nothing_can_be_removed_is_refused_if_old_ones_are_to_go() {
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let stores = Stores::default().with("mem", move |_: &str| Ok(Arc::clone(&memory)));
    let saver = Saver::new("mem://run").keep(2).stores(stores).blocking();
    let e = saver.save(1, &state(1), |save| save).unwrap_err();
    assert!(e.to_string().contains("leave `keep` out"), "{e}");
    assert_eq!(e.kind(), ErrorKind::Invalid);
}

#[test]
fn the_latest_that_opens_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::new(dir.path()).blocking();
    (1..4).for_each(|step| drop(save(&saver, step)));
    fs::write(dir.path().join("step-3/.metadata"), "no pickle").unwrap();
    fs::write(dir.path().join("step-2/metadata.json"), "{").unwrap();
    newest_is(dir.path(), 1);
    assert_eq!(saver.latest().unwrap().unwrap().number, 1);
}

#[test]
fn a_report_says_what_was_done_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let saver = Saver::new(dir.path()).keep(1).blocking();
    save(&saver, 1);
    let mut saved = saver.save(2, &state(2), |save| save).unwrap();
    saved.warnings.push("a".into());
    let text = saved.to_string();
    assert!(
        text.starts_with("step 2: saved ") && text.ends_with("; removed step 1; 1 warning"),
        "{text}"
    );
    assert!(!text.contains('\n'));
}

#[test]
fn nothing_is_removed_if_the_new_checkpoint_is_not_found_where_the_saver_looks() {
    let home = tempfile::tempdir().unwrap();
    let [run, elsewhere] = ["run", "elsewhere"].map(|name| home.path().join(name));
    let saver = Saver::new(&run).keep(1).blocking();
    save(&saver, 1);
    let to = elsewhere.clone();
    let stores = Stores::default().with("file", move |_: &str| {
        LocalStore::at(&to).map(|store| Arc::new(store) as Arc<dyn Store>)
    });
    let saved = saver
        .save(2, &state(2), |save| save.stores(stores))
        .unwrap();
    let [warning] = &*saved.warnings else {
        panic!("{saved:?}")
    };
    assert!(
        warning.contains("is not found among the complete ones"),
        "{warning}"
    );
    assert_eq!(
        (steps(&run), names(&elsewhere).is_empty()),
        (vec![1], false)
    );
}

/// What a killed save has left beside a place.
fn draft(run: &Path, step: &str, is_old: bool) -> std::path::PathBuf {
    let draft = run.join(format!(".{step}.1-1a2b3c4d5e6f7081-3.tmp"));
    fs::create_dir_all(&draft).unwrap();
    fs::write(draft.join("__0_0.distcp"), "half").unwrap();
    if is_old {
        for path in [draft.join("__0_0.distcp"), draft.clone()] {
            let file = fs::File::open(path).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH)
                .unwrap();
        }
    }
    draft
}

#[test]
fn what_killed_saves_have_left_goes_with_the_next_save() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path();
    save(&Saver::new(run).blocking(), 1);
    save(&Saver::new(run).owner("others").blocking(), 2);
    blocking::save(&state(3), run.join("best")).unwrap();
    // Of its own step, of one whose save was never finished, of the step that is saved next.
    let gone = ["step-1", "step-7", "step-8"].map(|step| draft(run, step, true));
    let stays = [
        draft(run, "step-2", true),  // beside the checkpoint of others
        draft(run, "best", true),    // not called like a step
        draft(run, "step-9", false), // may be written by a living save
    ];
    assert_eq!(save(&Saver::new(run).blocking(), 8), [0; 0]);
    assert!(gone.iter().all(|draft| !draft.exists()), "{:?}", names(run));
    assert!(stays.iter().all(|draft| draft.exists()), "{:?}", names(run));
    assert_eq!(steps(run), [1, 2, 8]);
    // Who knows that nobody else saves need not wait.
    let saver = Saver::new(run)
        .unfinished_after(std::time::Duration::ZERO)
        .blocking();
    save(&saver, 10);
    assert!(!stays[2].exists() && stays[0].exists() && stays[1].exists());
}

#[test]
fn what_a_killed_first_save_has_left_goes_too() {
    let dir = tempfile::tempdir().unwrap();
    let left = draft(dir.path(), "step-1", true);
    save(&Saver::new(dir.path()).keep(1).blocking(), 2);
    assert!(!left.exists());
    assert_eq!(names(dir.path()), ["step-2"]);
}
