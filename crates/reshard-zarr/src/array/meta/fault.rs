//! Why an array is refused.

use std::fmt;

/// Whether the metadata are wrong, or only unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// No program writes that.
    Damaged,
    /// It may be sound, but this version does not know it.
    Unknown,
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
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Fault {}
