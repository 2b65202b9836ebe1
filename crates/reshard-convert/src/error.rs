//! Why a conversion is refused, or fails.

use crate::{LedgerEntry, MAX_RANKS};
use reshard::{
    BackendVersion, CommonForm, DType, Dialect, ErrorKind, Region,
    map::MapError,
    model::some,
    strategy::{Damage, StrategyError},
};
use reshard_optim::ShardingType;
use std::fmt;

/// Result of this crate's functions.
pub type Result<T, E = ConvertError> = std::result::Result<T, E>;

/// Why a conversion is refused, or fails. Nothing appears at the destination, except after some errors of
/// [`Write`](Self::Write).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// No rank, or more than [`MAX_RANKS`].
    #[error("a conversion has 1 to {MAX_RANKS} ranks, not {0}")]
    Ranks(u32),
    /// More than [`Convert::max_files`](crate::Convert::max_files) or [`MAX_FILES_OF_RANKS`](crate::MAX_FILES_OF_RANKS), as far as that is
    /// known before anything is planned.
    #[error("that would be {files} files, and a conversion writes at most {max}{}", asked.why())]
    TooManyFiles {
        /// How many it would be.
        files: u64,
        /// How many are allowed.
        max: u64,
        /// Which option asks for them.
        asked: Asked,
    },
    /// More pieces than [`Convert::max_pieces`](crate::Convert::max_pieces).
    #[error(
        "{ranks} ranks would cut the tensors into {pieces} pieces, and a conversion cuts into at most {max}; give fewer ranks, or raise \
         `max_pieces`"
    )]
    TooManyPieces {
        /// How many it would be.
        pieces: u64,
        /// How many are allowed.
        max: u64,
        /// The number of ranks.
        ranks: u32,
    },
    /// A file of the source is a link into the destination, so replacing that would take the file from the source.
    #[error("{dst} holds the file to which {file} in {src} is a link")]
    Linked {
        /// The destination.
        dst: String,
        /// The link, as a name in the source.
        file: String,
        /// The source.
        src: String,
    },
    /// The destination is the source, contains the source, or is inside of the source.
    #[error("{dst} {over} {src}")]
    Over {
        /// The destination.
        dst: String,
        /// How it relates to the source.
        over: Over,
        /// The source.
        src: String,
    },
    /// The copy would have an array of objects without some of its cells.
    #[error("{what}; Megatron Core loads no such array, so {src} can't be written in its dialect")]
    Cells {
        /// The source.
        src: String,
        /// The array, and the cells that are missing.
        what: String,
    },
    /// A cast would ignore the scale of a quantised tensor.
    #[error("{key} is quantised as {from}: {found}, which a cast would ignore")]
    Quantized {
        /// Key of the tensor in the source.
        key: String,
        /// Its element type.
        from: DType,
        /// The scale, or the configuration of the model, that was found.
        found: String,
    },
    /// torchao could not open one of its tensors again from the copy. [`Convert::drop_objects`](crate::Convert::drop_objects) carries the inner
    /// tensors over without metadata.
    #[error("{src}: {key} is quantised by torchao ({class}); {what}")]
    TorchAo {
        /// The source.
        src: String,
        /// Key of the tensor.
        key: String,
        /// Its class.
        class: String,
        /// Why not.
        what: String,
    },
    /// Something is at the destination already. Found before anything is written.
    #[error("{}", reshard::storage::without_secrets(&.0.to_string()))]
    Destination(#[source] StrategyError),
    /// The format to write is not linked, or its settings contradict each other.
    #[error(transparent)]
    Target(StrategyError),
    /// The destination has the name of a file of a format, and the format writes no single files.
    #[error("{format} is not written as a single file such as {dst}, but as a folder")]
    NoSingleFile {
        /// The format.
        format: BackendVersion,
        /// The destination.
        dst: String,
    },
    /// The format to write has no such setting, or no such value of it.
    #[error("{format} can't be written with the setting {setting}: {what}")]
    Setting {
        /// The format.
        format: BackendVersion,
        /// The setting.
        setting: String,
        /// Why not.
        what: String,
    },
    /// The format to write has no place for some of what was chosen. [`Convert::drop_objects`](crate::Convert::drop_objects) leaves it out.
    #[error(
        "{format} has no place for {} of {src}: {}",
        count(what),
        listed(what, ", ")
    )]
    NotHeld {
        /// The source.
        src: String,
        /// The format.
        format: BackendVersion,
        /// What it has no place for.
        what: Vec<NotHeld>,
    },
    /// The leaves of common state can't become items of their own.
    #[error("common state can't be written as items: {what}")]
    Common {
        /// Why not.
        what: String,
    },
    /// The format to write has no common state in the form that was asked for.
    #[error(
        "{format} has no common state {}", if *form == CommonForm::File { "in a file, because it does not follow Megatron Core's conventions here" } else { "in an object here: it stores no objects, or does not follow Megatron Core's conventions" }
    )]
    CommonForm {
        /// The form that was asked for.
        form: CommonForm,
        /// The format.
        format: BackendVersion,
    },
    /// The format to write does not follow these conventions.
    #[error("{format} can't be written as {} writes checkpoints: {}", program(*dialect), why_not(*dialect, has))]
    Dialect {
        /// The dialect that was asked for.
        dialect: Dialect,
        /// The format.
        format: BackendVersion,
        /// The dialects that it has.
        has: &'static [Dialect],
    },
    /// The objects of the source can't become common state of Megatron Core.
    #[error("the objects of {src} can't become common state: {what}")]
    IntoCommon {
        /// The source.
        src: String,
        /// Why not.
        what: String,
    },
    /// Floats can't be cast to this type.
    #[error(
        "{0} is no type to which floats can be cast; give bfloat16, float16, float32, float64 or a float8 type"
    )]
    DType(DType),
    /// The source has tensors that are stored flattened.
    #[error(
        "{src} holds tensors that are stored flattened, {key} among them; unflatten them, which is what today's programs load"
    )]
    Flattened {
        /// The source.
        src: String,
        /// One of the tensors.
        key: Box<str>,
    },
    /// The state of an optimizer should be rewritten, but the source has no distributed optimizer.
    #[error(
        "{src} has no state of a distributed optimizer of Megatron Core in a form that is known"
    )]
    NoOptimizer {
        /// The source.
        src: String,
    },
    /// The state of the optimizer is stored by bucket, and nothing says which elements belong to which parameter.
    #[error(
        "{src} has its optimizer in the form {form}, which does not say which elements of a bucket belong to which parameter; give the \
         layout of the buckets (`Convert::bucket_layout`)"
    )]
    NoLayout {
        /// The source.
        src: String,
        /// The form.
        form: ShardingType,
    },
    /// Data-parallel groups have stored nothing, so the state of their parameters is missing.
    #[error(
        "{src} has its optimizer in the form {form}, and these data-parallel groups are missing: {groups}"
    )]
    MissingGroups {
        /// The source.
        src: String,
        /// The form.
        form: ShardingType,
        /// Their indices.
        groups: String,
    },
    /// The layout of the buckets contradicts itself, or does not fit what is stored.
    #[error("the layout of the buckets does not fit {src}: {what}")]
    Layout {
        /// The source.
        src: String,
        /// What does not fit.
        what: String,
    },
    /// The state of the optimizer can't be rewritten.
    #[error("the optimizer of {src} can't be rewritten: {what}")]
    Optimizer {
        /// The source.
        src: String,
        /// Why.
        what: String,
    },
    /// Keys were chosen, and the state of the optimizer should be rewritten.
    #[error(
        "choose all keys, or leave the optimizer as it is: its keys are other ones after the conversion"
    )]
    KeysOfOptimizer,
    /// A rule of the map does not fit the source.
    #[error(transparent)]
    Map(MapError),
    /// A map was given, and the state of the optimizer should be rewritten.
    #[error("do one after the other: a map has its own keys for the state of the optimizer")]
    MapOfOptimizer,
    /// The description of a chosen item is not understood. The copy would lack the item without saying so.
    #[error("{key} can't be carried over: {why}")]
    Unknown {
        /// Its key.
        key: String,
        /// What is not understood.
        why: String,
    },
    /// A check of the source found a problem of a chosen item, or of the whole checkpoint.
    #[error("{src} {finding}: {what}")]
    Unsound {
        /// The source.
        src: String,
        /// The kind of the problem.
        finding: Finding,
        /// The first problem.
        what: Damage,
    },
    /// The source does not say where a chunk of a chosen tensor lies.
    #[error("{key}: the metadata does not say where chunk {region} lies")]
    NoPlace {
        /// Key of the tensor.
        key: String,
        /// The chunk's box in the tensor.
        region: Region,
    },
    /// No key of the source was chosen.
    #[error("no key of {src} is chosen")]
    NothingChosen {
        /// The source.
        src: String,
    },
    /// The source has tensors, objects or common state, and the copy would have none.
    #[error("nothing of the {items} items of {src} would be in the copy ({ledger})")]
    NothingLeft {
        /// The source.
        src: String,
        /// The number of its tensors, objects and values of common state.
        items: u64,
        /// What would become of them.
        ledger: String,
    },
    /// [`Convert::lossless`](crate::Convert::lossless) was set, and the copy would tell less than the source.
    #[error(
        "a copy of {src} in {format} would lose something of {}: {}",
        count(losses),
        listed(losses, "; ")
    )]
    Lossy {
        /// The source.
        src: String,
        /// The format.
        format: BackendVersion,
        /// What would be lost.
        losses: Vec<LedgerEntry>,
    },
    /// A thread that looked at elements has failed, which is a bug.
    #[error(transparent)]
    Failed(StrategyError),
    /// Reading the source.
    #[error(transparent)]
    Read(reshard::Error),
    /// Writing the destination, or reading the tensors that are written. After
    /// [`NotDurable`](reshard::storage::StorageError::NotDurable) and
    /// [`NotCarried`](reshard::storage::StorageError::NotCarried) the whole new checkpoint is at the destination.
    #[error(transparent)]
    Write(reshard::Error),
}

