//! The maps that come with this crate.

use crate::{MapError, MapFile, Result};

/// Name and text of each map.
const MAPS: [(&str, &str); 3] = [
    ("hf-gpt-neox", include_str!("../maps/hf-gpt-neox.toml")),
    ("hf-llama", include_str!("../maps/hf-llama.toml")),
    ("hf-mixtral", include_str!("../maps/hf-mixtral.toml")),
];

impl MapFile {
    /// The names of the maps that come with this crate. Each leads from Megatron Core to Hugging Face's transformers, and its
    /// [inverse](crate::Map::inverse) leads back.
    pub fn names() -> impl ExactSizeIterator<Item = &'static str> {
        MAPS.iter().map(|(name, _)| *name)
    }

    /// The text of a map that comes with this crate.
    pub fn text_of(name: &str) -> Option<&'static str> {
        MAPS.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
    }

    /// A map that comes with this crate.
    ///
    /// # Errors
    /// [`MapError::Unknown`] names those that do.
    pub fn named(name: &str) -> Result<Self> {
        match Self::text_of(name) {
            Some(text) => Self::parse(text),
            None => Err(MapError::Unknown {
                name: name.into(),
                known: Self::names().collect(),
            }),
        }
    }
}
