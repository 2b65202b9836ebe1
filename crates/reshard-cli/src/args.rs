//! The command line.

use crate::{
    glob::{self, Keys},
    region::Wanted,
    units,
};
use clap::{
    Args, Parser, Subcommand,
    builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser},
};
use clap_complete::Shell;
use reshard::{
    BackendVersion, CommonForm, DType, Dialect, OpenOptions, ReadLimits,
    map::Unmapped,
    place_text,
    policy::{ByteSize, ShardingPolicy},
    strategy::UniqueJson,
};
use reshard_convert::{MAX_FILES, MAX_PIECES};
use reshard_manager::StepPattern;
use std::{path::PathBuf, sync::Arc, time::Duration};

/// Inspect, digest, verify and convert distributed checkpoints, without Python.
///
/// DIR is a directory, a single file (`model.safetensors`), what file names begin with (`ckpt-1`), or a URL of a linked store
/// (`reshard plugins` lists formats and stores).
#[derive(Debug, Parser)]
#[command(
    name = "reshard",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 done, 1 the checkpoint is damaged or two checkpoints differ, 2 could not be done, 3 not a checkpoint.\n\nStart with:  reshard demo"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows what a checkpoint holds, which program wrote it and which programs can load it. Reads no tensor.
    #[command(
        after_help = "Example:\n  reshard inspect /ckpt/step-1000 --key 'decoder.layers.0.*'\n  \
                            reshard inspect /ckpt/step-1000 --json | jq '.tensors[].key'"
    )]
    Inspect(Inspect),
    /// Lists the keys of tensors and objects, one per line. Of a folder of checkpoints, such as that of a run, it lists the complete ones.
    #[command(
        after_help = "Example:\n  reshard ls /ckpt/step-1000 --key '*.weight'\n\n\
                            The checkpoints of a run:\n  reshard ls /ckpt\n  reshard ls /ckpt --steps 'epoch_{n:03}'"
    )]
    Ls(Ls),
    /// Prints the path or URL of the newest checkpoint in the directory of a run that is complete and opens.
    #[command(
        after_help = "Exit codes: 0 printed, 1 printed but damaged, 2 could not be done, 3 there is none.\n\n\
                            Example:\n  reshard inspect $(reshard latest /ckpt)\n  \
                            reshard latest s3://bucket/run --steps 'epoch_{n:03}'"
    )]
    Latest(Latest),
    /// Prints the elements of a tensor, or an object. Of a large tensor it reads and prints only the first and last ones along each axis.
    #[command(after_help = "Example:\n  \
                            reshard show /ckpt/step-1000 decoder.final_layernorm.weight\n  \
                            reshard show /ckpt/step-1000 embedding.weight --region 0:2,3:5\n  \
                            reshard show /ckpt/step-1000 lr --json")]
    #[command(mut_arg("json", |json| json.help("Print JSON, schema 1, with all elements in row-major order")))]
    Show(Show),
    /// Prints the SHA-256 of each tensor's elements (row-major, little-endian). It does not depend on how a tensor is split.
    #[command(after_help = "Example, are these the same weights?\n  \
                            diff <(reshard digest /ckpt/a) <(reshard digest /ckpt/b)")]
    Digest(Digest),
    /// Looks for damage: checks structure, coverage, sizes and every checksum.
    #[command(
        after_help = "Exit codes: 0 sound, 1 damaged or unsafe, 2 not understood, not read because of a limit, or not checked, 3 not a checkpoint.\n\n\
                            Example:\n  reshard verify /ckpt/step-1000 && rm -r /ckpt/step-0900"
    )]
    Verify(Verify),
    /// Rewrites a checkpoint in another format, or as another number of ranks would have saved it, in bounded memory.
    #[command(after_help = "Example, another format:\n  \
                            reshard convert /ckpt/step-1000 /ckpt/step-1000-zarr3 --to zarr3\n\n\
                            For eight ranks, as PyTorch 2.15 writes it:\n  \
                            reshard convert /ckpt/step-1000 /ckpt/step-1000-w8 --ranks 8 --flavour 2.15\n\n\
                            In files of at most 500 MiB:\n  \
                            reshard convert /ckpt/step-1000 /ckpt/step-1000-files --max-shard-size 500MiB")]
    Convert(Box<Convert>),
    /// Compares two checkpoints of any formats: keys, types, shapes, then every element.
    #[command(
        after_help = "Exit codes: 0 equal, 1 different, 2 could not be compared, 3 not a checkpoint.\n\n\
                            Example, is a conversion to bfloat16 close enough?\n  \
                            reshard diff /ckpt/step-1000 /ckpt/step-1000-bf16 --relative 0.01 --any-dtype"
    )]
    Diff(Diff),
    /// Shows what the numbers of each tensor are like, and flags what is suspicious: NaN, infinities, zeros, denormal numbers.
    #[command(
        after_help = "Example, which weights are suspicious?\n  reshard stats /ckpt/step-1000 --suspicious"
    )]
    Stats(Stats),
    /// Removes what older and unfinished saves have left in the directory of a checkpoint and beside it. It never removes files of other programs.
    #[command(
        after_help = "Example, look first:\n  reshard prune /ckpt/step-1000 --dry-run\n  \
                            reshard prune /ckpt/step-1000"
    )]
    Prune(Prune),
    /// Removes all tensors and objects whose key starts with a prefix, in one step. Data files that stay are not written again.
    #[command(
        after_help = "Example, look first what goes with the optimizer:\n  reshard remove /ckpt/step-1000 optimizer. --dry-run\n  \
                            reshard remove /ckpt/step-1000 optimizer."
    )]
    Remove(Remove),
    /// Lists the strategies, stores and sharding policies that are linked into this program.
    #[command(
        after_help = "Example:\n  reshard plugins --json | jq -r '.strategies[].backend' | sort -u"
    )]
    Plugins(Plugins),
    /// Saves the state of a small transformer, loads it on another number of ranks with another split, and checks every byte.
    #[command(
        after_help = "Example:\n  reshard demo --ranks 8 --to 3 --size 2GB --dir /mnt/fast/demo"
    )]
    Demo(Demo),
    /// Prints the completions of a shell.
    #[command(
        after_help = "Example:\n  reshard completions bash > ~/.local/share/bash-completion/completions/reshard"
    )]
    Completions(Completions),
    /// Prints the manual page, or writes one page for each command into a directory.
    #[command(
        after_help = "Example:\n  reshard man | man -l -\n  reshard man ~/.local/share/man/man1"
    )]
    Man(Man),
}

