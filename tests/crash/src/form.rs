//! The forms of checkpoints that are saved and killed.

use anyhow::{Error, bail};
use reshard::{
    Dialect, Save,
    zarr::{Zarr3Config, ZarrConfig},
};
use std::str::FromStr;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// torch_dist in a dialect.
    TorchDist(Dialect),
    /// Megatron Core's zarr.
    Zarr,
    /// Shards of Zarr v3.
    Zarr3,
}

impl Form {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::TorchDist(Dialect::Megatron),
        Self::TorchDist(Dialect::Dcp),
        Self::Zarr,
        Self::Zarr3,
    ];

    /// Its name, which can be parsed.
    pub fn name(self) -> &'static str {
        match self {
            Self::TorchDist(dialect) => dialect.name(),
            Self::Zarr => "zarr",
            Self::Zarr3 => "zarr3",
        }
    }

    /// A save in this form.
    pub fn of(self, save: Save<'_>) -> Save<'_> {
        match self {
            Self::TorchDist(dialect) => save.dialect(dialect),
            Self::Zarr => save.strategy(ZarrConfig::default()),
            Self::Zarr3 => save.strategy(Zarr3Config::default().with_inner_chunk(4 << 10)),
        }
    }
}

impl From<Dialect> for Form {
    fn from(dialect: Dialect) -> Self {
        Self::TorchDist(dialect)
    }
}

impl FromStr for Form {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match Self::ALL.into_iter().find(|form| form.name() == name) {
            Some(form) => Ok(form),
            None => bail!("there is no form {name}"),
        }
    }
}
