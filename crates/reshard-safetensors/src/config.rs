use crate::{NAME, open::Safetensors, save::SafetensorsSave, settings::SafetensorsConfig};
use reshard_strategy::{
    LoadShardedConfig, LoadShardedStrategy, Make, PlannedLoad, Registration, Result,
    SaveShardedConfig, SaveShardedStrategy, StrategyError,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[typetag::serde(name = "safetensors")]
impl SaveShardedConfig for SafetensorsConfig {
    fn build(&self) -> Result<Arc<dyn SaveShardedStrategy>> {
        let name = &self.name;
        if name.is_empty() || name.contains(['/', '\\', '\0']) || name.starts_with('.') {
            let what = format!("{name:?} is no name of a model; files are named like it");
            return Err(StrategyError::Invalid(what));
        }
        Ok(Arc::new(SafetensorsSave::new(self.clone())))
    }
}

/// Settings of the load strategy `("safetensors", 1)`. There are none yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SafetensorsLoadConfig {}

#[typetag::serde(name = "safetensors")]
impl LoadShardedConfig for SafetensorsLoadConfig {
    fn build(&self) -> Result<Arc<dyn LoadShardedStrategy>> {
        Ok(Arc::new(PlannedLoad::new(Safetensors)))
    }
}

inventory::submit! { entry(Make::SaveSharded(|| Box::new(SafetensorsConfig::default()))) }
inventory::submit! { entry(Make::LoadSharded(|| Box::new(SafetensorsLoadConfig::default()))) }

const fn entry(make: Make) -> Registration {
    Registration {
        backend: NAME,
        version: 1,
        origin: env!("CARGO_PKG_NAME"),
        origin_version: env!("CARGO_PKG_VERSION"),
        make,
    }
}
