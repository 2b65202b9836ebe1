use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Whose conventions a checkpoint follows: what becomes of leaves that aren't sharded.
#[non_exhaustive]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub enum Dialect {
    /// Megatron Core: leaves that aren't sharded are common state, which the coordinator (rank 0 by default) saves as one object.
    #[default]
    #[serde(rename = "megatron")]
    Megatron,
    /// PyTorch DCP: every leaf is an item of its own, named by its path.
    #[serde(rename = "dcp")]
    Dcp,
    /// No program's: tensors, each named by its path, and nothing else. For formats that can hold nothing else.
    #[serde(rename = "tensors_only")]
    TensorsOnly,
}

impl Dialect {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::Megatron, Self::Dcp, Self::TensorsOnly];

    /// `megatron`, `dcp` or `tensors_only`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Megatron => "megatron",
            Self::Dcp => "dcp",
            Self::TensorsOnly => "tensors_only",
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
#[error("{0:?} is not a dialect; the dialects are megatron, dcp and tensors_only")]
pub struct ParseDialectError(String);

impl FromStr for Dialect {
    type Err = ParseDialectError;
    fn from_str(s: &str) -> Result<Self, ParseDialectError> {
        Self::ALL
            .iter()
            .copied()
            .find(|d| d.name() == s)
            .ok_or_else(|| ParseDialectError(s.into()))
    }
}
