use crate::Region;
use serde::{Deserialize, Serialize};

/// An error of somebody else's code, kept whole.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// What the caller of a failed operation can do about it. The same kinds in every crate of reshard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Fix the call: bad shapes, overlapping shards, an unknown backend.
    Invalid,
    /// What was asked for is not there: a key, a file, a checkpoint.
    NotFound,
    /// Something is there already and overwriting it was not asked for.
    Exists,
    /// The bytes on disk are not what they should be.
    Corrupt,
    /// A known thing that this version, or this place, can't do.
    Unsupported,
    /// More than a limit allows; the message names the option that raises it.
    Limit,
    /// I/O failed; trying again later may work. Nothing was committed.
    Unavailable,
    /// Another rank failed and the collective was called off.
    PeerFailed,
    /// A bug in reshard or in a plug-in.
    Internal,
}

/// An error of a [`TensorSource`](crate::TensorSource) that knows what the caller can do: whoever pulls the elements keeps the
/// kind.
#[derive(Debug)]
pub struct SourceError {
    kind: ErrorKind,
    error: BoxError,
}

impl SourceError {
    /// Keeps the kind when what the source reads is damaged, not understood or beyond a limit; of all else the source just can't
    /// be read.
    pub fn new(kind: ErrorKind, error: impl Into<BoxError>) -> Self {
        let kind = match kind {
            ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Limit => kind,
            _ => ErrorKind::Unavailable,
        };
        Self { kind, error: error.into() }
    }

    /// What the caller of whoever pulls the elements can do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The kind that an error of a source says, if it does: [`ErrorKind::Unavailable`] else.
    pub fn kind_of(e: &(dyn std::error::Error + 'static)) -> ErrorKind {
        e.downcast_ref().map_or(ErrorKind::Unavailable, Self::kind)
    }
}

impl std::fmt::Display for SourceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for SourceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// What can be wrong with tensors, regions, buffers and trees.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A declaration that contradicts itself.
    #[error("{key}{}{what}", if key.is_empty() { "" } else { ": " })]
    Invalid {
        /// Key of the tensor or object, or an empty string.
        key: String,
        /// What is wrong, with both values.
        what: String,
    },
    /// A template buffer that somebody else holds too, so that it can't be filled.
    #[error(
        "the buffer of {key} is shared with someone outside the template; pass the only handle to it, or let load allocate"
    )]
    BufferShared {
        /// Key of the tensor.
        key: String,
    },
    /// A template buffer that can't be written to.
    #[error("the buffer of {key} is read-only; pass memory that can be written, or let load allocate")]
    ReadOnly {
        /// Key of the tensor.
        key: String,
    },
    /// Two regions of one buffer that should be disjoint are not.
    #[error("regions {a} and {b} of one buffer overlap")]
    Overlap {
        /// One region.
        a: Box<Region>,
        /// The other.
        b: Box<Region>,
    },
    /// A state dict whose structure does not fit what is asked of it.
    #[error("at {path}: {what}")]
    Structure {
        /// Path in the tree, dot-joined.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// A tensor source, device or factory failed.
    #[error("{key}: {what}")]
    Source {
        /// Key of the tensor.
        key: String,
        /// What was being done.
        what: String,
        /// Why it failed.
        #[source]
        source: BoxError,
    },
}

impl ModelError {
    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Source { source, .. } => SourceError::kind_of(&**source),
            _ => ErrorKind::Invalid,
        }
    }

    /// An [`Invalid`](Self::Invalid) about `key`.
    pub fn invalid(key: &str, what: impl Into<String>) -> Self {
        Self::Invalid { key: key.into(), what: what.into() }
    }
}

/// Result of this crate's functions.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_key_is_told_without_one() {
        let text = |key| ModelError::invalid(key, "3 elements given for shape [4]").to_string();
        assert_eq!(text(""), "3 elements given for shape [4]");
        assert_eq!(text("w"), "w: 3 elements given for shape [4]");
    }
}
