//! Strategies as JSON.

use crate::{
    LoadFormat, LoadLayer, LoadShardedStrategy, Registry, Result, SaveFormat, SaveLayer,
    SaveShardedStrategy, StrategyError, UniqueJson,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value as Json};
use std::{fmt::Debug, sync::Arc};

/// The JSON form of a strategy.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "L: Deserialize<'de>"))]
pub(crate) struct Config<L> {
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

impl From<SaveShardedStrategy> for Config<Arc<dyn SaveLayer>> {
    fn from(strategy: SaveShardedStrategy) -> Self {
        Self {
            format: strategy.key().to_string(),
            settings: strategy.format.settings(),
            layers: strategy.layers,
        }
    }
}

impl From<LoadShardedStrategy> for Config<Arc<dyn LoadLayer>> {
    fn from(strategy: LoadShardedStrategy) -> Self {
        Self {
            format: strategy.key().to_string(),
            settings: strategy.format.settings(),
            layers: strategy.layers,
        }
    }
}

impl TryFrom<UniqueJson> for SaveShardedStrategy {
    type Error = StrategyError;
    fn try_from(UniqueJson(json): UniqueJson) -> Result<Self> {
        Self::from_json(json, &Registry::linked()?)
    }
}

impl TryFrom<UniqueJson> for LoadShardedStrategy {
    type Error = StrategyError;
    fn try_from(UniqueJson(json): UniqueJson) -> Result<Self> {
        Self::from_json(json, &Registry::linked()?)
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
