//! Programs of tests that are built, and can be run again and again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::cores::{Core, Judge};
use super::weave::{CHOICE, ENTERED};
use super::{Outcome, PROFILE, Tools, next, run_jobs};
use crate::shell::{Program, cargo, say};

/// A test that takes more memory than this has gone wrong. In KiB.
const MEMORY: u64 = 12 << 20;

/// Of a test's thread, in bytes: a function with many bodies needs much.
const STACK: u64 = 32 << 20;

/// Tests that take longer are run when the others have not noticed.
const QUICK: Duration = Duration::from_millis(500);

/// No test takes so long while nothing is broken.
const PATIENCE: Duration = Duration::from_secs(900);

/// The tests of a core's judges.
pub(crate) struct Tests {
    programs: Vec<Suite>,
    tests: Vec<Test>,
}

/// One program of tests, which run beside each other in its threads.
struct Suite {
    program: PathBuf,
    /// Where it is run.
    folder: PathBuf,
}

/// One test of a program.
struct Test {
    /// Which of the programs.
    program: usize,
    name: String,
    /// Alone, while nothing is broken.
    took: Duration,
    /// The functions with mutants that it enters: it can't notice a mutant of another one.
    enters: BTreeSet<usize>,
}

impl Tests {
    /// Builds them, and runs each alone. They are green while no mutant is chosen.
    pub(crate) fn build(tools: &Tools, home: &Path, core: &Core, jobs: usize) -> Result<Self> {
        // Judges share packages, so the same program may be built for several of them.
        let mut programs: Vec<Suite> = Vec::new();
        for judge in core.judges {
            let messages = messages(tools, home, judge)?;
            let built = messages
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            for suite in built.filter_map(|message| suite(&message)) {
                if programs.iter().all(|known| known.program != suite.program) {
                    programs.push(suite);
                }
            }
        }

        // Each test runs alone, so that what it enters and how long it takes are its own.
        let mut queue = VecDeque::new();
        for (at, suite) in programs.iter().enumerate() {
            queue.extend(suite.names()?.into_iter().map(|name| (at, name)));
        }
        let (begin, count) = (Instant::now(), queue.len());
        let (queue, done) = (Mutex::new(queue), Mutex::new(Vec::new()));

        // Each job has a file of its own for what is entered, so jobs don't mix their notes.
        run_jobs((0..jobs.max(1)).map(|job| {
            let (entered, programs, queue, done) = (
                home.join(format!("entered-{job}")),
                &programs,
                &queue,
                &done,
            );
            move || {
                while let Some((program, name)) = next(queue) {
                    let test = programs[program].try_alone(program, name, &entered)?;
                    done.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(test);
                }
                Ok(())
            }
        }))?;

        let took = begin.elapsed().as_secs_f64();
        say(format!(
            "{:<10} {count} tests, one by one, take {took:.1} s",
            core.name
        ));
        Ok(Self {
            programs,
            tests: done.into_inner().unwrap_or_else(PoisonError::into_inner),
        })
    }

    /// Runs those that enter a function while a mutant of it is chosen, until one notices; and says how many enter it.
    pub(crate) fn outcome(&self, mutant: usize, function: usize) -> Result<(Outcome, usize)> {
        let enter: Vec<&Test> = self
            .tests
            .iter()
            .filter(|test| test.enters.contains(&function))
            .collect();
        for quick in [true, false] {
            let mut batches: BTreeMap<usize, Vec<&Test>> = BTreeMap::new();
            for test in enter.iter().filter(|test| (test.took < QUICK) == quick) {
                batches.entry(test.program).or_default().push(test);
            }
            let time = |batch: &[&Test]| batch.iter().map(|test| test.took).sum::<Duration>();
            let mut batches: Vec<_> = batches.into_iter().collect();
            batches.sort_by_key(|(_, batch)| time(batch));
            for (program, batch) in batches {
                let names: Vec<&str> = batch.iter().map(|test| &*test.name).collect();
                // Beside other work tests take longer, and a timeout counts as noticed.
                let limit = time(&batch) * 6 + Duration::from_secs(10);
                let outcome = self.programs[program].outcome(mutant, &names, limit, None)?;
                if outcome != Outcome::Missed {
                    return Ok((outcome, enter.len()));
                }
            }
        }
        Ok((Outcome::Missed, enter.len()))
    }
}

/// Builds the tests of a judge; what cargo says of that, a line of JSON each.
pub(super) fn messages(tools: &Tools, home: &Path, judge: &Judge) -> Result<String> {
    let command = [&["test", "--no-run"], judge.tests].concat();
    messages_of(&command, judge.packages.iter().copied(), tools, home)
}

/// What cargo says of a command on packages of the tree, a line of JSON each.
pub(super) fn messages_of<'p>(
    command: &[&str],
    packages: impl IntoIterator<Item = &'p str>,
    tools: &Tools,
    home: &Path,
) -> Result<String> {
    tools
        .surround(cargo(command), home)?
        .args([
            "--locked",
            "--message-format",
            "json",
            "--profile",
            PROFILE,
            "--manifest-path",
        ])
        .args([home.join("tree/Cargo.toml")])
        .args(
            packages
                .into_iter()
                .flat_map(|package| ["--package", package]),
        )
        .read_unless(&[101])
}

