//! The table: every comparison, with its targets, in the order in which it is printed.

use crate::{
    formats,
    huge::Mounted,
    megatron,
    peer::{NOTHING, OURS, Peer, Pythons, RUNS, VERIFIED, WRITES},
    places::{self, Servers},
    row::{Row, Runs, Target},
};
use anyhow::{Context, Result};
use std::{
    io::Write,
    path::{Path, PathBuf},
    time::Instant,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pythons: Pythons,
    #[command(flatten)]
    servers: Servers,
    /// Only rows whose name holds this text, such as "64 KiB" or "disk".
    #[arg(long)]
    only: Option<String>,
    /// Where to save, and what that is called.
    #[arg(long, value_parser = place, default_values = ["tmpfs=/dev/shm", "disk=target"])]
    on: Vec<(String, PathBuf)>,
    /// Size of the Llama-like state in GB.
    #[arg(long, default_value_t = 1.6)]
    gb: f64,
    /// Size of the many small tensors in GB: 8,192 of 64 KiB.
    #[arg(long, default_value_t = 0.5368709)]
    small_gb: f64,
    /// Size of the state that is synced in GB.
    #[arg(long, default_value_t = 0.51)]
    synced_gb: f64,
    /// Size of the Llama-like state that is converted, compared and looked at in GB.
    #[arg(long, default_value_t = 4.6)]
    large_gb: f64,
    /// Counted runs of each measurement, in three processes that take turns with the others.
    #[arg(long, default_value_t = 15)]
    runs: usize,
}

