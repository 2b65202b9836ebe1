//! Strategies as JSON.

use crate::{
    BackendVersion, LoadFormat, LoadShardedStrategy, Registry, Result, SaveFormat,
    SaveShardedStrategy, StrategyError, UniqueJson,
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Error as _},
    ser::Error as _,
};
use serde_json::{Map, Value as Json};
use std::{fmt::Debug, sync::Arc};

/// The JSON form of a strategy.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "L: Deserialize<'de>"))]
struct Config<L> {
    format: String,
    #[serde(default = "no_settings")]
    settings: Json,
    #[serde(default)]
    layers: Vec<L>,
}

/// Settings that are all left out.
pub(crate) fn no_settings() -> Json {
    Json::Object(Map::new())
}

/// Settings of a format as JSON, for `settings` of [`SaveFormat`] and [`LoadFormat`]. Settings without a JSON form, such as a map with keys
/// that are no text, become their debug text: ranks can compare it, and nothing reads it back.
pub fn settings_of(settings: &(impl Serialize + Debug)) -> Json {
    serde_json::to_value(settings).unwrap_or_else(|_| Json::String(format!("{settings:?}")))
}

fn invalid(e: impl ToString) -> StrategyError {
    StrategyError::Invalid(e.to_string())
}

/// Reads settings of a save, for [`Make::SaveSharded`](crate::Make::SaveSharded).
///
/// # Errors
/// JSON of another form; settings that contradict each other.
pub fn save_format<F: SaveFormat + DeserializeOwned + 'static>(
    settings: Json,
) -> Result<Arc<dyn SaveFormat>> {
    let format: F = serde_json::from_value(settings).map_err(invalid)?;
    format.check()?;
    Ok(Arc::new(format))
}

/// Reads settings of a load, for [`Make::LoadSharded`](crate::Make::LoadSharded).
///
/// # Errors
/// JSON of another form; settings that contradict each other.
pub fn load_format<F: LoadFormat + DeserializeOwned + 'static>(
    settings: Json,
) -> Result<Arc<dyn LoadFormat>> {
    let format: F = serde_json::from_value(settings).map_err(invalid)?;
    format.check()?;
    Ok(Arc::new(format))
}

impl<L: DeserializeOwned> Config<L> {
    /// Reads the full form, or the flat form, in which settings are beside `format`.
    fn of(json: Json) -> Result<Self> {
        match json {
            Json::Object(mut flat)
                if flat.contains_key("format")
                    && !flat.contains_key("settings")
                    && !flat.contains_key("layers") =>
            {
                let format = flat.remove("format").unwrap_or_default();
                let format = serde_json::from_value(format).map_err(invalid)?;
                Ok(Self {
                    format,
                    settings: Json::Object(flat),
                    layers: Vec::new(),
                })
            }
            json => serde_json::from_value(json).map_err(invalid),
        }
    }
}

impl SaveShardedStrategy {
    /// Reads `{ "format": "torch_dist", "settings": { … }, "layers": [ … ] }`, or the flat form `{ "format": "torch_dist", … }` with the
    /// settings of a strategy without layers.
    ///
    /// # Errors
    /// [`StrategyError::Unknown`] for a format that is not registered; settings or layers that can't be read, or contradict each other.
    pub fn from_json(json: Json, registry: &Registry) -> Result<Self> {
        let config = Config::of(json)?;
        Ok(Self {
            layers: config.layers,
            format: registry.save_format(&registry.named_save(&config.format)?, config.settings)?,
            common: None,
        })
    }
}

impl LoadShardedStrategy {
    /// As [`SaveShardedStrategy::from_json`].
    ///
    /// # Errors
    /// The same.
    pub fn from_json(json: Json, registry: &Registry) -> Result<Self> {
        let config = Config::of(json)?;
        Ok(Self {
            layers: config.layers,
            format: registry.load_format(&registry.named_load(&config.format)?, config.settings)?,
            common: None,
        })
    }
}

fn written<S: Serializer>(
    key: &BackendVersion,
    settings: Json,
    layers: &[impl Serialize],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let layers = layers.iter().map(serde_json::to_value);
    let layers = layers.collect::<Result<_, _>>().map_err(S::Error::custom)?;
    let config = Config {
        format: key.to_string(),
        settings,
        layers,
    };
    config.serialize(serializer)
}

/// The JSON that [`from_json`](SaveShardedStrategy::from_json) reads, with all settings.
impl Serialize for SaveShardedStrategy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        written(
            &self.key(),
            self.format.settings(),
            &self.layers,
            serializer,
        )
    }
}

/// The JSON that [`from_json`](LoadShardedStrategy::from_json) reads, with all settings.
impl Serialize for LoadShardedStrategy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        written(
            &self.key(),
            self.format.settings(),
            &self.layers,
            serializer,
        )
    }
}

/// [`from_json`](SaveShardedStrategy::from_json) with the formats of all linked crates.
impl<'de> Deserialize<'de> for SaveShardedStrategy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let UniqueJson(json) = Deserialize::deserialize(deserializer)?;
        let registry = Registry::linked().map_err(D::Error::custom)?;
        Self::from_json(json, &registry).map_err(D::Error::custom)
    }
}

/// [`from_json`](LoadShardedStrategy::from_json) with the formats of all linked crates.
impl<'de> Deserialize<'de> for LoadShardedStrategy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let UniqueJson(json) = Deserialize::deserialize(deserializer)?;
        let registry = Registry::linked().map_err(D::Error::custom)?;
        Self::from_json(json, &registry).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn settings_without_a_json_form_are_compared_as_text() {
        let of = |rank: u32| settings_of(&BTreeMap::from([((0, rank), true)]));
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert_ne!(of(1), no_settings());
    }
}
