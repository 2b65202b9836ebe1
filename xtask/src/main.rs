//! The chores of the workspace, run as `cargo xtask COMMAND`.
//!
//! Everything that CI does is a command here, so a failure in CI is repeated with one line at home.

mod bench;
mod clouds;
mod fuzz;
mod interop;
mod lint;
mod mutants;
mod nightly;
mod processes;
mod shell;
mod tidy;
mod venv;

use std::process::ExitCode;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};

use crate::shell::{say, steps, tests};

const HELP: &str = "\
Usage: cargo xtask COMMAND

  test      all Rust tests of the workspace, doc tests too; needs no Python
  tidy      house rules that no compiler checks: floors, circles of files, sizes, format pages, paths
            --bless   rewrites the source hashes in docs/formats/*.md
  lint      rustfmt, clippy, rustdoc and cargo-deny; warnings are errors
  interop   PyTorch and Megatron read what reshard wrote, and the other way round
            --keep    leaves the checkpoints in target/interop
            --self    only the drivers among themselves, without reshard
            --torches only torch.load, of every version since 1.13: 17 of them, installed one after the other
            --frugal  removes each Python when it has served; 9 GB of disk are enough then
  bench     benchmarks beside torch DCP and TensorFlow, as a table; says how long it takes
            --only TEXT   rows whose name holds this text
            --runs N      so many counted runs of each measurement; 15 unless set
  processes  what needs ranks in real processes: groups over TCP, the demo, ranks that are killed, 64 ranks, groups of MPI
            (installs Open MPI from Debian's packages if it is not there); PyTorch's part too if RESHARD_PYTHON names a
            Python with torch, or interop has installed one
            --mpi     only the groups of MPI
  clouds    the tests of object stores against servers that it installs and starts: moto, s3s-fs, Azurite (needs Node.js 20);
            a network that fails, saves that are killed, and PyTorch with s3fs
            --thorough  2,000 runs in which the network fails, and 300 kills
  ci        test, tidy, lint and interop, with the time that each took
  mutants   small changes of the code that must not be wrong: does a test notice each?
            --core NAME   only this one (geometry, plan, comm, reader, commit, save, pickle); more than once
            --sample N    only N of them, chosen by --seed S (by the clock, unless given)
            --jobs N      so many at a time, each in a copy of its own; one for each CPU, unless given
            --list        only says how many there are
  fuzz      fuzz targets from the files of the fixtures and from what they found before, one after the other
            --seconds N   so many seconds for each; 60, unless given
            TARGET...     only these; all, unless given
  nightly   what is too slow for every change: all tests with more cases, those that are ignored too; each
            fuzz target for --fuzz SECONDS (300, unless given); clouds --thorough; 300 mutants by --seed S
            --share   only the tests of one package, which --seed S chooses, for 2 minutes

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

    // A command refuses words that it does not know, so a mistyped flag never starts a long run.
    let (flags, settings): (&[&str], &[&str]) = match command {
        "tidy" => (&["--bless"], &[]),
        "processes" => (&["--mpi"], &[]),
        "interop" => (&["--keep", "--self", "--frugal", "--torches"], &[]),
        "clouds" => (&["--thorough"], &[]),
        "mutants" => (&["--list"], &["--core", "--sample", "--seed", "--jobs"]),
        "nightly" => (&["--share"], &["--fuzz", "--seed"]),
        "fuzz" => (&[], &["--seconds"]),
        // The benchmarks have arguments of their own.
        "bench" => return bench::run(rest),
        _ => (&[], &[]),
    };
    let mut given: Vec<(&str, &str)> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        match words.as_slice().first() {
            _ if flags.contains(&word.as_str()) => given.push((word, "")),
            Some(value) if settings.contains(&word.as_str()) => {
                given.push((word, value));
                words.next();
            }
            // The names of targets.
            _ if command == "fuzz" && !word.starts_with('-') => names.push(word.clone()),
            _ => bail!("`{command}` does not take `{word}`, or not so\n\n{HELP}"),
        }
    }

    let has = |flag: &str| given.iter().any(|(name, _)| *name == flag);
    // Without `--seed` the clock gives one.
    let seed = || Ok::<_, anyhow::Error>(number(&given, "--seed")?.unwrap_or_else(clock));
    match command {
        "test" => test(),
        "tidy" => tidy::run(has("--bless")),
        "lint" => lint::run(),
        "interop" => {
            let (keep, only_drivers, frugal) = (has("--keep"), has("--self"), has("--frugal"));
            interop::run(&interop::Options {
                keep,
                only_drivers,
                frugal,
                every_torch: has("--torches"),
            })
        }
        "processes" if has("--mpi") => processes::mpi::run(),
        "processes" => processes::run(),
        "clouds" => clouds::run(has("--thorough")),
        "ci" => ci(),
        "mutants" => mutants::run(&mutants::Options {
            cores: given
                .iter()
                .filter(|(name, _)| *name == "--core")
                .map(|(_, core)| (*core).into())
                .collect(),
            sample: number(&given, "--sample")?,
            seed: seed()?,
            jobs: number(&given, "--jobs")?.unwrap_or_else(mutants::all_cpus),
            list: has("--list"),
        }),
        "fuzz" => fuzz::run(&fuzz::Options {
            seconds: number(&given, "--seconds")?.unwrap_or(60),
            targets: names,
        }),
        "nightly" if has("--share") => nightly::share(seed()?),
        "nightly" => {
            let fuzz = number(&given, "--fuzz")?.unwrap_or(300);
            nightly::run(&nightly::Options {
                fuzz,
                seed: seed()?,
            })
        }
        "help" | "-h" | "--help" => {
            say(HELP);
            Ok(())
        }
        other => bail!("there is no command `{other}`\n\n{HELP}"),
    }
}

fn test() -> Result<()> {
    tests().run()
}

fn ci() -> Result<()> {
    let interop = || {
        interop::run(&interop::Options {
            keep: false,
            only_drivers: false,
            frugal: false,
            every_torch: false,
        })
    };
    steps(&[
        ("test", &test),
        ("tidy", &|| tidy::run(false)),
        ("lint", &lint::run),
        ("interop", &interop),
    ])
}

/// The number that was given for a setting, the last one if there are several.
fn number<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    given: &[(&str, &str)],
    setting: &str,
) -> Result<Option<T>> {
    let last = given.iter().rfind(|(name, _)| *name == setting);
    last.map(|(_, value)| {
        value
            .parse()
            .with_context(|| format!("{setting} is no number: `{value}`"))
    })
    .transpose()
}

/// A seed that nobody chose.
fn clock() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
