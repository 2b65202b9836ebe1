//! Programs of tests that are built, and can be run again and again.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::cores::{Core, Judge};
use super::weave::CHOICE;
use super::{Outcome, PROFILE, Tools};
use crate::shell::{Program, cargo, say};

/// A test that takes more memory than this has gone wrong. In KiB.
const MEMORY: u64 = 12 << 20;

/// Of a test's thread, in bytes: a function with many bodies needs much.
const STACK: u64 = 32 << 20;

/// The tests of a judge, the quickest programs first.
pub(crate) struct Tests {
    programs: Vec<Test>,
}

/// One program of tests, which run beside each other in its threads.
struct Test {
    program: PathBuf,
    /// Where it is run.
    folder: PathBuf,
    limit: Duration,
}

impl Tests {
    /// They are green while no mutant is chosen.
    pub(crate) fn build(tools: &Tools, home: &Path, core: &Core, judge: &Judge) -> Result<Self> {
        let messages = messages(tools, home, judge)?;
        let built = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut programs: Vec<Test> = built.filter_map(|message| test(&message)).collect();
        let begin = Instant::now();
        for test in &mut programs {
            let begin = Instant::now();
            if test.outcome(0)? != Outcome::Missed {
                bail!("{} is red before anything is broken", test.program.display());
            }
            // Beside other work tests take longer, and a timeout counts as noticed.
            test.limit = begin.elapsed() * 6 + Duration::from_secs(10);
        }
        programs.sort_by_key(|test| test.limit);
        let took = begin.elapsed().as_secs_f64();
        say(format!("{:<10} {} take {took:.1} s", core.name, judge.tests.join(" ")));
        Ok(Self { programs })
    }

    /// Runs them while this mutant is chosen, until one notices.
    pub(crate) fn outcome(&self, mutant: usize) -> Result<Outcome> {
        for test in &self.programs {
            let outcome = test.outcome(mutant)?;
            if outcome != Outcome::Missed {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Missed)
    }
}

/// Builds the tests of a judge; what cargo says of that, a line of JSON each.
pub(super) fn messages(tools: &Tools, home: &Path, judge: &Judge) -> Result<String> {
    tools
        .surround(cargo(&["test", "--no-run", "--locked", "--message-format", "json"]), home)?
        .args(["--profile", PROFILE, "--manifest-path"])
        .args([home.join("tree/Cargo.toml")])
        .args(judge.packages.iter().flat_map(|package| ["--package", package]))
        .args(judge.tests)
        .read_unless(&[101])
}

/// The program of tests that a message of cargo tells of.
fn test(message: &Value) -> Option<Test> {
    let program = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    Some(Test { program: program.into(), folder: folder.into(), limit: Duration::from_secs(900) })
}

impl Test {
    fn outcome(&self, mutant: usize) -> Result<Outcome> {
        let (begin, failed) = (Instant::now(), || format!("cannot run {}", self.program.display()));
        let mut child = Command::new("sh")
            .args(["-c", &format!("ulimit -v {MEMORY}; exec \"$0\" --test-threads 2")])
            .arg(&self.program)
            .current_dir(&self.folder)
            .env(CHOICE, mutant.to_string())
            .env("RUST_MIN_STACK", STACK.to_string())
            .envs(super::QUIET)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // With all that it starts.
            .process_group(0)
            .spawn()
            .with_context(failed)?;
        let out = child.stdout.take().with_context(failed)?;
        let red = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
                    red.fetch_or(line.ends_with(b"... FAILED"), Ordering::Relaxed);
                }
            });
            loop {
                let ended = match child.try_wait().with_context(failed)? {
                    Some(status) if status.success() => return Ok(Outcome::Missed),
                    Some(_) => return Ok(Outcome::Caught),
                    // What other tests say doesn't matter any more.
                    None if red.load(Ordering::Relaxed) => Outcome::Caught,
                    None if begin.elapsed() >= self.limit => Outcome::Timeout,
                    None => {
                        std::thread::sleep(Duration::from_millis(5));
                        continue;
                    }
                };
                // One that ends at this moment is no failure.
                let group = format!("-{}", child.id());
                drop(Program::new("kill").args(["-KILL", "--", &group]).read());
                child.wait().with_context(failed)?;
                return Ok(ended);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str, limit: u64) -> Test {
        let program = std::env::temp_dir().join(format!("mutants-{}-{limit}", std::process::id()));
        std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap_or_default();
        drop(Program::new("chmod").args(["+x".as_ref(), program.as_os_str()]).read());
        Test { program, folder: std::env::temp_dir(), limit: Duration::from_secs(limit) }
    }

    #[test]
    fn a_program_that_fails_or_does_not_end_has_noticed() -> Result<()> {
        let chosen = script("test $RESHARD_MUTANT = 7 && exit 101; exit 0", 60);
        assert_eq!((chosen.outcome(0)?, chosen.outcome(7)?), (Outcome::Missed, Outcome::Caught));
        let endless = script("sleep 100 & sleep 100", 1);
        assert_eq!(endless.outcome(1)?, Outcome::Timeout);
        let begin = Instant::now();
        let early = script("echo 'test a ... FAILED'; sleep 100", 61);
        assert_eq!(early.outcome(1)?, Outcome::Caught);
        assert!(begin.elapsed() < Duration::from_secs(50), "the other tests are not waited for");
        for test in [chosen, endless, early] {
            std::fs::remove_file(test.program)?;
        }
        Ok(())
    }

    #[test]
    fn programs_of_tests_are_told_from_others() {
        let message = |test: bool| {
            serde_json::json!({
                "executable": "/t/a-1", "manifest_path": "/p/a/Cargo.toml", "profile": {"test": test},
            })
        };
        assert!(test(&message(false)).is_none());
        assert!(test(&message(true)).is_some_and(|test| test.folder == Path::new("/p/a")));
    }
}