fn place(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = text
        .split_once('=')
        .ok_or("a place is written as name=directory")?;
    Ok((name.into(), path.into()))
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

/// A file system that loses everything with the machine.
fn is_in_memory(path: &Path) -> Result<bool> {
    const TMPFS: u64 = 0x0102_1994;
    Ok(rustix::fs::statfs(path)?.f_type as u64 == TMPFS)
}

/// Rows that need the same folder. The folder goes before what it lies in.
struct Group {
    folder: Option<tempfile::TempDir>,
    mounted: Option<Mounted>,
    rows: Vec<Row>,
}

/// The rows of a place.
fn rows_of_place(args: &Args, (name, path): (&str, &Path), folder: &Path) -> Result<Vec<Row>> {
    let gb = &*args.gb.to_string();
    let mut rows = large(args, name, folder);
    rows.push(one_chunk(args, name, folder));
    rows.extend(small(args, name, folder));

    // In memory there is no disk to wait for. How long training waits does not depend on the disk.
    if is_in_memory(path)? {
        rows.extend(stalls(args, name, folder));
        rows.extend(megatron::zarr(gb, name, folder));
        rows.push(megatron::flattened(gb, name, folder));
        rows.extend(megatron::zarr3(gb, name, folder));
        rows.push(megatron::unflatten(name, folder));
    } else {
        rows.extend(synced(args, name, folder));
    }
    Ok(rows)
}

/// The rows of a place whose states are large, or are those of other formats.
fn large_rows_of_place(
    args: &Args,
    (name, path): (&str, &Path),
    folder: &Path,
) -> Result<Vec<Row>> {
    let large_gb = &*args.large_gb.to_string();
    if !is_in_memory(path)? {
        return Ok(formats::analyses(large_gb, name, folder));
    }
    let mut rows = formats::bundles(&args.gb.to_string(), name, folder);
    rows.push(formats::conversion(large_gb, name, folder));
    rows.extend(formats::safetensors(large_gb, name, folder));
    Ok(rows)
}

/// Rows of files in huge pages, or why there are none.
fn in_huge_pages(args: &Args) -> Result<Group> {
    const NAME: &str = "tmpfs of huge pages";
    let gb = &*args.gb.to_string();
    let mounted = Mounted::new()?;
    let folder = tempfile::tempdir_in(mounted.path())?;
    let mut rows = megatron::zarr(gb, NAME, folder.path());
    rows.extend(megatron::zarr3(gb, NAME, folder.path()));
    rows.extend(formats::bundles(gb, NAME, folder.path()));
    Ok(Group {
        folder: Some(folder),
        mounted: Some(mounted),
        rows,
    })
}

/// Rows of buckets. Their servers have what they have in memory, which is touched before.
fn in_buckets(args: &Args) -> Result<Option<Group>> {
    let rows = places::rows(&args.gb.to_string(), &args.servers)?;
    if rows.is_empty() {
        return Ok(None);
    }
    let memory = Path::new("/dev/shm");
    let folder = match memory.is_dir() {
        true => Some(tempfile::tempdir_in(memory)?),
        false => None,
    };
    Ok(Some(Group {
        folder,
        mounted: None,
        rows,
    }))
}

/// All rows.
#[expect(clippy::print_stderr, reason = "a program whose output is its result")]
fn groups(args: &Args) -> Result<Vec<Group>> {
    let group = |folder, rows| Group {
        folder,
        mounted: None,
        rows,
    };
    let (mut groups, mut memory) = (Vec::new(), false);
    for (name, path) in &args.on {
        // Two folders, so that what the first rows leave is gone before the others need the memory.
        for rows_of in [rows_of_place, large_rows_of_place] {
            let folder = tempfile::tempdir_in(path)
                .with_context(|| format!("{} can't be written to", path.display()))?;
            let rows = rows_of(args, (name, path), folder.path())?;
            groups.push(group(Some(folder), rows));
        }
        memory |= is_in_memory(path)?;
    }
    if memory {
        match in_huge_pages(args) {
            Ok(group) => groups.push(group),
            Err(why) => {
                eprintln!("no rows on a tmpfs of huge pages, which only root may mount: {why:#}")
            }
        }
    }
    let folder = tempfile::tempdir()?;
    let rows = planning(folder.path());
    groups.push(group(None, rows));
    groups.push(group(None, embeddings()));
    groups.extend(in_buckets(args)?);
    Ok(groups)
}

/// Prints the table, and on the standard error how long it will take.
#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program whose output is its result"
)]
pub(crate) fn run(args: &Args) -> Result<()> {
    // Runs are spread over turns, so that a slow minute of the machine does not hit one program alone.
    let turns = args.runs.clamp(1, 3);
    let runs = Runs {
        turns,
        each: args.runs.div_ceil(turns),
    };
    let mut groups = groups(args)?;

    // Rows are chosen before the estimate, so that it counts only what will run.
    for group in &mut groups {
        group.rows.retain(|row| {
            args.only
                .as_ref()
                .is_none_or(|text| row.title.contains(text))
        });
    }
    let rows = || groups.iter().flat_map(|g| &g.rows);
    let warming = groups
        .iter()
        .filter(|g| g.folder.is_some() && !g.rows.is_empty())
        .count() as f64
        * 10.0;
    let seconds: f64 = rows()
        .map(|row| row.estimate(runs, &args.pythons))
        .sum::<f64>()
        + warming;
    eprintln!(
        "{} comparisons, about {:.0} minutes on a quiet machine",
        rows().count(),
        seconds / 60.0
    );
    if rows().any(|row| row.is_in_bucket()) {
        eprintln!("{}", places::speeds()?);
    }
    println!(
        "| what | who | checks | runs | median | speed | their time / ours | CPU | memory beyond the state |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");

    // The folder of a group lives until its rows are done, and is removed with it.
    let start = Instant::now();
    for Group {
        folder,
        mounted,
        rows,
    } in groups
    {
        if let Some(folder) = &folder
            && !rows.is_empty()
        {
            warm(folder.path(), args.gb)?;
        }
        for row in rows {
            for line in row.run(runs, &args.pythons)? {
                println!("{line}");
            }
        }
        drop(folder);
        drop(mounted);
    }
    eprintln!(
        "it took {:.1} minutes",
        start.elapsed().as_secs_f64() / 60.0
    );
    Ok(())
}

/// Memory that a save or load may take beside the state.
const BESIDE: Target = Target::Memory(64 << 20);

const UNCOMPARED: &str = "reshard, not compared";
const WITHOUT: &str = "writes no CRC-32";

/// DCP's settings, of which the fastest is measured in each row.
const SAVES: [&str; 4] = ["plain", "cached", "cached,threads=2", "cached,ops=1"];
const SAVES_WITHOUT_CRC: [&str; 3] = [
    "cached,no-crc",
    "cached,threads=2,no-crc",
    "cached,no-crc,ops=1",
];
const SMALL_SAVES: [&str; 6] = [
    "plain",
    "cached",
    "cached,threads=2",
    "cached,no-crc",
    "cached,threads=2,no-crc",
    "cached,no-crc,ops=1",
];
const SYNCED_SAVES: [&str; 3] = ["sync,cached", "sync,cached,threads=2", "sync,cached,ops=1"];
const LOADS: [&str; 2] = ["plain", "ops=1"];
/// Pinned memory needs a device of CUDA, so the memory that `stager=cached` keeps is not pinned. A stager in a process copies once more.
const STALLS: [&str; 4] = [
    "cached,stager=cached",
    "cached,stager=default",
    "cached,stager=background",
    "cached,stager=default,ops=1",
];

