//! Turns refusals of the parser into errors of this format.

use crate::NAME;
use reshard_model::ErrorKind;
use reshard_storage::StorageError;
use reshard_strategy::{StrategyError, torch::no_damage, with_sources};
use reshard_torch_format::Error as FormatError;

/// The error for bytes that the parser refuses: damage, or not understood, or too much.
pub(crate) fn unreadable(e: FormatError, what: &str, file: &str) -> StrategyError {
    let told = |why| not_understood(format!("reading {what} of {file} ({why})"));
    no_damage(&e, format_args!("{what} of {file}"), told).unwrap_or_else(|| {
        StrategyError::Corrupt {
            file: file.into(),
            offset: None,
            what: format!("{what} can't be read"),
            source: Some(Box::new(e)),
        }
    })
}

/// The error for data that this version does not understand. They may be sound.
pub(crate) fn not_understood(what: String) -> StrategyError {
    StrategyError::Unsupported {
        strategy: format!("{NAME}/1"),
        what,
    }
}

/// Interprets an error of the store: missing bytes of a checkpoint are damage.
pub(crate) fn lost(e: StorageError, file: &str) -> StrategyError {
    match &e {
        StorageError::NotFound { .. }
        | StorageError::Short { .. }
        | StorageError::Record { .. }
        | StorageError::Check { .. } => StrategyError::Corrupt {
            file: file.into(),
            offset: None,
            what: "stored bytes are missing or damaged".into(),
            source: Some(Box::new(e)),
        },
        _ => e.into(),
    }
}

/// Why a leaf can't be read, although it is there.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) kind: ErrorKind,
    pub(crate) file: String,
    pub(crate) what: String,
}

impl Refused {
    pub(crate) fn of(key: &str, e: FormatError, file: &str) -> Self {
        Self::by(&unreadable(e, key, file), file)
    }

    /// By an error about all of a file.
    pub(crate) fn by(e: &StrategyError, file: &str) -> Self {
        let said = match e {
            StrategyError::Corrupt { what, .. } => what.clone(),
            e => e.to_string(),
        };
        Self {
            kind: e.kind(),
            file: file.into(),
            what: with_sources(said, e),
        }
    }

    pub(crate) fn damaged(file: &str, what: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Corrupt,
            file: file.into(),
            what: what.into(),
        }
    }

    pub(crate) fn error(&self) -> StrategyError {
        match self.kind {
            ErrorKind::Corrupt => StrategyError::corrupt(&self.file, None, self.what.clone()),
            _ => not_understood(self.what.clone()),
        }
    }
}
