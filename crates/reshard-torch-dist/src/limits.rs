//! Turns refusals of the parser into errors of this format.

use crate::NAME;
use reshard_strategy::{StrategyError, torch::no_damage};
use reshard_torch_format::Error as FormatError;

/// The error for bytes that the parser refuses although their checksum is right, or that have no checksum: damage, or not understood.
pub(crate) fn unreadable(e: FormatError, name: &str, file: &str, offset: u64) -> StrategyError {
    let told = |why| not_understood(format!("reading {name} at byte {offset} of {file} ({why})"));
    no_damage(&e, name, told).unwrap_or_else(|| StrategyError::Corrupt {
        file: file.into(),
        offset: Some(offset),
        what: format!("{name} can't be read"),
        source: Some(Box::new(e)),
    })
}

/// The error for data that this version does not understand. They may be sound.
pub(crate) fn not_understood(what: String) -> StrategyError {
    StrategyError::Unsupported {
        strategy: format!("{NAME}/1"),
        what,
    }
}
