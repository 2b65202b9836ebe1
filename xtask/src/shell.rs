//! Running other programs, and speaking to the person who waits.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

/// Prints a line, at once, so that it stands in order with what child programs print.
pub(crate) fn say(line: impl AsRef<str>) {
    let mut out = std::io::stdout().lock();
    // A closed pipe must not turn a green run into a red one.
    writeln!(out, "{}", line.as_ref())
        .and_then(|()| out.flush())
        .unwrap_or_default();
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

/// A chore that consists of others, by name.
type Step<'a> = (&'a str, &'a dyn Fn() -> Result<()>);

/// One after the other until one fails; then the time that each took.
pub(crate) fn steps(steps: &[Step<'_>]) -> Result<()> {
    let mut times = Vec::new();
    for (name, step) in steps {
        let begin = Instant::now();
        let outcome = step();
        times.push(format!(
            "{name:<8} {:>5.0} s",
            begin.elapsed().as_secs_f64()
        ));
        if outcome.is_err() {
            say(times.join("\n"));
            return outcome;
        }
    }
    say(times.join("\n"));
    Ok(())
}

/// Files of the project, relative to its root: what git tracks or would track.
pub(crate) fn project_files() -> Result<Vec<PathBuf>> {
    let listed = Program::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .read()?;
    let mut files: Vec<PathBuf> = listed.split_terminator('\0').map(PathBuf::from).collect();
    // A deleted file stays in the index until the deletion is staged.
    files.retain(|file| root().join(file).is_file());
    files.sort();
    files.dedup();
    Ok(files)
}

/// A program of the crates' registry, such as cargo-deny: the one at hand if its version is ours, else our own, built once. It is not
/// optimised, which halves the time of the build.
pub(crate) fn tool(name: &str, version: &str) -> Result<PathBuf> {
    tool_with(name, version, &["--debug"])
}

/// Like [`tool`], with other arguments of `cargo install`.
pub(crate) fn tool_with(name: &str, version: &str, args: &[&str]) -> Result<PathBuf> {
    let tools = target_dir().join("tools");
    let own = tools.join("bin").join(name);
    let is_ours = |said: &str| {
        let mut words = said.split_whitespace();
        (words.next(), words.next()) == (Some(name), Some(version))
    };
    // `cargo NAME` gives its own name as the first argument, and some want to hear it.
    let ask = name.strip_prefix("cargo-").filter(|_| name != "cargo-deny");
    for program in [own.clone(), PathBuf::from(name)] {
        if Program::new(&program)
            .args(ask)
            .args(["--version"])
            .read()
            .is_ok_and(|said| is_ours(&said))
        {
            return Ok(program);
        }
    }
    say(format!(
        "{name} is built once into target/tools; this takes some minutes"
    ));
    let package = format!("{name}@{version}");
    cargo(&["install", "--quiet", "--locked", "--root"])
        .args([tools.as_os_str(), package.as_ref()])
        .args(args)
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .run()?;
    Ok(own)
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

/// The features of places in clouds. All calls name the same features, so that nothing is built twice.
const FEATURES: &str = "reshard-object-store/aws,reshard-object-store/gcp,reshard-object-store/azure,reshard-object-store/http,\
     reshard-golden/clouds,reshard-crash/clouds,reshard-cli/clouds";

/// The test runner. It runs the tests of all programs in parallel, each in its own process, and it runs no doc tests.
const NEXTEST: &str = "0.9.143";

/// The program nextest.
pub(crate) fn nextest_program() -> Result<PathBuf> {
    tool_with(
        "cargo-nextest",
        NEXTEST,
        &["--debug", "--no-default-features"],
    )
}

/// A call of nextest.
pub(crate) fn nextest() -> Result<Program> {
    // Many tests wait for processes, servers or the disk, so more of them run at a time than there are CPUs.
    let threads = 3 * std::thread::available_parallelism().map_or(1, usize::from);
    Ok(Program::new(nextest_program()?)
        .args(["nextest", "run", "--locked"])
        .env("NEXTEST_TEST_THREADS", threads.to_string()))
}

/// A call of nextest on the tests of the workspace. Arguments choose among them.
pub(crate) fn tests() -> Result<Program> {
    Ok(nextest()?.args(["--workspace", "--features", FEATURES]))
}

/// A call of nextest on ignored tests, chosen by a filter expression. Nothing is built again after `cargo xtask test`.
pub(crate) fn ignored(filter: &str) -> Result<Program> {
    Ok(tests()?.args(["--run-ignored", "only", "-E", filter]))
}

/// A call of cargo that runs the doc tests of the workspace.
pub(crate) fn doc_tests() -> Program {
    cargo(&[
        "test",
        "--doc",
        "--quiet",
        "--workspace",
        "--locked",
        "--features",
        FEATURES,
    ])
}

/// Builds programs of the workspace as its tests use them, and returns their folder.
pub(crate) fn programs(names: &[&str]) -> Result<PathBuf> {
    cargo(&["build", "--profile", "test", "--workspace", "--locked"])
        .args(["--features", FEATURES])
        .args(names.iter().flat_map(|name| ["--bin", name]))
        .run()?;
    Ok(target_dir().join("debug"))
}

/// Builds the shared library of a package as tests are built, so that what they have compiled is used again, and returns its path.
pub(crate) fn library(package: &str, file: &str) -> Result<PathBuf> {
    // With all packages, the features are those of the tests.
    cargo(&[
        "build",
        "--profile",
        "test",
        "--workspace",
        "--lib",
        "--locked",
    ])
    .args(["--features", FEATURES])
    .run()?;
    let built = target_dir().join("debug").join(file);
    if !built.exists() {
        bail!("{package} was built without {}", built.display());
    }
    Ok(built)
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
    pub(crate) fn run(self) -> Result<()> {
        self.run_unless(&[])
    }

    /// The same, for a program that reports something by these exit codes, too.
    pub(crate) fn run_unless(mut self, codes: &[i32]) -> Result<()> {
        say(format!("\n$ {}", self.line()));
        let status = self
            .command
            .status()
            .with_context(|| format!("cannot run `{}`", self.line()))?;
        if !status.success() && !status.code().is_some_and(|code| codes.contains(&code)) {
            bail!("`{}` failed ({status})", self.line());
        }
        Ok(())
    }

    /// Runs it and returns what it printed on standard output.
    pub(crate) fn read(self) -> Result<String> {
        self.read_unless(&[])
    }

    /// The same, for a program that says something by these exit codes too.
    pub(crate) fn read_unless(mut self, codes: &[i32]) -> Result<String> {
        let output = self
            .command
            .output()
            .with_context(|| format!("cannot run `{}`", self.line()))?;
        if !output.status.success()
            && !output
                .status
                .code()
                .is_some_and(|code| codes.contains(&code))
        {
            let (out, err) = (
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
            );
            bail!("`{}` failed ({})\n{out}{err}", self.line(), output.status);
        }
        String::from_utf8(output.stdout)
            .with_context(|| format!("`{}` printed no text", self.line()))
    }

    fn line(&self) -> String {
        let program = Path::new(self.command.get_program());
        let name = program.file_name().unwrap_or(program.as_os_str());
        let words = std::iter::once(name).chain(self.command.get_args());
        words
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    }
}
