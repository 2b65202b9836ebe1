//! Opens a file or a folder of files: reads their headers, and no tensor.

mod files;
mod headers;
mod sharding;
mod tables;

use crate::{
    NAME, RECORD, SafetensorsLoadConfig, header,
    names::{INDEX, MODEL, Named},
    quantized::{Dequantized, Quantization},
};
use async_trait::async_trait;
use files::Found;
use reshard_model::Dialect;
use reshard_storage::PlaceKind;
use reshard_strategy::{
    Detection, FormatInfo, LoadFormat, OpenCx, OwnFile, Result, StorageReader, StrategyError,
    settings_of,
};
use serde_json::Value as Json;
use std::sync::Arc;

fn kind(named: Named<'_>) -> OwnFile {
    match named {
        Named::Record | Named::Index(_) => OwnFile::Record,
        Named::Tensors(_) | Named::Objects => OwnFile::Data,
    }
}

const INFO: FormatInfo = FormatInfo {
    backend: NAME,
    own_file: |name| {
        // A folder may be named by any index in it.
        let named = Named::of(name)?;
        let is_own = named.is_usual() || matches!(named, Named::Index(_));
        is_own.then(|| kind(named))
    },
    detect: Some(|top| {
        let own = top.names().filter_map(|name| match name {
            MODEL => Some(Detection::Yes),
            name => Named::of(name).map(kind).map(OwnFile::detected),
        });
        own.max().unwrap_or(Detection::No)
    }),
    // An index or a record alone holds no tensor. Its checkpoint is the folder.
    detect_file: Some(|file| match Named::of(file.name.as_str()) {
        Some(Named::Tensors(_)) => Detection::Yes,
        _ => Detection::No,
    }),
    detect_content: Some(header::is_start),
    probes: &[RECORD, INDEX, MODEL],
    lives_in: &[PlaceKind::Folder, PlaceKind::File],
    ..FormatInfo::NEW
};

#[async_trait]
impl LoadFormat for SafetensorsLoadConfig {
    fn info(&self) -> &FormatInfo {
        &INFO
    }

    fn settings(&self) -> Json {
        settings_of(self)
    }

    fn check(&self) -> Result<()> {
        match self.dequantize {
            Some(dtype) if !(dtype.is_float() && dtype.size() > 1) => {
                let what = format!(
                    "quantised tensors can't be read as {dtype}; choose float32, bfloat16, float16 or float64"
                );
                Err(StrategyError::Invalid(what))
            }
            _ => Ok(()),
        }
    }

    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        let found = Found::look(cx).await?;
        // Megatron Core's `metadata.json` may describe a checkpoint without tensors.
        if found.is_empty() && cx.dialect != Dialect::Megatron {
            return Err(StrategyError::NotACheckpoint {
                url: cx.store.url(),
                why: "no file in it ends with .safetensors".into(),
            });
        }
        let (read, unread) = headers::read(cx, &found).await?;
        let reader = tables::reader(cx, &found, read, unread)?;
        Ok(match self.dequantize {
            None => Arc::new(reader),
            Some(dtype) => {
                let config = Quantization::of(&cx.store).await?;
                let reader = Dequantized::new(reader, dtype, config.block, cx.limits)?;
                if !reader.has_effect() && !self.allow_unquantized {
                    return Err(StrategyError::Unsupported {
                        strategy: format!("{NAME}/1"),
                        what: config.not_known(),
                    });
                }
                Arc::new(reader)
            }
        })
    }
}
