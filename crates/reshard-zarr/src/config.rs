use crate::{NAME, open::Zarr, save::ZarrSave};
use reshard_strategy::{
    LoadShardedConfig, LoadShardedStrategy, Make, PlannedLoad, Registration, Result,
    SaveShardedConfig, SaveShardedStrategy,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Settings of the save strategy `("zarr", 1)`. There are none yet.
///
/// ```
/// use reshard_strategy::SaveShardedConfig;
/// use reshard_zarr as _; // linked, and so known by its tag
/// let config: Box<dyn SaveShardedConfig> = serde_json::from_str(r#"{ "type": "zarr" }"#).unwrap();
/// assert!(config.build().is_ok());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ZarrConfig {}

#[typetag::serde(name = "zarr")]
impl SaveShardedConfig for ZarrConfig {
    fn build(&self) -> Result<Arc<dyn SaveShardedStrategy>> {
        Ok(Arc::new(ZarrSave::new()))
    }
}

/// Settings of the load strategy `("zarr", 1)`. There are none yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ZarrLoadConfig {}

#[typetag::serde(name = "zarr")]
impl LoadShardedConfig for ZarrLoadConfig {
    fn build(&self) -> Result<Arc<dyn LoadShardedStrategy>> {
        Ok(Arc::new(PlannedLoad::new(Zarr)))
    }
}

inventory::submit! { entry(Make::SaveSharded(|| Box::new(ZarrConfig::default()))) }
inventory::submit! { entry(Make::LoadSharded(|| Box::new(ZarrLoadConfig::default()))) }

const fn entry(make: Make) -> Registration {
    Registration {
        backend: NAME,
        version: 1,
        origin: env!("CARGO_PKG_NAME"),
        origin_version: env!("CARGO_PKG_VERSION"),
        make,
    }
}
