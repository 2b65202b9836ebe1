//! Links and directories on the way to a checkpoint are changed for others while it is saved: what lies anywhere is whole all
//! the same.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use anyhow::Result;
use reshard::Dialect;
use reshard_crash::{look, save, save_in_processes};
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

/// How often each is tried: by every `cargo test`, and by those that are run with `--ignored`.
const FEW: u64 = 20;
const MANY: u64 = 500;
/// The same for ranks in processes.
const FEW_OF_PROCESSES: u64 = 5;
const MANY_OF_PROCESSES: u64 = 200;

/// Saves a step over what lies there.
type Saver = fn(&Path, u64) -> Result<()>;

/// The conventions of Megatron and of PyTorch in turn.
fn by_threads(url: &Path, step: u64) -> Result<()> {
    let dialects = [Dialect::Megatron, Dialect::Dcp];
    save(url, step, true, dialects[(step % 2) as usize])
}

fn by_processes(url: &Path, step: u64) -> Result<()> {
    let acts = ["save", "save-dcp"];
    let program = Path::new(env!("CARGO_BIN_EXE_reshard-rank"));
    save_in_processes(program, url, step, acts[(step % 2) as usize])
}

/// All directories that are, or look like, checkpoints, however deep; those that are still hidden are not.
fn checkpoints(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if !entry.file_type().unwrap().is_dir()
            || entry.file_name().as_encoded_bytes().starts_with(b".")
        {
            continue;
        }
        let path = entry.path();
        match fs::read_dir(&path)
            .unwrap()
            .any(|e| e.unwrap().file_type().unwrap().is_file())
        {
            true => out.push(path),
            false => checkpoints(&path, out),
        }
    }
}

/// What attempts have left in a directory and those below.
fn hidden(dir: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        match entry.file_name().as_encoded_bytes() {
            [b'.', .., b't', b'm', b'p'] | [b'.', .., b'o', b'l', b'd'] => out.push(entry.path()),
            _ if entry.file_type().unwrap().is_dir() => out.extend(hidden(&entry.path())),
            _ => {}
        }
    }
    out
}

/// Saves to `url` again and again while `swap` is called all the time; at last, once more while nothing is changed. Returns how
/// many of the former succeeded: how many do is chance, so that none may.
fn race(home: &Path, url: &Path, rounds: u64, saver: Saver, swap: impl Fn() + Sync) -> u64 {
    let [stop, pause, paused] = [(); 3].map(|()| AtomicBool::new(false));
    let mut done = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            // Between two changes a while passes that is now shorter, now longer than a save: some saves meet one, some don't.
            for turn in (0..8).cycle() {
                if stop.load(Ordering::Acquire) {
                    break;
                }
                paused.store(pause.load(Ordering::Acquire), Ordering::Release);
                if paused.load(Ordering::Acquire) {
                    thread::yield_now();
                } else {
                    swap();
                    thread::sleep(Duration::from_millis(turn));
                }
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for step in 10..10 + rounds {
                let saved = saver(url, step);
                done += u64::from(saved.is_ok());
                pause.store(true, Ordering::Release);
                while !paused.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                let mut all = Vec::new();
                checkpoints(home, &mut all);
                assert!(all.len() >= 2, "{all:?}");
                let mut found = Vec::new();
                for dir in all {
                    match look(&dir) {
                        Ok(of) => found.push(of),
                        Err(e) => panic!("{} after step {step} ({saved:?}): {e:#}", dir.display()),
                    }
                }
                // What is said to be saved is there.
                assert!(
                    saved.is_err() || found.contains(&Some(step)),
                    "{step} is not among {found:?}"
                );
                pause.store(false, Ordering::Release);
                while paused.load(Ordering::Acquire) {
                    thread::yield_now();
                }
            }
        }));
        stop.store(true, Ordering::Release);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let last = 10 + rounds;
    saver(url, last).unwrap();
    assert_eq!(look(url).unwrap(), Some(last));
    done
}

fn a_link_that_is_repointed(rounds: u64, saver: Saver) {
    let home = reshard_crash::scratch().unwrap();
    let [one, two, link, new] = ["one", "two", "latest", "new"].map(|n| home.path().join(n));
    for (dir, step) in [(&one, 1), (&two, 2)] {
        save(dir, step, false, Dialect::Megatron).unwrap();
    }
    symlink("one", &link).unwrap();
    let done = race(home.path(), &link, rounds, saver, || {
        for to in ["two", "one"] {
            symlink(to, &new).unwrap();
            fs::rename(&new, &link).unwrap();
        }
    });
    // Where it leads is looked at once, so nothing stands in the way of any save.
    assert_eq!(done, rounds);
    assert_eq!(hidden(home.path()), Vec::<PathBuf>::new());
}

/// Puts `b` where `a` is, and the other way round; for a moment nothing is at either. What a save has put there meanwhile goes
/// out of the way.
fn swap(a: &Path, b: &Path, count: &std::sync::atomic::AtomicU64) {
    let aside = a.with_extension("aside");
    let away = || {
        let n = count.fetch_add(1, Ordering::Relaxed);
        a.with_extension(format!("away-{n}"))
    };
    if fs::rename(a, &aside).is_err() {
        return;
    }
    while fs::rename(b, a).is_err() && b.exists() {
        fs::rename(a, away()).unwrap_or(());
    }
    while fs::rename(&aside, b).is_err() {
        fs::rename(b, away()).unwrap_or(());
    }
}