impl Command {
    /// The checkpoint that the command is about, which is the source of a conversion, and how checkpoints are read, if it reads some.
    pub(crate) fn source(&self) -> (Option<&str>, Option<&Reading>) {
        match self {
            Self::Inspect(a) => (Some(&a.dir), Some(&a.reading)),
            Self::Ls(a) => (Some(&a.dir), Some(&a.reading)),
            Self::Latest(a) => (Some(&a.dir), Some(&a.reading)),
            Self::Show(a) => (Some(&a.dir), Some(&a.reading)),
            Self::Digest(a) => (Some(&a.dir), Some(&a.reading)),
            Self::Verify(a) => (Some(&a.dir), Some(&a.reading)),
            Self::Convert(a) => (Some(&a.src), Some(&a.reading)),
            Self::Diff(a) => (Some(&a.first), Some(&a.reading)),
            Self::Stats(a) => (Some(&a.dir), Some(&a.reading)),
            Self::Prune(a) => (Some(&a.dir), Some(&a.reading)),
            Self::Remove(a) => (Some(&a.dir), Some(&a.reading)),
            Self::Demo(a) => (a.dir.as_deref(), None),
            Self::Plugins(_) | Self::Completions(_) | Self::Man(_) => (None, None),
        }
    }
}

/// Changes a setup by what the command line gives, if it gives that.
pub(crate) fn given<S, T>(setup: S, value: Option<T>, set: impl FnOnce(S, T) -> S) -> S {
    match value {
        Some(value) => set(setup, value),
        None => setup,
    }
}

/// A place. A path that is not UTF-8 becomes a `file` URL, in which its bytes are escaped.
fn place() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().map(place_text)
}

