use crate::{NAME, form::Form, open::Zarr, zarr3};
use reshard_policy::ByteSize;
use reshard_strategy::{
    LoadShardedConfig, LoadShardedStrategy, Make, Registration, Result, SaveShardedConfig,
    SaveShardedStrategy,
};
use serde::{Deserialize, Serialize};

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
    fn build(&self) -> Result<SaveShardedStrategy> {
        Ok(SaveShardedStrategy::new(Form::V2))
    }
}

/// Settings of the load strategy `("zarr", 1)`. There are none yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ZarrLoadConfig {}

#[typetag::serde(name = "zarr")]
impl LoadShardedConfig for ZarrLoadConfig {
    fn build(&self) -> Result<LoadShardedStrategy> {
        Ok(LoadShardedStrategy::new(Zarr { v3: false }))
    }
}

/// Settings of the save strategy `("zarr3", 1)`.
///
/// ```
/// use reshard_strategy::SaveShardedConfig;
/// use reshard_zarr as _; // linked, and so known by its tag
/// let config = r#"{ "type": "zarr3", "inner_chunk": "1MiB" }"#;
/// let config: Box<dyn SaveShardedConfig> = serde_json::from_str(config).unwrap();
/// assert!(config.build().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Zarr3Config {
    /// About how many bytes an inner chunk of a shard has. Other programs read whole inner chunks. Inner chunks are rows of a shard and divide
    /// it, so they may have fewer bytes, or more if the rows can't be divided well. The default is 4 MiB.
    pub inner_chunk: ByteSize,
}

impl Default for Zarr3Config {
    fn default() -> Self {
        Self {
            inner_chunk: ByteSize(4 << 20),
        }
    }
}

impl Zarr3Config {
    /// Sets about how many bytes an inner chunk of a shard has.
    #[must_use]
    pub fn with_inner_chunk(self, bytes: u64) -> Self {
        Self {
            inner_chunk: ByteSize(bytes),
        }
    }
}

#[typetag::serde(name = "zarr3")]
impl SaveShardedConfig for Zarr3Config {
    fn build(&self) -> Result<SaveShardedStrategy> {
        let inner = self.inner_chunk.0.max(1);
        Ok(SaveShardedStrategy::new(Form::V3 { inner }))
    }
}

/// Settings of the load strategy `("zarr3", 1)`. There are none yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Zarr3LoadConfig {}

#[typetag::serde(name = "zarr3")]
impl LoadShardedConfig for Zarr3LoadConfig {
    fn build(&self) -> Result<LoadShardedStrategy> {
        Ok(LoadShardedStrategy::new(Zarr { v3: true }))
    }
}

inventory::submit! { entry(NAME, Make::SaveSharded(|| Box::new(ZarrConfig::default()))) }
inventory::submit! { entry(NAME, Make::LoadSharded(|| Box::new(ZarrLoadConfig::default()))) }
inventory::submit! { entry(zarr3::NAME, Make::SaveSharded(|| Box::new(Zarr3Config::default()))) }
inventory::submit! { entry(zarr3::NAME, Make::LoadSharded(|| Box::new(Zarr3LoadConfig::default()))) }

const fn entry(backend: &'static str, make: Make) -> Registration {
    Registration {
        backend,
        version: 1,
        origin: env!("CARGO_PKG_NAME"),
        origin_version: env!("CARGO_PKG_VERSION"),
        make,
    }
}
