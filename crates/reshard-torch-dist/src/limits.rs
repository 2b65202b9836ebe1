//! What this format says of what its parser refuses.

use crate::NAME;
use reshard_strategy::{StrategyError, torch::no_damage};
use reshard_torch_format::Error as FormatError;

/// What a parser said of bytes whose checksum is right, or that have none: damage, or what is only not understood.
pub(crate) fn unreadable(e: FormatError, name: &str, file: &str, offset: u64) -> StrategyError {
    let told = |why| not_understood(format!("reading {name} at byte {offset} of {file} ({why})"));
    no_damage(&e, name, told).unwrap_or_else(|| StrategyError::Corrupt {
        file: file.into(),
        offset: Some(offset),
        what: format!("{name} can't be read"),
        source: Some(Box::new(e)),
    })
}

/// What is stored in a way that this version does not know. It may well be sound.
pub(crate) fn not_understood(what: String) -> StrategyError {
    StrategyError::Unsupported { strategy: format!("{NAME}/1"), what }
}
