//! The errors of plans. All problems of a plan are reported at once.

use reshard_model::{BoxError, BoxFault, DType, Dims, ErrorKind, ModelError, Region};
use std::{fmt, ops::Range};

/// Result of this crate's functions and of planners' hooks.
pub type Result<T, E = PlanError> = std::result::Result<T, E>;

/// Why there is no plan.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The pieces that the ranks want to write do not make up a checkpoint.
    #[error("the ranks' pieces don't make a checkpoint: {0}")]
    Save(Problems),
    /// The template and the checkpoint don't fit.
    #[error("the checkpoint can't fill the template: {0}")]
    Load(Problems),
    /// No rank asks for parts of the checkpoint, and the load was told that all must be asked for.
    #[error("the templates leave out parts of the checkpoint: {0}")]
    NotRequested(Problems),
    /// A declaration contradicts itself, or a hook can't handle its arguments.
    #[error("{key}: {what}")]
    Invalid {
        /// Key of the tensor or object.
        key: String,
        /// What is wrong.
        what: String,
    },
    /// The stored tables contradict themselves.
    #[error("{key}: {what}")]
    Corrupt {
        /// Key of the tensor or object.
        key: String,
        /// What is wrong.
        what: String,
    },
    /// Something that is not implemented.
    #[error("{key}: {what}")]
    Unsupported {
        /// Key of the tensor or object.
        key: String,
        /// What is not implemented.
        what: String,
    },
    /// An error of a tensor or object.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A planner's own error.
    #[error(transparent)]
    Planner(BoxError),
}

/// The message with its causes.
impl fmt::Debug for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        reshard_model::write_with_causes(self, f)
    }
}

impl PlanError {
    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Save(_) | Self::NotRequested(_) | Self::Invalid { .. } => ErrorKind::Invalid,
            Self::Load(p) => p.kind(),
            Self::Corrupt { .. } => ErrorKind::Corrupt,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Model(e) => e.kind(),
            Self::Planner(_) => ErrorKind::Invalid,
        }
    }

    /// An error of a planner outside of this crate.
    pub fn planner(source: impl Into<BoxError>) -> Self {
        Self::Planner(source.into())
    }

    pub(crate) fn invalid(key: &str, what: impl Into<String>) -> Self {
        Self::Invalid {
            key: key.into(),
            what: what.into(),
        }
    }

    pub(crate) fn unsupported(key: &str, what: impl Into<String>) -> Self {
        Self::Unsupported {
            key: key.into(),
            what: what.into(),
        }
    }

    pub(crate) fn corrupt(key: &str, what: impl Into<String>) -> Self {
        Self::Corrupt {
            key: key.into(),
            what: what.into(),
        }
    }
}

/// A box, and the rank that has it, if it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// The box.
    pub region: Region,
    /// The rank.
    pub rank: Option<u32>,
}

impl At {
    pub(crate) fn new(region: &Region, rank: impl Into<Option<u32>>) -> Self {
        let (region, rank) = (region.clone(), rank.into());
        Self { region, rank }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.region.fmt(f)?;
        self.rank.map_or(Ok(()), |r| write!(f, " of rank {r}"))
    }
}

