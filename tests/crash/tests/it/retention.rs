//! `SIGKILL` while a run saves steps and removes old checkpoints: at every named step, and at random moments, alone and over groups.
//!
//! `RESHARD_THOROUGH=1` kills 1,000 runs of one rank, and 1,000 of several.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use reshard::{StateDict, blocking, storage::removed_place};
use reshard_crash::{Form, Run, look, scattered, train};
use reshard_model::testkit::is_thorough;
use reshard_storage::failpoint;
use std::{
    collections::BTreeSet,
    fs,
    io::Read as _,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const FIRST: u64 = 10;
const LAST: u64 = 14;

fn trainer(dir: &Path, run: Run, crash_at: Option<&str>) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reshard-trainer"));
    command.arg(dir);
    command.args([FIRST, LAST, run.ranks.into()].map(|n| n.to_string()));
    command.args([run.form.name(), &run.keep.to_string()]);
    if let Some(at) = crash_at {
        command.env(failpoint::VARIABLE, at);
    }
    let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// What is not the saver's: a checkpoint with such a name that somebody else saved, and a folder.
fn put_others(dir: &Path) {
    let mut state = StateDict::new();
    state.insert("step", 3);
    blocking::save(&state, dir.join("step-3")).unwrap();
    fs::create_dir(dir.join("step-11.copy")).unwrap();
    fs::write(dir.join("step-11.copy/.metadata"), "of others").unwrap();
}

fn others_are_there(dir: &Path) {
    let other = blocking::Checkpoint::open(dir.join("step-3")).unwrap();
    let damage = other.verify(true, reshard::storage::Progress::default());
    assert!(damage.unwrap().damage.is_empty());
    assert!(dir.join("step-11.copy/.metadata").exists());
}

/// How far a run had come: the numbers behind such a word.
fn said(text: &str, word: &str) -> Vec<u64> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let numbers = lines.filter(|(first, _)| *first == word);
    numbers.map(|(_, n)| n.parse().unwrap()).collect()
}

/// A run was killed: the newest good checkpoint is there, whole, and a new run goes on, clears up, and takes nothing that is of others.
fn newest_is_there(dir: &Path, run: Run, text: &str, how: &str) {
    let [begun, saved, noted] = ["begin", "saved", "noted"].map(|word| said(text, word));
    let newest = reshard_manager::blocking::latest(dir).unwrap();
    let newest = newest
        .unwrap_or_else(|| panic!("{how}: nothing is there"))
        .number;
    let last = saved.last().copied().unwrap_or(3);
    assert!(
        newest >= last && newest <= begun.last().copied().unwrap_or(last),
        "{how}: {newest} is the newest, and the run had said\n{text}"
    );
    if newest != 3 {
        let found = look(&dir.join(format!("step-{newest}")));
        let found = found.unwrap_or_else(|e| panic!("{how}: step {newest}: {e:#}"));
        assert_eq!(found, Some(newest), "{how}");
    }
    others_are_there(dir);
    // What a removal has begun with is not taken for a checkpoint.
    for step in reshard_manager::blocking::steps(dir).unwrap() {
        if step.number != 3 {
            let found = look(Path::new(&step.url));
            let found = found.unwrap_or_else(|e| panic!("{how}: {}: {e:#}", step.name));
            assert_eq!(found, Some(step.number), "{how}");
        }
    }

    // A later run begins with another number of ranks.
    let next = Run {
        ranks: 3 - run.ranks.min(2),
        ..run
    };
    let done = train(dir, 20..=20, next, drop);
    done.unwrap_or_else(|e| panic!("{how}: the next save failed: {e:#}"));
    let steps = reshard_manager::blocking::steps(dir).unwrap();
    let steps: Vec<u64> = steps.iter().map(|step| step.number).collect();
    let own: Vec<u64> = steps.iter().copied().filter(|step| *step != 3).collect();
    assert!(
        own.len() as u64 <= run.keep && own.ends_with(&[20]),
        "{how}: {steps:?}"
    );
    for step in own {
        assert_eq!(
            look(&dir.join(format!("step-{step}"))).unwrap(),
            Some(step),
            "{how}"
        );
    }
    for entry in fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert_eq!(
            removed_place(&name),
            None,
            "{how}: {name} was not cleared away"
        );
    }
    for step in noted {
        let text = fs::read_to_string(dir.join(format!("step-{step}/README")));
        assert_eq!(text.unwrap(), step.to_string(), "{how}");
    }
    others_are_there(dir);
}

