//! The drivers in Python. Importing torch takes longer than most of what they do, so each imports once and is forked for each run.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::shell::{Program, root};

/// One check: a driver and its arguments.
pub(super) enum Job {
    Program(Program),
    Driver(Driver),
}

/// A driver and its arguments.
pub(super) struct Driver {
    python: PathBuf,
    name: String,
    args: Vec<OsString>,
}

impl Driver {
    /// One of `tests/interop/python`, for a Python with torch.
    pub(super) fn new(python: &Path, name: &str) -> Self {
        Self {
            python: python.to_path_buf(),
            name: name.to_owned(),
            args: Vec::new(),
        }
    }

    pub(super) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        let args = args.into_iter().map(|arg| arg.as_ref().to_owned());
        self.args.extend(args);
        self
    }
}

impl From<Program> for Job {
    fn from(program: Program) -> Self {
        Self::Program(program)
    }
}

impl From<Driver> for Job {
    fn from(driver: Driver) -> Self {
        Self::Driver(driver)
    }
}

impl Job {
    pub(super) fn args<S: AsRef<OsStr>>(self, args: impl IntoIterator<Item = S>) -> Self {
        match self {
            Self::Program(program) => Self::Program(program.args(args)),
            Self::Driver(driver) => Self::Driver(driver.args(args)),
        }
    }
}

/// The drivers that have imported what they need, by their Python and name.
#[derive(Default)]
pub(super) struct Drivers(BTreeMap<(PathBuf, String), DriverProcess>);

/// A process of `forks.py`. It ends when it is dropped.
struct DriverProcess {
    child: Child,
    runs: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Drivers {
    /// Runs one; the error has what it said. Its output goes to a file first.
    pub(super) fn run(&mut self, driver: Driver, output: &Path) -> Result<()> {
        let Driver { python, name, args } = driver;
        let key = (python, name);
        // One that no longer answers is not kept.
        let mut imported = match self.0.remove(&key) {
            Some(imported) => imported,
            None => DriverProcess::start(&key.0, &key.1)?,
        };
        let code = imported
            .run(&args, output)
            .with_context(|| format!("{} has ended", key.1))?;
        let name = key.1.clone();
        self.0.insert(key, imported);
        if code != 0 {
            let said = std::fs::read(output).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            bail!("{name} {args:?} failed ({code})\n{said}");
        }
        Ok(())
    }

    /// Ends them all.
    pub(super) fn end(&mut self) {
        self.0.clear();
    }
}

impl DriverProcess {
    fn start(python: &Path, name: &str) -> Result<Self> {
        let drivers = root().join("tests/interop/python");
        let mut child = Command::new(python)
            .args([drivers.join("forks.py"), drivers.join(name)])
            .current_dir(root())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", python.display()))?;
        let runs = child.stdin.take();
        let answers = child.stdout.take().context("its output is a pipe")?;
        Ok(Self {
            child,
            runs,
            answers: BufReader::new(answers),
        })
    }

    /// Returns the exit code of a run.
    fn run(&mut self, args: &[OsString], output: &Path) -> Result<i32> {
        let words = std::iter::once(output.as_os_str()).chain(args.iter().map(OsString::as_os_str));
        let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
        let mut runs = self.runs.as_ref().context("it has ended")?;
        writeln!(runs, "{}", serde_json::to_string(&words)?)?;
        let mut code = String::new();
        self.answers.read_line(&mut code)?;
        code.trim()
            .parse()
            .with_context(|| format!("it answered {code:?} instead of a code"))
    }
}

impl Drop for DriverProcess {
    fn drop(&mut self) {
        // It ends with the last line of its input.
        self.runs = None;
        self.child.wait().map(drop).unwrap_or_default();
    }
}