/// One problem of one key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}{fault}")]
pub struct Problem {
    /// The key. Of a missing cell of an array of objects, its unique key.
    pub key: String,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What can be wrong with a key. Messages begin with the key, and go on with the text of this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The key is asked for, but not stored.
    #[error(" is not in the checkpoint{}", suggested(near))]
    NotStored {
        /// Similar stored keys.
        near: Vec<String>,
    },
    /// The key is asked for as a sharded tensor or object, but the checkpoint has it in its common state.
    #[error(
        " is not in the checkpoint as a sharded leaf: it is in the common state, as {is}; load it as a plain \
         leaf, or save it with `.dialect(Dialect::Dcp)` or as a sharded leaf"
    )]
    InCommonState {
        /// What lies there, such as `a plain tensor of shape [4]`.
        is: String,
    },
    /// The key is stored, but no rank asks for it, and the load was told that it must.
    #[error(
        " is in the checkpoint, but no rank asks for it; add it to a template, or don't choose `raise_all`"
    )]
    NotRequested,
    /// One side has a tensor, the other an object.
    #[error(" is {is}, but {other}")]
    Kind {
        /// What is stored, or what one rank has.
        is: String,
        /// What was asked for, or what another rank has.
        other: String,
    },
    /// A tensor has two shapes.
    #[error(" has shape {is}, but {other}")]
    Shape {
        /// The stored shape, or that of one rank.
        is: String,
        /// The shape asked for, or that of another rank.
        other: String,
    },
    /// A tensor has two element types.
    #[error("{}", types(*is, *other, *ranks))]
    DType {
        /// The stored type, or that of one rank.
        is: DType,
        /// The type asked for, or that of another rank.
        other: DType,
        /// The two ranks, on save.
        ranks: Option<(u32, u32)>,
    },
    /// A chunk reaches beyond its tensor.
    #[error(": chunk {at} does not lie in shape {shape}")]
    OutOfBounds {
        /// The chunk.
        at: At,
        /// Shape of the tensor.
        shape: Dims,
    },
    /// A shape has more elements than can be counted.
    #[error(": no tensor can have shape {shape}")]
    TooLarge {
        /// The shape.
        shape: Dims,
    },
    /// Two chunks share elements.
    #[error(": chunks {a} and {b} overlap")]
    Overlap {
        /// One chunk.
        a: At,
        /// The other.
        b: At,
    },
    /// No chunk has these elements.
    #[error(": no chunk covers {region} of shape {shape}")]
    Hole {
        /// A box of them.
        region: Region,
        /// Shape of the tensor.
        shape: Dims,
    },
    /// A tensor is stored flattened, but not as one of its shape.
    #[error(
        " has shape {original}, and is stored flattened in shape {stored}, which does not fit: {why}"
    )]
    Flattened {
        /// Its shape.
        original: Dims,
        /// The shape in which it is stored.
        stored: Dims,
        /// Why they don't fit.
        why: String,
    },
    /// Two leaves of one rank hold the same piece, but only one can be written.
    #[error(
        ": the leaves at {} and {} of rank {rank} both hold {}, {why}",
        paths[0],
        paths[1],
        region.as_ref().map_or("it".into(), Region::to_string)
    )]
    DuplicatePieces {
        /// The chunk; objects have none.
        region: Option<Region>,
        /// The rank.
        rank: u32,
        /// The paths of the leaves in its state dict.
        paths: [String; 2],
        /// Why that is an error.
        why: DuplicatePieces,
    },
    /// Several ranks want to write the same object.
    #[error(
        " is written by ranks {ranks:?}; give all ranks but one another replica_id, or each rank a key of its own"
    )]
    Duplicate {
        /// The ranks.
        ranks: Vec<u32>,
    },
    /// Ranks cut a tensor differently, or only some of them flatten it.
    #[error(" is {is}, but {other}")]
    Declared {
        /// How one rank declares it.
        is: String,
        /// How another rank does.
        other: String,
    },
    /// No rank has the main replica of a chunk, though some have others.
    #[error(
        ": nobody is the main replica of {region}, which {}; give one of them the replica_id 0",
        have(ranks)
    )]
    Unclaimed {
        /// The chunk.
        region: Region,
        /// The ranks that have it.
        ranks: Vec<u32>,
    },
    /// A chunk has several main replicas.
    #[error(
        ": {region} has {} main replicas, on {}; give all but one another replica_id: `ShardedTensor::replicated(key, data, rank)` in place of `full` does it for what all ranks have",
        ranks.len(),
        named(ranks)
    )]
    Claimed {
        /// The chunk.
        region: Region,
        /// The ranks that have them; one of them may have several.
        ranks: Vec<u32>,
    },
    /// No main replica has a range of a flattened chunk.
    #[error(": the flattened ranges of chunk {region} leave out its elements {}:{}", .range.start, .range.end)]
    RangeHole {
        /// The chunk.
        region: Region,
        /// Elements of it, in row-major order.
        range: Range<u64>,
    },
    /// Two main replicas share a range of a flattened chunk.
    #[error(
        ": the flattened ranges of chunk {region} on rank {} and on rank {} both have its elements {}:{}",
        .ranks.0,
        .ranks.1,
        .range.start,
        .range.end
    )]
    RangeOverlap {
        /// The chunk.
        region: Region,
        /// Elements of it, in row-major order.
        range: Range<u64>,
        /// The ranks that have them.
        ranks: (u32, u32),
    },
    /// No rank writes a cell of an array of objects.
    #[error(" is missing: {}", replicas(ranks))]
    NoCell {
        /// Ranks that have a replica of it.
        ranks: Vec<u32>,
    },
    /// Further chunks or cells of a key have such problems.
    #[error(": {count} more parts of it have such problems")]
    More {
        /// How many.
        count: u128,
    },
}

