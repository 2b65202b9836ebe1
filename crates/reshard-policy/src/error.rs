use reshard_model::{ErrorKind, Region};

/// Result of this crate's functions.
pub type Result<T, E = PolicyError> = std::result::Result<T, E>;

/// What can go wrong with a policy or a partitioner.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// More slices than allowed.
    #[error(
        "more than {limit} slices; if you mean so many, raise `max_slices` (`--max-slices` of `reshard convert`)"
    )]
    TooMany {
        /// How many are allowed.
        limit: usize,
    },
    /// More files of all tasks than allowed. Some of them may be empty.
    #[error(
        "that would be {files} files, and at most {limit} may be written; ask for fewer or larger ones, or raise `max_files` \
         (`--max-files` of `reshard convert`)"
    )]
    TooManyFiles {
        /// How many it would be.
        files: u64,
        /// How many are allowed.
        limit: u64,
    },
    /// A policy gives no answer, or one that makes no sense.
    #[error("policy \"{policy}\" failed")]
    Failed {
        /// Description of the policy.
        policy: String,
        /// Why.
        source: Box<PolicyError>,
    },
    /// The answer of a policy fails the check.
    #[error("policy \"{policy}\": {key} {region} {what}{}", shard.map(|s| format!(" (shard {s})")).unwrap_or_default())]
    Wrong {
        /// Description of the policy.
        policy: String,
        /// Key of the piece.
        key: String,
        /// The slice, or the hole.
        region: Region,
        /// Number of the shard, if the fault is in one shard.
        shard: Option<usize>,
        /// What is wrong.
        what: String,
    },
    /// A policy returned a slice of a piece that it was not given.
    #[error(
        "there is no piece {piece}, of which it returned {region} (shard {shard}); it was given {pieces} pieces"
    )]
    NoPiece {
        /// Number of the piece.
        piece: u32,
        /// How many pieces there are.
        pieces: usize,
        /// The slice.
        region: Region,
        /// Number of the shard.
        shard: usize,
    },
    /// A policy that panicked.
    #[error("policy \"{policy}\" panicked: {what}")]
    Panicked {
        /// Description of the policy.
        policy: String,
        /// What the panic said.
        what: String,
    },
    /// Impossible parameters or arguments.
    #[error("{what}")]
    Invalid {
        /// What is wrong, and what to do.
        what: String,
    },
}

/// The message with its causes.
impl std::fmt::Debug for PolicyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        reshard_model::write_with_causes(self, f)
    }
}

impl PolicyError {
    /// With text.
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into() }
    }

    pub(crate) fn failed(policy: &str, source: Self) -> Self {
        Self::Failed {
            policy: policy.into(),
            source: Box::new(source),
        }
    }

    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::TooMany { .. } | Self::TooManyFiles { .. } | Self::Invalid { .. } => {
                ErrorKind::Invalid
            }
            Self::Failed { source, .. } => source.kind(),
            Self::Wrong { .. } | Self::NoPiece { .. } | Self::Panicked { .. } => {
                ErrorKind::Internal
            }
        }
    }
}
