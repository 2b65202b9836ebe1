//! Pruning beside a checkpoint that is one file.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use reshard::{
    Dialect, ErrorKind, ShardedTensor, StateDict, Tensor,
    blocking::{self, Checkpoint},
    safetensors::SafetensorsConfig,
    strategy::SaveShardedStrategy,
    torch_save::TorchSaveConfig,
};
use reshard_manager::{Kept, PruneReport};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn save(path: &Path, config: SaveShardedStrategy) {
    let mut state = StateDict::new();
    let w = Tensor::from_vec(&[4], vec![1f32, 2.0, 3.0, 4.0]).unwrap();
    state.insert("w", ShardedTensor::full("w", w));
    let url = path.display().to_string();
    let save = reshard::save(&state, &url)
        .dialect(Dialect::Dcp)
        .overwrite(true)
        .strategy(config);
    blocking::run(save).unwrap();
}

/// What a save leaves that was killed before it put its file there.
fn left_by_a_killed_save(path: &Path, n: u32, ago: Duration) -> PathBuf {
    let name = path.file_name().unwrap().to_str().unwrap();
    let left = path.with_file_name(format!(".{name}.{n:x}-1a2b3c4d5e6f7082-3.tmp"));
    fs::create_dir(&left).unwrap();
    fs::write(left.join(name), [7; 100]).unwrap();
    let then = SystemTime::now() - ago;
    for changed in [left.join(name), left.clone()] {
        let file = fs::File::open(changed).unwrap();
        file.set_modified(then).unwrap();
    }
    left
}

fn prune(path: &Path, dry_run: bool) -> reshard::Result<PruneReport> {
    let url = path.display().to_string();
    Ok(blocking::run(
        reshard_manager::prune(&url).dry_run(dry_run),
    )?)
}

#[test]
fn what_killed_saves_of_a_file_have_left_goes_and_the_file_stays() {
    for name in ["model.pt", "model.safetensors"] {
        let config = || -> SaveShardedStrategy {
            match name {
                "model.pt" => TorchSaveConfig::default().into(),
                _ => SafetensorsConfig::default().into(),
            }
        };
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(name);
        save(&path, config());
        let old = left_by_a_killed_save(&path, 1, 2 * DAY);
        let running = left_by_a_killed_save(&path, 2, Duration::ZERO);
        let other = left_by_a_killed_save(&home.path().join("other.pt"), 1, 2 * DAY);
        let url = path.display().to_string();
        assert_eq!(
            Checkpoint::open(&url).unwrap().leftovers().unwrap().len(),
            2
        );

        let before = fs::read(&path).unwrap();
        for dry_run in [true, false] {
            let report = prune(&path, dry_run).unwrap();
            let removed: Vec<&str> = report.removed.iter().map(|r| r.path.as_str()).collect();
            assert_eq!(removed, [old.to_str().unwrap()]);
            let [(kept, Kept::Recent)] = &report.kept[..] else {
                unreachable!("{report:?}")
            };
            assert_eq!(kept.path, running.to_str().unwrap());
            assert_eq!(old.exists(), dry_run);
        }
        assert!(running.exists() && other.exists());
        assert_eq!(fs::read(&path).unwrap(), before);
        assert!(prune(&path, false).unwrap().removed.is_empty());
    }
}

#[test]
fn the_file_that_a_running_save_has_just_replaced_is_not_taken_for_an_old_leftover() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("model.pt");
    save(&path, TorchSaveConfig::default().into());
    let left = left_by_a_killed_save(&path, 1, 2 * DAY);
    // The exchange changes the directory, and not the file in it.
    let directory = fs::File::open(&left).unwrap();
    directory.set_modified(SystemTime::now()).unwrap();
    let report = prune(&path, false).unwrap();
    assert!(report.removed.is_empty() && left.exists(), "{report:?}");
}

#[test]
fn beside_a_damaged_file_nothing_is_removed() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("model.pt");
    save(&path, TorchSaveConfig::default().into());
    let left = left_by_a_killed_save(&path, 1, 2 * DAY);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(prune(&path, false).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(left.exists());
    // Nor beside what is no checkpoint.
    let notes = home.path().join("notes.txt");
    fs::write(&notes, "mine").unwrap();
    assert_eq!(
        prune(&notes, false).unwrap_err().kind(),
        ErrorKind::NotFound
    );
}