/// Why two leaves of one rank may not hold the same piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DuplicatePieces {
    /// Both are the main replica.
    #[error("both as its main replica; give one another replica_id")]
    BothMain,
    /// Their contents differ.
    #[error("with different content; give one another key")]
    Differ,
    /// They can't be compared without reading them from elsewhere.
    #[error("and they can't be compared without reading them; leave one out")]
    Unknown,
}

impl Fault {
    /// The fault as the problem of a key.
    pub(crate) fn of(self, key: impl Into<String>) -> Problem {
        let (key, fault) = (key.into(), self);
        Problem { key, fault }
    }

    /// What is wrong with chunks of a tensor of this shape. `at` returns the chunk of a number.
    pub(crate) fn of_chunks(fault: BoxFault, shape: Dims, at: impl Fn(usize) -> At) -> Self {
        match fault {
            BoxFault::Overlap(i, j) => Self::Overlap { a: at(i), b: at(j) },
            BoxFault::Hole(region) => Self::Hole { region, shape },
        }
    }

    /// Its text, without a key before it.
    pub fn text(&self) -> String {
        self.to_string().trim_start_matches([':', ' ']).into()
    }

    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotStored { .. } | Self::InCommonState { .. } => ErrorKind::NotFound,
            Self::OutOfBounds { .. }
            | Self::TooLarge { .. }
            | Self::Overlap { .. }
            | Self::Hole { .. }
            | Self::Flattened { .. } => ErrorKind::Corrupt,
            _ => ErrorKind::Invalid,
        }
    }
}

fn suggested(near: &[String]) -> String {
    match near {
        [] => String::new(),
        near => format!("; did you mean {}", near.join(" or ")),
    }
}

fn types(is: DType, other: DType, ranks: Option<(u32, u32)>) -> String {
    match ranks {
        None => format!(
            " is stored as {is}, but asked for as {other}; declare it as {is}, or allow the cast: `.cast(Cast::Lossless)` or another `Cast`"
        ),
        Some((a, b)) => format!(" is {is} on rank {a}, but {other} on rank {b}"),
    }
}

fn replicas(ranks: &[u32]) -> String {
    match ranks {
        [] => "no rank has this cell of the array of objects".into(),
        ranks => format!(
            "{} only a replica; give one of them the replica_id 0",
            have(ranks)
        ),
    }
}

/// `rank 3 has`, or `ranks 0, 1, 2 have`.
fn have(ranks: &[u32]) -> String {
    let verb = if ranks.len() == 1 { "has" } else { "have" };
    format!("{} {verb}", named(ranks))
}

/// So many ranks are named.
const RANKS: usize = 16;

/// `rank 3`, or `ranks 0, 1, 2`.
fn named(ranks: &[u32]) -> String {
    let all: Vec<String> = ranks.iter().take(RANKS).map(u32::to_string).collect();
    let more = match ranks.len().checked_sub(RANKS) {
        None | Some(0) => String::new(),
        Some(more) => format!(" and {more} more"),
    };
    let s = if ranks.len() == 1 { "" } else { "s" };
    format!("rank{s} {}{more}", all.join(", "))
}

/// All problems, by key. The text has the first twenty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    pub(crate) const SHOWN: usize = 20;

    /// The kind that all problems share, or else [`ErrorKind::Invalid`].
    fn kind(&self) -> ErrorKind {
        let first = self
            .0
            .first()
            .map_or(ErrorKind::Invalid, |p| p.fault.kind());
        if self.0.iter().all(|p| p.fault.kind() == first) {
            first
        } else {
            ErrorKind::Invalid
        }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = &*self.0 {
            return only.fmt(f);
        }
        write!(f, "{} problems", self.0.len())?;
        self.0
            .iter()
            .take(Self::SHOWN)
            .try_for_each(|p| write!(f, "\n  {p}"))?;
        match self.0.len().checked_sub(Self::SHOWN) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, "\n  and {more} more"),
        }
    }
}
