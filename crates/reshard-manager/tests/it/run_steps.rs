//! The checkpoints of a run: which are listed, which is the latest, which are removed.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{
    BackendVersion, CommonForm, Dialect, ErrorKind, OpenOptions, Registry, StateDict, Stores,
    Tensor,
    blocking::{self, Checkpoint, run},
    storage::{LocalStore, Store, wait},
};
use reshard_manager::{RemainsKind, Step, StepPattern};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

fn state(step: i64) -> StateDict {
    let mut state = StateDict::new();
    state.insert("w", Tensor::from_vec(&[2], vec![step as f32; 2]).unwrap());
    state.insert("step", step);
    state
}

/// Saves a step in a form that depends on its number.
fn save(dir: &Path, step: i64) -> PathBuf {
    let at = dir.join(format!("step-{step}"));
    let state = state(step);
    let save = reshard::save(&state, &at).note("run", "a7");
    let save = match step % 3 {
        0 => save,
        1 => save.dialect(Dialect::Dcp),
        _ => save.common_form(CommonForm::Object),
    };
    run(save).unwrap();
    at
}

fn numbers(steps: &[Step]) -> Vec<u64> {
    steps.iter().map(|step| step.number).collect()
}

fn steps(dir: &Path) -> Vec<u64> {
    numbers(&reshard_manager::blocking::steps(dir).unwrap())
}

#[test]
fn complete_checkpoints_are_listed_by_number() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for step in [10, 9, 2, 300] {
        save(dir, step);
    }
    // Other names, a file, a link, hidden folders, and what no save has finished.
    fs::create_dir(dir.join("step-5")).unwrap();
    fs::create_dir(dir.join(".step-6.1-1a2b3c4d5e6f7081-0.tmp")).unwrap();
    fs::write(dir.join("step-7"), "text").unwrap();
    fs::rename(save(dir, 8), dir.join("step-08")).unwrap();
    std::os::unix::fs::symlink("step-9", dir.join("step-11")).unwrap();
    let found = reshard_manager::blocking::steps(dir).unwrap();
    assert_eq!(numbers(&found), [2, 9, 10, 300]);
    let last = found.last().unwrap();
    assert_eq!(
        (&*last.name, Path::new(&last.url)),
        ("step-300", &*dir.join("step-300"))
    );
    assert_eq!(last.format, BackendVersion::new("torch_dist", 1));
    assert_eq!(last.notes["run"], "a7");
    let state = wait(last.open()).unwrap();
    assert_eq!(wait(state.state()).unwrap().int("step").unwrap(), 300);
    // A URL, with a slash at its end.
    let url = format!("{}/", LocalStore::at(dir).unwrap().url());
    assert_eq!(steps(Path::new(&url)), [2, 9, 10, 300]);
}

#[test]
fn a_folder_without_what_is_written_last_is_left_out() {
    // What a copy that was broken off lacks, in each form.
    for (step, files) in [
        (3, vec!["metadata.json", ".metadata"]),
        (4, vec![".metadata"]),
        (5, vec![".metadata"]),
    ] {
        for file in files {
            let dir = tempfile::tempdir().unwrap();
            let at = save(dir.path(), step);
            save(dir.path(), 1);
            fs::remove_file(at.join(file)).unwrap();
            assert_eq!(steps(dir.path()), [1], "{step}, {file}");
        }
    }
}

#[test]
fn the_latest_is_the_newest_that_opens() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert_eq!(reshard_manager::blocking::latest(dir).unwrap(), None);
    for step in [1, 3, 4, 6] {
        save(dir, step);
    }
    assert_eq!(
        reshard_manager::blocking::latest(dir)
            .unwrap()
            .unwrap()
            .number,
        6
    );
    fs::write(dir.join("step-6/metadata.json"), "{").unwrap();
    fs::write(dir.join("step-4/.metadata"), "no pickle").unwrap();
    let latest = reshard_manager::blocking::latest(dir).unwrap().unwrap();
    assert_eq!(latest.number, 3);
    // It is listed, because nothing but opening it tells that it is damaged.
    assert_eq!(steps(dir), [1, 3, 4]);
    let loaded = blocking::load(state(0), &latest);
    assert_eq!(loaded.map(|state| state.int("step").unwrap()).unwrap(), 3);
}

