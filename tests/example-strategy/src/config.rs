//! Settings of the format, and its entries in the registry.

use crate::{ExampleWriter, NAME};
use reshard_strategy::{
    BackendVersion, Capabilities, Result, SaveCx, SaveFormat, StorageWriter, register_format,
    settings_of,
};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::sync::Arc;

/// Settings of saves: `{ "format": "example" }`. There are none; a format with some has them as fields here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ExampleConfig {}

impl SaveFormat for ExampleConfig {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
    }

    fn settings(&self) -> Json {
        settings_of(self)
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

/// Settings of loads. There are none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ExampleLoadConfig {}

// Common state is left to the strategy `("torch", 1)`.
register_format!(NAME, 1, save: ExampleConfig, load: ExampleLoadConfig);
