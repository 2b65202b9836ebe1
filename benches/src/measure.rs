//! One measurement in a process of its own, so that its peak memory is its own. Printed as a line of JSON.

use crate::{
    limited::{Limited, Rate},
    measured::Measured,
    ranks::{Args, nbytes, on_ranks},
    state::Cut,
};
use anyhow::{Context, Result, anyhow, bail};
use reshard::{
    Data, Durability, ShardedTensor, StateDict, Stores, Value, ValueTree,
    blocking::{self, run as block_on},
    model::{Leaf, Step, Tree},
    strategy::SaveShardedStrategy,
    torch_dist::TorchDistLoadConfig,
};
use reshard_parallel::FullyParallelLoad;
use serde::Deserialize;
use serde_json::Value as Json;
use std::{fs::File, os::unix::fs::FileExt, path::PathBuf, sync::Arc};

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum What {
    /// Save from two ranks.
    Save {
        #[command(flatten)]
        args: Args,
        #[command(flatten)]
        how: How,
        /// What each rank has of a tensor.
        #[arg(long, default_value = "rows")]
        cut: Cut,
        /// The format: its name, or its configuration as JSON.
        #[arg(long, default_value = "torch_dist", value_parser = format)]
        format: Json,
    },
    /// Load the same split onto two ranks.
    Load {
        #[command(flatten)]
        args: Args,
        /// Leave checksums unchecked.
        #[arg(long)]
        no_verify: bool,
        /// Wanted part of each tensor.
        #[arg(long, default_value = "rows")]
        cut: Cut,
        /// Cut each tensor into so many parts, of which the ranks want the first ones.
        #[arg(long, default_value_t = 2)]
        parts: u64,
        /// Ranks.
        #[arg(long, default_value_t = 2)]
        world: u64,
        /// Let ranks read for each other.
        #[arg(long)]
        shared: bool,
        /// Megabytes that the store gives in a second, to all ranks together.
        #[arg(long)]
        limit: Option<f64>,
    },
    /// From the call of an asynchronous save of two ranks until the state may change.
    Stall {
        #[command(flatten)]
        args: Args,
        /// Memory that nobody can change is not copied.
        #[arg(long)]
        share: bool,
    },
    /// A plain copy of as many bytes by two threads into touched memory.
    Copy(Args),
    /// Rewrite a checkpoint for two ranks, with flattened tensors as plain chunks.
    Unflatten {
        /// The checkpoint.
        src: PathBuf,
        /// Where to write.
        dst: PathBuf,
        /// How often.
        iterations: usize,
    },
    /// Rewrite a checkpoint in another format.
    Convert {
        /// The checkpoint.
        src: PathBuf,
        /// Where to write.
        dst: PathBuf,
        /// How often.
        iterations: usize,
        /// The format: its name, or its configuration as JSON.
        #[arg(long, value_parser = format)]
        format: Json,
        /// Ranks.
        #[arg(long, default_value_t = 1)]
        ranks: u32,
    },
    /// Compare two checkpoints that are on the disk, and not in the page cache.
    Diff {
        /// The first.
        first: PathBuf,
        /// The second, which is equal.
        second: PathBuf,
        /// How often.
        iterations: usize,
    },
    /// Look at all numbers of a checkpoint that is on the disk, and not in the page cache.
    Stats {
        /// The checkpoint.
        dir: PathBuf,
        /// How often.
        iterations: usize,
    },
    /// Plain reads of all files of folders, by two threads.
    ReadFiles {
        /// How often.
        iterations: usize,
        /// The folders.
        dirs: Vec<PathBuf>,
        /// Only so many bytes.
        #[arg(long)]
        first: Option<u64>,
        /// Past the page cache.
        #[arg(long, conflicts_with = "first")]
        direct: bool,
    },
    /// Plain writes of files as long as those of a folder, by two threads.
    WriteFiles {
        /// The folder.
        like: PathBuf,
        /// Where to write.
        dst: PathBuf,
        /// How often.
        iterations: usize,
    },
    /// Copies of all files of a folder by the system's own call, by two threads.
    CopyFiles {
        /// The folder.
        src: PathBuf,
        /// Where to write.
        dst: PathBuf,
        /// How often.
        iterations: usize,
    },
    /// As many bytes with plain pwrite by two threads.
    Pwrite {
        #[command(flatten)]
        args: Args,
        #[command(flatten)]
        how: How,
    },
    /// As many bytes with plain pread by two threads.
    Pread(Args),
    /// Dedup, metadata and validation of a global plan.
    Plan {
        /// Ranks.
        ranks: u32,
        /// Items of each.
        items: u32,
        /// How many ranks hold the same.
        replicas: u32,
    },
    /// Planning of a save that repeats another one.
    Replan {
        /// Tensors, of which each of two ranks has rows.
        tensors: u64,
        /// Where to save.
        dir: PathBuf,
        /// How often.
        iterations: usize,
        /// Plan each save anew.
        #[arg(long)]
        anew: bool,
        /// The whole phase, not planning alone.
        #[arg(long)]
        phase: bool,
    },
    /// A policy's cuts of so many pieces, and their check: shards are `needed`, slices are `read`.
    Policy {
        /// Pieces of all ranks.
        pieces: u32,
        /// How often.
        iterations: usize,
        /// With shards so small that most pieces are cut.
        #[arg(long)]
        cut: bool,
    },
    /// A million rows of an embedding table of ten million.
    Embedding {
        /// What is done.
        what: crate::lookup::Do,
        /// How often.
        iterations: usize,
    },
    /// Reads the pickle of a `.metadata`.
    Parse {
        /// The file.
        file: PathBuf,
        /// How often.
        iterations: usize,
    },
}

