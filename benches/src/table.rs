//! Runs every measurement in a process of its own, peers in turn, and prints medians and ratios beside their targets.

use crate::measure::Measured;
use anyhow::{Context, Result, bail};
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Python with torch 2.15; without it, PyTorch's columns stay empty.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Python with TensorFlow 2.21; without it, TensorFlow's columns stay empty.
    #[arg(long)]
    tensorflow: Option<PathBuf>,
    /// Folder of the Python scripts.
    #[arg(long, default_value = "benches/python")]
    scripts: PathBuf,
    /// Only a part of the table.
    #[arg(long)]
    only: Option<Part>,
    /// Where to save: once for each, such as a tmpfs and a disk.
    #[arg(long, default_values_t = [String::from("/dev/shm"), String::from("target")])]
    on: Vec<String>,
    /// Size of the Llama-like state in GB.
    #[arg(long, default_value_t = 1.6)]
    gb: f64,
    /// Size of the many small tensors in GB: 8,192 of 64 KiB.
    #[arg(long, default_value_t = 0.5368709)]
    small_gb: f64,
    /// Counted runs of each measurement.
    #[arg(long, default_value_t = 5)]
    iterations: usize,
    /// Turns that peers take.
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// Before each measurement, wait so many seconds at most for others to leave the machine alone.
    #[arg(long, default_value_t = 0)]
    patience: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Checkpoints,
    Embeddings,
}

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
struct Peer {
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
    fn reshard(name: &'static str, args: &[&str]) -> Self {
        let args = args.iter().map(|a| a.to_string()).collect();
        Self { name, program: Program::Reshard(args), measured: Vec::new() }
    }

    fn python(name: &'static str, script: &'static str, args: &[&str]) -> Self {
        let args = args.iter().map(|a| a.to_string()).collect();
        Self { name, program: Program::Torch(script, args), measured: Vec::new() }
    }

    fn tensorflow(name: &'static str, script: &'static str, args: &[&str]) -> Self {
        let args = args.iter().map(|a| a.to_string()).collect();
        Self { name, program: Program::TensorFlow(script, args), measured: Vec::new() }
    }

