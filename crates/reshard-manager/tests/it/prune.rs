//! Pruning removes what saves have left behind, and nothing that anybody needs.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use async_trait::async_trait;
use reshard::{
    Dialect, ErrorKind, LocalGroup, ShardedTensor, StateDict, Stores, Tensor,
    blocking::{self, Checkpoint},
    storage::{Entry, Head, LocalStore, Name, Progress, StorageError, Store, StoreScheme},
};
use reshard_manager::{Kept, PruneReport, Remains, RemainsKind};
use reshard_storage::testkit::{Action, ActionLog, Fault, FaultStore, Op};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};
use tempfile::TempDir;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn url(dir: &Path) -> String {
    dir.display().to_string()
}

fn prune(dir: &Path) -> reshard::Result<PruneReport> {
    Ok(blocking::run(reshard_manager::prune(url(dir)))?)
}

/// Also what may be in use.
fn prune_all(dir: &Path) -> reshard::Result<PruneReport> {
    Ok(blocking::run(
        reshard_manager::prune(url(dir)).older_than(Duration::ZERO),
    )?)
}

fn removed(report: &PruneReport) -> Vec<&str> {
    report.removed.iter().map(|r| r.path.as_str()).collect()
}

fn kept(report: &PruneReport) -> Vec<(&str, &Kept)> {
    report
        .kept
        .iter()
        .map(|(r, why)| (r.path.as_str(), why))
        .collect()
}

fn foreign(report: &PruneReport) -> Vec<&str> {
    report.foreign.iter().map(|f| f.name.as_str()).collect()
}

/// Every file below a directory with its bytes.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut out = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => out.extend(files(&entry.path())),
            false => drop(out.insert(entry.path(), fs::read(entry.path()).unwrap())),
        }
    }
    out
}

/// A place of its own, of a name that is common to all.
fn place() -> (TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("step");
    (home, dir)
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

/// A copy of what another program saved; its files all changed at one time, long ago.
fn fixture(name: &str) -> (TempDir, PathBuf) {
    let (home, dir) = place();
    copy(&fixtures().join(name).join("ckpt"), &dir);
    (home, dir)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => {
                fs::write(&to, fs::read(entry.path()).unwrap()).unwrap();
                changed(&to, 10 * DAY);
            }
        }
    }
}

/// Says that a file changed so long ago.
fn changed(file: &Path, ago: Duration) {
    fs::File::options()
        .write(true)
        .open(file)
        .unwrap()
        .set_modified(SystemTime::now() - ago)
        .unwrap();
}

fn state(step: i64) -> StateDict {
    let mut state = StateDict::new();
    let tensor = Tensor::from_vec(&[3], vec![step; 3]).unwrap();
    state.insert("w", ShardedTensor::full("w", tensor));
    state.insert("step", step);
    state
}

fn save(dir: &Path, step: i64) {
    blocking::run(reshard::save(&state(step), url(dir)).overwrite(true)).unwrap();
}

fn step(dir: &Path) -> i64 {
    let common = blocking::load_common(url(dir)).unwrap();
    common.get("step").and_then(|v| v.leaf()?.as_int()).unwrap()
}

