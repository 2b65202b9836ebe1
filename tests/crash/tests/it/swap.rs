//! Links and directories on the way to a checkpoint are changed for others during a save: every checkpoint is whole all the same.
//!
//! Each change stops a save at named steps and changes names there. At night, threads change names all the time.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use anyhow::Result;
use reshard::Dialect;
use reshard_crash::{Form, RANKS, look, run_in_processes, save, steps};
use reshard_storage::failpoint;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

/// Rounds of each race with ranks in threads.
const ROUNDS: u64 = 500;
/// Rounds of each race with ranks in processes.
const ROUNDS_OF_PROCESSES: u64 = 200;

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
    run_in_processes(RANKS, program, url, step, acts[(step % 2) as usize])
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

/// Exchanges a directory with each one that has a hidden name, as those of saves have.
fn exchange_hidden(home: &Path, theirs: &Path) {
    let is_hidden = |path: &PathBuf| {
        let name = path.file_name().unwrap();
        name.as_encoded_bytes().starts_with(b".")
    };
    let entries = fs::read_dir(home).unwrap().map(|e| e.unwrap().path());
    for built in entries.filter(is_hidden) {
        let (at, exchange) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
        // It may be gone by now.
        rustix::fs::renameat_with(at, &built, at, theirs, exchange).unwrap_or(());
    }
}

/// A directory of another program is exchanged with those in which a save works.
fn a_hidden_directory_that_is_swapped(rounds: u64) {
    let home = reshard_crash::scratch().unwrap();
    let [one, theirs] = ["one", "theirs"].map(|n| home.path().join(n));
    let mut last = 1;
    save(&one, last, false, Dialect::Megatron).unwrap();
    let swap = || exchange_hidden(home.path(), &theirs);
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

/// Saves over a place in a process that stops at a named step, calls `meanwhile`, and lets the process continue. Returns whether it
/// met the step, and whether the save succeeded.
fn save_that_stops(url: &Path, step: u64, at: &str, meanwhile: impl FnOnce()) -> (bool, bool) {
    let mut saver = Command::new(env!("CARGO_BIN_EXE_reshard-saver"))
        .arg(url)
        .args([&step.to_string(), "overwrite"])
        .arg(Form::from(Dialect::Megatron).name())
        .env(failpoint::STOP, at)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&saver);
    let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(pid), options).unwrap().unwrap();
    if status.stopped() {
        meanwhile();
        kill_process(pid, Signal::CONT).unwrap();
    }
    (status.stopped(), saver.wait().unwrap().success())
}

/// A change of names in the folder around places.
type Change = fn(&Path);

/// Places, and changes of names on the way to them.
const CHANGES: [(&str, Change); 3] = [
    ("latest", repoint),
    ("one", swap_directories),
    ("one/ckpt", swap_directories),
];

fn repoint(home: &Path) {
    let new = home.join("new");
    symlink("two", &new).unwrap();
    fs::rename(new, home.join("latest")).unwrap();
}

fn swap_directories(home: &Path) {
    let count = std::sync::atomic::AtomicU64::new(0);
    swap(&home.join("one"), &home.join("two"), &count);
}

#[test]
fn a_save_around_which_names_change_at_a_named_step_is_whole_or_an_error() {
    let (mut met, mut succeeded) = (0, 0);
    for (n, (place, change)) in CHANGES.into_iter().enumerate() {
        for at in steps(n) {
            let home = reshard_crash::scratch().unwrap();
            let url = home.path().join(place);
            for (name, step) in [("one", 1), ("two", 2)] {
                let inner = if place.ends_with("ckpt") { "ckpt" } else { "." };
                save(
                    &home.path().join(name).join(inner),
                    step,
                    false,
                    Dialect::Megatron,
                )
                .unwrap();
            }
            symlink("one", home.path().join("latest")).unwrap();
            let (stopped, saved) = save_that_stops(&url, 3, at, || change(home.path()));
            met += u32::from(stopped);
            succeeded += u32::from(saved);

            let mut all = Vec::new();
            checkpoints(home.path(), &mut all);
            let found: Vec<_> = all
                .iter()
                .map(|dir| look(dir).unwrap_or_else(|e| panic!("{place} at {at}: {e:#}")))
                .collect();
            assert!(found.len() >= 2, "{place} at {at}: {found:?}");
            assert_eq!(
                saved,
                found.contains(&Some(3)),
                "{place} at {at}: {found:?}"
            );
            if place == "latest" {
                // The save follows the link once, so a change of the link never disturbs it.
                assert!(saved && hidden(home.path()).is_empty(), "{at}");
            }
            save(&url, 4, true, Dialect::Megatron).unwrap();
            assert_eq!(look(&url).unwrap(), Some(4), "{place} at {at}");
        }
    }
    assert!(met >= 12 && succeeded >= 5, "{met}, {succeeded}");
}

#[test]
fn a_directory_that_is_exchanged_for_a_hidden_one_at_a_named_step_stays() {
    let mut met = 0;
    for at in failpoint::STEPS {
        let home = reshard_crash::scratch().unwrap();
        let [one, theirs] = ["one", "theirs"].map(|n| home.path().join(n));
        save(&one, 1, false, Dialect::Megatron).unwrap();
        fs::create_dir(&theirs).unwrap();
        fs::write(theirs.join("notes.txt"), "precious").unwrap();
        let (stopped, saved) =
            save_that_stops(&one, 2, at, || exchange_hidden(home.path(), &theirs));
        met += u32::from(stopped);
        let all = || {
            let entries = fs::read_dir(home.path()).unwrap();
            entries.map(|e| e.unwrap().path())
        };
        assert!(all().any(|dir| dir.join("notes.txt").exists()), "{at}");
        if saved {
            assert_eq!(look(&one).unwrap(), Some(2), "{at}");
        }
        let found: Vec<_> = all().filter_map(|dir| look(&dir).ok()?).collect();
        assert!(
            found.contains(&1) || found.contains(&2),
            "{at}: {found:?}, {saved}"
        );
    }
    assert!(met >= 12, "{met}");
}

#[test]
#[ignore = "depends on the scheduling of threads; runs at night"]
fn saves_to_links_and_directories_that_change_all_the_time_are_whole_or_errors() {
    a_link_that_is_repointed(ROUNDS, by_threads);
    a_directory_that_is_swapped(ROUNDS, false, by_threads);
    a_directory_that_is_swapped(ROUNDS, true, by_threads);
    a_hidden_directory_that_is_swapped(ROUNDS);
}

#[test]
#[ignore = "depends on the scheduling of processes; runs at night"]
fn saves_of_processes_to_links_and_directories_that_change_all_the_time_are_whole_or_errors() {
    a_link_that_is_repointed(ROUNDS_OF_PROCESSES, by_processes);
    a_directory_that_is_swapped(ROUNDS_OF_PROCESSES, false, by_processes);
    a_directory_that_is_swapped(ROUNDS_OF_PROCESSES, true, by_processes);
}
