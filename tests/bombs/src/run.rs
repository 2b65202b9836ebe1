//! Each command on a bomb, in a process of its own, under limits.

use crate::Bomb;
use anyhow::{Context, Result};
use reshard_model::testkit::is_thorough;
use std::{
    io::{Read, Write, stderr},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Of address space.
const MEMORY: u64 = 1_500_000_000;
/// Of resident memory, unless the bomb has a limit of its own.
const RESIDENT: u64 = 1_200_000_000;
/// Time of all CPUs. A release build, which users have, gets 10 s. The build of `cargo xtask test` is not optimised: it shows
/// only whether a command ends at all.
const CPU_SECONDS: u64 = if cfg!(debug_assertions) { 100 } else { 10 };
/// Of one file that is written.
const FILE: u64 = 2 << 30;
/// A command that waits for nothing is killed after this.
const PATIENCE: Duration = Duration::from_secs(300);
/// What has killed so many commands would kill the others too, and each may take all its time.
const DEATHS: u32 = 2;
/// From a bomb to the next, the command that a change tries moves on by this. It has no factor in common with the number of commands.
const STRIDE: usize = 11;
/// What is kept of a command's output.
const KEPT: usize = 1 << 20;

/// Bombs that take more than 2.5 s in a build that is not optimised. They are tried only at night, in a release build.
pub const AT_NIGHT: &[&str] = &[
    "a key of 10 MB",
    "a key of 100 kB in 20,000 chunks that are lost",
    "a key of 5 MB that can't be seen",
    "a name of 4 kB of a file in which 100,000 objects overlap",
    "bundle/tiny entries",
    "chunks that cross as rows and columns",
    "chunks that nearly meet in all axes",
    "descriptions of 1 MiB, deflated, of 6,000 tensors",
    "every other element is missing",
    "flat/a chunk for each cell",
    "keys of 100 kB with near misses",
    "many chunks without elements",
    "many chunks without places",
    "map/a million layers",
    "map/a prefix that comes and goes",
    "map/captures for many keys",
    "map/groups of many sizes",
    "map/long names for many keys",
    "map/many patterns for long keys",
    "map/many patterns for many keys",
    "map/of rules alone",
    "map/parts that are mostly missing",
    "metadata.json in many braces",
    "metadata.json in many brackets",
    "metadata.json of escapes",
    "metadata.json of many members",
    "metadata.json with a long name",
    "metadata.json with a long number",
    "nothing but Nones, 100 MB",
    "nothing but small ints, 100 MB",
    "nothing but tuples, 60 MB",
    "objects that lie nowhere",
    "ranks of equal places",
    "reshard.json in many braces",
    "reshard.json of a path of many steps",
    "reshard.json of empty paths",
    "safetensors/a header of braces",
    "safetensors/a long element type",
    "safetensors/a shape of millions of axes",
    "safetensors/a tensor of few elements and many pieces",
    "safetensors/an index of keys that are not there",
    "safetensors/an index with a long name",
    "safetensors/an index with long metadata",
    "safetensors/many quantised tensors",
    "safetensors/metadata of millions of keys",
    "safetensors/offsets of pieces without end",
    "safetensors/tensors of many axes",
    "safetensors/tensors without elements",
    "tensors in a file that is all hole",
    "tensors in files that are not there",
    "zarr/a record of many checksums",
    "zarr/an optimizer that is named in many places",
    "zarr/descriptions that are all hole",
    "zarr/files of groups beside arrays with longer names",
    "zarr/packed columns in a shard",
];

/// The commands, `DIR` and `TO` standing for places. With `--json` stdout must be one JSON.
const COMMANDS: [&[&str]; 14] = [
    &["inspect", "DIR"],
    &["inspect", "DIR", "--json"],
    &["inspect", "DIR", "--summary"],
    &["ls", "DIR"],
    &["ls", "DIR", "--json", "--key", "nothing"],
    &["digest", "DIR"],
    &["digest", "DIR", "--json", "--no-verify"],
    &["verify", "DIR"],
    &["verify", "DIR", "--json"],
    &["verify", "DIR", "--quick"],
    &["convert", "DIR", "TO"],
    &[
        "convert",
        "DIR",
        "TO",
        "--ranks",
        "3",
        "--no-verify",
        "--json",
    ],
    &["prune", "DIR", "--dry-run"],
    &["library", "DIR"],
];

/// Runs a share of the commands, or all, on all bombs of a list, those whose names begin with one in `RESHARD_BOMBS` if that is set, and of the
/// commands those that `RESHARD_COMMANDS` names. What fails is told at once, and counted.
///
/// # Errors
/// The failures; or a bomb could not be made.
pub fn all(program: &str, bombs: &[Bomb]) -> Result<()> {
    let only = |variable: &str| std::env::var(variable).unwrap_or_default();
    let (bombs_only, commands_only) = (only("RESHARD_BOMBS"), only("RESHARD_COMMANDS"));
    let is_one =
        |only: &str, name: &str| only.is_empty() || only.split(',').any(|o| name.starts_with(o));
    // Whether a bomb gets all commands, or one of them, and the next bomb another one.
    let is_chosen = !bombs_only.is_empty() || !commands_only.is_empty();
    let is_whole = is_thorough() || is_chosen;
    let chosen =
        |b: &&Bomb| is_one(&bombs_only, &b.name) && (is_whole || !AT_NIGHT.contains(&&*b.name));
    let mut failures = Vec::new();
    let (mut ran, mut slowest) = (0, (Duration::ZERO, String::new()));
    // Bombs of a kind are neighbours, so a change tries one in three.
    let step = if is_whole { 1 } else { 3 };
    for (number, bomb) in bombs.iter().filter(chosen).step_by(step).enumerate() {
        let home = tempfile::tempdir()?;
        let dir = home.path().join("bomb");
        std::fs::create_dir(&dir)?;
        (bomb.make)(&dir).with_context(|| format!("{} can't be made", bomb.name))?;
        let more = bomb
            .commands
            .iter()
            .map(|c| c.iter().map(String::as_str).collect::<Vec<_>>());
        let mut deaths = 0;
        let usual = COMMANDS.iter().filter(|_| bomb.usual).map(|c| c.to_vec());
        let mut commands: Vec<_> = usual.chain(more).collect();
        if !is_whole {
            // Of the usual commands these are `convert --ranks 3`, `verify --json`, `digest`, `inspect --summary`, `library`, and so on.
            commands = vec![commands.swap_remove(STRIDE * (number + 1) % commands.len())];
        }
        for command in commands
            .into_iter()
            .filter(|c| is_one(&commands_only, &text(c)))
        {
            let to = home.path().join("to");
            if deaths == DEATHS {
                writeln!(stderr(), "{}: the other commands were not tried", bomb.name)?;
                break;
            }
            let ended = command_on(program, &command, &dir, &to)?;
            let resident = bomb.resident.unwrap_or(RESIDENT);
            deaths += u32::from(ended.status.signal().is_some());
            if to.exists() {
                std::fs::remove_dir_all(&to)?;
            }
            let name = format!("{} {}", bomb.name, text(&command));
            for problem in ended.problems(&command, resident) {
                writeln!(stderr(), "{name}: {problem}")?;
                failures.push(format!("{name}: {problem}"));
            }
            if ended.took > Duration::from_secs(1) {
                writeln!(stderr(), "{:5.1} s  {name}", ended.took.as_secs_f64())?;
            }
            if ended.took > slowest.0 {
                slowest = (ended.took, name);
            }
            ran += 1;
        }
    }
    writeln!(
        stderr(),
        "{ran} commands; the slowest took {:.1} s: {}",
        slowest.0.as_secs_f64(),
        slowest.1
    )?;
    anyhow::ensure!(
        ran > 0 || is_chosen,
        "no command ran: all bombs are left to the night"
    );
    if failures.is_empty() {
        return Ok(());
    }
    anyhow::bail!(
        "{} of {ran} commands failed:\n{}",
        failures.len(),
        failures.join("\n")
    )
}

fn text(command: &[&str]) -> String {
    command.join(" ").chars().take(80).collect()
}

/// What a command left.
struct Ended {
    status: ExitStatus,
    out: Vec<u8>,
    /// Nothing of the output was left out.
    whole: bool,
    err: String,
    took: Duration,
    hung: bool,
    /// The most resident memory that was seen, in bytes.
    peak: u64,
}

impl Ended {
    fn problems(&self, command: &[&str], resident: u64) -> Vec<String> {
        let mut found = Vec::new();
        if self.peak > resident {
            let peak = self.peak;
            found.push(format!(
                "{peak} bytes of resident memory, beyond {resident}"
            ));
        }
        if self.err.len() == KEPT {
            found.push("more than a megabyte of messages".into());
        }
        let took = self.took.as_secs_f64();
        let first: String = self
            .err
            .lines()
            .next()
            .unwrap_or_default()
            .chars()
            .take(200)
            .collect();
        match (self.hung, self.status.signal(), self.status.code()) {
            (true, ..) => found.push(format!("still at work after {took:.0} s")),
            (_, Some(signal), _) => {
                found.push(format!("signal {signal} after {took:.1} s: {first}"))
            }
            (_, _, Some(0..=3)) => {}
            (_, _, code) => found.push(format!("exit code {code:?}: {first}")),
        }
        for odd in [
            "panicked",
            "report this",
            "File too large",
            "memory allocation",
        ] {
            if self.err.contains(odd) && self.status.signal().is_none() {
                found.push(format!("says {odd:?}: {first}"));
            }
        }
        let failed = self.status.code().is_some_and(|code| code != 0);
        // What differs, and what `inspect` finds damaged, is a result on standard output.
        let json = command.contains(&"--json");
        let result = matches!(command.first(), Some(&("diff" | "inspect")));
        let told = json || (result && !self.out.is_empty());
        if failed && self.err.is_empty() && !told {
            found.push("failed without a word".into());
        }
        if json && self.whole && self.status.signal().is_none() {
            match serde_json::from_slice::<serde_json::Value>(&self.out) {
                Ok(_) => {}
                // Deeper than the parser goes is not wrong.
                Err(e) if e.to_string().contains("recursion limit") => {}
                Err(e) => found.push(format!("stdout is no JSON: {e}")),
            }
        }
        found
    }
}

fn command_on(program: &str, command: &[&str], dir: &Path, to: &Path) -> Result<Ended> {
    let limits = format!(
        "trap '' XFSZ; ulimit -c 0; ulimit -v {}; ulimit -t {CPU_SECONDS}; ulimit -f {}; exec \"$@\"",
        MEMORY / 1024,
        FILE / 512
    );
    let mut child = Command::new("sh");
    child.args(["-c", &limits, "sh", program]);
    for arg in command {
        match *arg {
            "DIR" => child.arg(dir),
            "TO" => child.arg(to),
            // A file in the checkpoint.
            arg => match arg.strip_prefix("DIR/") {
                Some(file) => child.arg(dir.join(file)),
                None => child.arg(arg),
            },
        };
    }
    let start = Instant::now();
    let mut child = child
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("sh")?;
    let out = child.stdout.take().map(|s| thread::spawn(|| first_of(s)));
    let err = child.stderr.take().map(|s| thread::spawn(|| first_of(s)));
    let (mut hung, mut pause, mut peak) = (false, Duration::from_millis(1), 0);
    let status = loop {
        peak = peak.max(peak_of(child.id()));
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > PATIENCE {
            hung = true;
            child.kill()?;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    let took = start.elapsed();
    let read = |t: Option<thread::JoinHandle<_>>| t.and_then(|t| t.join().ok()).unwrap_or_default();
    let ((out, whole), (err, _)) = (read(out), read(err));
    Ok(Ended {
        status,
        out,
        whole,
        err: String::from_utf8_lossy(&err).into_owned(),
        took,
        hung,
        peak,
    })
}

/// The most resident memory of a process so far, in bytes; 0 if it has ended. What it takes in its last moments is not seen.
fn peak_of(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map_or(0, |kib| kib << 10)
}

/// The beginning of a stream that is read to its end, and whether that is all of it.
fn first_of(mut stream: impl Read) -> (Vec<u8>, bool) {
    let (mut kept, mut block, mut whole) = (Vec::new(), vec![0; 64 << 10], true);
    while let Ok(n) = stream.read(&mut block) {
        if n == 0 {
            break;
        }
        let room = (KEPT - kept.len()).min(n);
        whole &= room == n;
        kept.extend_from_slice(&block[..room]);
    }
    (kept, whole)
}
