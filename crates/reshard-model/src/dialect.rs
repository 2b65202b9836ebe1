use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Which program's habit a checkpoint follows where the two differ: what becomes of leaves that aren't sharded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Dialect {
    /// Megatron Core: leaves that aren't sharded are common state, which rank 0 saves as one object.
    #[default]
    #[serde(rename = "megatron")]
    Megatron,
    /// PyTorch DCP: every leaf is an item of its own, named by its path.
    #[serde(rename = "dcp")]
    Dcp,
}

impl Dialect {
    /// `megatron` or `dcp`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Megatron => "megatron",
            Self::Dcp => "dcp",
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no dialect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no dialect; known are megatron and dcp")]
pub struct ParseDialectError(String);

impl FromStr for Dialect {
    type Err = ParseDialectError;
    fn from_str(s: &str) -> Result<Self, ParseDialectError> {
        [Self::Megatron, Self::Dcp]
            .into_iter()
            .find(|d| d.name() == s)
            .ok_or_else(|| ParseDialectError(s.into()))
    }
}
