//! Runs every measurement in a process of its own, peers in turn, and prints medians and ratios beside their targets.

use crate::peer::{Peer, Pythons, Target, compare};
use anyhow::{Context, Result};
use std::{io::Write, path::Path};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pythons: Pythons,
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Checkpoints,
    Embeddings,
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

/// Memory that a save or load may take beside the state.
const BESIDE: Target = Target::Memory(64 << 20);

fn checkpoints(args: &Args) -> Result<()> {
    let pythons = &args.pythons;
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
            pythons,
            &format!("save {gb} GB, {place}"),
            vec![
                Peer::reshard("reshard", &["save", "llama", &gb, &ours, &n]),
                dcp("DCP", "save", "llama", &gb, &theirs, &[]),
                dcp("DCP, 2 threads", "save", "llama", &gb, &theirs, &["--threads", "2"]),
                dcp("DCP, CRC off", "save", "llama", &gb, &theirs, &["--no-crc"]),
                Peer::reshard("pwrite", &["pwrite", "llama", &gb, &plain, &n]),
            ],
            &[
                Target::Ratio("DCP", 2.5),
                Target::Ratio("DCP, CRC off", 1.0),
                Target::Ratio("pwrite", 0.7),
                BESIDE,
            ],
        )?;
        compare(
            pythons,
            &format!("load same split, {place}"),
            vec![
                Peer::reshard("reshard", &["load", "llama", &gb, &ours, &n]),
                dcp("DCP", "load", "llama", &gb, &theirs, &[]),
            ],
            &[Target::Ratio("DCP", 1.5), BESIDE],
        )?;
        let unverified = Peer::reshard("reshard", &["load", "llama", &gb, &ours, &n, "--no-verify"]);
        compare(
            pythons,
            &format!("load same split, unverified, {place}"),
            vec![
                unverified,
                dcp("DCP", "load", "llama", &gb, &theirs, &[]),
                Peer::reshard("pread", &["pread", "llama", &gb, &plain, &n]),
            ],
            &[Target::Ratio("DCP", 2.0), Target::Ratio("pread", 0.85), BESIDE],
        )?;
        compare(
            pythons,
            &format!("load rows as columns, {place}"),
            vec![
                Peer::reshard("reshard", &["load", "llama", &gb, &ours, &n, "--cut", "columns"]),
                dcp("DCP", "reshard", "llama", &gb, &theirs, &[]),
            ],
            &[Target::Ratio("DCP", 2.5), BESIDE],
        )?;
        for (cut, least) in [("rows", 1.05), ("columns", f64::INFINITY)] {
            let args_of = ["load", "llama", &gb, &ours, &n, "--cut", cut, "--parts", "8", "--world", "1"];
            let title = format!("load an eighth of the {cut}, {place}");
            let peers = compare(pythons, &title, vec![Peer::reshard("reshard", &args_of)], &[BESIDE])?;
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
        Peer::reshard("reshard", &["save", "one", &gb, &one, "1"]).run(pythons)?;
        compare(
            pythons,
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
            pythons,
            &format!("save 8,192 tensors of 64 KiB, {place}"),
            vec![
                Peer::reshard("reshard", &["save", "small", &small, &ours_small, &n]),
                dcp("DCP", "save", "small", &small, &theirs_small, &[]),
            ],
            &[Target::Ratio("DCP", 10.0), BESIDE],
        )?;
        compare(
            pythons,
            &format!("load 8,192 tensors of 64 KiB, {place}"),
            vec![
                Peer::reshard("reshard", &["load", "small", &small, &ours_small, &n]),
                dcp("DCP", "load", "small", &small, &theirs_small, &[]),
            ],
            &[Target::Ratio("DCP", 10.0), BESIDE],
        )?;
    }
    compare(
        pythons,
        "global plan, 1,024 ranks x 1,000 items",
        vec![
            Peer::reshard("reshard", &["plan", "1024", "1000"]),
            Peer::python("DCP", "dcp_plan_bench.py", &["plan", "1024", "1000"]),
        ],
        &[Target::Ratio("DCP", 20.0)],
    )?;
    compare(
        pythons,
        "1 million pieces in shards of 512 MiB",
        vec![Peer::reshard("reshard", &["policy", "1000000", &n])],
        &[Target::Seconds(1.0), Target::Memory(500_000_000)],
    )?;
    if pythons.has_torch() {
        let dir = tempfile::tempdir()?;
        let file = text(&dir.path().join(".metadata"));
        Peer::python("DCP", "dcp_plan_bench.py", &["write", "1000", "1000", &file]).run(pythons)?;
        compare(
            pythons,
            "parse .metadata of a million chunks",
            vec![
                Peer::reshard("reshard", &["parse", &file, &n]),
                Peer::python("pickle.load", "dcp_plan_bench.py", &["load", &file, "2"]),
            ],
            &[Target::Ratio("pickle.load", 5.0), Target::Memory(200_000_000)],
        )?;
    }
    Ok(())
}

/// Lookups in a table of 10 million x 64 float32 in 8 parts, by two threads.
fn embeddings(args: &Args) -> Result<()> {
    let pythons = &args.pythons;
    const SCRIPT: &str = "embedding_bench.py";
    let n = args.iterations.to_string();
    let torch = |name, what| Peer::python(name, SCRIPT, &["torch", what, &n]);
    let tensorflow = |name, who, what| Peer::tensorflow(name, SCRIPT, &[who, what, &n]);
    compare(
        pythons,
        "look up 1 million ids, into new memory",
        vec![
            Peer::reshard("reshard", &["embedding", "lookup", &n]),
            torch("torch embedding, table in one piece", "lookup"),
        ],
        &[Target::Ratio("torch embedding, table in one piece", 1.0)],
    )?;
    // TensorFlow keeps memory between calls.
    compare(
        pythons,
        "look up 1 million ids, into memory that is kept",
        vec![
            Peer::reshard("reshard", &["embedding", "into", &n]),
            torch("torch index_select(out=), table in one piece", "into"),
            tensorflow("TensorFlow, tf.function", "tensorflow", "lookup"),
            tensorflow("TensorFlow, eager", "tensorflow-eager", "lookup"),
        ],
        &[Target::Ratio("TensorFlow, tf.function", 3.0), Target::Ratio("TensorFlow, eager", 3.0)],
    )?;
    compare(
        pythons,
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
