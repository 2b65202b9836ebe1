use reshard_model::{ErrorKind, ModelError};

/// The errors of reading a pickle or an archive, and of writing a value.
///
/// Offsets are in bytes, from the start of the pickle for pickles and from the start of the archive for archives.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are no pickle, or a damaged one.
    #[error("the pickle is damaged at byte {offset}: {what}")]
    Pickle {
        /// Where the instruction starts.
        offset: u64,
        /// What is wrong.
        what: Box<str>,
    },
    /// A pickle exceeds a limit.
    #[error(
        "what the file asks for at byte {offset} exceeds the limit of {max} {limit}{}",
        way_out(limit)
    )]
    Limit {
        /// Where.
        offset: u64,
        /// What is limited: `bytes of memory`, `nodes`, `levels of nesting`, …
        limit: &'static str,
        /// How many are allowed.
        max: u64,
    },
    /// Something that real files may contain, but that this crate does not read.
    #[error("byte {offset}: {what} is not supported")]
    Unsupported {
        /// Where.
        offset: u64,
        /// What.
        what: Box<str>,
    },
    /// The bytes are no zip archive of torch.save, or a damaged one.
    #[error("the archive is damaged at byte {offset}: {what}")]
    Archive {
        /// Where, from the start of the archive.
        offset: u64,
        /// What is wrong.
        what: Box<str>,
    },
    /// The archive lacks a needed record.
    #[error("the archive has no record {name:?}; it holds {have}")]
    NoRecord {
        /// Its name without the archive's prefix.
        name: Box<str>,
        /// The names of existing records, shortened.
        have: Box<str>,
    },
    /// The bytes of a record differ from those that were written.
    #[error(
        "record {name:?} is damaged: its CRC-32 is {found:08x}, but the archive says {stored:08x}"
    )]
    Checksum {
        /// Name of the record.
        name: Box<str>,
        /// The checksum in the archive.
        stored: u32,
        /// The checksum of the bytes.
        found: u32,
    },
    /// A tensor contradicts itself or its storage.
    #[error("tensor of storage {key:?}: {what}")]
    Tensor {
        /// Key of the storage.
        key: Box<str>,
        /// What is wrong, with both values.
        what: Box<str>,
    },
    /// A value can't be written as a pickle.
    #[error("can't be written with torch.save's pickle: {what}")]
    Encode {
        /// What, and why.
        what: Box<str>,
    },
    /// `reshard-model` refuses a tensor.
    #[error("this version can't represent a tensor in the file")]
    Model(#[source] Box<ModelError>),
}

/// The message with its causes.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        reshard_model::write_with_causes(self, f)
    }
}

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How to raise a limit, if that is possible.
fn way_out(limit: &str) -> String {
    let field = match limit {
        "bytes of memory" => "memory",
        "nodes" => "nodes",
        "levels of nesting" => "depth",
        "bytes of text" => "bytes",
        "memo entries" => "memo",
        "unpacked bytes" | "bytes in a tensor" => "unpacked",
        _ => return String::new(),
    };
    format!("; if you trust the file, raise it in `Limits::{field}`")
}

impl From<ModelError> for Error {
    fn from(e: ModelError) -> Self {
        Self::Model(Box::new(e))
    }
}

impl Error {
    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Limit { .. } => ErrorKind::Limit,
            Self::Encode { .. } => ErrorKind::Invalid,
            Self::Model(e) => e.kind(),
            _ => ErrorKind::Corrupt,
        }
    }

    /// The same error, for a pickle that starts at byte `by` of the input.
    pub(crate) fn shifted(mut self, by: u64) -> Self {
        if let Self::Pickle { offset, .. }
        | Self::Limit { offset, .. }
        | Self::Unsupported { offset, .. } = &mut self
        {
            *offset = offset.saturating_add(by);
        }
        self
    }

    pub(crate) fn pickle(offset: usize, what: impl Into<Box<str>>) -> Self {
        Self::Pickle {
            offset: offset as u64,
            what: what.into(),
        }
    }

    pub(crate) fn unsupported(offset: u64, what: impl Into<Box<str>>) -> Self {
        Self::Unsupported {
            offset,
            what: what.into(),
        }
    }

    pub(crate) fn archive(offset: u64, what: impl Into<Box<str>>) -> Self {
        Self::Archive {
            offset,
            what: what.into(),
        }
    }

    pub(crate) fn tensor(key: &str, what: impl Into<Box<str>>) -> Self {
        Self::Tensor {
            key: key.into(),
            what: what.into(),
        }
    }

    pub(crate) fn encode(what: impl Into<Box<str>>) -> Self {
        Self::Encode { what: what.into() }
    }
}
