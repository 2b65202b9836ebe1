//! Keys of a checkpoint that opening refuses. They are not in the metadata.

use crate::{Damage, StrategyError};
use reshard_model::ErrorKind;
use std::fmt;

/// The reason why a tensor or object can't be read, although the rest of the checkpoint can.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused {
    /// [`Corrupt`](ErrorKind::Corrupt) if it is damaged. Otherwise it may be sound.
    pub kind: ErrorKind,
    /// What is wrong. It names neither key nor file.
    pub what: String,
    /// The file that is wrong, if it is known.
    pub file: Option<String>,
    /// The byte of the file at which it is wrong.
    pub offset: Option<u64>,
}

impl Refused {
    /// A reason without a file.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
            file: None,
            offset: None,
        }
    }

    /// A damaged key.
    pub fn damaged(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, what)
    }

    /// A key that this version does not understand.
    pub fn unknown(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, what)
    }

    /// Adds the file.
    #[must_use]
    pub fn in_file(mut self, file: impl ToString) -> Self {
        self.file = Some(file.to_string());
        self
    }

    /// Adds the byte of the file.
    #[must_use]
    pub fn at(mut self, offset: impl Into<Option<u64>>) -> Self {
        self.offset = offset.into();
        self
    }

    /// The finding of a check.
    pub fn damage(&self, key: &str) -> Damage {
        Damage {
            file: self.file.clone(),
            offset: self.offset,
            ..Damage::new(&*self.what).of_key(key)
        }
    }

    /// The error of a read of the key with this strategy. `item` names the tensor or object if it
    /// is damaged.
    pub fn error(
        &self,
        key: &str,
        item: impl fmt::Display,
        strategy: impl ToString,
    ) -> StrategyError {
        match self.kind {
            ErrorKind::Corrupt => StrategyError::corrupt(
                self.file.as_deref().unwrap_or_default(),
                self.offset,
                format!("{item}: {}", self.what),
            ),
            _ => StrategyError::Unsupported {
                strategy: strategy.to_string(),
                what: self.reading(key),
            },
        }
    }

    /// The text of [`StorageReader::why_not`](crate::StorageReader::why_not): `None` for a damaged
    /// key.
    pub fn why_not(&self, key: &str) -> Option<String> {
        (self.kind != ErrorKind::Corrupt).then(|| self.reading(key))
    }

    fn reading(&self, key: &str) -> String {
        format!("reading {key} ({})", self.what)
    }
}
