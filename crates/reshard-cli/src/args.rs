//! The command line.

use crate::{
    glob::{self, Keys},
    units,
};
use clap::{Args, Parser, Subcommand, ValueEnum};
use reshard::{
    BackendVersion, OpenOptions, ReadLimits,
    policy::{ByteSize, ShardingPolicy},
    torch_dist::Flavour,
};
use std::{sync::Arc, time::Duration};

/// Inspect, digest, verify and convert distributed checkpoints, without Python.
///
/// DIR is a directory, or a URL of a store that is linked (`reshard plugins` lists them).
#[derive(Debug, Parser)]
#[command(
    name = "reshard",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 done, 1 damaged, 2 could not be done, 3 not a checkpoint.\n\nStart with:  reshard demo"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows what a checkpoint holds, who wrote it and who can load it; loads no tensor.
    #[command(after_help = "Example:\n  reshard inspect /ckpt/step-1000 --key 'decoder.layers.0.*'\n  \
                            reshard inspect /ckpt/step-1000 --json | jq '.tensors[].key'")]
    Inspect(Inspect),
    /// Lists the keys of tensors and objects, one a line.
    #[command(after_help = "Example:\n  reshard ls /ckpt/step-1000 --key '*.weight'")]
    Ls(Ls),
    /// Prints the SHA-256 of each tensor's elements (row-major, little-endian), however it is split.
    #[command(after_help = "Example, are these the same weights?\n  \
                            diff <(reshard digest /ckpt/a) <(reshard digest /ckpt/b)")]
    Digest(Digest),
    /// Looks for damage: structure, coverage, sizes and every checksum.
    #[command(
        after_help = "Exit codes: 0 sound, 1 damaged, 2 not understood, beyond a limit or not checked, 3 not a checkpoint.\n\n\
                            Example:\n  reshard verify /ckpt/step-1000 && rm -r /ckpt/step-0900"
    )]
    Verify(Verify),
    /// Rewrites a checkpoint as another number of ranks would have saved it, in bounded memory.
    #[command(after_help = "Example, for eight ranks, as PyTorch 2.15 writes it:\n  \
                            reshard convert /ckpt/step-1000 /ckpt/step-1000-w8 --ranks 8 --flavour 2.15\n\n\
                            In files of at most 500 MiB:\n  \
                            reshard convert /ckpt/step-1000 /ckpt/step-1000-files --max-shard-size 500MiB")]
    Convert(Convert),
    /// Removes what older and unfinished saves have left at a checkpoint and beside it; never what is not the format's own.
    #[command(after_help = "Example, look first:\n  reshard prune /ckpt/step-1000 --dry-run\n  \
                            reshard prune /ckpt/step-1000")]
    Prune(Prune),
    /// Lists the strategies and stores that are linked into this program.
    #[command(after_help = "Example:\n  reshard plugins --json | jq -r '.strategies[].backend' | sort -u")]
    Plugins(Plugins),
    /// Saves a transformer's state from some ranks, loads it on others with another split, and checks every byte.
    #[command(after_help = "Example:\n  reshard demo --ranks 8 --to 3 --size 2GB --dir /mnt/fast/demo")]
    Demo(Demo),
}

impl Command {
    /// The checkpoint that it is about; of a conversion the source.
    pub(crate) fn place(&self) -> Option<&str> {
        match self {
            Self::Inspect(a) => Some(&a.dir),
            Self::Ls(a) => Some(&a.dir),
            Self::Digest(a) => Some(&a.dir),
            Self::Verify(a) => Some(&a.dir),
            Self::Convert(a) => Some(&a.src),
            Self::Prune(a) => Some(&a.dir),
            Self::Demo(a) => a.dir.as_deref(),
            Self::Plugins(_) => None,
        }
    }
}

/// Which keys.
#[derive(Debug, Args)]
pub(crate) struct Select {
    /// Only keys that match; `*` stands for any text, `?` for one character. May be given several times.
    #[arg(long = "key", value_name = "GLOB", value_parser = glob::parse)]
    globs: Vec<String>,
}

impl Select {
    pub(crate) fn keys(&self) -> Keys<'_> {
        Keys(&self.globs)
    }
}

/// How the checkpoint is read.
#[derive(Debug, Args)]
pub(crate) struct Reading {
    /// The format of the checkpoint that is read, such as torch_dist or torch_dist/1. By default its files tell it; where they
    /// are those of two formats it has to be given.
    #[arg(long, value_name = "NAME")]
    pub(crate) format: Option<BackendVersion>,
    #[command(flatten)]
    limits: Limits,
}

impl Reading {
    pub(crate) fn limits(&self) -> ReadLimits {
        self.limits.get()
    }

    /// Options to open it with.
    pub(crate) fn options(&self) -> OpenOptions {
        let options = OpenOptions::new().limits(self.limits());
        match &self.format {
            Some(format) => options.format(format.clone()),
            None => options,
        }
    }
}