/// Which keys.
#[derive(Debug, Args)]
pub(crate) struct Select {
    /// Select only keys that match this pattern. `*` stands for any text, `?` for one character. You can give several patterns.
    #[arg(long = "key", value_name = "GLOB", value_parser = glob::parse)]
    globs: Vec<String>,
    /// Leave out keys that match this pattern, also if --key selects them. You can give several patterns.
    #[arg(long, value_name = "GLOB", value_parser = glob::parse)]
    exclude: Vec<String>,
}

impl Select {
    pub(crate) fn keys(&self) -> Keys<'_> {
        Keys::new(&self.globs, &self.exclude)
    }
}

/// How the checkpoint is read, and the result is printed.
#[derive(Debug, Args)]
pub(crate) struct Reading {
    /// Print JSON, schema 1.
    #[arg(long)]
    pub(crate) json: bool,
    /// The format of the checkpoint to read, such as torch_dist or torch_dist/1. By default the files of the checkpoint tell it.
    /// If they belong to two formats, you have to give it.
    #[arg(long, value_name = "NAME", value_parser = one_format)]
    format: Option<Formats>,
    /// Read quantised tensors of a safetensors checkpoint as the numbers that they stand for, in float32, or in bfloat16 or
    /// float64: float8 in blocks with `weight_scale_inv`, and MXFP4 in `_blocks` and `_scales`.
    #[cfg_attr(not(feature = "full"), arg(skip))]
    #[cfg_attr(
        feature = "full",
        arg(
            long,
            value_name = "TYPE",
            num_args = 0..=1,
            require_equals = true,
            default_missing_value = "float32",
            value_parser = wide
        )
    )]
    dequantize: Option<DType>,
    /// Read the tensors of pickled modules (`torch.save(model)`) and of TorchScript under the names that `state_dict()` gives them, without
    /// executing anything.
    #[cfg_attr(not(feature = "full"), arg(skip))]
    #[cfg_attr(feature = "full", arg(long, conflicts_with = "dequantize"))]
    open_modules: bool,
    /// Read one item of a folder with one file per rank, such as `model` of model_world_size_4_rank_0.pt. Its keys lack the name
    /// of the item then.
    #[cfg_attr(not(feature = "full"), arg(skip))]
    #[cfg_attr(
        feature = "full",
        arg(long, value_name = "NAME", conflicts_with = "dequantize")
    )]
    item: Option<String>,
    #[command(flatten)]
    limits: Limits,
    /// Read no more bytes per second than this, and write no more: 50MB/s (10^6 each), 50MiB/s (2^20 each).
    #[arg(long, value_name = "RATE", value_parser = units::parse_rate)]
    pub(crate) bandwidth: Option<ByteSize>,
    /// Keep what is read from places in the network in this directory, at most so many bytes of it (10GB by default), and read it from there
    /// the next time. The default is the environment variable RESHARD_CACHE.
    #[arg(long, value_name = "DIR[:SIZE]", value_parser = units::parse_cache)]
    pub(crate) cache: Option<units::Cache>,
}

impl Reading {
    pub(crate) fn limits(&self) -> ReadLimits {
        let max_memory = self.limits.max_memory.map(|max| max.0);
        let limits = ReadLimits::default()
            .with_max_whole(self.limits.max_whole.0)
            .with_max_kept(self.limits.max_kept.0)
            .with_allow_repeated(self.limits.allow_repeated);
        given(limits, max_memory, ReadLimits::with_max_memory)
    }

    /// What of this changes what is read, as a text.
    pub(crate) fn what_is_read(&self) -> String {
        let modules = if self.open_modules {
            " open modules"
        } else {
            ""
        };
        format!(
            "{:?} {:?}{modules} {:?}",
            self.format(),
            self.dequantize,
            self.item
        )
    }

    /// The format of the checkpoint.
    pub(crate) fn format(&self) -> Option<&BackendVersion> {
        self.format.as_ref().map(|formats| &formats[0])
    }

    /// Options to open it with.
    pub(crate) fn options(&self) -> OpenOptions {
        #[cfg(feature = "full")]
        if let Some(config) = self.dequantized() {
            return self.as_stored().strategy(config);
        }
        #[cfg(feature = "full")]
        if let Some(config) = self.of_item() {
            return self.as_stored().strategy(config);
        }
        self.as_stored()
    }

