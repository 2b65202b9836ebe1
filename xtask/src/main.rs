//! The chores of the workspace, run as `cargo xtask COMMAND`.
//!
//! Everything that CI does is a command here, so a failure in CI is repeated with one line at home.

mod bench;
mod interop;
mod lint;
mod shell;
mod tidy;
mod venv;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::shell::{cargo, say};

const HELP: &str = "\
Usage: cargo xtask COMMAND

  test      all Rust tests of the workspace, doc tests too; needs no Python
  tidy      house rules that no compiler checks: floors, file sizes, format pages, paths
            --bless   rewrites the source hashes in docs/formats/*.md
  lint      rustfmt, clippy, rustdoc and cargo-deny; warnings are errors
  interop   PyTorch and Megatron read what reshard wrote, and the other way round
            --keep    leaves the checkpoints in target/interop
            --self    only the drivers among themselves, without reshard
            --frugal  removes each Python when it has served; 9 GB of disk are enough then
  bench     benchmarks beside torch DCP and TensorFlow, as a table; says how long it takes
            --only TEXT   rows whose name holds this text
            --runs N      so many counted runs of each measurement; 15 unless set
  ci        test, tidy, lint and interop, with the time that each took

interop and bench install Python programs into target/venvs (about 20 GB, some minutes, once).
RESHARD_VENVS names another directory for them; PYTHON names the interpreter (3.10 or 3.11).";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<()> {
    let (command, rest) = match args.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", args),
    };
    // Only the benchmarks have arguments of their own.
    let takes: &[&str] = match command {
        "tidy" => &["--bless"],
        "interop" => &["--keep", "--self", "--frugal"],
        _ => &[],
    };
    if let Some(odd) = rest.iter().find(|arg| command != "bench" && !takes.contains(&arg.as_str())) {
        bail!("`{command}` does not take `{odd}`\n\n{HELP}");
    }
    let has = |flag: &str| rest.iter().any(|arg| arg == flag);
    match command {
        "test" => test(),
        "tidy" => tidy::run(has("--bless")),
        "lint" => lint::run(),
        "interop" => {
            let (keep, only_drivers, frugal) = (has("--keep"), has("--self"), has("--frugal"));
            interop::run(&interop::Options { keep, only_drivers, frugal })
        }
        "bench" => bench::run(rest),
        "ci" => ci(),
        "help" | "-h" | "--help" => {
            say(HELP);
            Ok(())
        }
        other => bail!("there is no command `{other}`\n\n{HELP}"),
    }
}

fn test() -> Result<()> {
    cargo(&["test", "--workspace", "--locked"]).run()
}

fn ci() -> Result<()> {
    let interop = || interop::run(&interop::Options { keep: false, only_drivers: false, frugal: false });
    let steps: [(&str, &dyn Fn() -> Result<()>); 4] =
        [("test", &test), ("tidy", &|| tidy::run(false)), ("lint", &lint::run), ("interop", &interop)];
    let mut times = Vec::new();
    for (name, step) in steps {
        let begin = Instant::now();
        let outcome = step();
        times.push(format!("{name:<8} {:>5.0} s", begin.elapsed().as_secs_f64()));
        if outcome.is_err() {
            say(times.join("\n"));
            return outcome;
        }
    }
    say(times.join("\n"));
    Ok(())
}
