//! What can be wrong with plans, all of it at once.

use reshard_model::{BoxError, DType, Dims, ErrorKind, ModelError, Region};
use std::fmt;

/// Result of this crate's functions and of planners' hooks.
pub type Result<T, E = PlanError> = std::result::Result<T, E>;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// What the ranks want to write does not make a checkpoint.
    #[error("the ranks' pieces don't make a checkpoint: {0}")]
    Save(Problems),
    /// The template and the checkpoint don't fit.
    #[error("the checkpoint can't fill the template: {0}")]
    Load(Problems),
    /// A declaration that contradicts itself, or a hook that was given what it can't handle.
    #[error("{key}: {what}")]
    Invalid {
        /// Key of the tensor or object.
        key: String,
        /// What is wrong.
        what: String,
    },
    /// Stored tables that contradict themselves.
    #[error("{key}: {what}")]
    Corrupt {
        /// Key of the tensor or object.
        key: String,
        /// What is wrong.
        what: String,
    },
    /// A known thing that is not done yet.
    #[error("{key}: {what}")]
    Unsupported {
        /// Key of the tensor or object.
        key: String,
        /// What is not done.
        what: String,
    },
    /// A tensor or object is at fault.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A planner's own error.
    #[error(transparent)]
    Planner(BoxError),
}

impl PlanError {
    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Save(_) | Self::Invalid { .. } => ErrorKind::Invalid,
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
        Self::Invalid { key: key.into(), what: what.into() }
    }

    pub(crate) fn corrupt(key: &str, what: impl Into<String>) -> Self {
        Self::Corrupt { key: key.into(), what: what.into() }
    }
}

/// A box, and the rank that has it, where that is known.
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

/// One thing that is wrong with one key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// Asked for, and not stored.
    Missing {
        /// The key.
        key: String,
        /// Stored keys that look like it.
        near: Vec<String>,
    },
    /// A tensor where an object is, or the other way round.
    Kind {
        /// The key.
        key: String,
        /// What is stored, or what one rank has.
        is: String,
        /// What was asked for, or what another rank has.
        other: String,
    },
    /// Two shapes of one tensor.
    Shape {
        /// The key.
        key: String,
        /// The stored shape, or that of one rank.
        is: String,
        /// The shape asked for, or that of another rank.
        other: String,
    },
    /// Two element types of one tensor.
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
    /// A chunk that reaches out of its tensor.
    OutOfBounds {
        /// The key.
        key: String,
        /// The chunk.
        at: At,
        /// Shape of the tensor.
        shape: Dims,
    },
    /// Two chunks that share elements.
    Overlap {
        /// The key.
        key: String,
        /// One chunk.
        a: At,
        /// The other.
        b: At,
    },
    /// Elements that no chunk has.
    Hole {
        /// The key.
        key: String,
        /// A box of them.
        region: Region,
        /// Shape of the tensor.
        shape: Dims,
    },
    /// Two leaves of one rank that hold one piece, of which only one can be written.
    DuplicatePieces {
        /// The key.
        key: String,
        /// The chunk; objects have none.
        region: Option<Region>,
        /// The rank.
        rank: u32,
        /// Where the leaves are in its state dict.
        paths: [String; 2],
        /// Why that can't be.
        why: DuplicatePieces,
    },
    /// An object that several ranks want to write.
    Duplicate {
        /// The key.
        key: String,
        /// The ranks.
        ranks: Vec<u32>,
    },
}

/// Why two leaves of one rank may not hold one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DuplicatePieces {
    /// Both are its main replica.
    BothMain,
    /// What they hold differs.
    Differ,
    /// Whether they hold the same can't be told without reading them from elsewhere.
    Unknown,
}

impl fmt::Display for DuplicatePieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BothMain => "both as its main replica; give one another replica_id",
            Self::Differ => "with different content; give one another key",
            Self::Unknown => "and whether they are equal can't be told before they are read; leave one out",
        })
    }
}

impl Problem {
    /// The key.
    pub fn key(&self) -> &str {
        match self {
            Self::Missing { key, .. } | Self::Kind { key, .. } | Self::Shape { key, .. } => key,
            Self::DType { key, .. } | Self::OutOfBounds { key, .. } | Self::Overlap { key, .. } => key,
            Self::Hole { key, .. } | Self::Duplicate { key, .. } | Self::DuplicatePieces { key, .. } => key,
        }
    }

    fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. } => ErrorKind::NotFound,
            Self::OutOfBounds { .. } | Self::Overlap { .. } | Self::Hole { .. } => ErrorKind::Corrupt,
            _ => ErrorKind::Invalid,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { key, near } => {
                write!(f, "{key} is not in the checkpoint")?;
                for (i, n) in near.iter().enumerate() {
                    write!(f, "{} {n}", if i == 0 { "; did you mean" } else { " or" })?;
                }
                Ok(())
            }
            Self::Kind { key, is, other } => write!(f, "{key} is {is}, and {other}"),
            Self::Shape { key, is, other } => write!(f, "{key} has shape {is}, and {other}"),
            Self::DType { key, is, other, ranks: None } => write!(
                f,
                "{key} is stored as {is} and asked for as {other}; declare it as {is}, or allow the cast"
            ),
            Self::DType { key, is, other, ranks: Some((a, b)) } => {
                write!(f, "{key} is {is} on rank {a} and {other} on rank {b}")
            }
            Self::OutOfBounds { key, at, shape } => {
                write!(f, "{key}: chunk {at} does not lie in shape {shape}")
            }
            Self::Overlap { key, a, b } => write!(f, "{key}: chunks {a} and {b} overlap"),
            Self::Hole { key, region, shape } => {
                write!(f, "{key}: no chunk has {region} of shape {shape}")
            }
            Self::DuplicatePieces { key, region, rank, paths: [a, b], why } => {
                let piece = region.as_ref().map_or("it".into(), ToString::to_string);
                write!(f, "{key}: the leaves at {a} and {b} of rank {rank} both hold {piece}, {why}")
            }
            Self::Duplicate { key, ranks } => write!(f, "{key} is written by ranks {ranks:?}"),
        }
    }
}

/// All that is wrong, by key. Its text is cut after the first twenty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    pub(crate) const SHOWN: usize = 20;

    /// The kind that all share, else [`ErrorKind::Invalid`].
    fn kind(&self) -> ErrorKind {
        let first = self.0.first().map_or(ErrorKind::Invalid, Problem::kind);
        if self.0.iter().all(|p| p.kind() == first) { first } else { ErrorKind::Invalid }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = &*self.0 {
            return only.fmt(f);
        }
        write!(f, "{} problems", self.0.len())?;
        self.0.iter().take(Self::SHOWN).try_for_each(|p| write!(f, "\n  {p}"))?;
        match self.0.len().checked_sub(Self::SHOWN) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, "\n  and {more} more"),
        }
    }
}