    /// Options to open one of two checkpoints with, by its number: what is for one format does not concern the other.
    pub(crate) fn options_of(&self, side: usize) -> OpenOptions {
        #[cfg(feature = "full")]
        if let Some(config) = self.dequantized() {
            // One of them may be the dense one.
            let config = config.with_allow_unquantized(true);
            return self.as_stored_of(side).settings(config);
        }
        #[cfg(feature = "full")]
        if let Some(config) = self.of_item() {
            return self.as_stored_of(side).settings(config);
        }
        self.as_stored_of(side)
    }

    /// Options to open it with as it is stored.
    pub(crate) fn as_stored(&self) -> OpenOptions {
        self.as_stored_of(0)
    }

    /// Options to open one of two checkpoints with as it is stored.
    pub(crate) fn as_stored_of(&self, side: usize) -> OpenOptions {
        let options = OpenOptions::new().limits(self.limits());
        let formats = self.format.clone();
        let format = formats.and_then(|formats| formats.into_iter().nth(side));
        #[cfg(feature = "full")]
        let options = match self.open_modules {
            true => {
                let config = reshard::torch_save::TorchSaveLoadConfig::default();
                options.settings(config.with_open_modules(true))
            }
            false => options,
        };
        given(options, format, OpenOptions::format)
    }

    #[cfg(feature = "full")]
    fn dequantized(&self) -> Option<reshard::safetensors::SafetensorsLoadConfig> {
        let config = reshard::safetensors::SafetensorsLoadConfig::default();
        self.dequantize.map(|dtype| config.with_dequantize(dtype))
    }

    #[cfg(feature = "full")]
    fn of_item(&self) -> Option<reshard::torch_save::RankFilesLoadConfig> {
        let config = reshard::torch_save::RankFilesLoadConfig::default();
        self.item.as_ref().map(|item| config.with_item(item))
    }

    /// The backend of checkpoints that `--dequantize` is for, if it is given.
    pub(crate) fn dequantizes(&self) -> Option<&'static str> {
        self.dequantize.map(|_| "safetensors")
    }
}

/// The formats of two checkpoints; both are the same for commands that read one.
type Formats = [BackendVersion; 2];

fn one_format(text: &str) -> Result<Formats, String> {
    let format: BackendVersion = text.parse().map_err(|e| format!("{e}"))?;
    Ok([format.clone(), format])
}

/// One format for both checkpoints, or one for each.
fn two_formats(text: &str) -> Result<Formats, String> {
    match text.split_once(',') {
        None => one_format(text),
        Some((first, second)) => {
            let ([first, _], [second, _]) = (one_format(first)?, one_format(second)?);
            Ok([first, second])
        }
    }
}

/// How much the checkpoint may ask for.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits, for checkpoints that you trust")]
struct Limits {
    /// The most memory for the parsed form of one file or object. The default is 64 times its length plus 64 MiB, at most
    /// 4 GiB.
    #[arg(long, value_name = "SIZE")]
    max_memory: Option<ByteSize>,
    /// The most bytes of anything that can only be read as a whole, such as metadata, common state or an object. The default
    /// is 4 GiB.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "4GiB",
        hide_default_value = true
    )]
    max_whole: ByteSize,
    /// The most memory for unpacked chunks that are kept from one read to the next. The default is 256 MiB.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "256MiB",
        hide_default_value = true
    )]
    max_kept: ByteSize,
    /// Read tensors in which many elements share the same few stored bytes, however many elements there are.
    #[arg(long)]
    allow_repeated: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// The checkpoint.
    #[arg(value_parser = place())]
    pub(crate) dir: String,
    #[command(flatten)]
    pub(crate) select: Select,
    /// Print no lists, only facts about the whole checkpoint.
    #[arg(long)]
    pub(crate) summary: bool,
    /// List the classes and functions that the pickles of its files name, and whether loading them with Python would run code. The place need
    /// not be a checkpoint.
    #[arg(long, conflicts_with_all = ["summary", "globs"])]
    pub(crate) pickles: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