/// The message with its causes.
impl fmt::Debug for ConvertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        reshard::model::write_with_causes(self, f)
    }
}

/// Something for which a format has no place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotHeld {
    /// An object, by its key.
    Object(String),
    /// A tensor, by its key, and its element type.
    Tensor(String, DType),
    /// Common state.
    Common,
}

impl fmt::Display for NotHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(key) => write!(f, "the object {key}"),
            Self::Tensor(key, dtype) => write!(f, "the tensor {key} of type {dtype}"),
            Self::Common => f.write_str("the common state"),
        }
    }
}

/// Whose dialect it is.
fn program(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Megatron => "Megatron Core",
        Dialect::Dcp => "PyTorch",
        _ => "no program",
    }
}

/// Why a format with these dialects lacks another one.
fn why_not(dialect: Dialect, has: &[Dialect]) -> String {
    if dialect == Dialect::Megatron {
        return "it has no place for `common.pt` and `metadata.json`".into();
    }
    let has: Vec<&str> = has.iter().map(|d| d.name()).collect();
    format!("it is written in {} only", has.join(" or "))
}

/// A message names at most so many items.
const NAMED: usize = 8;

fn count<T>(what: &[T]) -> String {
    some(what.len() as u64, "item")
}

fn listed(what: &[impl fmt::Display], between: &str) -> String {
    let named: Vec<String> = what.iter().take(NAMED).map(ToString::to_string).collect();
    let more = what.len().saturating_sub(NAMED);
    match more {
        0 => named.join(between),
        more => format!("{} and {more} more", named.join(between)),
    }
}

