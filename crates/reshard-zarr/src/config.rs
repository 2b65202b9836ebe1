use crate::{
    NAME,
    version::{Form, V2, V3},
    writer::ZarrWriter,
    zarr3,
};
use async_trait::async_trait;
use reshard_policy::ByteSize;
use reshard_strategy::{
    BackendVersion, Capabilities, FormatInfo, LoadFormat, OpenCx, Result, SaveCx, SaveFormat,
    StorageReader, StorageWriter, register_format, settings_of,
};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::sync::Arc;

/// Settings of the save strategy `("zarr", 1)`. There are none yet.
///
/// ```
/// use reshard_strategy::SaveShardedStrategy;
/// use reshard_zarr as _; // linked, and so registered
/// let strategy: SaveShardedStrategy = serde_json::from_str(r#"{ "format": "zarr" }"#).unwrap();
/// assert_eq!(strategy.key().backend.as_ref(), "zarr");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ZarrConfig {}

/// Settings of the load strategy `("zarr", 1)`. There are none yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ZarrLoadConfig {}

/// Settings of the save strategy `("zarr3", 1)`.
///
/// ```
/// use reshard_strategy::SaveShardedStrategy;
/// use reshard_zarr as _; // linked, and so registered
/// let config = r#"{ "format": "zarr3", "inner_chunk": "1MiB" }"#;
/// let strategy: SaveShardedStrategy = serde_json::from_str(config).unwrap();
/// assert_eq!(strategy.key().backend.as_ref(), "zarr3");
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

/// Settings of the load strategy `("zarr3", 1)`. There are none yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Zarr3LoadConfig {}

impl SaveFormat for ZarrConfig {
    fn key(&self) -> BackendVersion {
        V2.info.key()
    }

    fn settings(&self) -> Json {
        settings_of(self)
    }

    fn capabilities(&self) -> Capabilities {
        V2.capabilities
    }

    fn writer(&self, _: &SaveCx<'_>) -> Result<Arc<dyn StorageWriter>> {
        Ok(Arc::new(ZarrWriter(Form::V2)))
    }
}

impl SaveFormat for Zarr3Config {
    fn key(&self) -> BackendVersion {
        V3.info.key()
    }

    fn settings(&self) -> Json {
        settings_of(self)
    }

    fn capabilities(&self) -> Capabilities {
        V3.capabilities
    }

    fn writer(&self, _: &SaveCx<'_>) -> Result<Arc<dyn StorageWriter>> {
        let inner = self.inner_chunk.0.max(1);
        Ok(Arc::new(ZarrWriter(Form::V3 { inner })))
    }
}

#[async_trait]
impl LoadFormat for ZarrLoadConfig {
    fn info(&self) -> &FormatInfo {
        &V2.info
    }

    fn settings(&self) -> Json {
        settings_of(self)
    }

    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        V2.open(cx).await
    }
}

#[async_trait]
impl LoadFormat for Zarr3LoadConfig {
    fn info(&self) -> &FormatInfo {
        &V3.info
    }

    fn settings(&self) -> Json {
        settings_of(self)
    }

    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        V3.open(cx).await
    }
}

register_format!(NAME, 1, save: ZarrConfig, load: ZarrLoadConfig);
register_format!(zarr3::NAME, 1, save: Zarr3Config, load: Zarr3LoadConfig);
