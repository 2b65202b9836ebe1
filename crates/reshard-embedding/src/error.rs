use reshard_comm::CommError;
use reshard_model::{DType, ErrorKind, ModelError};
use reshard_policy::PolicyError;

/// What can go wrong with variables in parts.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddingError {
    /// A declaration or an argument that does not fit.
    #[error("{name}: {what}")]
    Invalid {
        /// Name of the variable.
        name: String,
        /// What is wrong, with both values.
        what: String,
    },
    /// An id without a row.
    #[error("{name}: id {id} at position {at} is out of range: {why}")]
    IdOutOfRange {
        /// Name of the variable.
        name: String,
        /// The id.
        id: i64,
        /// Its position in the list of ids, row-major.
        at: usize,
        /// Why it has no row, with the ids that have one.
        why: String,
    },
    /// Arithmetic on an element type that has none, such as bool, complex numbers and 8-bit floats.
    #[error("{name}: {op} is not defined for {dtype}")]
    Unsupported {
        /// Name of the variable.
        name: String,
        /// The operation.
        op: &'static str,
        /// Element type.
        dtype: DType,
    },
    /// A needed part lies in another process, or was never filled.
    #[error("{name}: part {part} belongs to task {task} and has no data here")]
    NoData {
        /// Name of the variable.
        name: String,
        /// Number of the part.
        part: usize,
        /// The task that holds it.
        task: u32,
    },
    /// A part that no rank of the group holds.
    #[error("{name}: part {part} is needed for id {id}, and none of the {ranks} ranks holds it")]
    NotHeld {
        /// Name of the variable.
        name: String,
        /// Number of the part.
        part: usize,
        /// The id.
        id: i64,
        /// The number of ranks.
        ranks: u32,
    },
    /// A thread that fills memory can't be started.
    #[error("{name}: a thread can't be started; give it fewer, or let the process start more")]
    Thread {
        /// Name of the variable.
        name: String,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// The ranks of a group.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// Tensors and buffers.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Partitioners and partitions.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// The message with its causes.
impl std::fmt::Debug for EmbeddingError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        reshard_model::write_with_causes(self, f)
    }
}

impl EmbeddingError {
    /// With text.
    pub(crate) fn invalid(name: &str, what: impl Into<String>) -> Self {
        Self::Invalid {
            name: name.into(),
            what: what.into(),
        }
    }

    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Model(e) => e.kind(),
            Self::Policy(e) => e.kind(),
            Self::Comm(e) => e.kind(),
            Self::Thread { .. } => ErrorKind::Unavailable,
            Self::Invalid { .. }
            | Self::IdOutOfRange { .. }
            | Self::NoData { .. }
            | Self::NotHeld { .. } => ErrorKind::Invalid,
        }
    }
}

/// Result of this crate's functions.
pub type Result<T, E = EmbeddingError> = std::result::Result<T, E>;
