use serde::{Deserialize, Serialize};

/// The generation of PyTorch for which a `.metadata` file is written. A version of PyTorch reads all earlier flavours and no later ones.
/// Only the first flavour is read by all versions from 2.1 to 2.15.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum Flavour {
    /// PyTorch 2.1 to 2.15 read it. The properties have the name of the old module, which later versions still accept.
    #[default]
    #[serde(rename = "universal")]
    Universal,
    /// PyTorch 2.3 writes it; 2.3 and later read it.
    #[serde(rename = "2.3")]
    Torch23,
    /// PyTorch 2.4 to 2.14 write it, with storage_meta and version; 2.4 and later read it.
    #[serde(rename = "2.4")]
    Torch24,
    /// PyTorch 2.15 writes it, with strides; 2.15 and later read it.
    #[serde(rename = "2.15")]
    Torch215,
}

impl Flavour {
    /// All flavours, with the most widely readable one first.
    pub const ALL: [Self; 4] = [
        Self::Universal,
        Self::Torch23,
        Self::Torch24,
        Self::Torch215,
    ];

    /// Its name in configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Universal => "universal",
            Self::Torch23 => "2.3",
            Self::Torch24 => "2.4",
            Self::Torch215 => "2.15",
        }
    }

    /// The versions of PyTorch that can read it.
    pub fn readers(self) -> &'static str {
        match self {
            Self::Universal => "PyTorch 2.1 or later",
            Self::Torch23 => "PyTorch 2.3 or later",
            Self::Torch24 => "PyTorch 2.4 or later",
            Self::Torch215 => "PyTorch 2.15 or later",
        }
    }

    pub(crate) fn has_storage_meta(self) -> bool {
        self >= Self::Torch24
    }
}