/// A save that compares replicas, beside one that does not.
fn compared(gb: &str, place: &str, dir: &str) -> Row {
    let save = |name, more: &[&str]| {
        let all = ["save", "llama", gb, dir, RUNS, "--cut", "whole"];
        Peer::reshard(name, &[&all[..], more].concat()).checks(WRITES)
    };
    Row::new(
        format!("save {gb} GB of which each of 2 ranks has a replica, and compare them, {place}"),
        vec![save(OURS, &["--check-replicas"]), save(UNCOMPARED, &[])],
        vec![Target::Ratio(UNCOMPARED, 1.0 / 1.3)],
    )
}

/// Few large tensors.
fn large(args: &Args, place: &str, base: &Path) -> Vec<Row> {
    let gb = &*args.gb.to_string();
    let at = |name: &str| base.join(name).display().to_string();
    let (ours, theirs, plain) = (&*at("ours"), &*at("theirs"), &*at("plain"));
    let save = || Peer::reshard(OURS, &["save", "llama", gb, ours, RUNS]).checks(WRITES);
    let save_theirs = || Peer::dcp("DCP", "save", "llama", gb, theirs, &[]).checks(WRITES);
    let pwrite = || Peer::reshard("pwrite", &["pwrite", "llama", gb, plain, RUNS]);
    let pread = || Peer::reshard("pread", &["pread", "llama", gb, plain, RUNS]).checks(NOTHING);
    let load = |more: &[&str]| {
        let all: Vec<&str> = ["load", "llama", gb, ours, RUNS]
            .iter()
            .chain(more)
            .copied()
            .collect();
        Peer::reshard(OURS, &all)
    };
    let load_theirs = |mode| {
        Peer::dcp("DCP", mode, "llama", gb, theirs, &[])
            .best_of(&LOADS)
            .checks(NOTHING)
            .costs(5.0, 0.5)
    };

    // Each row names what it needs, which is made off the clock and kept for the rows after it.
    let mut rows = vec![
        Row::new(
            format!("save {gb} GB, {place}"),
            vec![
                save(),
                save_theirs().best_of(&SAVES),
                Peer::dcp("DCP, CRC off", "save", "llama", gb, theirs, &[])
                    .best_of(&SAVES_WITHOUT_CRC)
                    .checks(WITHOUT),
                pwrite(),
            ],
            vec![
                Target::Ratio("DCP", 2.5),
                Target::Ratio("DCP, CRC off", 1.0),
                Target::Ratio("pwrite", 0.7),
                BESIDE,
            ],
        ),
        compared(gb, place, &at("replicas")),
        Row::new(
            format!("load same split, {place}"),
            vec![load(&[]).checks(VERIFIED), load_theirs("load")],
            vec![Target::Ratio("DCP", 1.5), BESIDE],
        )
        .needs(ours, save())
        .needs(theirs, save_theirs()),
        Row::new(
            format!("load same split, unverified, {place}"),
            vec![
                load(&["--no-verify"]).checks(NOTHING),
                load_theirs("load"),
                pread(),
            ],
            vec![
                Target::Ratio("DCP", 2.0),
                Target::Ratio("pread", 0.85),
                BESIDE,
            ],
        )
        .needs(ours, save())
        .needs(theirs, save_theirs())
        .needs(plain, pwrite()),
        Row::new(
            format!("load rows as columns, {place}"),
            vec![
                load(&["--cut", "columns"]).checks("nothing: no rank reads all of a chunk"),
                load_theirs("reshard").costs(5.0, 0.8),
            ],
            vec![Target::Ratio("DCP", 2.5), BESIDE],
        )
        .needs(ours, save())
        .needs(theirs, save_theirs()),
    ];
    rows.extend(shared(args, place, base));
    for (cut, most) in [("rows", 1.05), ("columns", f64::INFINITY)] {
        let part = load(&["--cut", cut, "--parts", "8", "--world", "1"])
            .checks("nothing: parts of chunks");
        let row = Row::new(
            format!("load an eighth of the {cut}, {place}"),
            vec![part],
            vec![BESIDE],
        );
        rows.push(row.needs(ours, save()).amplification(most));
    }
    rows
}

