//! Those that are compared: each measurement is a process of its own, and they take turns.

use crate::measure::Measured;
use anyhow::{Context, Result, bail};
use std::{path::PathBuf, process::Command};

/// Where the others run, and how often all do.
#[derive(Debug, clap::Args)]
pub(crate) struct Pythons {
    /// Python with torch 2.15; without it, PyTorch's rows are left out.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Python with TensorFlow 2.21; without it, TensorFlow's rows are left out.
    #[arg(long)]
    tensorflow: Option<PathBuf>,
    /// Folder of the Python scripts.
    #[arg(long, default_value = "benches/python")]
    scripts: PathBuf,
    /// Turns that peers take.
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// Before each measurement, wait so many seconds at most for others to leave the machine alone.
    #[arg(long, default_value_t = 0)]
    patience: u64,
}

impl Pythons {
    pub(crate) fn has_torch(&self) -> bool {
        self.python.is_some()
    }
}

/// What our measurement is called.
const OURS: &str = "reshard";

/// Jiffies of all processors since the start: all, and idle ones.
fn jiffies() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let numbers = stat.lines().next()?.split_whitespace().skip(1).map(|n| n.parse().unwrap_or(0));
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
    name: &'static str,
    program: Program,
    measured: Vec<Measured>,
}

enum Program {
    Reshard(Vec<String>),
    Torch(&'static str, Vec<String>),
    TensorFlow(&'static str, Vec<String>),
}

impl Peer {
    pub(crate) fn reshard(name: &'static str, args: &[&str]) -> Self {
        let args = args.iter().map(|a| a.to_string()).collect();
        Self { name, program: Program::Reshard(args), measured: Vec::new() }
    }

    pub(crate) fn python(name: &'static str, script: &'static str, args: &[&str]) -> Self {
        let args = args.iter().map(|a| a.to_string()).collect();
        Self { name, program: Program::Torch(script, args), measured: Vec::new() }
    }

    pub(crate) fn tensorflow(name: &'static str, script: &'static str, args: &[&str]) -> Self {
        let args = args.iter().map(|a| a.to_string()).collect();
        Self { name, program: Program::TensorFlow(script, args), measured: Vec::new() }
    }

    pub(crate) fn run(&mut self, pythons: &Pythons) -> Result<()> {
        let mut command = match &self.program {
            Program::Reshard(a) => {
                let mut c = Command::new(std::env::current_exe()?);
                c.arg("measure").args(a);
                c
            }
            Program::Torch(script, a) | Program::TensorFlow(script, a) => {
                let torch = matches!(self.program, Program::Torch(..));
                let Some(python) = (if torch { &pythons.python } else { &pythons.tensorflow }) else {
                    return Ok(());
                };
                let mut c = Command::new(python);
                c.arg(pythons.scripts.join(script)).args(a).env("PYTHONWARNINGS", "ignore");
                c
            }
        };
        wait_for_quiet(pythons.patience);
        let out = command.output().with_context(|| format!("{} did not start", self.name))?;
        let text = String::from_utf8_lossy(&out.stdout);
        let Some(line) = text.lines().rev().find(|l| l.starts_with('{')).filter(|_| out.status.success())
        else {
            bail!("{}: {}", self.name, String::from_utf8_lossy(&out.stderr));
        };
        self.measured.push(serde_json::from_str(line)?);
        Ok(())
    }

    fn median(&self, of: impl Fn(&Measured) -> &[f64]) -> Option<f64> {
        let mut all: Vec<f64> = self.measured.iter().flat_map(|m| of(m).iter().copied()).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied()
    }

    fn seconds(&self) -> Option<f64> {
        self.median(|m| &m.seconds)
    }

    pub(crate) fn last(&self) -> Option<&Measured> {
        self.measured.last()
    }
}

/// What is to be reached.
pub(crate) enum Target {
    /// Seconds of this peer over seconds of ours, at least.
    Ratio(&'static str, f64),
    /// Our seconds, at most.
    Seconds(f64),
    /// Our memory beyond the state in bytes, at most.
    Memory(u64),
}

fn verdict(reached: bool) -> &'static str {
    if reached { "reached" } else { "MISSED" }
}

/// Runs the peers in turns, and prints a row for each. Ours is called "reshard".
pub(crate) fn compare(
    pythons: &Pythons,
    title: &str,
    mut peers: Vec<Peer>,
    targets: &[Target],
) -> Result<Vec<Peer>> {
    for _ in 0..pythons.turns {
        for p in &mut peers {
            p.run(pythons)?;
        }
    }
    let ours = peers.iter().find(|p| p.name == OURS).and_then(Peer::seconds);
    for p in &peers {
        let (Some(m), Some(last)) = (p.seconds(), p.last()) else { continue };
        let gb = last.bytes as f64 / 1e9;
        let speed = if gb > 0.0 { format!("{:.2} GB/s", gb / m) } else { String::new() };
        let cpu = p.median(|m| &m.cpu).map_or(String::new(), |cpu| format!("{cpu:.2} s"));
        let (mut ratio, mut memory) = (String::new(), String::new());
        if last.grown > 0 {
            memory = format!("{} MiB", last.grown >> 20);
        }
        if let Some(ours) = ours.filter(|_| p.name != OURS) {
            ratio = format!("{:.2}x", m / ours);
        }
        for target in targets {
            match target {
                Target::Ratio(peer, least) if *peer == p.name => {
                    let reached = ours.is_some_and(|ours| m / ours >= *least);
                    ratio += &format!(" (target {least:.2}x, {})", verdict(reached));
                }
                Target::Seconds(most) if p.name == OURS => {
                    ratio = format!("(target {most} s, {})", verdict(m <= *most));
                }
                Target::Memory(most) if p.name == OURS => {
                    memory += &format!(" (target {} MiB, {})", most >> 20, verdict(last.grown <= *most));
                }
                _ => {}
            }
        }
        println!("| {title} | {} | {m:.4} s | {speed} | {ratio} | {cpu} | {memory} |", p.name);
    }
    Ok(peers)
}
