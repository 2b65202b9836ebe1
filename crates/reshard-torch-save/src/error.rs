//! Turns refusals of the parser into errors of this format.

use crate::NAME;
use reshard_model::ErrorKind;
use reshard_storage::StorageError;
use reshard_strategy::{Refused, StrategyError, torch::no_damage, with_sources};
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

/// Why a leaf of a file can't be read, although it is there.
pub(crate) fn refused(key: &str, e: FormatError, file: &str) -> Refused {
    refused_file(&unreadable(e, key, file), file)
}

/// By an error about all of a file.
pub(crate) fn refused_file(e: &StrategyError, file: &str) -> Refused {
    let said = match e {
        StrategyError::Corrupt { what, .. } => what.clone(),
        e => e.to_string(),
    };
    Refused::new(e.kind(), with_sources(said, e)).in_file(file)
}

/// The error for a leaf that was refused.
pub(crate) fn refusal(why: &Refused) -> StrategyError {
    let file = why.file.as_deref().unwrap_or_default();
    match why.kind {
        ErrorKind::Corrupt => StrategyError::corrupt(file, None, why.what.clone()),
        _ => not_understood(why.what.clone()),
    }
}