fn a_directory_that_is_swapped(rounds: u64, place_itself: bool, saver: Saver) {
    let home = reshard_crash::scratch().unwrap();
    let [one, two] = ["one", "two"].map(|n| home.path().join(n));
    let at = |dir: &Path| {
        if place_itself {
            dir.to_path_buf()
        } else {
            dir.join("ckpt")
        }
    };
    for (dir, step) in [(&one, 1), (&two, 2)] {
        save(&at(dir), step, false, Dialect::Megatron).unwrap();
    }
    let count = std::sync::atomic::AtomicU64::new(0);
    race(home.path(), &at(&one), rounds, saver, || {
        swap(&one, &two, &count)
    });
}

/// Somebody's directory is exchanged with those that a save works in, under their hidden names.
fn a_hidden_directory_that_is_swapped(rounds: u64) {
    let home = reshard_crash::scratch().unwrap();
    let [one, theirs] = ["one", "theirs"].map(|n| home.path().join(n));
    let mut last = 1;
    save(&one, last, false, Dialect::Megatron).unwrap();
    let swap = || {
        let beside = fs::read_dir(home.path())
            .unwrap()
            .map(|e| e.unwrap().path());
        let is_hidden = |path: &PathBuf| {
            path.file_name()
                .unwrap()
                .as_encoded_bytes()
                .starts_with(b".")
        };
        for built in beside.filter(is_hidden) {
            let (at, exchange) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
            // It may be gone by now.
            rustix::fs::renameat_with(at, &built, at, &theirs, exchange).unwrap_or(());
        }
    };
    let precious =
        |entry: std::io::Result<fs::DirEntry>| entry.unwrap().path().join("notes.txt").exists();
    for step in 2..2 + rounds {
        fs::create_dir_all(&theirs).unwrap();
        fs::write(theirs.join("notes.txt"), "precious").unwrap();
        let stop = AtomicBool::new(false);
        let saved = thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    swap();
                }
            });
            let saved = save(&one, step, true, Dialect::Megatron);
            stop.store(true, Ordering::Release);
            saved
        });
        assert!(
            fs::read_dir(home.path()).unwrap().any(precious),
            "step {step} has removed it: {saved:?}"
        );
        if saved.is_ok() {
            assert_eq!(look(&one).unwrap(), Some(step));
            last = step;
        }
        // Whatever the directories are called by now: the last checkpoint, or the one after it, is whole in one of them.
        let all = || {
            fs::read_dir(home.path())
                .unwrap()
                .map(|e| e.unwrap().path())
        };
        let found: Vec<_> = all().filter_map(|dir| look(&dir).ok()?).collect();
        assert!(
            found.contains(&last) || found.contains(&step),
            "step {step}: {found:?} {saved:?}"
        );
        // From here on as if nothing had been.
        if look(&one).ok().flatten() != Some(last) {
            all().for_each(|dir| fs::remove_dir_all(dir).unwrap());
            save(&one, last, false, Dialect::Megatron).unwrap();
        }
        all()
            .filter(|dir| *dir != one)
            .for_each(|dir| fs::remove_dir_all(dir).unwrap());
    }
}

#[test]
fn a_directory_that_is_swapped_for_a_hidden_one_stays() {
    a_hidden_directory_that_is_swapped(3 * FEW);
}

#[test]
fn a_save_to_a_link_that_is_repointed_is_whole() {
    a_link_that_is_repointed(FEW, by_threads);
}

#[test]
fn a_save_below_a_directory_that_is_swapped_for_another_is_whole_or_an_error() {
    a_directory_that_is_swapped(FEW, false, by_threads);
}

#[test]
fn a_save_to_a_directory_that_is_swapped_for_another_is_whole_or_an_error() {
    a_directory_that_is_swapped(FEW, true, by_threads);
}

#[test]
#[ignore = "takes minutes; a few rounds are run always"]
fn many_saves_to_links_and_directories_that_are_changed_are_whole_or_errors() {
    a_link_that_is_repointed(MANY, by_threads);
    a_directory_that_is_swapped(MANY, false, by_threads);
    a_directory_that_is_swapped(MANY, true, by_threads);
    a_hidden_directory_that_is_swapped(MANY);
}

#[test]
fn a_save_of_processes_to_a_link_that_is_repointed_is_whole() {
    a_link_that_is_repointed(FEW_OF_PROCESSES, by_processes);
}

#[test]
fn a_save_of_processes_to_directories_that_are_swapped_is_whole_or_an_error() {
    a_directory_that_is_swapped(FEW_OF_PROCESSES, false, by_processes);
    a_directory_that_is_swapped(FEW_OF_PROCESSES, true, by_processes);
}

#[test]
#[ignore = "takes minutes; a few rounds are run always"]
fn many_saves_of_processes_to_links_and_directories_that_are_changed_are_whole_or_errors() {
    a_link_that_is_repointed(MANY_OF_PROCESSES, by_processes);
    a_directory_that_is_swapped(MANY_OF_PROCESSES, false, by_processes);
    a_directory_that_is_swapped(MANY_OF_PROCESSES, true, by_processes);
}