/// Of `--steps`. For clap `{n}` in a help text is the end of a line, so a [`JOINER`](crate::usage::JOINER) stands in it, which `usage::text` takes out.
const LISTED_STEPS: &str = "List the checkpoints whose folders are called so: `{\u{2060}n}` is the number, `{n:07}` has zeros before it. By default `step-{\u{2060}n}`, and if there is none, `iter_{n:07}` as in Megatron";
const RUN_STEPS: &str = "Work on the checkpoints in this folder that are called so: `{\u{2060}n}` is the number, `{n:07}` has zeros before it. By default `step-{\u{2060}n}`, and `iter_{n:07}` as in Megatron";

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// The checkpoint, or a folder of checkpoints.
    #[arg(value_parser = place())]
    pub(crate) dir: String,
    #[command(flatten)]
    pub(crate) select: Select,
    #[arg(long, value_name = "PATTERN", conflicts_with_all = ["globs", "exclude"], help = LISTED_STEPS)]
    pub(crate) steps: Option<StepPattern>,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

#[derive(Debug, Args)]
pub(crate) struct Latest {
    /// The folder of the checkpoints.
    pub(crate) dir: String,
    #[arg(long, value_name = "PATTERN", help = RUN_STEPS)]
    pub(crate) steps: Option<StepPattern>,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The checkpoint.
    #[arg(value_parser = place())]
    pub(crate) dir: String,
    /// The key of a tensor or object, or a name in the common state, such as `args.lr`.
    pub(crate) key: String,
    /// Only this part of a tensor: `0:2,3:5` are rows 0 and 1, columns 3 and 4. `5` is one index, `:` a whole axis; axes that are left out are whole.
    #[arg(long, value_name = "RANGES")]
    pub(crate) region: Option<Wanted>,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

#[derive(Debug, Args)]
pub(crate) struct Digest {
    /// The checkpoint.
    #[arg(value_parser = place())]
    pub(crate) dir: String,
    #[command(flatten)]
    pub(crate) select: Select,
    /// Read no data. Only print how many bytes it would read, and with about how many requests.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Don't check checksums. Then large tensors are read once instead of twice.
    #[arg(long)]
    pub(crate) no_verify: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The checkpoint.
    #[arg(value_parser = place())]
    pub(crate) dir: String,
    /// Check only structure, coverage and sizes, not the checksums.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Exit with 1 also if another program has saved over a checkpoint of reshard (`changed`), or if a pickle names a class or function that
    /// reshard doesn't know.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Check structure, coverage and sizes of all items, and the checksums of so many of them: 1%, 0.1%. It chooses at random, from all files, at least
    /// one of each element type and size.
    #[arg(long, value_name = "SHARE", conflicts_with = "quick", value_parser = units::parse_share)]
    pub(crate) sample: Option<f64>,
    /// What --sample chooses depends on this number. The default is another one each time; the result names it.
    #[arg(long, value_name = "N", requires = "sample")]
    pub(crate) seed: Option<u64>,
    /// Read no data. Only print how many bytes it would read, and with about how many requests.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

#[derive(Debug, Args)]
pub(crate) struct Prune {
    /// The checkpoint, or a folder of checkpoints, such as that of a run: then all steps in it.
    #[arg(value_parser = place())]
    pub(crate) dir: String,
    #[arg(long, value_name = "PATTERN", help = RUN_STEPS)]
    pub(crate) steps: Option<StepPattern>,
    /// Remove nothing, and only print what would be removed.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Remove the data of a save that may still be running only if they have not changed for this long: 90s, 45m, 12h, 7d.
    /// With 0s they are removed in any case, so make sure that no save is running.
    #[arg(long, value_name = "AGE", default_value = "1d", value_parser = units::parse_age)]
    pub(crate) older_than: Duration,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// The checkpoint.
    #[arg(value_parser = place())]
    pub(crate) dir: String,
    /// How the keys begin that are to go.
    pub(crate) prefix: String,
    /// Remove nothing, and only print what would be removed.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

#[derive(Debug, Args)]
pub(crate) struct Convert {
    /// The checkpoint to read.
    #[arg(value_parser = place())]
    pub(crate) src: String,
    /// Where to write the new one.
    #[arg(value_parser = place())]
    pub(crate) dst: String,
    /// The format to write: a name (`reshard plugins` lists them), `hf` for safetensors, `pt` for torch_save, `dcp` for torch_dist, or settings as JSON. The default is the format whose files have such
    /// a name as DST (`model.pt`), or else torch_dist.
    #[arg(long, value_name = "FORMAT", value_parser = target)]
    pub(crate) to: Option<Target>,
    /// Cast tensors of floating-point numbers to this type: bf16, fp16, fp32, fp64, or another name of PyTorch. Others stay as they are.
    #[arg(long, value_name = "TYPE", value_parser = dtype)]
    pub(crate) dtype: Option<DType>,
    /// Leave out what the format has no place for: objects, common state, tensors of some types.
    #[arg(long)]
    pub(crate) drop_objects: bool,
    /// Fail, and write nothing, if anything would be left out or changed with a loss: rounded numbers, tensors that share elements no longer.
    #[arg(long)]
    pub(crate) lossless: bool,
    /// Leave out tensors and objects that are damaged, not understood, or beyond a limit. They are listed with the reason. The source is
    /// checked as a whole before anything is written.
    #[arg(long, conflicts_with_all = ["lossless", "map", "optimizer"])]
    pub(crate) skip_unread: bool,
    /// Keep objects beside the tensors in a format that holds only tensors. Only reshard reads them there. Folders of safetensors can.
    #[arg(long)]
    pub(crate) keep_objects: bool,
    #[command(flatten)]
    pub(crate) mapping: Mapping,
    /// The number of ranks to write for.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) ranks: u32,
    /// The most pieces into which the ranks may cut all tensors together: each into one per rank, but into no more than it has
    /// rows. A million pieces take about 2 GB of memory.
    #[arg(long, value_name = "N", default_value_t = MAX_PIECES)]
    pub(crate) max_pieces: u64,
    /// Write tensors that Megatron Core 0.8 to 0.15 has stored flattened as plain chunks, which its later releases and PyTorch load. Another
    /// format gets plain chunks in any case.
    #[arg(long)]
    pub(crate) unflatten: bool,
    /// Whose conventions DST follows: `megatron` writes `metadata.json` and `common.pt`, without which Megatron Core loads nothing, and the tracker file
    /// of Megatron-LM if DST is named `release` or `iter_0001000`. The default is as in SRC if the format has it, or else PyTorch's.
    #[arg(long, value_parser = choice(&[("megatron", Dialect::Megatron), ("pytorch", Dialect::Dcp)]))]
    pub(crate) dialect: Option<Dialect>,
    /// Where Megatron Core's common state goes: into `common.pt`, which all its versions read, or into an object, as 0.19 and later write it.
    /// The default is as in SRC.
    #[arg(long, value_parser = choice(&[("file", CommonForm::File), ("object", CommonForm::Object)]))]
    pub(crate) common: Option<CommonForm>,
    /// Rewrite the state of Megatron Core's distributed optimizer: `canonical` is by parameter (`fully_reshardable`), which can be
    /// loaded with any parallelism. It unflattens, too.
    #[arg(long, value_parser = ["canonical"])]
    pub(crate) optimizer: Option<String>,
    /// Which elements of the optimizer's buckets belong to which parameter, as a JSON file. Forms by bucket don't say that.
    #[arg(long, value_name = "FILE", requires = "optimizer")]
    pub(crate) optimizer_layout: Option<PathBuf>,
    /// The number of files of each rank, in formats that have such a setting. The default is 1.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) files_per_rank: Option<u32>,
    /// Cut larger tensors, and start a new file when one is full: 500MiB (2^20 each), 500MB (10^6).
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with = "files_per_rank",
        group = "cut"
    )]
    pub(crate) max_shard_size: Option<ByteSize>,
    /// The sharding policy that decides what goes into which file, as JSON.
    #[arg(long, value_name = "JSON", conflicts_with_all = ["files_per_rank", "max_shard_size"], value_parser = policy, group = "cut")]
    pub(crate) policy: Option<Arc<dyn ShardingPolicy>>,
    /// The most slices into which a policy or --max-shard-size may cut. The default is 4 per piece, plus a million.
    #[arg(long, value_name = "N", requires = "cut")]
    pub(crate) max_slices: Option<usize>,
    /// The most data files that all ranks together may write.
    #[arg(long, value_name = "N", default_value_t = MAX_FILES)]
    pub(crate) max_files: u64,
    #[command(flatten)]
    pub(crate) select: Select,
    /// Replace the checkpoint at DST. It stays whole until the new one is complete.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Go on where the same command was interrupted: files that it had finished are not written again. Make sure that it no longer runs.
    #[arg(long)]
    pub(crate) resume: bool,
    /// The PyTorch version to write torch_dist for: 2.1 and later read `universal`, the default; the named version and later read the
    /// others.
    #[arg(long, value_parser = ["universal", "2.3", "2.4", "2.15"])]
    pub(crate) flavour: Option<String>,
    /// Write the phases of each rank to this file, as a trace that `chrome://tracing` and ui.perfetto.dev open.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Don't check the source's checksums first. A format that checks them while it reads still refuses damage; others carry it over
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Write nothing. Make every check that needs no tensor data, and print what would be read, written and left out.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

/// A map of keys and axes.
#[derive(Debug, Args)]
pub(crate) struct Mapping {
    /// Rename and rearrange tensors by a mapping file, or by a map that comes with reshard: hf-llama, hf-mixtral or hf-gpt-neox. Its parameters
    /// are taken from `args` or `config.json` in the checkpoint. --key then chooses by the new keys.
    #[arg(long, value_name = "FILE|NAME")]
    pub(crate) map: Option<String>,
    /// Use the inverse of --map.
    #[arg(long, requires = "map")]
    pub(crate) inverse: bool,
    /// A parameter of --map; you can give it several times.
    #[arg(long, value_name = "NAME=N", requires = "map", value_parser = parameter)]
    pub(crate) set: Vec<(String, u64)>,
    /// Carry over, or leave out, tensors that no rule of --map matches. Without this option they are an error if the map comes with
    /// reshard, and a mapping file keeps them unless it says otherwise.
    #[arg(long, value_name = "keep|drop", requires = "map", value_parser = choice(&[("keep", Unmapped::Keep), ("drop", Unmapped::Drop)]))]
    pub(crate) unmapped: Option<Unmapped>,
}

fn parameter(text: &str) -> Result<(String, u64), String> {
    let pair = text
        .split_once('=')
        .and_then(|(name, n)| Some((name.into(), n.parse().ok()?)));
    pair.ok_or_else(|| format!("{text:?} is not NAME=N, such as heads=32"))
}

#[derive(Debug, Args)]
#[command(mut_arg("format", |format| format.value_name("A[,B]").value_parser(two_formats).help(
    "The format of both checkpoints, or one for each: torch_dist,zarr3. By default the files of a checkpoint tell it. If they belong to two formats, you have to give it"
)))]
pub(crate) struct Diff {
    /// The first checkpoint.
    #[arg(value_parser = place())]
    pub(crate) first: String,
    /// The second checkpoint.
    #[arg(value_parser = place())]
    pub(crate) second: String,
    /// Of the first checkpoint.
    #[command(flatten)]
    pub(crate) mapping: Mapping,
    #[command(flatten)]
    pub(crate) select: Select,
    /// Numbers count as equal if they differ by no more than this.
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = bound)]
    pub(crate) tolerance: f64,
    /// Numbers count as equal if they differ by no more than this part of the number in the second checkpoint, plus --tolerance.
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = bound)]
    pub(crate) relative: f64,
    /// Count what one of the two can't represent as a difference, too: objects that the format of the other one has no place for.
    #[arg(long)]
    pub(crate) lossless: bool,
    /// Compare the rest if items are damaged, not understood, or beyond a limit in one of the checkpoints. They are listed with the reason.
    #[arg(long, conflicts_with_all = ["lossless", "map"])]
    pub(crate) skip_unread: bool,
    /// Tensors of different element types can be equal.
    #[arg(long)]
    pub(crate) any_dtype: bool,
    /// Don't check checksums. Then large tensors are read once instead of twice, and damage may show as a difference.
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Read no data. Only print how many bytes it would read, and with about how many requests.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