#[test]
fn files_of_an_older_save_go_and_the_checkpoint_stays_as_it_is() {
    let (_home, dir) = fixture("dcp/stale_files");
    let verify = || {
        let checkpoint = Checkpoint::open(url(&dir)).unwrap();
        let report = checkpoint.verify(true, Progress::none()).unwrap();
        (report.damage, report.items, report.bytes)
    };
    let (sound, state) = (
        verify(),
        Checkpoint::open(url(&dir)).unwrap().state().unwrap(),
    );
    assert!(sound.0.is_empty() && sound.1 > 0);
    fs::write(dir.join("README.md"), "read me").unwrap();
    fs::create_dir(dir.join("logs")).unwrap();
    fs::write(dir.join("logs/__0_9.distcp"), "below is not in it").unwrap();
    let before = files(&dir);

    let dry = blocking::run(reshard_manager::prune(url(&dir)).dry_run(true)).unwrap();
    assert_eq!(files(&dir), before, "a dry run changes nothing");
    let report = prune(&dir).unwrap();
    assert_eq!(
        report
            .removed
            .iter()
            .map(|r| (r.kind, r.bytes))
            .collect::<Vec<_>>(),
        [(RemainsKind::File, 3154); 2]
    );
    assert_eq!(removed(&report), ["__0_1.distcp", "__0_2.distcp"]);
    assert_eq!(foreign(&report), ["README.md", "logs/__0_9.distcp"]);
    assert_eq!(
        (removed(&dry), foreign(&dry)),
        (removed(&report), foreign(&report)),
        "a dry run tells the same"
    );
    assert!(report.kept.is_empty());

    let mut left = before;
    left.remove(&dir.join("__0_1.distcp"));
    left.remove(&dir.join("__0_2.distcp"));
    assert_eq!(files(&dir), left);
    assert_eq!(verify(), sound);
    assert_eq!(Checkpoint::open(url(&dir)).unwrap().state().unwrap(), state);
    let again = prune(&dir).unwrap();
    assert!(again.removed.is_empty() && again.kept.is_empty());
}

#[test]
fn no_file_of_any_checkpoint_is_ever_removed() {
    let (mut sound, mut refused) = (0, 0);
    for family in [
        "dcp",
        "dcp/v2.1.2",
        "dcp/v2.14.0",
        "dcp/v2.3.1",
        "dcp/v2.4.1",
        "megatron",
    ] {
        for entry in fs::read_dir(fixtures().join(family))
            .unwrap()
            .map(Result::unwrap)
        {
            let name = entry.file_name().into_string().unwrap();
            if name == "stale_files" || !entry.path().join("ckpt").is_dir() {
                continue;
            }
            let (_home, dir) = fixture(&format!("{family}/{name}"));
            let mut before = files(&dir);
            match prune_all(&dir) {
                Ok(mut report) => {
                    // Nobody needs the empty files that Megatron Core locked while it wrote zarr.
                    let lock = |r: &Remains| r.bytes == 0 && r.path.contains(".sync/");
                    report.removed.retain(|removed| !lock(removed));
                    before.retain(|path, _| !path.display().to_string().contains(".sync/"));
                    assert!(
                        report.removed.is_empty() && report.kept.is_empty(),
                        "{name}: {report:?}"
                    );
                    // PyTorch leaves the pieces beside what it has put together of them.
                    let piece = |e: &Entry| e.name.as_str().starts_with("sharded/");
                    report.foreign.retain(|e| !piece(e));
                    assert!(report.foreign.is_empty(), "{name}: {:?}", report.foreign);
                    sound += 1;
                }
                Err(e) => {
                    let kinds = [ErrorKind::Corrupt, ErrorKind::NotFound, ErrorKind::Invalid];
                    assert!(kinds.contains(&e.kind()), "{name}: {e}");
                    assert!(
                        ["bad_", "evil_", "flat"].iter().any(|n| name.contains(n)),
                        "{name}: {e}"
                    );
                    refused += 1;
                }
            }
            assert_eq!(files(&dir), before, "{name}");
        }
    }
    assert!(sound > 40 && refused > 8, "{sound} {refused}");
}

#[test]
fn of_a_damaged_checkpoint_nothing_is_removed() {
    for (what, file) in [("metadata", ".metadata"), ("data", "__0_0.distcp")] {
        let (_home, dir) = fixture("dcp/stale_files");
        let bytes = fs::read(dir.join(file)).unwrap();
        fs::write(dir.join(file), &bytes[..bytes.len() / 2]).unwrap();
        let before = files(&dir);
        let e = prune_all(&dir).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{what}: {e}");
        assert!(e.to_string().contains(file), "{e}");
        assert_eq!(files(&dir), before);
    }
}