/// How a load goes.
#[derive(Clone, Debug)]
struct Loading {
    verify: bool,
    cut: Cut,
    parts: u64,
    world: u64,
    shared: bool,
    rate: Option<Rate>,
}

/// How files are written.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct How {
    /// They are on the disk when it returns.
    #[arg(long)]
    synced: bool,
    /// What is there stays until it is replaced; otherwise it is removed before the clock starts.
    #[arg(long)]
    overwrite: bool,
    /// Replicas are compared.
    #[arg(long)]
    check_replicas: bool,
}

impl How {
    /// What happens off the clock: nothing is there, and nothing of earlier runs waits for the disk.
    fn prepare(self, dir: &std::path::Path) {
        if !self.overwrite {
            drop(crate::bucket::remove(dir));
        }
        if self.synced {
            rustix::fs::sync();
        }
    }
}

pub(crate) fn run(what: &What) -> Result<Measured> {
    match what {
        What::Save {
            args,
            how,
            cut,
            format,
        } => save(args, *how, *cut, format),
        What::Load {
            args,
            no_verify,
            cut,
            parts,
            world,
            shared,
            limit,
        } => {
            let loading = Loading {
                verify: !no_verify,
                cut: *cut,
                parts: *parts,
                world: *world,
                shared: *shared,
                rate: limit.map(|megabytes| Rate::new(megabytes * 1e6)),
            };
            load(args, &loading)
        }
        What::Unflatten {
            src,
            dst,
            iterations,
        } => crate::rewrite::unflatten(src, dst, *iterations),
        What::Convert {
            src,
            dst,
            iterations,
            format,
            ranks,
        } => crate::rewrite::into_format(src, dst, *iterations, *ranks, format),
        What::Diff {
            first,
            second,
            iterations,
        } => crate::analysis::diff(first, second, *iterations),
        What::Stats { dir, iterations } => crate::analysis::stats(dir, *iterations),
        What::ReadFiles {
            iterations,
            dirs,
            first,
            direct,
        } => match direct {
            true => crate::files::read_cold(dirs, *iterations),
            false => crate::files::read(dirs, *first, *iterations),
        },
        What::WriteFiles {
            like,
            dst,
            iterations,
        } => crate::files::write(like, dst, *iterations),
        What::CopyFiles {
            src,
            dst,
            iterations,
        } => crate::rewrite::copy_files(src, dst, *iterations),
        What::Stall { args, share } => crate::stall::stall(args, *share),
        What::Copy(args) => crate::stall::copy(args),
        What::Pwrite { args, how } => plain(args, Some(*how)),
        What::Pread(a) => plain(a, None),
        What::Plan {
            ranks,
            items,
            replicas,
        } => crate::plan::plan(*ranks, *items, *replicas),
        What::Replan {
            tensors,
            dir,
            iterations,
            anew,
            phase,
        } => crate::replan::replan(*tensors, dir, (*anew, *phase), *iterations),
        What::Policy {
            pieces,
            iterations,
            cut,
        } => crate::policy::policy(*pieces, *cut, *iterations),
        What::Embedding { what, iterations } => crate::lookup::lookup(*what, *iterations),
        What::Parse { file, iterations } => crate::plan::parse(file, *iterations),
    }
}

