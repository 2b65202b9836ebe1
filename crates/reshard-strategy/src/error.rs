use crate::{BackendVersion, LimitOption, StrategyKey};
use reshard_comm::{Cause, CommError};
use reshard_model::{BoxError, ErrorKind, ModelError};
use reshard_plan::PlanError;
use reshard_policy::PolicyError;
use reshard_storage::StorageError;

/// Result of this crate's functions.
pub type Result<T, E = StrategyError> = std::result::Result<T, E>;

/// What can go wrong in a save or load.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StrategyError {
    /// An error of tensors, buffers or the state dict.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// An error of planning: missing keys, overlaps, holes.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An error of a sharding policy, or of its answer.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Some ranks failed. All ranks get this error.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// An error of the store.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The bytes on disk are wrong.
    #[error("{file}{}: {what}", offset.map(|o| format!(" at byte {o}")).unwrap_or_default())]
    Corrupt {
        /// Which file.
        file: String,
        /// Where in it, if known.
        offset: Option<u64>,
        /// What is wrong, and with which key.
        what: String,
        /// The error of the parser.
        #[source]
        source: Option<BoxError>,
    },
    /// An object can't be encoded or decoded.
    #[error("object {key}: {what}")]
    Object {
        /// Its key.
        key: String,
        /// The operation.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: BoxError,
    },
    /// There is no checkpoint at the place.
    #[error("{url} is not a checkpoint: {why}")]
    NotACheckpoint {
        /// Where.
        url: String,
        /// What is missing.
        why: String,
    },
    /// The place may hold a checkpoint of either of two formats.
    #[error(
        "{url} may be a checkpoint of {a} or of {b}, judging by the names of its files; say which one you mean"
    )]
    Ambiguous {
        /// Where.
        url: String,
        /// One format that recognises it.
        a: BackendVersion,
        /// Another one.
        b: BackendVersion,
    },
    /// The checkpoint has no tensor or object of this key.
    #[error("{what}")]
    NotStored {
        /// What is missing.
        what: String,
    },
    /// The strategy does not support the operation.
    #[error("{what} is not supported by {strategy}")]
    Unsupported {
        /// Which strategy.
        strategy: String,
        /// What it does not support, and what to do instead.
        what: String,
    },
    /// Something is whole, as far as its checksums tell, but this version can't decode it.
    #[error("{what} is not supported")]
    Undecoded {
        /// What, and why.
        what: String,
    },
    /// Something exceeds a limit.
    #[error("{what}; {}", option.advice(*max))]
    Limit {
        /// What is too much, with its key or file.
        what: String,
        /// Which limit it exceeds.
        option: LimitOption,
        /// The limit, in bytes.
        max: u64,
    },
    /// Two crates register one key.
    #[error("{key} is registered by both {a} and {b}; link only one of them")]
    Duplicate {
        /// The key.
        key: StrategyKey,
        /// The crate that came first.
        a: &'static str,
        /// The crate that came second.
        b: &'static str,
    },
    /// No strategy of that name is linked.
    #[error("{}", unknown(key, linked, update.as_deref()))]
    Unknown {
        /// What was asked for.
        key: StrategyKey,
        /// What is linked.
        linked: Vec<String>,
        /// The crate to update, with its linked version, if it only knows earlier versions of this backend.
        update: Option<String>,
    },
    /// The call contradicts itself or the state.
    #[error("{0}")]
    Invalid(String),
    /// A strategy, format or store breaks its contract, or reshard has a bug. The caller can do nothing about it.
    #[error("{0}; this is a bug in reshard or in a plug-in, please report it")]
    Internal(String),
}

/// The message with its causes.
impl std::fmt::Debug for StrategyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        reshard_model::write_with_causes(self, f)
    }
}

fn unknown(key: &StrategyKey, linked: &[String], update: Option<&str>) -> String {
    let StrategyKey { action, name } = key;
    let backends = linked.iter().filter_map(|name| name.split('/').next());
    let near = reshard_plan::similar(&name.backend, backends);
    let meant = match &*near {
        // The version is wrong.
        [] => String::new(),
        near if near.contains(&&*name.backend) => String::new(),
        near => format!("; did you mean {}?", near.join(" or ")),
    };
    let linked = linked.join(", ");
    match update {
        None => format!("no strategy is linked for `{action}` of {name}{meant}; linked: {linked}"),
        Some(origin) => format!(
            "{name} is newer than what {origin} can `{action}`; update that crate; linked: {linked}"
        ),
    }
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
        Self::Corrupt {
            file: file.to_string(),
            offset,
            what: what.into(),
            source: None,
        }
    }
}

/// What crosses the wire of an error.
pub fn cause(e: &StrategyError) -> Cause {
    match e {
        StrategyError::Comm(c) => c.to_cause(),
        e => Cause::from_error(e.kind(), e),
    }
}