#[test]
fn what_is_no_checkpoint_is_refused() {
    let (_home, dir) = place();
    assert_eq!(
        prune_all(&dir).unwrap_err().kind(),
        ErrorKind::NotFound,
        "nothing lies there"
    );
    fs::create_dir(&dir).unwrap();
    assert_eq!(
        prune_all(&dir).unwrap_err().kind(),
        ErrorKind::NotFound,
        "an empty directory"
    );
    fs::write(dir.join("__0_0.distcp"), "half").unwrap();
    assert_eq!(
        prune_all(&dir).unwrap_err().kind(),
        ErrorKind::NotFound,
        "a save that was never finished"
    );
    assert!(dir.join("__0_0.distcp").exists());
}

#[test]
fn a_file_that_a_save_may_be_writing_stays_unless_it_is_old_or_asked_for() {
    let (_home, dir) = fixture("dcp/stale_files");
    changed(&dir.join("__0_1.distcp"), DAY / 2);
    changed(&dir.join("__0_2.distcp"), 2 * DAY);
    let report = prune(&dir).unwrap();
    assert_eq!(
        removed(&report),
        ["__0_2.distcp"],
        "later than the checkpoint, but of two days ago"
    );
    assert_eq!(kept(&report), [("__0_1.distcp", &Kept::Recent)]);
    assert!(report.kept[0].0.age.unwrap() >= DAY / 2);
    assert_eq!(removed(&prune_all(&dir).unwrap()), ["__0_1.distcp"]);
}

#[test]
fn metadata_that_was_never_renamed_goes() {
    let (_home, dir) = fixture("dcp/stale_files");
    fs::write(dir.join(".metadata.tmp"), "half").unwrap();
    changed(&dir.join(".metadata.tmp"), 20 * DAY);
    assert_eq!(
        removed(&prune(&dir).unwrap()),
        [".metadata.tmp", "__0_1.distcp", "__0_2.distcp"]
    );
}

/// Saves on two ranks, each of which has all of the state.
fn save_rank_local(dir: &Path) {
    let groups = LocalGroup::new(2);
    std::thread::scope(|scope| {
        for group in &groups {
            scope.spawn(move || {
                let (state, url) = (state(1), url(dir));
                let save = reshard::save(&state, &url)
                    .group(group)
                    .dialect(Dialect::Dcp)
                    .rank_local(true);
                blocking::run(save).unwrap();
            });
        }
    });
}

#[test]
fn replicas_of_a_rank_local_save_are_no_leftovers() {
    let (_home, dir) = place();
    save_rank_local(&dir);
    assert!(dir.join("__1.metadata").exists() && dir.join("__1_0.distcp").exists());
    let report = prune_all(&dir).unwrap();
    assert!(
        report.removed.is_empty() && report.kept.is_empty() && report.foreign.is_empty(),
        "{report:?}"
    );
}

#[test]
fn a_rank_local_save_goes_when_it_is_the_earlier_one_and_is_never_guessed_at() {
    for (ago, expect) in [(20 * DAY, true), (DAY, false)] {
        let (_home, dir) = fixture("dcp/basic");
        let (_other, local) = fixture("dcp/rank_local_w2");
        for file in ["__0.metadata", "__1.metadata"] {
            fs::copy(local.join(file), dir.join(file)).unwrap();
            changed(&dir.join(file), ago);
        }
        fs::write(dir.join("__7_0.distcp"), "of that save").unwrap();
        changed(&dir.join("__7_0.distcp"), 30 * DAY);
        let report = prune_all(&dir).unwrap();
        let all = ["__0.metadata", "__1.metadata", "__7_0.distcp"];
        if expect {
            assert_eq!(removed(&report), all);
        } else {
            assert_eq!(kept(&report), all.map(|f| (f, &Kept::Disputed)));
            assert!(all.iter().all(|f| dir.join(f).exists()));
        }
    }
}

