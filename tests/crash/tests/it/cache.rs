//! Processes that share a cache on disk, of which some are killed.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard_crash::{MOST_CACHED, Shared, scattered};
use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime},
};

fn reader(cache: &Path, seed: u64, rounds: u64) -> Child {
    Command::new(env!("CARGO_BIN_EXE_reshard-reader"))
        .arg(cache)
        .args([seed, rounds].map(|number| number.to_string()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// All files of a directory, with their lengths.
fn files(dir: &Path) -> Vec<(PathBuf, u64)> {
    let all = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    all.flat_map(|path| match path.is_dir() {
        true => files(&path),
        false => vec![(path.clone(), path.metadata().unwrap().len())],
    })
    .collect()
}

fn set_modified(path: &Path, time: SystemTime) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(time).unwrap();
}

#[test]
#[ignore = "kills at random moments; cargo xtask nightly runs it"]
fn processes_that_share_a_small_cache_read_what_is_right_whoever_of_them_is_killed() {
    let dir = reshard_crash::scratch().unwrap();
    let cache = dir.path().join("cache");
    let readers: Vec<Child> = (0..3).map(|seed| reader(&cache, seed, 100)).collect();
    for moment in 0..12 {
        let mut victim = reader(&cache, 100 + moment, u64::MAX);
        let mut line = String::new();
        let mut said = BufReader::new(victim.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "reading\n");
        std::thread::sleep(Duration::from_millis(20).mul_f64(scattered(moment)));
        assert_eq!(
            victim.try_wait().unwrap(),
            None,
            "it reads until it is killed"
        );
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    for mut reader in readers {
        assert!(reader.wait().unwrap().success());
    }

    // One that was killed while it wrote.
    let folder = files(&cache)[0].0.parent().unwrap().to_owned();
    let left = folder.join(format!("{}.1-1.tmp", "0".repeat(64)));
    fs::write(&left, "a part of a block").unwrap();
    let unfinished = files(&cache).into_iter().map(|(path, _)| path);
    let unfinished = unfinished.filter(|path| path.extension().is_some());
    // What is younger may belong to a process that has only just made it.
    let long_ago = SystemTime::now() - Duration::from_secs(20);
    unfinished.for_each(|path| set_modified(&path, long_ago));
    Shared::new(&cache).unwrap().read(1_000, 0..40).unwrap();
    let left = files(&cache);
    let sum: u64 = left.iter().map(|(_, bytes)| bytes).sum();
    assert!(sum > MOST_CACHED / 2 && sum <= MOST_CACHED, "{sum}");
    for (path, _) in left {
        assert!(path.extension().is_none(), "{}", path.display());
    }
}