/// The configuration of a format.
fn format(text: &str) -> Result<Json, String> {
    match text.starts_with('{') {
        true => serde_json::from_str(text).map_err(|e| e.to_string()),
        false => Ok(serde_json::json!({ "format": text })),
    }
}

fn save(a: &Args, how: How, cut: Cut, format: &Json) -> Result<Measured> {
    let config = format.clone();
    let (b, url) = (a.clone(), a.dir.display().to_string());
    let dir = a.dir.clone();
    let (runs, states) = on_ranks(
        2,
        a.iterations,
        move |rank| b.state.build(b.gb, rank, 2, cut, 2),
        move || how.prepare(&dir),
        move |state, group| {
            let strategy = SaveShardedStrategy::deserialize(&config)?;
            let save = reshard::save(&state, &url)
                .group(group)
                .strategy(strategy)
                .overwrite(how.overwrite)
                .check_replicas(how.check_replicas);
            let save = if how.synced {
                save
            } else {
                save.durability(Durability::Process)
            };
            blocking::run(save)?;
            Ok(state)
        },
        Ok,
    )?;
    Ok(runs.measured_with_memory(states.iter().map(nbytes).sum()))
}

fn load(a: &Args, loading: &Loading) -> Result<Measured> {
    let Loading {
        verify,
        cut,
        parts,
        world,
        shared,
        rate,
    } = loading.clone();
    let (b, url) = (a.clone(), a.dir.display().to_string());

    // The counts of all runs add up in one place, and are divided by the number of runs below.
    let totals = Arc::new(std::sync::Mutex::new((0u64, 0u64, 0u64)));
    let sums = Arc::clone(&totals);
    let (runs, states) = on_ranks(
        world,
        a.iterations,
        move |rank| {
            let state = b.state.build(b.gb, rank, world, cut, parts)?;
            let leaves = blueprint(&state);
            Ok((state, leaves))
        },
        || (),
        move |(state, leaves), group| {
            let mut load = reshard::load(state, &url).group(group).verify(verify);
            if shared {
                load =
                    load.strategy(FullyParallelLoad::new().around(TorchDistLoadConfig::default()));
            }
            if let Some(rate) = rate.clone() {
                let inner = Stores::linked()?.open(&url)?;
                load = load.store(Arc::new(Limited { inner, rate }));
            }
            let (plain, report) = block_on(load.with_report())?;
            Ok((plain, report.totals, leaves))
        },
        move |(plain, totals, leaves)| {
            if let Ok(mut t) = sums.lock() {
                *t = (t.0 + totals.needed, t.1 + totals.bytes, t.2 + totals.beside);
            }
            Ok((template(plain, &leaves)?, leaves))
        },
    )?;

    // Wrong values would make the measurement worthless, so they are looked for after the clock has stopped.
    let states: Vec<StateDict> = states.into_iter().map(|(state, _)| state).collect();
    states.iter().try_for_each(check)?;
    let measured = runs.measured_with_memory(states.iter().map(nbytes).sum());
    let t = totals.lock().map_err(|_| anyhow!("a rank panicked"))?;

    // The run that warms up is counted here, too.
    let times = (a.iterations + 1) as u64;
    let (needed, read, headers) = (t.0 / times, t.1 / times, t.2 / times);
    Ok(Measured {
        needed,
        read,
        headers,
        ..measured
    })
}

