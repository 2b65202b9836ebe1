//! `SIGKILL` at every named step of a save, and at 300 random moments.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{Dialect, ErrorKind};
use reshard_crash::{Form, is_committed, look, save, scattered, steps};
use reshard_storage::failpoint;
use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

fn saver(
    dir: &Path,
    step: u64,
    overwrite: bool,
    form: impl Into<Form>,
    crash_at: Option<&str>,
) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reshard-saver"));
    command
        .arg(dir)
        .arg(step.to_string())
        .arg(if overwrite { "overwrite" } else { "new" })
        .arg(form.into().name());
    if let Some(at) = crash_at {
        command.env(failpoint::VARIABLE, at);
    }
    command.stderr(Stdio::null()).spawn().unwrap()
}

/// What is not of the checkpoint, in its directory.
const OTHERS: [&str; 2] = ["README.md", "logs/today"];

fn put_others(dir: &Path) {
    std::fs::create_dir(dir.join("logs")).unwrap();
    OTHERS
        .iter()
        .for_each(|file| std::fs::write(dir.join(file), file).unwrap());
}

/// Nothing but whole checkpoints and hidden leftovers lie beside each other; pruning clears the leftovers away, and puts what is
/// of others where it was. What a dead save was doing is not at work any more.
fn pruning_clears_up(dir: &Path, others: bool) {
    let url = dir.display().to_string();
    let prune = || reshard::blocking::run(reshard_manager::prune(&url).older_than(Duration::ZERO));
    // Where nothing was committed and nothing is left there is nothing to prune.
    match prune() {
        Err(e) if e.kind() == ErrorKind::NotFound => assert!(!dir.exists(), "{e}"),
        pruned => assert!(pruned.unwrap().kept.is_empty()),
    }
    for entry in std::fs::read_dir(dir.parent().unwrap()).unwrap() {
        assert_eq!(
            entry.unwrap().path(),
            dir,
            "a killed save left something that is not cleared away"
        );
    }
    for file in OTHERS.iter().filter(|_| others) {
        assert_eq!(std::fs::read_to_string(dir.join(file)).unwrap(), *file);
    }
}

#[test]
fn a_save_killed_at_any_named_step_leaves_the_old_the_new_or_nothing() {
    let (mut killed, mut meets) = (0, 0);
    for (n, form) in Form::ALL.into_iter().enumerate() {
        for overwrite in [false, true] {
            for at in steps(n) {
                meets += u32::from(overwrite || !failpoint::REPLACING.contains(&at));
                let home = reshard_crash::scratch().unwrap();
                let dir = home.path().join("step");
                if overwrite {
                    save(&dir, 1, false, form).unwrap();
                    put_others(&dir);
                }
                let status = saver(&dir, 2, overwrite, form, Some(at)).wait().unwrap();
                killed += u32::from(!status.success());
                let found = look(&dir)
                    .unwrap_or_else(|e| panic!("killed at {at}, {form:?}, {overwrite}: {e:#}"));
                let allowed: &[Option<u64>] = if overwrite {
                    &[Some(1), Some(2)]
                } else {
                    &[None, Some(2)]
                };
                assert!(allowed.contains(&found), "killed at {at}: found {found:?}");
                if !status.success() {
                    assert_eq!(
                        found == Some(2),
                        is_committed(at),
                        "killed at {at}: found {found:?}"
                    );
                }
                // The next save goes through, whatever lies around; before it is pruned, or after.
                if form != Dialect::Megatron.into() {
                    pruning_clears_up(&dir, overwrite);
                    assert_eq!(look(&dir).unwrap(), found);
                }
                save(&dir, 3, true, form).unwrap();
                assert_eq!(look(&dir).unwrap(), Some(3));
                pruning_clears_up(&dir, overwrite);
                assert_eq!(look(&dir).unwrap(), Some(3));
            }
        }
    }
    assert_eq!(killed, meets, "every named step must be met");
}

#[test]
fn a_prune_that_is_killed_is_taken_up_by_the_next() {
    let home = reshard_crash::scratch().unwrap();
    let dir = home.path().join("step");
    save(&dir, 1, false, Dialect::Dcp).unwrap();
    put_others(&dir);
    // The old version lies aside, with what is of others.
    assert!(
        !saver(&dir, 2, true, Dialect::Dcp, Some("commit.renamed"))
            .wait()
            .unwrap()
            .success()
    );
    assert!(!dir.join(OTHERS[0]).exists());
    let prune = Command::new(env!("CARGO_BIN_EXE_reshard-saver"))
        .arg(&dir)
        .arg("prune")
        .env(failpoint::VARIABLE, "commit.carried")
        .status()
        .unwrap();
    assert!(!prune.success(), "it was to be killed");
    assert_eq!(
        std::fs::read_dir(home.path()).unwrap().count(),
        2,
        "the old version is still there"
    );
    assert_eq!(look(&dir).unwrap(), Some(2));
    pruning_clears_up(&dir, true);
    assert_eq!(look(&dir).unwrap(), Some(2));
}

#[test]
#[ignore = "kills at random moments; cargo xtask nightly runs it"]
fn a_save_killed_at_300_random_moments_leaves_the_old_the_new_or_nothing() {
    let home = reshard_crash::scratch().unwrap();
    // How long a whole save takes here, so that moments are spread over all of it.
    let warm = home.path().join("warm");
    let whole = || {
        let time = |step| {
            let start = Instant::now();
            assert!(
                saver(&warm, step, true, Dialect::Megatron, None)
                    .wait()
                    .unwrap()
                    .success()
            );
            start.elapsed()
        };
        (0..3).map(time).max().unwrap_or_default()
    };
    let mut longest = Duration::ZERO;
    let (mut before, mut after) = (0, 0);
    for i in 0..300u64 {
        if i % 50 == 0 {
            // Another job may have come to the machine, or left it.
            longest = whole();
        }
        let overwrite = i % 3 != 0;
        let form = Form::ALL[(i % 4) as usize];
        let home = home.path().join(i.to_string());
        std::fs::create_dir(&home).unwrap();
        let dir = home.join("step");
        if overwrite {
            save(&dir, 1, false, form).unwrap();
            put_others(&dir);
        }
        let mut child = saver(&dir, 2, overwrite, form, None);
        std::thread::sleep(longest.mul_f64(scattered(i) * 1.1));
        drop(child.kill());
        child.wait().unwrap();
        let found =
            look(&dir).unwrap_or_else(|e| panic!("moment {i}, {form:?}, {overwrite}: {e:#}"));
        let allowed: &[Option<u64>] = if overwrite {
            &[Some(1), Some(2)]
        } else {
            &[None, Some(2)]
        };
        assert!(allowed.contains(&found), "moment {i}: found {found:?}");
        if found == Some(2) {
            after += 1
        } else {
            before += 1
        }
        pruning_clears_up(&dir, overwrite);
        assert_eq!(look(&dir).unwrap(), found, "moment {i}");
        std::fs::remove_dir_all(&home).unwrap();
    }
    assert!(
        before > 0 && after > 0,
        "moments all on one side ({before} before, {after} after) prove little"
    );
}
