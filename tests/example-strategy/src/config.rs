//! How programs get at the strategy: tagged configuration, and entries in the registry.

use crate::{ExampleFormat, ExampleWriter, NAME};
use reshard_strategy::{
    BackendVersion, Capabilities, LoadShardedConfig, LoadShardedStrategy, Make, Registration,
    Result, SaveCx, SaveFormat, SaveShardedConfig, SaveShardedStrategy, StorageWriter,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Settings of the save strategy: `{ "type": "example" }`. There are none; a format with some has them as fields here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ExampleConfig {}

// The tag is written by hand: by default it would be the name of the type, and renaming that would break configurations.
#[typetag::serde(name = "example")]
impl SaveShardedConfig for ExampleConfig {
    fn build(&self) -> Result<SaveShardedStrategy> {
        Ok(SaveShardedStrategy::new(self.clone()))
    }
}

impl SaveFormat for ExampleConfig {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
    }

    // A save of this kind is refused before anything is planned.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            no_rank_local: Some("one index describes all ranks"),
            ..Capabilities::DEFAULT
        }
    }

    fn writer(&self, _: &SaveCx<'_>) -> Result<Arc<dyn StorageWriter>> {
        Ok(Arc::new(ExampleWriter))
    }
}

/// Settings of the load strategy: none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ExampleLoadConfig {}

#[typetag::serde(name = "example")]
impl LoadShardedConfig for ExampleLoadConfig {
    fn build(&self) -> Result<LoadShardedStrategy> {
        Ok(LoadShardedStrategy::new(ExampleFormat))
    }
}

// One entry for each thing that the crate can do. Common state is left to the strategy `("torch", 1)`.
inventory::submit! { entry(Make::SaveSharded(|| Box::new(ExampleConfig::default()))) }
inventory::submit! { entry(Make::LoadSharded(|| Box::new(ExampleLoadConfig::default()))) }

const fn entry(make: Make) -> Registration {
    Registration {
        backend: NAME,
        version: 1,
        origin: env!("CARGO_PKG_NAME"),
        origin_version: env!("CARGO_PKG_VERSION"),
        make,
    }
}