/// What a killed save leaves beside a place.
fn unfinished(dir: &Path, ago: Duration) -> PathBuf {
    let left = dir.parent().unwrap().join(".step.1-1a2b3c4d5e6f7082-3.tmp");
    fs::create_dir_all(left.join("d")).unwrap();
    for file in ["__0_0.distcp", "d/more"] {
        fs::write(left.join(file), [7; 100]).unwrap();
        changed(&left.join(file), ago);
    }
    left
}

#[test]
fn what_unfinished_saves_left_goes_when_it_is_old_or_asked_for() {
    let (_home, dir) = place();
    save(&dir, 1);
    let left = unfinished(&dir, DAY / 2);
    let report = prune(&dir).unwrap();
    assert_eq!(kept(&report), [(left.to_str().unwrap(), &Kept::Recent)]);
    let report = prune_all(&dir).unwrap();
    assert_eq!(removed(&report), [left.to_str().unwrap()]);
    assert_eq!(
        (report.removed[0].kind, report.removed[0].bytes),
        (RemainsKind::Unfinished, 200)
    );
    assert!(!left.exists());

    unfinished(&dir, 2 * DAY);
    assert_eq!(removed(&prune(&dir).unwrap()), [left.to_str().unwrap()]);
    assert_eq!(step(&dir), 1);
}

#[test]
fn what_lies_too_deep_to_be_looked_at_may_still_be_written() {
    let (home, dir) = place();
    save(&dir, 1);
    let left = unfinished(&dir, 2 * DAY);
    // Two nests that paths reach, and one in the other, which none reaches.
    let [upper, lower] = [left.join("d/".repeat(1000)), home.path().join("b")];
    fs::create_dir_all(&upper).unwrap();
    fs::create_dir_all(lower.join("d/".repeat(1500))).unwrap();
    fs::write(lower.join("d/".repeat(1500)).join("new"), "").unwrap();
    fs::rename(lower, upper.join("b")).unwrap();
    let report = prune(&dir).unwrap();
    assert_eq!(kept(&report), [(left.to_str().unwrap(), &Kept::Recent)]);
    assert!(report.kept[0].0.age.is_none() && report.removed.is_empty());
    assert_eq!(removed(&prune_all(&dir).unwrap()), [left.to_str().unwrap()]);
    assert!(!left.exists());
}

/// A checkpoint with some leftovers of unfinished saves.
fn with_leftovers(count: usize) -> (TempDir, PathBuf) {
    let (home, dir) = place();
    save(&dir, 1);
    for n in 0..count {
        fs::create_dir(dir.with_file_name(format!(".step.{n:x}-1a2b3c4d5e6f7082-3.tmp"))).unwrap();
    }
    (home, dir)
}

#[test]
fn a_prune_that_fails_halfway_says_what_it_has_removed() {
    let (home, dir) = with_leftovers(5);
    fs::write(dir.join("README.md"), "read me").unwrap();
    let store = FaultStore::new(Arc::new(LocalStore::at(&dir).unwrap()));
    store.fail(Op::RemoveLeftover, 3, Fault::Before);
    let url = store.url();
    let prune = reshard_manager::prune(&url)
        .older_than(Duration::ZERO)
        .stores(Stores::only(Arc::new(store)));
    let e = blocking::run(prune).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable);
    assert!(e.to_string().contains("injected fault"), "{e}");
    let gone: Vec<_> = (0..3)
        .map(|n| dir.with_file_name(format!(".step.{n}-1a2b3c4d5e6f7082-3.tmp")))
        .collect();
    assert_eq!(
        removed(e.rest()),
        gone.iter().map(|p| p.to_str().unwrap()).collect::<Vec<_>>()
    );
    assert_eq!(foreign(e.rest()), ["README.md"]);
    assert!(gone.iter().all(|p| !p.exists()));
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 3);
}

#[test]
fn the_names_beside_the_place_are_listed_as_often_for_one_leftover_as_for_many() {
    let listings = |count| {
        let (home, dir) = with_leftovers(count);
        let log = ActionLog::below(fs::canonicalize(home.path()).unwrap());
        assert_eq!(prune_all(&dir).unwrap().removed.len(), count);
        log.seen()
            .into_iter()
            .filter(|t| matches!(t, Action::Listed(_)))
            .count()
    };
    assert_eq!(listings(30), listings(1));
}

