//! The errors of plans. All problems of a plan are reported at once.

use reshard_model::{BoxError, DType, Dims, ErrorKind, ModelError, Region};
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

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.region.fmt(f)?;
        self.rank.map_or(Ok(()), |r| write!(f, " of rank {r}"))
    }
}

/// One problem of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The key is asked for, but not stored.
    NotStored {
        /// The key.
        key: String,
        /// Similar stored keys.
        near: Vec<String>,
    },
    /// The key is asked for as a sharded tensor or object, but the checkpoint has it in its common state.
    InCommonState {
        /// The key.
        key: String,
        /// What lies there, such as `a plain tensor of shape [4]`.
        is: String,
    },
    /// The key is stored, but no rank asks for it, and the load was told that it must.
    NotRequested {
        /// The key.
        key: String,
    },
    /// One side has a tensor, the other an object.
    Kind {
        /// The key.
        key: String,
        /// What is stored, or what one rank has.
        is: String,
        /// What was asked for, or what another rank has.
        other: String,
    },
    /// A tensor has two shapes.
    Shape {
        /// The key.
        key: String,
        /// The stored shape, or that of one rank.
        is: String,
        /// The shape asked for, or that of another rank.
        other: String,
    },
    /// A tensor has two element types.
    DType {
        /// The key.
        key: String,
        /// The stored type, or that of one rank.
        is: DType,
        /// The type asked for, or that of another rank.
        other: DType,
        /// The two ranks, on save.
        ranks: Option<(u32, u32)>,
    },
    /// A chunk reaches beyond its tensor.
    OutOfBounds {
        /// The key.
        key: String,
        /// The chunk.
        at: At,
        /// Shape of the tensor.
        shape: Dims,
    },
    /// Two chunks share elements.
    Overlap {
        /// The key.
        key: String,
        /// One chunk.
        a: At,
        /// The other.
        b: At,
    },
    /// No chunk has these elements.
    Hole {
        /// The key.
        key: String,
        /// A box of them.
        region: Region,
        /// Shape of the tensor.
        shape: Dims,
    },
    /// A tensor is stored flattened, but not as one of its shape.
    Flattened {
        /// The key.
        key: String,
        /// Its shape.
        original: Dims,
        /// The shape in which it is stored.
        stored: Dims,
        /// Why they don't fit.
        why: String,
    },
    /// Two leaves of one rank hold the same piece, but only one can be written.
    DuplicatePieces {
        /// The key.
        key: String,
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
    Duplicate {
        /// The key.
        key: String,
        /// The ranks.
        ranks: Vec<u32>,
    },
    /// Ranks cut a tensor differently, or only some of them flatten it.
    Declared {
        /// The key.
        key: String,
        /// How one rank declares it.
        is: String,
        /// How another rank does.
        other: String,
    },
    /// No rank has the main replica of a chunk, though some have others.
    Unclaimed {
        /// The key.
        key: String,
        /// The chunk.
        region: Region,
        /// The ranks that have it.
        ranks: Vec<u32>,
    },
    /// A chunk has several main replicas.
    Claimed {
        /// The key.
        key: String,
        /// The chunk.
        region: Region,
        /// The ranks that have them; one of them may have several.
        ranks: Vec<u32>,
    },
    /// No main replica has a range of a flattened chunk.
    RangeHole {
        /// The key.
        key: String,
        /// The chunk.
        region: Region,
        /// Elements of it, in row-major order.
        range: Range<u64>,
    },
    /// Two main replicas share a range of a flattened chunk.
    RangeOverlap {
        /// The key.
        key: String,
        /// The chunk.
        region: Region,
        /// Elements of it, in row-major order.
        range: Range<u64>,
        /// The ranks that have them.
        ranks: (u32, u32),
    },
    /// No rank writes a cell of an array of objects.
    NoCell {
        /// The unique key of the cell.
        key: String,
        /// Ranks that have a replica of it.
        ranks: Vec<u32>,
    },
    /// Further chunks or cells of a key have such problems.
    More {
        /// The key.
        key: String,
        /// How many.
        count: u128,
    },
}

/// Why two leaves of one rank may not hold the same piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DuplicatePieces {
    /// Both are the main replica.
    BothMain,
    /// Their contents differ.
    Differ,
    /// They can't be compared without reading them from elsewhere.
    Unknown,
}

impl fmt::Display for DuplicatePieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BothMain => "both as its main replica; give one another replica_id",
            Self::Differ => "with different content; give one another key",
            Self::Unknown => "and they can't be compared without reading them; leave one out",
        })
    }
}