/// The leaves without their data, to make the next template of what was loaded.
fn blueprint(state: &StateDict) -> Vec<(String, ShardedTensor)> {
    let mut out = Vec::new();
    state.visit(&mut |path, leaf| {
        if let Leaf::Tensor(t) = leaf {
            out.push((
                reshard::model::Path::from(path).to_string(),
                t.without_data(),
            ));
        }
    });
    out
}

/// What was loaded, as the template of the next load.
fn template(plain: ValueTree, leaves: &[(String, ShardedTensor)]) -> Result<StateDict> {
    let Tree::Dict(mut loaded) = plain else {
        bail!("what was loaded is no dict")
    };
    let mut out = StateDict::new();
    for (key, leaf) in leaves {
        let tensor = loaded
            .swap_remove(&Step::from(key.as_str()))
            .and_then(Tree::into_leaf);
        let tensor = tensor
            .and_then(Value::into_tensor)
            .with_context(|| format!("{key} was not loaded"))?;
        out.insert(key.as_str(), leaf.clone().with_data(tensor));
    }
    Ok(out)
}

/// All elements are 1 again.
fn check(state: &StateDict) -> Result<()> {
    let mut wrong = None;
    state.visit(&mut |_, leaf| {
        if let Leaf::Tensor(ShardedTensor {
            key,
            data: Data::Host(t),
            dtype,
            ..
        }) = leaf
        {
            let one: &[u8] = if *dtype == reshard::DType::BFloat16 {
                &[0x80, 0x3f]
            } else {
                &[0, 0, 0x80, 0x3f]
            };
            if t.to_bytes().chunks(one.len()).any(|e| e != one) {
                wrong = Some(key.to_string());
            }
        }
    });
    wrong.map_or(Ok(()), |key| Err(anyhow!("{key} has wrong values")))
}

/// Two threads, a file each, from or into touched memory, 1 MiB at a time. What replaces a file is written beside it.
fn plain(a: &Args, write: Option<How>) -> Result<Measured> {
    const BLOCK: usize = 1 << 20;
    let per_rank = (a.state.nbytes(a.gb) / 2) as usize;
    let (dir, make) = (a.dir.clone(), a.dir.clone());

    // The memory is touched before the clock starts, as that of a state is.
    let (runs, _) = on_ranks(
        2,
        a.iterations,
        move |rank| Ok((rank, vec![1u8; per_rank])),
        move || {
            if let Some(how) = write {
                how.prepare(&make);
                drop(std::fs::create_dir_all(&make));
            }
        },
        move |(rank, mut memory), _| {
            let path = dir.join(format!("plain{rank}"));

            // A new file is written and renamed, as a save does it.
            let new = path.with_extension("new");
            let file = if write.is_some() {
                File::create(&new)?
            } else {
                File::open(&path)?
            };
            for (i, block) in memory.chunks_mut(BLOCK).enumerate() {
                let at = (i * BLOCK) as u64;
                if write.is_some() {
                    file.write_all_at(block, at)?
                } else {
                    file.read_exact_at(block, at)?
                }
            }
            if write.is_some_and(|how| how.synced) {
                file.sync_data()?;
            }
            if write.is_some() {
                std::fs::rename(&new, &path)?;
            }
            Ok((rank, memory))
        },
        Ok,
    )?;
    Ok(runs.measured(per_rank as u64 * 2))
}