/// Loads in which ranks read for each other.
fn shared(args: &Args, place: &str, base: &Path) -> Vec<Row> {
    let gb = &*args.gb.to_string();
    let at = |name: &str| base.join(name).display().to_string();
    let (ours, theirs) = (&*at("ours"), &*at("theirs"));
    let save = || Peer::reshard(OURS, &["save", "llama", gb, ours, RUNS]);
    let load = |name, more: &[&str]| {
        let all: Vec<&str> = ["load", "llama", gb, ours, RUNS]
            .iter()
            .chain(more)
            .copied()
            .collect();
        Peer::reshard(name, &all)
    };
    // A rank that reads for others reads whole chunks, so it can check them. DCP checks nothing, so both are measured.
    let columns = |name: String, more: &[&str], checks| {
        let how: Vec<&str> = ["--cut", "columns", "--shared"]
            .iter()
            .chain(more)
            .copied()
            .collect();
        let peers = vec![
            load(OURS, &how).checks(checks),
            Peer::dcp("DCP", "reshard", "llama", gb, theirs, &[])
                .best_of(&LOADS)
                .checks(NOTHING)
                .costs(5.0, 0.8),
        ];
        Row::new(name, peers, vec![Target::Ratio("DCP", 3.5)])
            .needs(ours, save())
            .needs(theirs, Peer::dcp("DCP", "save", "llama", gb, theirs, &[]))
    };
    let name = format!("load rows as columns, a group reads for all, {place}");
    let unverified = format!("load rows as columns, a group reads for all, unverified, {place}");
    let all = ["--cut", "whole", "--world", "4", "--limit", "500"];
    let together: Vec<&str> = all.iter().chain(&["--shared"]).copied().collect();
    let alone = "each rank by itself";
    let replicated = Row::new(
        format!("load all of {gb} GB onto each of 4 ranks, a group reads for all, from a store of 500 MB/s, {place}"),
        vec![
            load(OURS, &together).checks(VERIFIED).costs(2.0, 4.0),
            load(alone, &all).checks(VERIFIED).costs(2.0, 13.0),
        ],
        vec![Target::Ratio(alone, 3.5)],
    )
    .needs(ours, save());
    vec![
        columns(name, &[], VERIFIED),
        columns(unverified, &["--no-verify"], NOTHING),
        replicated,
    ]
}

/// A tensor that all of a machine's threads read together.
fn one_chunk(args: &Args, place: &str, base: &Path) -> Row {
    let gb = &*args.gb.to_string();
    let at = |name: &str| base.join(name).display().to_string();
    let (plain, one) = (&*at("plain"), &*at("one"));
    let load = ["load", "one", gb, one, RUNS, "--parts", "1", "--world", "1"];
    let theirs = Peer::dcp("DCP", "load", "one", gb, one, &["--world", "1"]);
    let peers = vec![
        Peer::reshard(OURS, &load).checks(VERIFIED),
        theirs.best_of(&LOADS).checks(NOTHING),
        Peer::reshard("pread", &["pread", "llama", gb, plain, RUNS]).checks(NOTHING),
    ];
    let name = format!("load one tensor of {gb} GB, stored as one chunk, onto 1 rank, {place}");
    Row::new(name, peers, vec![])
        .needs(one, Peer::reshard(OURS, &["save", "one", gb, one, "1"]))
        .needs(
            plain,
            Peer::reshard("pwrite", &["pwrite", "llama", gb, plain, RUNS]),
        )
        .removes(one)
}