fn text_of(child: &mut Child) -> String {
    let mut text = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    text
}

#[test]
fn a_run_killed_at_any_named_step_leaves_the_newest_good_checkpoint() {
    // A save meets those, too, that only a replacement meets elsewhere.
    let steps: BTreeSet<&str> = failpoint::STEPS
        .iter()
        .chain(failpoint::REMOVING)
        .copied()
        .collect();
    let never = ["commit.ready", "commit.exchanged", "commit.old_removed"];
    for (i, at) in steps.iter().enumerate() {
        // The first time, and later ones: of other files, and of other checkpoints.
        let times: &[u64] = match is_thorough() {
            true => &[1, 2, 5],
            false => &[1, 2],
        };
        for &nth in times {
            let rotated = Form::ALL.into_iter().cycle().skip(i + nth as usize);
            for form in rotated.take(if is_thorough() { 4 } else { 1 }) {
                let home = reshard_crash::scratch().unwrap();
                put_others(home.path());
                let run = Run {
                    ranks: 2,
                    form,
                    keep: 1,
                };
                let how = format!("killed at {at} {nth}, {form:?}");
                let mut child = trainer(home.path(), run, Some(&format!("{at} {nth}")));
                let text = text_of(&mut child);
                let died = !child.wait().unwrap().success();
                let is_met = !never.contains(at) && (nth < 5 || *at == "commit.removing");
                assert!(died || !is_met, "{how}: it is never met");
                assert!(!died || !never.contains(at), "{how}: it is met");
                newest_is_there(home.path(), run, &text, &how);
            }
        }
    }
}

/// Kills runs at random moments.
fn kill(ranks: u32, runs: u64) {
    let mut longest = Duration::ZERO;
    let (mut early, mut late) = (0, 0);
    for i in 0..runs {
        let home = reshard_crash::scratch().unwrap();
        let run = Run {
            ranks,
            form: Form::ALL[(i % 4) as usize],
            keep: 1 + i / 4 % 2,
        };
        if i % 50 == 0 {
            // Another job may have come to the machine, or left it.
            let warm = reshard_crash::scratch().unwrap();
            let start = Instant::now();
            let mut child = trainer(warm.path(), run, None);
            let text = text_of(&mut child);
            assert!(child.wait().unwrap().success(), "{text}");
            longest = start.elapsed();
        }
        put_others(home.path());
        let mut child = trainer(home.path(), run, None);
        std::thread::sleep(longest.mul_f64(scattered(i + u64::from(ranks) * 10_000) * 1.1));
        drop(child.kill());
        let text = text_of(&mut child);
        child.wait().unwrap();
        match said(&text, "saved").len() {
            0 | 1 => early += 1,
            _ => late += 1,
        }
        newest_is_there(home.path(), run, &text, &format!("moment {i}, {run:?}"));
    }
    assert!(
        early > 0 && late > 0,
        "moments all on one side ({early} early, {late} late) prove little"
    );
}

fn runs() -> u64 {
    match is_thorough() {
        true => 1_000,
        false => 30,
    }
}

#[test]
#[ignore = "kills at random moments; cargo xtask nightly runs it"]
fn a_run_killed_at_random_moments_leaves_the_newest_good_checkpoint() {
    kill(1, runs());
}

#[test]
#[ignore = "kills at random moments; cargo xtask nightly runs it"]
fn a_run_of_several_ranks_killed_at_random_moments_leaves_the_newest_good_checkpoint() {
    kill(2, runs());
}
