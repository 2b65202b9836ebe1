use crate::{Path, Region, Step, without_secrets};
use serde::{Deserialize, Serialize};

/// An error of foreign code, kept as it is.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// What you can do about a failed operation. Every crate of reshard uses the same kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Fix the call: bad shapes, overlapping shards, an unknown backend.
    Invalid,
    /// The thing that you asked for does not exist: a key, a file, a checkpoint.
    NotFound,
    /// Something exists already, and you did not ask to overwrite it.
    Exists,
    /// The bytes on disk are wrong.
    Corrupt,
    /// Something that this version, or this place, can't do.
    Unsupported,
    /// It exceeds a limit. The message names the option that raises the limit.
    Limit,
    /// I/O failed. Trying again later may work. Nothing was committed, unless the error itself says that it was committed
    /// (`NotDurable` and `NotCarried` of a save).
    Unavailable,
    /// Another rank failed, so the collective was stopped.
    PeerFailed,
    /// A bug in reshard or in a plug-in.
    Internal,
}

/// An error of a [`TensorSource`](crate::TensorSource) with its own kind. The code that pulls the elements keeps this kind.
#[derive(Debug)]
pub struct SourceError {
    kind: ErrorKind,
    error: BoxError,
}

impl SourceError {
    /// Keeps the kind if the source's data are damaged, not understood or beyond a limit. For any other kind, the error only
    /// says that the source can't be read.
    pub fn new(kind: ErrorKind, error: impl Into<BoxError>) -> Self {
        let kind = match kind {
            ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Limit => kind,
            _ => ErrorKind::Unavailable,
        };
        Self {
            kind,
            error: error.into(),
        }
    }

    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The kind of a source's error. [`ErrorKind::Unavailable`] if the error has no kind.
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

/// Returns the message of an error, followed by the messages of its sources that it does not contain, without the secrets of URLs.
pub fn with_sources(mut said: String, e: &dyn std::error::Error) -> String {
    for source in std::iter::successors(e.source(), |e| e.source()) {
        let text = source.to_string();
        if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
    }
    without_secrets(&said).into_owned()
}

/// Writes an error as a program shows it that ends with it: the message, then each cause that the message does not say already. The `Debug` of
/// reshard's errors is this, because a `main` that returns an error prints its `Debug`. URLs are [without their secrets](without_secrets).
///
/// # Errors
/// Those of the formatter.
pub fn write_with_causes(
    error: &(dyn std::error::Error + 'static),
    f: &mut std::fmt::Formatter<'_>,
) -> std::fmt::Result {
    let clean = |e: &dyn std::error::Error| without_secrets(&e.to_string()).into_owned();
    let mut told = clean(error);
    f.write_str(&told)?;
    let mut is_first = true;
    let mut next = error.source();
    while let Some(cause) = next {
        let text = clean(cause);
        if !told.contains(&text) {
            f.write_str(if is_first { "\n\nCaused by:" } else { "" })?;
            write!(f, "\n    {text}")?;
            is_first = false;
            told.push('\n');
            told.push_str(&text);
        }
        next = cause.source();
    }
    Ok(())
}

/// What can be wrong with tensors, regions, buffers and trees.
#[derive(thiserror::Error)]
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
    /// There is nothing of this name.
    #[error("no {key:?}: {what}")]
    NotFound {
        /// The name.
        key: String,
        /// What is there.
        what: String,
    },
    /// Something that this version can't do.
    #[error("{key}{}{what}", if key.is_empty() { "" } else { ": " })]
    Unsupported {
        /// Key of the tensor or object, or an empty string.
        key: String,
        /// What can't be done, and what to do instead.
        what: String,
    },
    /// A buffer of the template can't be filled, because somebody else holds a handle on it.
    #[error(
        "the buffer of {key} is shared with someone outside the template; pass the only handle to it, or let load allocate"
    )]
    BufferShared {
        /// Key of the tensor.
        key: String,
    },
    /// A buffer of the template can't be written to.
    #[error(
        "the buffer of {key} is read-only; pass memory that can be written, or let load allocate"
    )]
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
    /// The structure of a state dict does not fit the operation.
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
        /// The operation.
        what: String,
        /// Why it failed.
        #[source]
        source: BoxError,
    },
}

/// The message with its causes.
impl std::fmt::Debug for ModelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_with_causes(self, f)
    }
}

impl ModelError {
    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Source { source, .. } => SourceError::kind_of(&**source),
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Invalid,
        }
    }

    /// An [`Invalid`](Self::Invalid) about `key`.
    pub fn invalid(key: &str, what: impl Into<String>) -> Self {
        Self::Invalid {
            key: key.into(),
            what: what.into(),
        }
    }
}

/// A [`Structure`](ModelError::Structure) error about the place at `path`.
pub(crate) fn structure(path: &[Step], what: impl Into<String>) -> ModelError {
    ModelError::Structure {
        path: Path::from(path).to_string(),
        what: what.into(),
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

    #[test]
    fn debug_is_the_message_and_the_causes_that_it_does_not_say() {
        let error = |what: &str, cause: &str| ModelError::Source {
            key: "w".into(),
            what: what.into(),
            source: cause.into(),
        };
        let text = |what, cause| format!("{:?}", error(what, cause));
        assert_eq!(
            text("reading", "no such device"),
            "w: reading\n\nCaused by:\n    no such device"
        );
        assert_eq!(
            text("reading: no device", "no device"),
            "w: reading: no device"
        );
        let outer = ModelError::Source {
            key: "v".into(),
            what: "loading".into(),
            source: Box::new(error("reading", "no such device")),
        };
        assert_eq!(
            format!("{outer:?}"),
            "v: loading\n\nCaused by:\n    w: reading\n    no such device"
        );
    }
}