fn bound(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if (0.0..f64::INFINITY).contains(&x) => Ok(x),
        _ => Err(format!("{text:?} is not a number from 0 on, such as 1e-3")),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// The checkpoint.
    #[arg(value_parser = place())]
    pub(crate) dir: String,
    #[command(flatten)]
    pub(crate) select: Select,
    /// Show only tensors in which something is suspicious.
    #[arg(long)]
    pub(crate) suspicious: bool,
    /// Don't check checksums. Then large tensors are read once instead of twice.
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Read no data. Only print how many bytes it would read, and with about how many requests.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

/// The format to write.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// The name of a format, with its version or without it.
    Name(Arc<str>),
    /// A strategy.
    Json(serde_json::Value),
}

/// Short names of formats.
const ALIASES: [(&str, &str); 3] = [
    ("hf", "safetensors"),
    ("pt", "torch_save"),
    ("dcp", "torch_dist"),
];

fn target(text: &str) -> Result<Target, String> {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == text);
    let text = alias.map_or(text, |(_, name)| name);
    if !text.trim_start().starts_with('{') {
        let named: Result<BackendVersion, _> = text.parse();
        return match named {
            Ok(_) => Ok(Target::Name(text.into())),
            Err(e) => Err(e.to_string()),
        };
    }
    match serde_json::from_str(text) {
        Ok(UniqueJson(json)) => Ok(Target::Json(json)),
        Err(e) => Err(format!(
            "{e}; write it as {{\"format\":\"torch_dist\",\"files_per_rank\":2}}"
        )),
    }
}