#[test]
fn no_older_one_is_returned_if_the_newest_may_be_sound() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    save(dir, 3);
    let newest = save(dir, 6);
    let json = fs::read_to_string(newest.join("metadata.json")).unwrap();
    fs::write(
        newest.join("metadata.json"),
        json.replace("torch_dist", "other"),
    )
    .unwrap();
    let e = reshard_manager::blocking::latest(dir).unwrap_err();
    assert!(
        e.to_string().contains("other/1") && e.to_string().contains("step-6"),
        "{e}"
    );
    assert_eq!(e.kind(), ErrorKind::Invalid);
}

#[test]
fn a_directory_that_is_not_there_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let nothing = dir.path().join("nothing");
    let e = reshard_manager::blocking::latest(&nothing).unwrap_err();
    assert!(
        e.is_no_checkpoint() && e.to_string().contains("nothing"),
        "{e}"
    );
    let file = dir.path().join("file");
    fs::write(&file, "text").unwrap();
    let e = reshard_manager::blocking::steps(&file).unwrap_err();
    assert!(
        e.to_string().contains("file") && !e.is_no_checkpoint(),
        "{e}"
    );
}

#[test]
fn other_patterns_and_options() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for step in [7, 100] {
        let at = dir.join(format!("iter_{step:07}"));
        blocking::save(&state(step), at).unwrap();
    }
    fs::create_dir(dir.join("step-1")).unwrap();
    let pattern: StepPattern = "iter_{n:07}".parse().unwrap();
    let find = || reshard_manager::steps(dir).pattern(pattern.clone());
    assert_eq!(numbers(&run(find()).unwrap()), [7, 100]);
    assert_eq!(wait(find().latest()).unwrap().unwrap().number, 100);
    let registry = Registry::linked().unwrap();
    let chosen = find()
        .registry(registry)
        .format(BackendVersion::new("torch_dist", 1));
    assert_eq!(numbers(&run(chosen).unwrap()), [7, 100]);
    // With one store every URL means the same place.
    let one: Arc<dyn Store> = Arc::new(LocalStore::at(dir).unwrap());
    let e = run(find().stores(Stores::only(one))).unwrap_err();
    assert!(e.to_string().contains("one store was given"), "{e}");
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_checkpoint_of_every_form_is_removed_and_nothing_else() {
    for step in [3, 4, 5] {
        let dir = tempfile::tempdir().unwrap();
        let (at, other) = (save(dir.path(), step), save(dir.path(), 1));
        fs::write(at.join("README"), "text").unwrap();
        let count = names(&at).len() as u64;
        let removed = run(reshard_manager::remove_checkpoint(&at)).unwrap();
        assert_eq!((removed.files, removed.finished), (count - 1, 0));
        assert!(
            removed
                .to_string()
                .starts_with(&format!("removed {} files (", count - 1))
        );
        assert_eq!(names(&at), ["README"]);
        assert_eq!(names(dir.path()), ["step-1", &*format!("step-{step}")]);
        assert!(Checkpoint::open(&other).is_ok());
        // What is left is no checkpoint.
        let e = run(reshard_manager::remove_checkpoint(&at)).unwrap_err();
        assert!(
            e.to_string()
                .contains("not a checkpoint; remove it yourself"),
            "{e}"
        );
        assert_eq!(names(&at), ["README"]);
    }
}

