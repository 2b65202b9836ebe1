//! The format: the names of its files, and its settings. All else are ready parts: an index with the place and the checksum of each item.

use async_trait::async_trait;
use reshard_model::ObjectCodec;
use reshard_plan::SavePlan;
use reshard_strategy::{
    BackendVersion, Capabilities, FileLayout, FinishCx, FormatInfo, IndexReader, ItemIndex,
    LoadFormat, OpenCx, OwnFile, PolicyUse, Records, Resolve, Result, SaveCx, SaveFormat,
    StorageReader, StorageWriter, WriterHooks, register_format, settings_of, torch::TorchObjects,
};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::sync::Arc;

/// The format record.
const INDEX: &str = "example.index.json";

/// Its name, and its files.
const INFO: FormatInfo = FormatInfo {
    backend: crate::NAME,
    own_file,
    probes: &[INDEX],
    ..FormatInfo::NEW
};

fn own_file(name: &str) -> Option<OwnFile> {
    if name == INDEX {
        return Some(OwnFile::Record);
    }
    // No other names: a replacement removes the files that the format owns.
    let numbers = name.strip_prefix("rank-")?.strip_suffix(".bin")?;
    let is_number = |part: &str| part.parse::<u32>().is_ok_and(|n| n.to_string() == part);
    let (rank, file) = numbers.split_once('-').unwrap_or((numbers, "1"));
    (is_number(rank) && is_number(file)).then_some(OwnFile::Data)
}

/// Settings of saves: `{ "format": "example" }`. There are none; a format with some has them as fields here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ExampleConfig {}

impl SaveFormat for ExampleConfig {
    fn key(&self) -> BackendVersion {
        INFO.key()
    }

    fn settings(&self) -> Json {
        settings_of(self)
    }

    // A save of this kind is refused before anything is planned.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            no_rank_local: Some("one index describes all ranks"),
            takes_folder: true,
            ..Capabilities::DEFAULT
        }
    }

    fn writer(&self, _: &SaveCx<'_>) -> Result<Arc<dyn StorageWriter>> {
        Ok(Arc::new(ExampleWriter))
    }
}

/// Writes `rank-{rank}.bin` and `example.index.json`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExampleWriter;

// Nothing to add to plans, and nothing on which they depend. So the plan of a repeated save is kept.
impl WriterHooks for ExampleWriter {
    fn plan_settings(&self) -> Option<String> {
        Some(String::new())
    }
}

impl StorageWriter for ExampleWriter {
    fn key(&self) -> BackendVersion {
        INFO.key()
    }

    // Objects are stored as `torch.save` writes them. With a codec, one rank can write the objects of another.
    fn codec(&self) -> Option<Arc<dyn ObjectCodec>> {
        Some(Arc::new(TorchObjects::default()))
    }

    // A sharding policy may decide which items share a file.
    fn policy_use(&self) -> PolicyUse {
        PolicyUse::Pipeline
    }

    // Lengths are known here, before a byte has moved. Elements are pulled later, from I/O threads.
    fn layout(&self, rank: u32, plan: &SavePlan, resolve: &Resolve<'_>) -> Result<FileLayout> {
        let name = |file| match file {
            0 => format!("rank-{rank}.bin"),
            more => format!("rank-{rank}-{more}.bin"),
        };
        ItemIndex::layout(plan, resolve, &TorchObjects::default(), name)
    }

    // The index is what makes the checkpoint. There is no other record.
    fn finish(&self, cx: &FinishCx<'_>) -> Result<Records> {
        ItemIndex::of(cx)?.records(INDEX)
    }
}

/// Settings of loads. There are none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ExampleLoadConfig {}

#[async_trait]
impl LoadFormat for ExampleLoadConfig {
    fn info(&self) -> &FormatInfo {
        &INFO
    }

    fn settings(&self) -> Json {
        settings_of(self)
    }

    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        let index = ItemIndex::read(cx, INDEX).await?;
        let codec = TorchObjects::new(&cx.limits);
        let reader = IndexReader::new(cx, &INFO, INDEX, index, codec)?;
        Ok(Arc::new(reader))
    }
}

// Common state is left to the strategy `("torch", 1)`.
register_format!(crate::NAME, 1, save: ExampleConfig, load: ExampleLoadConfig);
