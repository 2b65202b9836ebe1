use reshard_model::{ErrorKind, Region};

/// What can go wrong with a policy or a partitioner.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// More slices than allowed.
    #[error("more than {limit} slices; raise the limit if that is meant")]
    TooMany {
        /// How many are allowed.
        limit: usize,
    },
    /// An answer that does not hold.
    #[error("policy \"{policy}\": {key} {region}: {what}{}", shard.map(|s| format!(" (shard {s})")).unwrap_or_default())]
    Wrong {
        /// Description of the policy.
        policy: String,
        /// Key of the piece.
        key: String,
        /// The slice, or the hole.
        region: Region,
        /// Number of the shard, if one is concerned.
        shard: Option<usize>,
        /// What is wrong.
        what: String,
    },
    /// A policy that panicked.
    #[error("policy \"{policy}\" panicked: {what}")]
    Panicked {
        /// Description of the policy.
        policy: String,
        /// What the panic said.
        what: String,
    },
    /// Parameters or arguments that can't be.
    #[error("{what}")]
    Invalid {
        /// What, and what to do.
        what: String,
    },
}

impl PolicyError {
    /// With text.
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into() }
    }

    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}