/// The program of tests that a message of cargo tells of.
fn suite(message: &Value) -> Option<Suite> {
    let program = message["executable"]
        .as_str()
        .filter(|_| message["profile"]["test"] == true)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    Some(Suite {
        program: program.into(),
        folder: folder.into(),
    })
}

impl Suite {
    /// The names of its tests.
    fn names(&self) -> Result<Vec<String>> {
        let listed = Program::new(&self.program)
            .args(["--list", "--format", "terse"])
            .read()?;
        Ok(listed
            .lines()
            .filter_map(|line| Some(line.strip_suffix(": test")?.to_owned()))
            .collect())
    }

    /// Runs a test while nothing is broken. `entered` is a file of which nobody else makes use.
    fn try_alone(&self, program: usize, name: String, entered: &Path) -> Result<Test> {
        std::fs::write(entered, "")?;
        let begin = Instant::now();
        if self.outcome(0, &[&name], PATIENCE, Some(entered))? != Outcome::Missed {
            bail!(
                "{name} of {} is red before anything is broken",
                self.program.display()
            );
        }
        let took = begin.elapsed();
        let functions = std::fs::read_to_string(entered)?;
        let enters = functions
            .lines()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        Ok(Test {
            program,
            name,
            took,
            enters,
        })
    }

    fn outcome(
        &self,
        mutant: usize,
        names: &[&str],
        limit: Duration,
        entered: Option<&Path>,
    ) -> Result<Outcome> {
        let (begin, failed) = (Instant::now(), || {
            format!("cannot run {}", self.program.display())
        });
        let mut child = Command::new("sh")
            .args([
                "-c",
                &format!("ulimit -v {MEMORY}; exec \"$0\" --test-threads 2 --exact \"$@\""),
            ])
            .arg(&self.program)
            .args(names)
            .current_dir(&self.folder)
            .env(CHOICE, mutant.to_string())
            .env("RUST_MIN_STACK", STACK.to_string())
            .envs(super::QUIET)
            .envs(entered.map(|file| (ENTERED, file)))
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
                    None if begin.elapsed() >= limit => Outcome::Timeout,
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

    fn script(text: &str, name: &str) -> Suite {
        let program = std::env::temp_dir().join(format!("mutants-{}-{name}", std::process::id()));
        std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap_or_default();
        drop(
            Program::new("chmod")
                .args(["+x".as_ref(), program.as_os_str()])
                .read(),
        );
        Suite {
            program,
            folder: std::env::temp_dir(),
        }
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_program_that_fails_or_does_not_end_has_noticed() -> Result<()> {
        let chosen = script("test $RESHARD_MUTANT = 7 && exit 101; exit 0", "chosen");
        let outcome = |mutant| chosen.outcome(mutant, &[], MINUTE, None);
        assert_eq!(
            (outcome(0)?, outcome(7)?),
            (Outcome::Missed, Outcome::Caught)
        );
        let endless = script("sleep 100 & sleep 100", "endless");
        assert_eq!(
            endless.outcome(1, &[], Duration::from_secs(1), None)?,
            Outcome::Timeout
        );
        let begin = Instant::now();
        let early = script("echo 'test a ... FAILED'; sleep 100", "early");
        assert_eq!(early.outcome(1, &[], MINUTE, None)?, Outcome::Caught);
        assert!(
            begin.elapsed() < Duration::from_secs(50),
            "the other tests are not waited for"
        );
        for suite in [chosen, endless, early] {
            std::fs::remove_file(suite.program)?;
        }
        Ok(())
    }

    #[test]
    fn only_tests_that_enter_a_function_judge_its_mutants() -> Result<()> {
        // Arguments: --list --format terse; or --test-threads 2 --exact NAME...
        let suite = script(
            "test $1 = --list && { echo 'a: test'; echo 'b: test'; echo 'c: bench'; exit 0; }\n\
             test -n \"$RESHARD_MUTANT_ENTERED\" && { echo 3; test $4 = b && echo 9; } > $RESHARD_MUTANT_ENTERED\n\
             echo $RESHARD_MUTANT \"$@\" >> $0.log; test $RESHARD_MUTANT != 10",
            "enters",
        );
        assert_eq!(suite.names()?, ["a", "b"]);
        let (entered, log) = (
            suite.program.with_extension("entered"),
            suite.program.with_extension("log"),
        );
        let tests = [
            suite.try_alone(0, "a".into(), &entered)?,
            suite.try_alone(0, "b".into(), &entered)?,
        ];
        assert_eq!(tests[1].enters, BTreeSet::from([3, 9]));
        std::fs::write(&log, "")?;
        let tests = Tests {
            programs: vec![suite],
            tests: tests.into(),
        };
        assert_eq!(tests.outcome(10, 9)?, (Outcome::Caught, 1));
        assert_eq!(tests.outcome(4, 3)?, (Outcome::Missed, 2));
        assert_eq!(
            tests.outcome(10, 8)?,
            (Outcome::Missed, 0),
            "no test enters it"
        );
        let ran = std::fs::read_to_string(&log)?;
        assert_eq!(
            ran,
            "10 --test-threads 2 --exact b\n4 --test-threads 2 --exact a b\n"
        );
        for file in [&tests.programs[0].program, &entered, &log] {
            std::fs::remove_file(file)?;
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
        assert!(suite(&message(false)).is_none());
        assert!(suite(&message(true)).is_some_and(|suite| suite.folder == Path::new("/p/a")));
    }
}
