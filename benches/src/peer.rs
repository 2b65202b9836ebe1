//! Those that are compared: each measurement is a process of its own.

use crate::{measured::Measured, proxy::Passed, served::Served};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::{path::PathBuf, process::Command, sync::Arc};

/// Where the others run.
#[derive(Debug, clap::Args)]
pub(crate) struct Pythons {
    /// Python with torch 2.15; without it, PyTorch's rows are left out.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Python with TensorFlow 2.21; without it, TensorFlow's rows are left out.
    #[arg(long)]
    tensorflow: Option<PathBuf>,
    /// Python with Megatron Core 0.12; without it, its rows are left out.
    #[arg(long)]
    megatron: Option<PathBuf>,
    /// Python with zarr 3; without it, its rows are left out.
    #[arg(long)]
    zarr: Option<PathBuf>,
    /// Folder with s3fs, for the Python with torch; without it, PyTorch has no rows of buckets.
    #[arg(long)]
    s3fs: Option<PathBuf>,
    /// Folder of the Python scripts.
    #[arg(long, default_value = "benches/python")]
    scripts: PathBuf,
    /// Before each measurement, wait so many seconds at most for others to leave the machine alone.
    #[arg(long, default_value_t = 0)]
    patience: u64,
}

/// What is checked, or written to be checked.
pub(crate) const WRITES: &str = "writes CRC-32";
pub(crate) const VERIFIED: &str = "CRC-32 of all";
pub(crate) const NOTHING: &str = "nothing";

/// What our measurement is called.
pub(crate) const OURS: &str = "reshard";

/// Large memory of torch, and of what takes its memory from glibc, in huge pages: as large tensors of reshard are.
const HUGE_PAGES: [(&str, &str); 2] = [
    ("THP_MEM_ALLOC_ENABLE", "1"),
    ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
];

/// Jiffies of all processors since the start: all, and idle ones.
fn jiffies() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let numbers = stat
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .map(|n| n.parse().unwrap_or(0));
    let all: Vec<u64> = numbers.take(8).collect();
    Some((all.iter().sum(), all.get(3)? + all.get(4)?))
}

/// Until the machine is idle for two seconds, nearly; for `patience` seconds at most.
fn wait_for_quiet(patience: u64) {
    for _ in 0..patience / 2 {
        let before = jiffies();
        std::thread::sleep(std::time::Duration::from_secs(2));
        match (before, jiffies()) {
            (Some(a), Some(b)) if (b.1 - a.1) * 10 < (b.0 - a.0) * 9 => {}
            _ => return,
        }
    }
}