/// How much the checkpoint may ask for.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits, for checkpoints that you trust")]
struct Limits {
    /// Most memory for what is made of one file or object when it is parsed; by default 64 times its length and 64 MiB, at
    /// most 4 GiB.
    #[arg(long, value_name = "SIZE")]
    max_memory: Option<ByteSize>,
    /// Most bytes of what can only be read as a whole, such as metadata, common state or an object; by default 4GiB.
    #[arg(long, value_name = "SIZE", default_value = "4GiB", hide_default_value = true)]
    max_whole: ByteSize,
    /// Read tensors whose elements share memory, however many elements few stored bytes are.
    #[arg(long)]
    allow_repeated: bool,
}

impl Limits {
    fn get(&self) -> ReadLimits {
        let limits =
            ReadLimits::default().with_max_whole(self.max_whole.0).with_allow_repeated(self.allow_repeated);
        match self.max_memory {
            Some(max) => limits.with_max_memory(max.0),
            None => limits,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// The checkpoint.
    pub(crate) dir: String,
    #[command(flatten)]
    pub(crate) select: Select,
    /// Print JSON, schema 1.
    #[arg(long)]
    pub(crate) json: bool,
    /// Only the facts about the whole, no lists.
    #[arg(long)]
    pub(crate) summary: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// The checkpoint.
    pub(crate) dir: String,
    #[command(flatten)]
    pub(crate) select: Select,
    /// Print JSON, schema 1.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

#[derive(Debug, Args)]
pub(crate) struct Digest {
    /// The checkpoint.
    pub(crate) dir: String,
    #[command(flatten)]
    pub(crate) select: Select,
    /// Print JSON, schema 1.
    #[arg(long)]
    pub(crate) json: bool,
    /// Don't check checksums; large tensors are read once instead of twice.
    #[arg(long)]
    pub(crate) no_verify: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The checkpoint.
    pub(crate) dir: String,
    /// Structure, coverage and sizes only; no checksums.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print JSON, schema 1.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

#[derive(Debug, Args)]
pub(crate) struct Prune {
    /// The checkpoint.
    pub(crate) dir: String,
    /// Remove nothing, only tell.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// For how long a save must have changed nothing before what it wrote is removed: 90s, 45m, 12h, 7d. With 0s it goes in
    /// any case; be sure that no save is at work.
    #[arg(long, value_name = "AGE", default_value = "1d", value_parser = units::parse_age)]
    pub(crate) older_than: Duration,
    /// Print JSON, schema 1.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

#[derive(Debug, Args)]
pub(crate) struct Convert {
    /// The checkpoint to read.
    pub(crate) src: String,
    /// Where to write the new one.
    pub(crate) dst: String,
    /// As how many ranks.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) ranks: u32,
    /// Files of each rank.
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) files_per_rank: u32,
    /// Cut what is larger, and start a new file when one is full: 500MiB (2^20 each), 500MB (10^6).
    #[arg(long, value_name = "SIZE", conflicts_with = "files_per_rank")]
    pub(crate) max_shard_size: Option<ByteSize>,
    /// The sharding policy that decides upon files, as JSON.
    #[arg(long, value_name = "JSON", conflicts_with_all = ["files_per_rank", "max_shard_size"], value_parser = policy)]
    pub(crate) policy: Option<Arc<dyn ShardingPolicy>>,
    #[command(flatten)]
    pub(crate) select: Select,
    /// Replace what lies at DST; it stays whole until the new one is.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// For which PyTorch: `universal` is read by 2.1 and later, the others by that version and later.
    #[arg(long, value_enum, default_value_t = FlavourArg::Universal)]
    pub(crate) flavour: FlavourArg,
    /// Don't check the source's checksums first; damage would be carried over unseen.
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Print JSON, schema 1.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

fn policy(json: &str) -> Result<Arc<dyn ShardingPolicy>, String> {
    let policy: Box<dyn ShardingPolicy> = serde_json::from_str(json).map_err(|e| {
        format!("{e}; write it as {{\"type\":\"max_shard_size\",\"max_shard_size\":\"500MiB\"}}")
    })?;
    Ok(policy.into())
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FlavourArg {
    Universal,
    #[value(name = "2.3")]
    Torch23,
    #[value(name = "2.4")]
    Torch24,
    #[value(name = "2.15")]
    Torch215,
}

impl From<FlavourArg> for Flavour {
    fn from(f: FlavourArg) -> Self {
        match f {
            FlavourArg::Universal => Self::Universal,
            FlavourArg::Torch23 => Self::Torch23,
            FlavourArg::Torch24 => Self::Torch24,
            FlavourArg::Torch215 => Self::Torch215,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Plugins {
    /// Print JSON, schema 1.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Ranks that save.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) ranks: u32,
    /// Ranks that load.
    #[arg(long, value_name = "M", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) to: u32,
    /// About how much state, such as 256MiB or 2GB.
    #[arg(long, value_name = "BYTES", default_value = "256MiB")]
    pub(crate) size: ByteSize,
    /// Where to save, and leave the checkpoint; a temporary directory by default.
    #[arg(long)]
    pub(crate) dir: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_has_an_example() {
        let cli = Cli::command();
        cli.clone().debug_assert();
        for c in cli.get_subcommands() {
            let help = c.clone().render_long_help().to_string();
            assert!(help.contains("Example"), "{} has none", c.get_name());
            assert!(help.contains(&format!("reshard {}", c.get_name())), "{help}");
        }
    }
}