#[test]
fn where_nothing_was_ever_committed_unfinished_saves_are_removed_too() {
    let (_home, dir) = place();
    let left = unfinished(&dir, 2 * DAY);
    let report = prune(&dir).unwrap();
    assert_eq!(removed(&report), [left.to_str().unwrap()]);
    assert!(!left.exists() && !dir.exists());
}

/// What a save leaves that is killed right after it has replaced a version: that version, with files of others in it.
fn replaced(dir: &Path) -> PathBuf {
    save(dir, 1);
    fs::write(dir.join("README.md"), "read me").unwrap();
    fs::create_dir(dir.join("logs")).unwrap();
    fs::write(dir.join("logs/today"), "today").unwrap();
    // File systems tell times by ticks; the next save is surely later than this one.
    files(dir).keys().for_each(|f| changed(f, DAY / 24));
    aside(dir, |number| format!("1-{number:x}"))
}

/// Renames a place as a save does that exchanges two directories, whose numbers are in the name.
fn aside(dir: &Path, numbers: impl Fn(u64) -> String) -> PathBuf {
    let numbers = numbers(fs::metadata(dir).unwrap().ino());
    let aside = dir.with_file_name(format!(".step.4-1a2b3c4d5e6f7085-6.{numbers}.old"));
    fs::rename(dir, &aside).unwrap();
    aside
}

#[test]
fn a_replaced_version_goes_and_what_others_had_put_there_comes_back() {
    let (home, dir) = place();
    let old = replaced(&dir);
    save(&dir, 2);
    let report = prune(&dir).unwrap();
    assert_eq!(removed(&report), [old.to_str().unwrap()]);
    assert_eq!(report.removed[0].kind, RemainsKind::Replaced);
    assert_eq!(fs::read(dir.join("README.md")).unwrap(), b"read me");
    assert_eq!(fs::read(dir.join("logs/today")).unwrap(), b"today");
    assert_eq!(step(&dir), 2);
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    assert!(prune(&dir).unwrap().removed.is_empty());
}

#[test]
fn a_replaced_version_that_changed_after_what_replaced_it_stays_for_a_day() {
    let (_home, dir) = place();
    let old = replaced(&dir);
    save(&dir, 2);
    changed(&dir.join(".metadata"), DAY);
    let report = prune(&dir).unwrap();
    assert_eq!(kept(&report), [(old.to_str().unwrap(), &Kept::Recent)]);
    assert!(old.join("README.md").exists() && old.join(".metadata").exists());
}

#[test]
fn a_version_that_is_about_to_be_exchanged_is_of_an_unfinished_save() {
    let (_home, dir) = place();
    save(&dir, 1);
    let ready = aside(&dir, |number| format!("{number:x}-1"));
    save(&dir, 2);
    // Whoever has made it ready may be alive.
    assert_eq!(
        kept(&prune(&dir).unwrap()),
        [(ready.to_str().unwrap(), &Kept::Recent)]
    );
    assert!(ready.join(".metadata").exists());
    let report = prune_all(&dir).unwrap();
    assert_eq!(removed(&report), [ready.to_str().unwrap()]);
    assert_eq!(report.removed[0].kind, RemainsKind::Unfinished);
    assert!(!ready.exists());
    assert_eq!(step(&dir), 2);
}

#[test]
fn a_directory_that_a_killed_save_took_out_of_the_place_and_did_not_mean_stays() {
    let (_home, dir) = place();
    // A checkpoint of somebody, who had put it there just before the exchange.
    save(&dir, 1);
    let theirs = aside(&dir, |number| format!("{:x}-{:x}", number + 1, number + 2));
    let before = files(&theirs);
    save(&dir, 2);
    let report = prune_all(&dir).unwrap();
    assert!(
        report.removed.is_empty() && report.kept.is_empty(),
        "{report:?}"
    );
    assert_eq!(files(&theirs), before);
}