    fn run(&mut self, args: &Args) -> Result<()> {
        let mut command = match &self.program {
            Program::Reshard(a) => {
                let mut c = Command::new(std::env::current_exe()?);
                c.arg("measure").args(a);
                c
            }
            Program::Torch(script, a) | Program::TensorFlow(script, a) => {
                let torch = matches!(self.program, Program::Torch(..));
                let Some(python) = (if torch { &args.python } else { &args.tensorflow }) else {
                    return Ok(());
                };
                let mut c = Command::new(python);
                c.arg(args.scripts.join(script)).args(a).env("PYTHONWARNINGS", "ignore");
                c
            }
        };
        wait_for_quiet(args.patience);
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

    fn last(&self) -> Option<&Measured> {
        self.measured.last()
    }
}

/// A ratio to reach: seconds of the peer over seconds of ours.
struct Target {
    peer: &'static str,
    least: f64,
}

fn compare(args: &Args, title: &str, mut peers: Vec<Peer>, targets: &[Target]) -> Result<Vec<Peer>> {
    for _ in 0..args.turns {
        for p in &mut peers {
            p.run(args)?;
        }
    }
    let ours = peers.iter().find(|p| p.name == "reshard").and_then(Peer::seconds);
    for p in &peers {
        let (Some(m), Some(last)) = (p.seconds(), p.last()) else { continue };
        let gb = last.bytes as f64 / 1e9;
        let speed = if gb > 0.0 { format!("{:.2} GB/s", gb / m) } else { String::new() };
        let cpu = p.median(|m| &m.cpu).map_or(String::new(), |cpu| format!("{cpu:.2} s"));
        let grown = if last.grown > 0 { format!("{} MiB", last.grown >> 20) } else { String::new() };
        let target = targets.iter().find(|t| t.peer == p.name);
        let ratio = match (ours, target) {
            (Some(o), Some(t)) => {
                let verdict = if m / o >= t.least { "reached" } else { "MISSED" };
                format!("{:.2}x (target {:.2}x, {verdict})", m / o, t.least)
            }
            (Some(o), None) if p.name != "reshard" => format!("{:.2}x", m / o),
            _ => String::new(),
        };
        println!("| {title} | {} | {m:.4} s | {speed} | {ratio} | {cpu} | {grown} |", p.name);
    }
    Ok(peers)
}

fn text(p: &Path) -> String {
    p.display().to_string()
}

/// Takes as much memory for files of a place as will lie there at once, and gives it back: memory that a machine touches for
/// the first time is slow, whoever comes first.
fn warm(place: &Path, gb: f64) -> Result<()> {
    let file = place.join("warm");
    let mut out = std::fs::File::create(&file)?;
    let block = vec![1; 8 << 20];
    for _ in 0..(gb * 5e9) as usize / block.len() {
        out.write_all(&block)?;
    }
    std::fs::remove_file(file).with_context(|| format!("warming up {}", place.display()))
}

pub(crate) fn run(args: &Args) -> Result<()> {
    println!("| what | who | median | speed | their time / ours | CPU | memory beyond the state |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    if args.only != Some(Part::Embeddings) {
        checkpoints(args)?;
    }
    if args.only != Some(Part::Checkpoints) {
        embeddings(args)?;
    }
    Ok(())
}

fn checkpoints(args: &Args) -> Result<()> {
    let (gb, small, n) = (args.gb.to_string(), args.small_gb.to_string(), args.iterations.to_string());
    for place in &args.on {
        let base = tempfile::tempdir_in(place).with_context(|| format!("{place} can't be written to"))?;
        warm(base.path(), args.gb)?;
        let at = |name: &str| text(&base.path().join(name));
        let (ours, theirs, plain) = (at("ours"), at("theirs"), at("plain"));
        let (ours_small, theirs_small) = (at("ours-small"), at("theirs-small"));
        let dcp = |name, mode, state, gb: &str, dir: &str, more: &[&str]| {
            let mut a = vec![mode, state, gb, dir, n.as_str()];
            a.extend(more);
            Peer::python(name, "dcp_bench.py", &a)
        };
        compare(
            args,
            &format!("save {gb} GB, {place}"),
            vec![
                Peer::reshard("reshard", &["save", "llama", &gb, &ours, &n]),
                dcp("DCP", "save", "llama", &gb, &theirs, &[]),
                dcp("DCP, 2 threads", "save", "llama", &gb, &theirs, &["--threads", "2"]),
                dcp("DCP, CRC off", "save", "llama", &gb, &theirs, &["--no-crc"]),
                Peer::reshard("pwrite", &["pwrite", "llama", &gb, &plain, &n]),
            ],
            &[
                Target { peer: "DCP", least: 2.5 },
                Target { peer: "DCP, CRC off", least: 1.0 },
                Target { peer: "pwrite", least: 0.7 },
            ],
        )?;
        compare(
            args,
            &format!("load same split, {place}"),
            vec![
                Peer::reshard("reshard", &["load", "llama", &gb, &ours, &n]),
                dcp("DCP", "load", "llama", &gb, &theirs, &[]),
            ],
            &[Target { peer: "DCP", least: 1.5 }],
        )?;
        let unverified = Peer::reshard("reshard", &["load", "llama", &gb, &ours, &n, "--no-verify"]);
        compare(
            args,
            &format!("load same split, unverified, {place}"),
            vec![
                unverified,
                dcp("DCP", "load", "llama", &gb, &theirs, &[]),
                Peer::reshard("pread", &["pread", "llama", &gb, &plain, &n]),
            ],
            &[Target { peer: "DCP", least: 2.0 }, Target { peer: "pread", least: 0.85 }],
        )?;
        compare(
            args,
            &format!("load rows as columns, {place}"),
            vec![
                Peer::reshard("reshard", &["load", "llama", &gb, &ours, &n, "--cut", "columns"]),
                dcp("DCP", "reshard", "llama", &gb, &theirs, &[]),
            ],
            &[Target { peer: "DCP", least: 2.5 }],
        )?;
        for (cut, least) in [("rows", 1.05), ("columns", f64::INFINITY)] {
            let args_of = ["load", "llama", &gb, &ours, &n, "--cut", cut, "--parts", "8", "--world", "1"];
            let title = format!("load an eighth of the {cut}, {place}");
            let peers = compare(args, &title, vec![Peer::reshard("reshard", &args_of)], &[])?;
            if let Some(m) = peers.first().and_then(Peer::last) {
                let ratio = m.read as f64 / m.needed as f64;
                let verdict = match least.is_finite() {
                    true if ratio <= least => "(target 1.05, reached)",
                    true => "(target 1.05, MISSED)",
                    false => "",
                };
                let headers = m.headers >> 10;
                println!(
                    "| {title} | bytes read per byte needed | {ratio:.3} {verdict} | | | headers {headers} KiB | |"
                );
            }
        }
        let one = at("one");
        Peer::reshard("reshard", &["save", "one", &gb, &one, "1"]).run(args)?;
        compare(
            args,
            &format!("load one tensor of {gb} GB, stored as one chunk, onto 1 rank, {place}"),
            vec![
                Peer::reshard("reshard", &["load", "one", &gb, &one, &n, "--parts", "1", "--world", "1"]),
                dcp("DCP", "load", "one", &gb, &one, &["--world", "1"]),
                Peer::reshard("pread", &["pread", "llama", &gb, &plain, &n]),
            ],
            &[],
        )?;
        std::fs::remove_dir_all(&one)?;
        compare(
            args,
            &format!("save 8,192 tensors of 64 KiB, {place}"),
            vec![
                Peer::reshard("reshard", &["save", "small", &small, &ours_small, &n]),
                dcp("DCP", "save", "small", &small, &theirs_small, &[]),
            ],
            &[Target { peer: "DCP", least: 10.0 }],
        )?;
        compare(
            args,
            &format!("load 8,192 tensors of 64 KiB, {place}"),
            vec![
                Peer::reshard("reshard", &["load", "small", &small, &ours_small, &n]),
                dcp("DCP", "load", "small", &small, &theirs_small, &[]),
            ],
            &[Target { peer: "DCP", least: 10.0 }],
        )?;
    }
    compare(
        args,
        "global plan, 1,024 ranks x 1,000 items",
        vec![
            Peer::reshard("reshard", &["plan", "1024", "1000"]),
            Peer::python("DCP", "dcp_plan_bench.py", &["plan", "1024", "1000"]),
        ],
        &[Target { peer: "DCP", least: 20.0 }],
    )?;
    compare(
        args,
        "1 million pieces in shards of 512 MiB",
        vec![Peer::reshard("reshard", &["policy", "1000000", &n])],
        &[],
    )?;
    if args.python.is_some() {
        let dir = tempfile::tempdir()?;
        let file = text(&dir.path().join(".metadata"));
        Peer::python("DCP", "dcp_plan_bench.py", &["write", "1000", "1000", &file]).run(args)?;
        compare(
            args,
            "parse .metadata of a million chunks",
            vec![
                Peer::reshard("reshard", &["parse", &file, &n]),
                Peer::python("pickle.load", "dcp_plan_bench.py", &["load", &file, "2"]),
            ],
            &[Target { peer: "pickle.load", least: 5.0 }],
        )?;
    }
    Ok(())
}

/// Lookups in a table of 10 million x 64 float32 in 8 parts, by two threads.
fn embeddings(args: &Args) -> Result<()> {
    const SCRIPT: &str = "embedding_bench.py";
    let n = args.iterations.to_string();
    let torch = |name, what| Peer::python(name, SCRIPT, &["torch", what, &n]);
    let tensorflow = |name, who, what| Peer::tensorflow(name, SCRIPT, &[who, what, &n]);
    compare(
        args,
        "look up 1 million ids, into new memory",
        vec![
            Peer::reshard("reshard", &["embedding", "lookup", &n]),
            torch("torch embedding, table in one piece", "lookup"),
        ],
        &[Target { peer: "torch embedding, table in one piece", least: 1.0 }],
    )?;
    // TensorFlow keeps memory between calls.
    compare(
        args,
        "look up 1 million ids, into memory that is kept",
        vec![
            Peer::reshard("reshard", &["embedding", "into", &n]),
            torch("torch index_select(out=), table in one piece", "into"),
            tensorflow("TensorFlow, tf.function", "tensorflow", "lookup"),
            tensorflow("TensorFlow, eager", "tensorflow-eager", "lookup"),
        ],
        &[
            Target { peer: "TensorFlow, tf.function", least: 3.0 },
            Target { peer: "TensorFlow, eager", least: 3.0 },
        ],
    )?;
    compare(
        args,
        "gradients of these rows for each part",
        vec![
            Peer::reshard("reshard", &["embedding", "gradients", &n]),
            tensorflow("TensorFlow, tf.function", "tensorflow", "gradients"),
            tensorflow("TensorFlow, eager", "tensorflow-eager", "gradients"),
        ],
        &[],
    )?;
    Ok(())
}
