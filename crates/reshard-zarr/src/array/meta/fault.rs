//! Why an array is refused.

use reshard_model::ErrorKind;
use reshard_storage::{Name, StorageError};
use reshard_strategy::StrategyError;
use std::{fmt, io};

/// Whether the metadata are wrong, or only unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// No program writes that.
    Damaged,
    /// It may be sound, but this version does not know it.
    Unknown,
    /// The process has too little memory to decode it.
    NoMemory,
}

impl FaultKind {
    /// The kind of a reader's error.
    pub(crate) fn of_error(self) -> ErrorKind {
        match self {
            Self::Damaged => ErrorKind::Corrupt,
            Self::Unknown => ErrorKind::Unsupported,
            Self::NoMemory => ErrorKind::Unavailable,
        }
    }
}

/// Why an array or a group is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    /// It names what is wrong, or what is not known.
    pub(crate) what: String,
}

impl Fault {
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self {
            kind: FaultKind::Damaged,
            what: what.into(),
        }
    }

    pub(crate) fn unknown(what: impl Into<String>) -> Self {
        Self {
            kind: FaultKind::Unknown,
            what: what.into(),
        }
    }

    pub(crate) fn no_memory(what: impl Into<String>) -> Self {
        Self {
            kind: FaultKind::NoMemory,
            what: what.into(),
        }
    }

    /// The error for stored bytes of a file: damage, a form that is not known, or a lack of memory.
    pub(crate) fn in_file(self, file: &Name, at: Option<u64>) -> StrategyError {
        let what = self.what;
        match self.kind {
            FaultKind::Damaged => StrategyError::corrupt(file, at, what),
            FaultKind::Unknown => StrategyError::Undecoded { what },
            FaultKind::NoMemory => {
                let source = io::Error::new(io::ErrorKind::OutOfMemory, what);
                StorageError::io("decode", file.as_str(), source).into()
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Fault {}