fn dtype(text: &str) -> Result<DType, String> {
    let short = match text {
        "bf16" => "bfloat16",
        "fp16" | "f16" | "half" => "float16",
        "fp32" | "f32" | "float" => "float32",
        "fp64" | "f64" | "double" => "float64",
        other => other,
    };
    short.parse().map_err(|e| format!("{e}"))
}

/// A type in which no number of a quantised tensor becomes infinite or zero.
#[cfg(feature = "full")]
fn wide(text: &str) -> Result<DType, String> {
    match dtype(text)? {
        wide @ (DType::Float32 | DType::Float64 | DType::BFloat16) => Ok(wide),
        narrow => Err(format!(
            "{narrow} is not float32, float64 or bfloat16; `--dequantize --dtype {narrow}` of `convert` casts to it, and says how many \
             numbers became infinite or zero"
        )),
    }
}

fn policy(json: &str) -> Result<Arc<dyn ShardingPolicy>, String> {
    let policy: Box<dyn ShardingPolicy> = serde_json::from_str(json).map_err(|e| {
        format!("{e}; write it as {{\"type\":\"max_shard_size\",\"max_shard_size\":\"500MiB\"}}")
    })?;
    Ok(policy.into())
}

/// Reads one of some names as the value that it stands for.
fn choice<T: Copy + Send + Sync + 'static>(
    values: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let names = values.iter().map(|(name, _)| *name);
    PossibleValuesParser::new(names).try_map(|given| {
        let named = values.iter().find(|(name, _)| *name == given);
        named.map(|(_, value)| *value).ok_or("it has no such value")
    })
}

#[derive(Debug, Args)]
pub(crate) struct Plugins {
    /// Print JSON, schema 1.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell.
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The directory, which must exist. Pages in it are replaced.
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// The number of ranks that save.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) ranks: u32,
    /// The number of ranks that load.
    #[arg(long, value_name = "M", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) to: u32,
    /// About how much state to save, such as 256MiB or 2GB.
    #[arg(long, value_name = "BYTES", default_value = "256MiB")]
    pub(crate) size: ByteSize,
    /// Where to save the checkpoint. It stays there. The default is a temporary directory, which is removed.
    #[arg(long, value_parser = place())]
    pub(crate) dir: Option<String>,
    /// Write the phases of each rank to this file, as a trace that `chrome://tracing` and ui.perfetto.dev open.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
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
            assert!(
                help.contains(&format!("reshard {}", c.get_name())),
                "{help}"
            );
        }
    }
}