/// The options that ask for files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Asked {
    /// [`Convert::ranks`](crate::Convert::ranks) and [`Convert::files_per_rank`](crate::Convert::files_per_rank).
    ByRanks,
    /// [`Convert::max_shard_size`](crate::Convert::max_shard_size).
    BySize,
    /// [`Convert::ranks`](crate::Convert::ranks), and [`Convert::policy`](crate::Convert::policy), which wants so many of each.
    ByPolicy,
}

impl Asked {
    /// Where a limit on files is another one.
    pub fn why(self) -> &'static str {
        match self {
            Self::ByRanks | Self::ByPolicy => " by ranks and files per rank",
            Self::BySize => "",
        }
    }
}

/// How a destination relates to the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[non_exhaustive]
pub enum Over {
    /// The same place.
    #[strum(to_string = "is the source itself:")]
    Source,
    /// A directory above it.
    #[strum(to_string = "is a directory in which the source lies:")]
    Above,
    /// A place in the source.
    #[strum(to_string = "is a place inside of the source")]
    Inside,
}

/// What a check says about an item. The variants are the lists of a [`VerifyReport`](reshard::strategy::VerifyReport).
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[non_exhaustive]
pub enum Finding {
    /// Its bytes are wrong.
    #[strum(to_string = "is damaged")]
    Damaged,
    /// It could not be read because of I/O.
    #[strum(to_string = "could not be checked")]
    Unchecked,
    /// This version does not know how it is stored.
    #[strum(to_string = "is not understood")]
    NotUnderstood,
    /// It asks for more than the limits allow.
    #[strum(to_string = "is not read")]
    NotRead,
}

impl ConvertError {
    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Map(e) => e.kind(),
            Self::Destination(e) | Self::Target(e) | Self::Failed(e) => e.kind(),
            Self::Read(e) | Self::Write(e) => e.kind(),
            Self::NotHeld { .. }
            | Self::Lossy { .. }
            | Self::Common { .. }
            | Self::IntoCommon { .. }
            | Self::Flattened { .. }
            | Self::Unknown { .. }
            | Self::Quantized { .. }
            | Self::TorchAo { .. }
            | Self::Cells { .. }
            | Self::Optimizer { .. } => ErrorKind::Unsupported,
            Self::NoOptimizer { .. }
            | Self::MissingGroups { .. }
            | Self::NothingChosen { .. }
            | Self::NothingLeft { .. } => ErrorKind::NotFound,
            Self::Unsound { finding, .. } => match finding {
                Finding::Damaged => ErrorKind::Corrupt,
                Finding::Unchecked => ErrorKind::Unavailable,
                Finding::NotUnderstood => ErrorKind::Unsupported,
                Finding::NotRead => ErrorKind::Limit,
            },
            Self::NoPlace { .. } => ErrorKind::Corrupt,
            // An option that asks for something impossible.
            _ => ErrorKind::Invalid,
        }
    }
}