#[test]
fn a_replaced_version_whose_place_is_empty_stays() {
    let (_home, dir) = place();
    let old = replaced(&dir);
    let before = files(&old);
    let report = prune_all(&dir).unwrap();
    assert_eq!(kept(&report), [(old.to_str().unwrap(), &Kept::Last)]);
    assert_eq!(files(&old), before);
}

#[test]
fn what_has_no_room_at_the_place_stays_where_it_is_and_is_told() {
    let (_home, dir) = place();
    let old = replaced(&dir);
    save(&dir, 2);
    fs::write(dir.join("README.md"), "another one").unwrap();
    let report = prune_all(&dir).unwrap();
    let [(what, Kept::Stuck(why))] = &report.kept[..] else {
        panic!("{report:?}")
    };
    assert_eq!(what.path, old.to_str().unwrap());
    assert!(why.contains("README.md"), "{why}");
    assert_eq!(
        files(&old).keys().collect::<Vec<_>>(),
        [&old.join("README.md")]
    );
    assert_eq!(fs::read(dir.join("README.md")).unwrap(), b"another one");
    assert!(dir.join("logs/today").exists());
}

/// A directory in which somebody saves while it is being pruned.
#[derive(Debug)]
struct Busy(Arc<dyn Store>, PathBuf);

#[async_trait]
impl Store for Busy {
    reshard::storage::forward! { 0: url hints read list remove begin join }

    async fn head(&self, name: &Name) -> Result<Option<Head>, StorageError> {
        // After the checkpoint was looked at.
        if name.as_str().ends_with("distcp") {
            fs::write(self.1.join(".metadata"), "of a save that is done now").unwrap();
        }
        self.0.head(name).await
    }
}

#[test]
fn nothing_is_removed_when_somebody_saves_meanwhile() {
    let (_home, dir) = fixture("dcp/stale_files");
    let mut stores = Stores::linked().unwrap();
    let open = |url: &str| -> Result<Arc<dyn Store>, StorageError> {
        let path = url.trim_start_matches("busy://");
        Ok(Arc::new(Busy(Stores::linked()?.open(path)?, path.into())))
    };
    stores
        .register(StoreScheme::new("busy", "this test", "0.0.0", open))
        .unwrap();
    let e = blocking::run(reshard_manager::prune(format!("busy://{}", url(&dir))).stores(stores))
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    assert!(e.to_string().contains("meanwhile"), "{e}");
    assert!(dir.join("__0_1.distcp").exists() && dir.join("__0_2.distcp").exists());
}

#[test]
fn no_link_is_followed() {
    let (home, dir) = place();
    save(&dir, 1);
    let precious = home.path().join("precious");
    fs::create_dir(&precious).unwrap();
    for file in ["__0_5.distcp", ".metadata"] {
        fs::write(precious.join(file), "precious").unwrap();
        changed(&precious.join(file), 20 * DAY);
    }
    let link = |to: &str, at: PathBuf| std::os::unix::fs::symlink(to, at).unwrap();
    link("../precious/__0_5.distcp", dir.join("__0_5.distcp"));
    link("../precious", dir.join("below"));
    link(
        "precious",
        home.path().join(".step.7-1a2b3c4d5e6f7087-7.tmp"),
    );
    fs::create_dir(home.path().join(".step.8-1a2b3c4d5e6f7088-8.tmp")).unwrap();
    link(
        "../precious",
        home.path().join(".step.8-1a2b3c4d5e6f7088-8.tmp/d"),
    );
    let report = prune_all(&dir).unwrap();
    let beside = home.path().join(".step.8-1a2b3c4d5e6f7088-8.tmp");
    assert_eq!(
        removed(&report),
        ["__0_5.distcp", beside.to_str().unwrap()],
        "the links themselves"
    );
    assert_eq!(files(&precious).len(), 2);
    assert!(dir.join("below").exists() && !beside.exists());
}