/// One way to do a thing, and what it took.
pub(crate) struct Peer {
    /// What targets call it.
    name: &'static str,
    program: Program,
    args: Vec<String>,
    /// Settings of which the fastest is measured; they come last among the arguments.
    settings: Vec<&'static str>,
    huge_pages: bool,
    /// The server that its place lies on.
    served: Option<Arc<Served>>,
    /// What a run has sent and received, roughly: the one that warms up is like the others.
    passed: Option<Passed>,
    /// What it says of the bytes: whether they are checked, or come with a checksum.
    checks: &'static str,
    /// Seconds that one process takes before and after its runs, and for each run, roughly, on two cores.
    cost: (f64, f64),
    measured: Vec<Measured>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    Reshard,
    Torch(&'static str),
    TensorFlow(&'static str),
    Megatron(&'static str),
    Zarr(&'static str),
}

/// Which of several settings was the fastest.
#[derive(Deserialize)]
struct Choice {
    best: String,
}

impl Peer {
    fn new(name: &'static str, program: Program, args: &[&str], cost: (f64, f64)) -> Self {
        Self {
            name,
            program,
            args: args.iter().map(|a| a.to_string()).collect(),
            settings: Vec::new(),
            huge_pages: false,
            served: None,
            passed: None,
            checks: "",
            cost,
            measured: Vec::new(),
        }
    }

    /// This program's own measurement.
    pub(crate) fn reshard(name: &'static str, args: &[&str]) -> Self {
        Self::new(name, Program::Reshard, args, (1.5, 0.4))
    }

    /// A script in the Python with torch.
    pub(crate) fn torch(name: &'static str, script: &'static str, args: &[&str]) -> Self {
        Self::new(name, Program::Torch(script), args, (5.0, 1.0))
    }

    /// A measurement of DCP's script.
    pub(crate) fn dcp(
        name: &'static str,
        mode: &str,
        state: &str,
        gb: &str,
        dir: &str,
        more: &[&str],
    ) -> Self {
        let all = [&[mode, state, gb, dir, RUNS], more].concat();
        let seconds = if state == "small" { 1.9 } else { 0.9 };
        Self::torch(name, "dcp_bench.py", &all).costs(5.0, seconds)
    }

    /// A script in the Python with TensorFlow.
    pub(crate) fn tensorflow(name: &'static str, script: &'static str, args: &[&str]) -> Self {
        Self::new(name, Program::TensorFlow(script), args, (10.0, 0.6))
    }

    /// A script in the Python with Megatron Core.
    pub(crate) fn megatron(name: &'static str, script: &'static str, args: &[&str]) -> Self {
        Self::new(name, Program::Megatron(script), args, (15.0, 8.0))
    }

    /// A script in the Python with zarr.
    pub(crate) fn zarr(name: &'static str, script: &'static str, args: &[&str]) -> Self {
        Self::new(name, Program::Zarr(script), args, (3.0, 2.0))
    }

    /// Seconds of a process, and of each of its runs.
    pub(crate) fn costs(self, process: f64, run: f64) -> Self {
        Self {
            cost: (process, run),
            ..self
        }
    }

    /// What is checked, or written to be checked.
    pub(crate) fn checks(self, checks: &'static str) -> Self {
        Self { checks, ..self }
    }

    /// The fastest of these is measured, and named.
    pub(crate) fn best_of(self, settings: &[&'static str]) -> Self {
        Self {
            settings: settings.to_vec(),
            ..self
        }
    }

    /// With its place on this server.
    pub(crate) fn at(self, served: &Arc<Served>) -> Self {
        Self {
            served: Some(Arc::clone(served)),
            ..self
        }
    }

    /// With its large memory in huge pages.
    pub(crate) fn huge_pages(self) -> Self {
        Self {
            huge_pages: true,
            ..self
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.name == OURS
    }

    /// Its name, with its setting.
    pub(crate) fn title(&self) -> String {
        let setting = match self.settings.as_slice() {
            [one] if *one != "plain" => format!(" ({})", one.replace(',', ", ")),
            _ => String::new(),
        };
        let pages = if self.huge_pages { ", huge pages" } else { "" };
        format!("{}{setting}{pages}", self.name)
    }

    pub(crate) fn what_it_checks(&self) -> &'static str {
        self.checks
    }

    /// Whether there is a program to run it.
    pub(crate) fn is_there(&self, pythons: &Pythons) -> bool {
        match self.program {
            Program::Reshard => true,
            Program::Torch(_) => {
                pythons.python.is_some() && (self.served.is_none() || pythons.s3fs.is_some())
            }
            Program::TensorFlow(_) => pythons.tensorflow.is_some(),
            Program::Megatron(_) => pythons.megatron.is_some(),
            Program::Zarr(_) => pythons.zarr.is_some(),
        }
    }

    /// Seconds that so many processes of so many runs take, roughly.
    pub(crate) fn estimate(&self, turns: usize, runs: usize) -> f64 {
        let tried = if self.settings.len() > 1 {
            self.cost.0 + self.cost.1 * (self.settings.len() * (TRIED + 1)) as f64
        } else {
            0.0
        };
        tried + turns as f64 * (self.cost.0 + self.cost.1 * (runs + 1) as f64)
    }

    /// Finds out which setting is the fastest.
    pub(crate) fn choose(&mut self, pythons: &Pythons) -> Result<()> {
        if self.settings.len() < 2 {
            return Ok(());
        }
        let mut command = self.command(pythons, TRIED)?;
        command.args(&self.settings).arg("--choose");
        let Choice { best } = serde_json::from_str(&self.answer(command, pythons)?)?;
        self.settings.retain(|s| *s == best);
        Ok(())
    }

    /// One process with so many runs.
    pub(crate) fn run(&mut self, pythons: &Pythons, runs: usize) -> Result<()> {
        let mut command = self.command(pythons, runs)?;
        command.args(self.settings.first());
        let passed = |peer: &Self| peer.served.as_ref().map(|served| served.passed());
        let before = passed(self);
        self.measured
            .push(serde_json::from_str(&self.answer(command, pythons)?)?);
        if let (Some(before), Some(after)) = (before, passed(self)) {
            self.passed = Some((after - before).per(runs as u64 + 1));
        }
        Ok(())
    }

    /// What a run has sent and received.
    pub(crate) fn passed(&self) -> Option<Passed> {
        self.passed
    }

    fn command(&self, pythons: &Pythons, runs: usize) -> Result<Command> {
        let runs = runs.to_string();
        let args = self.args.iter().map(|a| if a == RUNS { &runs } else { a });
        let (python, script) = match self.program {
            Program::Reshard => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("measure").args(args);
                command.envs(self.variables());
                return Ok(command);
            }
            Program::Torch(script) => (&pythons.python, script),
            Program::TensorFlow(script) => (&pythons.tensorflow, script),
            Program::Megatron(script) => (&pythons.megatron, script),
            Program::Zarr(script) => (&pythons.zarr, script),
        };
        let python = python
            .as_ref()
            .with_context(|| format!("there is no Python for {}", self.name))?;
        let mut command = Command::new(python);
        command
            .arg(pythons.scripts.join(script))
            .args(args)
            .env("PYTHONWARNINGS", "ignore")
            .envs(self.variables());
        if let (Some(_), Some(s3fs)) = (&self.served, &pythons.s3fs) {
            command.env("PYTHONPATH", s3fs);
        }
        if self.huge_pages {
            command.envs(HUGE_PAGES);
        }
        Ok(command)
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        let served = self.served.as_ref();
        served.map_or(Vec::new(), |served| served.variables())
    }

    /// The last line of JSON that it prints.
    fn answer(&self, mut command: Command, pythons: &Pythons) -> Result<String> {
        wait_for_quiet(pythons.patience);
        let out = command
            .output()
            .with_context(|| format!("{} did not start", self.name))?;
        let text = String::from_utf8_lossy(&out.stdout);
        match text
            .lines()
            .rev()
            .find(|l| l.starts_with('{'))
            .filter(|_| out.status.success())
        {
            Some(line) => Ok(line.to_string()),
            None => bail!("{}: {}", self.name, String::from_utf8_lossy(&out.stderr)),
        }
    }

    fn all(&self, of: impl Fn(&Measured) -> &[f64]) -> Vec<f64> {
        let mut all: Vec<f64> = self
            .measured
            .iter()
            .flat_map(|m| of(m).iter().copied())
            .collect();
        all.sort_by(f64::total_cmp);
        all
    }

    /// Runs that were counted.
    pub(crate) fn runs(&self) -> usize {
        self.all(|m| &m.seconds).len()
    }

    /// Median of its seconds.
    pub(crate) fn seconds(&self) -> Option<f64> {
        median(&self.all(|m| &m.seconds))
    }

    /// Median of its CPU seconds, those of all ranks together.
    pub(crate) fn cpu(&self) -> Option<f64> {
        median(&self.all(|m| &m.cpu))
    }

    pub(crate) fn last(&self) -> Option<&Measured> {
        self.measured.last()
    }

    /// The most memory that it took in any of its processes.
    pub(crate) fn grown(&self) -> u64 {
        self.measured.iter().map(|m| m.grown).max().unwrap_or(0)
    }
}

/// Stands among the arguments for the number of runs.
pub(crate) const RUNS: &str = "RUNS";

/// Runs by which one setting is chosen among several.
const TRIED: usize = 2;

fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}
