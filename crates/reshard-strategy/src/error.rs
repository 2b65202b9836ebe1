use crate::{BackendVersion, LimitOption, StrategyKey};
use reshard_comm::{Cause, CommError};
use reshard_model::{BoxError, ErrorKind, ModelError};
use reshard_plan::PlanError;
use reshard_policy::PolicyError;
use reshard_storage::StorageError;

/// Result of this crate's functions.
pub type Result<T, E = StrategyError> = std::result::Result<T, E>;

/// What can go wrong in a save or load.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StrategyError {
    /// Tensors, buffers or the state dict.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Planning: missing keys, overlaps, holes.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A sharding policy, or what it answered.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Some ranks failed; all of them get this.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// Files.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Bytes on disk that are not what they should be.
    #[error("{file}{}: {what}", offset.map(|o| format!(" at byte {o}")).unwrap_or_default())]
    Corrupt {
        /// Which file.
        file: String,
        /// Where in it, if known.
        offset: Option<u64>,
        /// What is wrong, and with which key.
        what: String,
        /// The parser's own words.
        #[source]
        source: Option<BoxError>,
    },
    /// An object that can't be encoded or decoded.
    #[error("object {key}: {what}")]
    Object {
        /// Its key.
        key: String,
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: BoxError,
    },
    /// No checkpoint lies there.
    #[error("{url} is not a checkpoint: {why}")]
    NotACheckpoint {
        /// Where.
        url: String,
        /// What is missing.
        why: String,
    },
    /// What lies there may be a checkpoint of two formats.
    #[error("{url} may be a checkpoint of {a} or of {b}, by the names of its files; say which one is meant")]
    Ambiguous {
        /// Where.
        url: String,
        /// One format that knows it.
        a: BackendVersion,
        /// Another one.
        b: BackendVersion,
    },
    /// A checkpoint that has no tensor or object of a key.
    #[error("{what}")]
    NotStored {
        /// What is missing.
        what: String,
    },
    /// A strategy that lacks what is asked of it.
    #[error("{what} is not supported by {strategy}")]
    Unsupported {
        /// Which strategy.
        strategy: String,
        /// What it lacks, and what to do instead.
        what: String,
    },
    /// Something whole, as far as its checksums tell, that is more than this version decodes.
    #[error("{what} is not supported")]
    Undecoded {
        /// What, and why.
        what: String,
    },
    /// More than is read without being asked for.
    #[error("{what}; {}", option.advice(*max))]
    Limit {
        /// What is too much, with its key or file.
        what: String,
        /// Which limit it exceeds.
        option: LimitOption,
        /// The limit, in bytes.
        max: u64,
    },
    /// Two crates claim one key.
    #[error("{key} is registered by both {a} and {b}; link only one of them")]
    Duplicate {
        /// The key.
        key: StrategyKey,
        /// Who came first.
        a: &'static str,
        /// Who came second.
        b: &'static str,
    },
    /// No strategy of that name is linked.
    #[error("no strategy for {key}; linked: {}", linked.join(", "))]
    Unknown {
        /// What was asked for.
        key: StrategyKey,
        /// What there is.
        linked: Vec<String>,
    },
    /// A call that can't be carried out as it stands.
    #[error("{0}")]
    Invalid(String),
    /// A strategy, format or store that does not keep its contract, or a mistake of this program; the caller can't help it.
    #[error("{0}; this is a mistake of the program, please report it")]
    Internal(String),
}

impl StrategyError {
    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Model(e) => e.kind(),
            Self::Plan(e) => e.kind(),
            Self::Policy(e) => e.kind(),
            Self::Comm(e) => e.kind(),
            Self::Storage(e) => e.kind(),
            Self::Corrupt { .. } => ErrorKind::Corrupt,
            Self::NotACheckpoint { .. } | Self::NotStored { .. } => ErrorKind::NotFound,
            Self::Unsupported { .. } | Self::Undecoded { .. } => ErrorKind::Unsupported,
            Self::Limit { .. } => ErrorKind::Limit,
            Self::Ambiguous { .. }
            | Self::Object { .. }
            | Self::Duplicate { .. }
            | Self::Unknown { .. }
            | Self::Invalid(_) => ErrorKind::Invalid,
            Self::Internal(_) => ErrorKind::Internal,
        }
    }

    /// A [`Corrupt`](Self::Corrupt) without a parser's error.
    pub fn corrupt(file: impl ToString, offset: Option<u64>, what: impl Into<String>) -> Self {
        Self::Corrupt { file: file.to_string(), offset, what: what.into(), source: None }
    }
}

/// What is said of an error, and then what its sources say that is not in it yet.
pub fn with_sources(mut said: String, e: &dyn std::error::Error) -> String {
    for source in std::iter::successors(e.source(), |e| e.source()) {
        let text = source.to_string();
        if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
    }
    said
}

/// What crosses the wire of an error.
pub fn cause(e: &StrategyError) -> Cause {
    match e {
        StrategyError::Comm(c) => c.to_cause(),
        e => Cause::from_error(e.kind(), e),
    }
}