#[test]
fn only_what_has_the_note_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let at = save(dir.path(), 4);
    let removed =
        |key: &str, value: &str| run(reshard_manager::remove_checkpoint(&at).noted(key, value));
    for (key, value) in [("run", "b8"), ("owner", "a7")] {
        let e = removed(key, value).unwrap_err();
        assert!(e.to_string().contains("does not have the note"), "{e}");
        assert_eq!(e.kind(), ErrorKind::Unsupported);
    }
    let sidecar = fs::read(at.join("reshard.json")).unwrap();
    fs::remove_file(at.join("reshard.json")).unwrap();
    let e = removed("run", "a7").unwrap_err();
    assert!(e.to_string().contains("has no reshard.json"), "{e}");
    // The file of another version.
    let text = String::from_utf8(sidecar.clone()).unwrap();
    // In the older form, which has no digest of itself.
    let (text, _) = text.rsplit_once(",\"sha256\"").unwrap();
    let text = text.replace("\"schema\":2", "\"schema\":1");
    let text = text.replace("\"sha256\":\"", "\"sha256\":\"0");
    fs::write(at.join("reshard.json"), text + "}").unwrap();
    let e = removed("run", "a7").unwrap_err();
    assert!(e.to_string().contains("belongs to another version"), "{e}");
    assert!(Checkpoint::open(&at).is_ok());
    fs::write(at.join("reshard.json"), sidecar).unwrap();
    removed("run", "a7").unwrap();
    assert!(!at.exists());
    let e = removed("run", "a7").unwrap_err();
    assert!(e.is_no_checkpoint(), "{e}");
}

/// Leaves a checkpoint as a removal leaves it that is killed.
fn killed(at: &Path) -> PathBuf {
    use std::os::unix::fs::MetadataExt as _;
    let number = fs::metadata(at).unwrap().ino();
    let name = at.file_name().unwrap().to_str().unwrap();
    let aside = at.with_file_name(format!(".{name}.1-1a2b3c4d5e6f7081-0.0-{number:x}.old"));
    fs::rename(at, &aside).unwrap();
    aside
}

#[test]
fn a_removal_that_was_killed_is_finished_by_the_next_call() {
    let dir = tempfile::tempdir().unwrap();
    let at = save(dir.path(), 4);
    fs::write(at.join("README"), "text").unwrap();
    let aside = killed(&at);
    assert_eq!(
        wait(reshard_manager::steps(dir.path()).unfinished_removals()).unwrap(),
        [4]
    );
    assert_eq!(steps(dir.path()), [0; 0]);
    let removal = || reshard_manager::remove_checkpoint(&at).only_unfinished(true);
    // Not what is of others.
    let others = run(removal().noted("run", "b8")).unwrap();
    assert!(others.finished == 0 && aside.exists());
    let finished = run(removal().noted("run", "a7")).unwrap();
    assert_eq!((finished.finished, finished.files), (1, 0));
    assert!(!aside.exists());
    assert_eq!(names(&at), ["README"]);
    assert_eq!(
        wait(reshard_manager::steps(dir.path()).unfinished_removals()).unwrap(),
        [0; 0]
    );
}

#[test]
fn a_new_checkpoint_beside_a_killed_removal_stays() {
    let dir = tempfile::tempdir().unwrap();
    let aside = killed(&save(dir.path(), 4));
    let at = save(dir.path(), 4);
    let finished = run(reshard_manager::remove_checkpoint(&at).only_unfinished(true)).unwrap();
    assert!(finished.finished == 1 && !aside.exists());
    assert!(Checkpoint::open(&at).is_ok());
}

#[test]
fn prune_finishes_a_removal_that_was_killed_a_day_ago() {
    let dir = tempfile::tempdir().unwrap();
    let at = save(dir.path(), 4);
    let aside = killed(&at);
    let young = run(reshard_manager::prune(&at)).unwrap();
    assert_eq!((young.removed.len(), young.kept.len()), (0, 1));
    assert!(aside.exists());
    let pruned = run(reshard_manager::prune(&at).older_than(Duration::ZERO)).unwrap();
    assert_eq!(pruned.removed[0].kind, RemainsKind::Removed);
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn notes_are_kept_and_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let at = save(dir.path(), 3);
    let checkpoint = wait(OpenOptions::new().open(&at)).unwrap();
    let (sidecar, why) = wait(checkpoint.sidecar());
    assert_eq!((sidecar.unwrap().notes.len(), why), (1, None));
    let state = state(1);
    let long = reshard::save(&state, dir.path().join("x")).note("a", "b".repeat(70_000));
    let e = run(long).unwrap_err();
    assert!(e.to_string().contains("the notes have 70001 bytes"), "{e}");
    assert_eq!(names(dir.path()), ["step-3"]);
}
