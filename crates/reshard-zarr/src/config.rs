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

    fn form(&self) -> Form {
        let inner = self.inner_chunk.0.max(1);
        Form::V3 { inner }
    }
}

/// Settings of the load strategy `("zarr3", 1)`. There are none yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Zarr3LoadConfig {}

/// Makes settings those of a format, and registers it.
macro_rules! format_of {
    ($version:expr, $name:expr, $save:ty => $form:expr, $load:ty) => {
        impl SaveFormat for $save {
            fn key(&self) -> BackendVersion {
                $version.info.key()
            }

            fn settings(&self) -> Json {
                settings_of(self)
            }

            fn capabilities(&self) -> Capabilities {
                $version.capabilities
            }

            fn writer(&self, _: &SaveCx<'_>) -> Result<Arc<dyn StorageWriter>> {
                let form: fn(&Self) -> Form = $form;
                Ok(Arc::new(ZarrWriter(form(self))))
            }
        }

        #[async_trait]
        impl LoadFormat for $load {
            fn info(&self) -> &FormatInfo {
                &$version.info
            }

            fn settings(&self) -> Json {
                settings_of(self)
            }

            async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
                $version.open(cx).await
            }
        }

        register_format!($name, 1, save: $save, load: $load);
    };
}

format_of!(V2, NAME, ZarrConfig => |_| Form::V2, ZarrLoadConfig);
format_of!(V3, zarr3::NAME, Zarr3Config => Zarr3Config::form, Zarr3LoadConfig);
