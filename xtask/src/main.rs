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
mod python;
mod shell;
mod strangers;
mod tidy;
mod venv;

use std::process::ExitCode;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::clouds::Extent;
use crate::shell::{doc_tests, say, tests};

const HELP: &str = "\
Usage: cargo xtask COMMAND

  test      all Rust tests of the workspace, and its doc tests at the same time; needs no Python
  tidy      house rules that no compiler checks: floors, circles of files, sizes, format pages, paths
            --bless   rewrites the source hashes in docs/formats/*.md
  lint      rustfmt, clippy, rustdoc and cargo-deny; warnings are errors
  interop   PyTorch and Megatron Core read what reshard wrote, and the other way round
            --short   only the newest torch with its Megatron Core, and torch 2.1
            --keep    leaves the checkpoints in target/interop
            --self    only the drivers among themselves, without reshard
            --torches only torch.load, of every version since 1.13: 17 of them, installed and removed one after the other
            --frugal  removes each Python after its last use; 6 GB of disk are enough then
  python    the Python package: its types, and its tests beside the newest torch
            --thorough  also the wheel as users build it, kills of ranks, and torch 2.4
  strangers weights that six published packages ship, read by reshard and by the libraries that wrote them
            --keep    leaves the packages in target/strangers
            --frugal  removes each Python after its last use
  bench     benchmarks beside torch DCP and TensorFlow, as a table; prints how long it takes
            --only TEXT   rows whose name contains this text
            --runs N      number of counted runs of each measurement [default: 15]
  processes  tests of ranks in real processes: groups over TCP, ranks that are killed, 64 ranks, groups of MPI
            (installs Open MPI from Debian's packages if it is missing); PyTorch's part too if RESHARD_PYTHON names a
            Python with torch, or interop has installed one
            --mpi     only the groups of MPI
  clouds    the tests of object stores against servers that it installs and starts: moto, s3s-fs, Azurite (needs Node.js 20);
            a network that fails, saves that are killed, and PyTorch with s3fs
            --moto      only those that need no server but moto
            --thorough  2,000 runs in which the network fails, and 300 kills
  mutants   tries up to 40 mutants of the critical code, and fails if the tests pass with one
            --seed S      chooses them [default: the day]
            --list        only prints them
  fuzz      fuzz targets, from the files of the fixtures and from earlier findings; one for each CPU at a time
            --seconds N   time for each [default: 60]
            TARGET...     only these
  nightly   everything too slow or too random for each change
            --slice K/N   only slice K of N; each takes at most 60 minutes on two cores
            --list        only prints its parts
            --seed S      seed of the property tests, and of the choice of mutants [default: the day]
            --fuzz SECONDS  time for each fuzz target [default: 300]

.ci/run calls what each change must pass. interop, python, strangers, bench, clouds and processes use Python programs in target/venvs (about 25 GB; 6 GB with interop --frugal).
RESHARD_VENVS names another directory for them.";

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
        "interop" => (
            &["--short", "--keep", "--self", "--frugal", "--torches"],
            &[],
        ),
        "strangers" => (&["--keep", "--frugal"], &[]),
        "clouds" => (&["--moto", "--thorough"], &[]),
        "python" => (&["--thorough"], &[]),
        "mutants" => (&["--list"], &["--seed"]),
        "nightly" => (&["--list"], &["--slice", "--fuzz", "--seed"]),
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
    let seed = || Ok::<_, anyhow::Error>(number(&given, "--seed")?.unwrap_or_else(day));
    match command {
        "test" => test(),
        "tidy" => tidy::run(has("--bless")),
        "lint" => lint::run(),
        "interop" => interop::run(&interop::Options {
            keep: has("--keep"),
            only_drivers: has("--self"),
            frugal: has("--frugal"),
            every_torch: has("--torches"),
            short: has("--short"),
        }),
        "python" => python::run(&python::Options {
            thorough: has("--thorough"),
        }),
        "strangers" => strangers::run(&strangers::Options {
            keep: has("--keep"),
            frugal: has("--frugal"),
        }),
        "processes" if has("--mpi") => processes::mpi::run(),
        "processes" => processes::run(),
        "clouds" if has("--thorough") => clouds::run(Extent::Thorough),
        "clouds" if has("--moto") => clouds::run(Extent::Moto),
        "clouds" => clouds::run(Extent::AllServers),
        "mutants" => mutants::run(&mutants::Options {
            seed: seed()?,
            list: has("--list"),
        }),
        "fuzz" => fuzz::run(&fuzz::Options {
            seconds: number(&given, "--seconds")?.unwrap_or(60),
            targets: names,
        }),
        "nightly" => nightly::run(&nightly::Options {
            fuzz: number(&given, "--fuzz")?.unwrap_or(300),
            seed: seed()?,
            slice: slice(&given)?,
            list: has("--list"),
        }),
        "help" | "-h" | "--help" => {
            say(HELP);
            Ok(())
        }
        other => bail!("there is no command `{other}`\n\n{HELP}"),
    }
}

/// All tests. nextest runs no doc tests. They are compiled one crate after the other, which leaves a CPU idle, so they run beside
/// the others.
fn test() -> Result<()> {
    std::thread::scope(|scope| {
        let docs = scope.spawn(|| doc_tests().read());
        let others = tests().and_then(|tests| tests.run());
        let docs = docs.join().map_err(|_| anyhow!("doc tests panicked"))?;
        say("\ndoc tests, which ran at the same time");
        match &docs {
            Ok(text) => say(text),
            Err(e) => say(format!("{e:#}")),
        }
        others?;
        docs.map(|_| ())
    })
}

/// The slice that was given as `K/N`.
fn slice(given: &[(&str, &str)]) -> Result<Option<(u32, u32)>> {
    let Some((_, text)) = given.iter().find(|(name, _)| *name == "--slice") else {
        return Ok(None);
    };
    let numbers = text
        .split_once('/')
        .and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    numbers
        .map(Some)
        .with_context(|| format!("--slice is not of the form K/N: `{text}`"))
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

/// The number of this day, since 1970. Consecutive seeds choose different mutants.
fn day() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() / (24 * 60 * 60))
}
