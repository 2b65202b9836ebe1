use reshard::{ErrorKind, comm::CommError};

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a save of a run is refused, or fails.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting has no meaning. Nothing was saved.
    #[error("{0}")]
    Invalid(String),
    /// The directory has a newer checkpoint, which a program that resumes would find in place of this one. Nothing was saved.
    #[error(
        "step {step} can't be saved to {dir}, because that has a newer checkpoint, of step {newest}, with which a program that resumes would go on; \
         to go back to an earlier step, move the newer checkpoints away first, or save to another directory"
    )]
    Newer {
        /// The step to save.
        step: u64,
        /// The newest step that is there.
        newest: u64,
        /// The directory.
        dir: String,
    },
    /// The new checkpoint was saved, and verifying it has found damage. It stays, and so do all older ones.
    #[error("the new checkpoint {url} is damaged: {damage}; older ones are not removed")]
    Damaged {
        /// The checkpoint.
        url: String,
        /// What was found first, and how much there is.
        damage: String,
    },
    /// The save, or a look at the directory, has failed.
    #[error(transparent)]
    Reshard(#[from] reshard::Error),
    /// A rank has failed, or was lost. If that was in the step `retain`, the new checkpoint is there.
    #[error(transparent)]
    Comm(#[from] CommError),
}

/// The message with its causes.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        reshard::model::write_with_causes(self, f)
    }
}

impl Error {
    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(_) => ErrorKind::Invalid,
            Self::Newer { .. } => ErrorKind::Exists,
            Self::Damaged { .. } => ErrorKind::Corrupt,
            Self::Reshard(e) => e.kind(),
            Self::Comm(e) => e.kind(),
        }
    }
}