/// Many small tensors.
fn small(args: &Args, place: &str, base: &Path) -> Vec<Row> {
    let gb = &*args.small_gb.to_string();
    let at = |name: &str| base.join(name).display().to_string();
    let (ours, theirs) = (&*at("ours-small"), &*at("theirs-small"));
    let save = || Peer::reshard(OURS, &["save", "small", gb, ours, RUNS]).checks(WRITES);
    let save_theirs = || Peer::dcp("DCP", "save", "small", gb, theirs, &[]);
    let saves = Row::new(
        format!("save 8,192 tensors of 64 KiB, {place}"),
        vec![
            save(),
            save_theirs().best_of(&SMALL_SAVES).checks("as it says"),
        ],
        vec![Target::Ratio("DCP", 10.0), BESIDE],
    );
    let loads = Row::new(
        format!("load 8,192 tensors of 64 KiB, {place}"),
        vec![
            Peer::reshard(OURS, &["load", "small", gb, ours, RUNS]).checks(VERIFIED),
            Peer::dcp("DCP", "load", "small", gb, theirs, &[])
                .best_of(&LOADS)
                .checks(NOTHING),
        ],
        vec![Target::Ratio("DCP", 10.0), BESIDE],
    );
    vec![
        saves,
        loads.needs(ours, save()).needs(theirs, save_theirs()),
    ]
}

/// From the call of an asynchronous save until the state may change; the second save of a structure and those after it.
fn stalls(args: &Args, place: &str, base: &Path) -> Vec<Row> {
    let (large, small) = (&*args.gb.to_string(), &*args.small_gb.to_string());
    let at = |name: &str| base.join(name).display().to_string();
    let (ours, theirs) = (&*at("ours-stall"), &*at("theirs-stall"));
    let stall = |state, gb, more: &[&str]| {
        let all = [&["stall", state, gb, ours, RUNS], more].concat();
        Peer::reshard(OURS, &all).costs(1.5, 1.5)
    };
    let copy = |state, gb| Peer::reshard("copy", &["copy", state, gb, ours, RUNS]);
    let dcp = |state, gb| {
        Peer::dcp("DCP", "stall", state, gb, theirs, &[])
            .best_of(&STALLS)
            .costs(5.0, 4.0)
    };
    vec![
        Row::new(
            format!("asynchronous save until the state may change, {large} GB, {place}"),
            vec![
                stall("llama", large, &[]),
                copy("llama", large),
                dcp("llama", large),
            ],
            vec![Target::Ratio("copy", 0.87), Target::Ratio("DCP", 0.95)],
        ),
        Row::new(
            format!("the same with shared memory, {large} GB, {place}"),
            vec![stall("llama", large, &["--share"])],
            vec![Target::Seconds(0.02)],
        ),
        Row::new(
            format!(
                "asynchronous save until the state may change, 8,192 tensors of 64 KiB, {place}"
            ),
            vec![
                stall("small", small, &[]),
                copy("small", small),
                dcp("small", small),
            ],
            vec![Target::Ratio("DCP", 5.0)],
        ),
    ]
}

/// What users get who set nothing: every file is on the disk when a save returns.
fn synced(args: &Args, place: &str, base: &Path) -> Vec<Row> {
    let gb = &*args.synced_gb.to_string();
    let at = |name: &str| base.join(name).display().to_string();
    let (ours, theirs, plain) = (
        &*at("ours-synced"),
        &*at("theirs-synced"),
        &*at("plain-synced"),
    );
    let rows = [("save", None), ("overwrite", Some("--overwrite"))].map(|(what, overwrite)| {
        let ours: Vec<&str> = ["save", "llama", gb, ours, RUNS, "--synced"]
            .into_iter()
            .chain(overwrite)
            .collect();
        let plain: Vec<&str> = ["pwrite", "llama", gb, plain, RUNS, "--synced"]
            .into_iter()
            .chain(overwrite)
            .collect();
        let theirs = Peer::dcp("DCP", "save", "llama", gb, theirs, overwrite.as_slice());
        let peers = vec![
            Peer::reshard(OURS, &ours).checks(WRITES).costs(1.5, 1.5),
            theirs.best_of(&SYNCED_SAVES).checks(WRITES).costs(5.0, 1.5),
            Peer::reshard("pwrite and fsync", &plain).costs(1.5, 1.5),
        ];
        Row::new(
            format!("{what} {gb} GB and fsync, as by default, {place}"),
            peers,
            vec![],
        )
        .turns(2)
    });
    rows.into()
}

