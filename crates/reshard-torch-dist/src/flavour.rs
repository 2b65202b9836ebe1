use serde::{Deserialize, Serialize};

/// Which generation of PyTorch a `.metadata` file is written for. Later versions of PyTorch read all earlier flavours; no
/// version reads later ones, and only the first is read by all of 2.1 to 2.15.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Flavour {
    /// Read by PyTorch 2.1 to 2.15: properties under the old module's name, which later versions keep alive.
    #[default]
    #[serde(rename = "universal")]
    Universal,
    /// What PyTorch 2.3 writes; read by 2.3 and later.
    #[serde(rename = "2.3")]
    Torch23,
    /// What PyTorch 2.4 to 2.14 write, with storage_meta and version; read by 2.4 and later.
    #[serde(rename = "2.4")]
    Torch24,
    /// What PyTorch 2.15 writes, with strides; read by 2.15 and later.
    #[serde(rename = "2.15")]
    Torch215,
}

impl Flavour {
    /// All of them, the most widely read one first.
    pub const ALL: [Self; 4] = [Self::Universal, Self::Torch23, Self::Torch24, Self::Torch215];

    /// Its name in configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Universal => "universal",
            Self::Torch23 => "2.3",
            Self::Torch24 => "2.4",
            Self::Torch215 => "2.15",
        }
    }

    /// The versions of PyTorch that read it.
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
