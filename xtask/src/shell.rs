//! Running other programs, and speaking to the person who waits.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// Prints a line, at once, so that it stands in order with what child programs print.
pub(crate) fn say(line: impl AsRef<str>) {
    let mut out = std::io::stdout().lock();
    // A closed pipe must not turn a green run into a red one.
    writeln!(out, "{}", line.as_ref()).and_then(|()| out.flush()).unwrap_or_default();
}

/// The root folder of the workspace.
pub(crate) fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> PathBuf {
    // A relative one is meant from where cargo was called, which is the folder we run in too.
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => std::path::absolute(&dir).unwrap_or_else(|_| dir.into()),
        None => root().join("target"),
    }
}

/// A program and its arguments, run in the root folder of the workspace.
#[derive(Debug)]
pub(crate) struct Program {
    command: Command,
}

/// A call of cargo; the same cargo that runs this program.
pub(crate) fn cargo(args: &[&str]) -> Program {
    Program::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())).args(args)
}

impl Program {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        command.current_dir(root());
        Self { command }
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Shows the command line, runs it and shows what it prints.
    pub(crate) fn run(mut self) -> Result<()> {
        say(format!("\n$ {}", self.line()));
        let status = self.command.status().with_context(|| format!("cannot run `{}`", self.line()))?;
        if !status.success() {
            bail!("`{}` failed ({status})", self.line());
        }
        Ok(())
    }

    /// Runs it and returns what it printed on standard output.
    pub(crate) fn read(mut self) -> Result<String> {
        let output = self.command.output().with_context(|| format!("cannot run `{}`", self.line()))?;
        if !output.status.success() {
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            bail!("`{}` failed ({})\n{out}{err}", self.line(), output.status);
        }
        String::from_utf8(output.stdout).with_context(|| format!("`{}` printed no text", self.line()))
    }

    fn line(&self) -> String {
        let program = Path::new(self.command.get_program());
        let name = program.file_name().unwrap_or(program.as_os_str());
        let words = std::iter::once(name).chain(self.command.get_args());
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }
}