impl Problem {
    /// The key.
    pub fn key(&self) -> &str {
        match self {
            Self::NotStored { key, .. }
            | Self::InCommonState { key, .. }
            | Self::NotRequested { key } => key,
            Self::Kind { key, .. } | Self::Shape { key, .. } => key,
            Self::DType { key, .. } | Self::OutOfBounds { key, .. } | Self::Overlap { key, .. } => {
                key
            }
            Self::Hole { key, .. }
            | Self::Flattened { key, .. }
            | Self::Duplicate { key, .. }
            | Self::DuplicatePieces { key, .. }
            | Self::Declared { key, .. }
            | Self::Unclaimed { key, .. }
            | Self::Claimed { key, .. }
            | Self::RangeHole { key, .. }
            | Self::RangeOverlap { key, .. }
            | Self::NoCell { key, .. }
            | Self::More { key, .. } => key,
        }
    }

    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotStored { .. } | Self::InCommonState { .. } => ErrorKind::NotFound,
            Self::OutOfBounds { .. }
            | Self::Overlap { .. }
            | Self::Hole { .. }
            | Self::Flattened { .. } => ErrorKind::Corrupt,
            _ => ErrorKind::Invalid,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRequested { key } => {
                write!(
                    f,
                    "{key} is in the checkpoint, but no rank asks for it; add it to a template, or don't choose `raise_all`"
                )
            }
            Self::NotStored { key, near } => {
                write!(f, "{key} is not in the checkpoint")?;
                for (i, n) in near.iter().enumerate() {
                    write!(f, "{} {n}", if i == 0 { "; did you mean" } else { " or" })?;
                }
                Ok(())
            }
            Self::InCommonState { key, is } => write!(
                f,
                "{key} is not in the checkpoint as a sharded leaf: it is in the common state, as {is}; load it as a plain \
                 leaf, or save it with `.dialect(Dialect::Dcp)` or as a sharded leaf"
            ),
            Self::Kind { key, is, other } => write!(f, "{key} is {is}, but {other}"),
            Self::Shape { key, is, other } => write!(f, "{key} has shape {is}, but {other}"),
            Self::DType {
                key,
                is,
                other,
                ranks: None,
            } => write!(
                f,
                "{key} is stored as {is}, but asked for as {other}; declare it as {is}, or allow the cast: `.cast(Cast::Lossless)` or another `Cast`"
            ),
            Self::DType {
                key,
                is,
                other,
                ranks: Some((a, b)),
            } => {
                write!(f, "{key} is {is} on rank {a}, but {other} on rank {b}")
            }
            Self::OutOfBounds { key, at, shape } => {
                write!(f, "{key}: chunk {at} does not lie in shape {shape}")
            }
            Self::Overlap { key, a, b } => write!(f, "{key}: chunks {a} and {b} overlap"),
            Self::Hole { key, region, shape } => {
                write!(f, "{key}: no chunk covers {region} of shape {shape}")
            }
            Self::Flattened {
                key,
                original,
                stored,
                why,
            } => write!(
                f,
                "{key} has shape {original}, and is stored flattened in shape {stored}, which does not fit: {why}"
            ),
            Self::DuplicatePieces {
                key,
                region,
                rank,
                paths: [a, b],
                why,
            } => {
                let piece = region.as_ref().map_or("it".into(), ToString::to_string);
                write!(
                    f,
                    "{key}: the leaves at {a} and {b} of rank {rank} both hold {piece}, {why}"
                )
            }
            Self::Duplicate { key, ranks } => write!(
                f,
                "{key} is written by ranks {ranks:?}; give all ranks but one another replica_id, or each rank a key of its own"
            ),
            access => access.fmt_access(f),
        }
    }
}

impl Problem {
    /// The problems that only declarations of all ranks show.
    fn fmt_access(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Declared { key, is, other } => write!(f, "{key} is {is}, but {other}"),
            Self::Unclaimed { key, region, ranks } => write!(
                f,
                "{key}: nobody is the main replica of {region}, which {} {}; give one of them the replica_id 0",
                named(ranks),
                if ranks.len() == 1 { "has" } else { "have" }
            ),
            Self::Claimed { key, region, ranks } => write!(
                f,
                "{key}: {region} has {} main replicas, on {}; give all but one another replica_id: `ShardedTensor::replicated(key, data, rank)` in place of `full` does it for what all ranks have",
                ranks.len(),
                named(ranks)
            ),
            Self::RangeHole { key, region, range } => write!(
                f,
                "{key}: the flattened ranges of chunk {region} leave out its elements {}:{}",
                range.start, range.end
            ),
            Self::RangeOverlap {
                key,
                region,
                range,
                ranks: (a, b),
            } => write!(
                f,
                "{key}: the flattened ranges of chunk {region} on rank {a} and on rank {b} both have its elements {}:{}",
                range.start, range.end
            ),
            Self::NoCell { key, ranks } if ranks.is_empty() => {
                write!(
                    f,
                    "{key} is missing: no rank has this cell of the array of objects"
                )
            }
            Self::NoCell { key, ranks } => write!(
                f,
                "{key} is missing: {} {} only a replica; give one of them the replica_id 0",
                named(ranks),
                if ranks.len() == 1 { "has" } else { "have" }
            ),
            Self::More { key, count } => {
                write!(f, "{key}: {count} more parts of it have such problems")
            }
            // All others are told above.
            other => f.write_str(other.key()),
        }
    }
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
        let first = self.0.first().map_or(ErrorKind::Invalid, Problem::kind);
        if self.0.iter().all(|p| p.kind() == first) {
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