fn planning(folder: &Path) -> Vec<Row> {
    const SCRIPT: &str = "dcp_plan_bench.py";
    let plans = ["1", "8"].map(|replicas| {
        Row::new(
            format!("global plan, 1,024 ranks x 1,000 items, {replicas} of each"),
            vec![
                Peer::reshard(OURS, &["plan", "1024", "1000", replicas]).costs(2.5, 0.0),
                Peer::torch("DCP", SCRIPT, &["plan", "1024", "1000", replicas]).costs(25.0, 0.0),
            ],
            vec![Target::Ratio("DCP", 20.0)],
        )
    });
    let file = &*folder.join(".metadata").display().to_string();
    let parse = Row::new(
        "parse .metadata of a million chunks",
        vec![
            Peer::reshard(OURS, &["parse", file, RUNS]).costs(0.5, 1.5),
            Peer::torch("pickle.load", SCRIPT, &["load", file, "2"]).costs(20.0, 0.0),
        ],
        vec![
            Target::Ratio("pickle.load", 5.0),
            Target::Memory(200_000_000),
        ],
    )
    .needs(
        file,
        Peer::torch("DCP", SCRIPT, &["write", "1000", "1000", file]),
    );
    let pieces = Row::new(
        "1 million pieces in shards of 512 MiB",
        vec![Peer::reshard(OURS, &["policy", "1000000", RUNS])],
        vec![Target::Seconds(1.0), Target::Memory(500_000_000)],
    );
    let mut rows: Vec<Row> = plans.into_iter().chain([pieces, parse]).collect();
    rows.extend(repeated(folder));
    rows
}

/// Saves one after the other of 2 x 4,096 pieces, with a kept plan and without.
fn repeated(folder: &Path) -> [Row; 2] {
    const ANEW: &str = "planned anew";
    let dir = &*folder.join("repeated").display().to_string();
    let ours = |name, more: &[&str]| {
        let all = [&["replan", "4096", dir, RUNS], more].concat();
        Peer::reshard(name, &all).costs(1.0, 0.1)
    };
    [
        Row::new(
            "planning of a repeated save, 2 ranks x 4,096 tensors",
            vec![ours(OURS, &[]), ours(ANEW, &["--anew"])],
            vec![Target::Ratio(ANEW, 10.0)],
        ),
        Row::new(
            "the same with all that comes before writing",
            vec![ours(OURS, &["--phase"]), ours(ANEW, &["--anew", "--phase"])],
            vec![],
        ),
    ]
}

/// Lookups in a table of 10 million x 64 float32 in 8 parts, by two threads.
fn embeddings() -> Vec<Row> {
    const SCRIPT: &str = "embedding_bench.py";
    let ours = |name, what| {
        Peer::reshard(name, &["embedding", what, RUNS])
            .costs(6.0, 0.15)
            .huge_pages()
    };
    let torch = |name, what| {
        Peer::torch(name, SCRIPT, &["torch", what, RUNS])
            .costs(8.0, 0.15)
            .huge_pages()
    };
    let tensorflow =
        |name, who, what| Peer::tensorflow(name, SCRIPT, &[who, what, RUNS]).huge_pages();
    const LOOP: &str = "a plain loop";
    const FUNCTION: &str = "TensorFlow, tf.function";
    const EAGER: &str = "TensorFlow, eager";
    let targets = |torch| {
        vec![
            Target::Ratio(torch, 1.0),
            Target::Either((FUNCTION, 3.0), (LOOP, 0.95)),
            Target::Either((EAGER, 3.0), (LOOP, 0.95)),
        ]
    };
    const EMBEDDING: &str = "torch embedding, table in one piece";
    const SELECT: &str = "torch index_select(out=), table in one piece";
    vec![
        Row::new(
            "look up 1 million ids, into new memory",
            vec![
                ours(OURS, "lookup"),
                ours(LOOP, "loop"),
                torch(EMBEDDING, "lookup"),
                tensorflow(FUNCTION, "tensorflow", "new"),
                tensorflow(EAGER, "tensorflow-eager", "new"),
            ],
            targets(EMBEDDING),
        ),
        Row::new(
            "look up 1 million ids, into memory that is kept",
            vec![
                ours(OURS, "into"),
                ours(LOOP, "loop-into"),
                torch(SELECT, "into"),
                tensorflow(FUNCTION, "tensorflow", "lookup"),
                tensorflow(EAGER, "tensorflow-eager", "lookup"),
            ],
            targets(SELECT),
        ),
        Row::new(
            "gradients of these rows for each part",
            vec![
                ours(OURS, "gradients"),
                tensorflow(FUNCTION, "tensorflow", "gradients"),
                tensorflow(EAGER, "tensorflow-eager", "gradients"),
            ],
            vec![],
        ),
    ]
}
