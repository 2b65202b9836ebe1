//! Opens a directory: reads `.metadata`, or the `__{rank}.metadata` of all ranks.

use crate::{
    METADATA, NAME, OwnFile, TorchDistLoadConfig, own_file,
    reader::TorchDistReader,
    table::{Place, Table, TableBuilder, chunk_bytes},
};
use async_trait::async_trait;
use reshard_storage::{Name, Store, StoreExt};
use reshard_strategy::{
    self as strategy, FormatInfo, LoadFormat, OpenCx, ReadLimits, Result, StorageReader,
    StrategyError, settings_of, torch::parsing,
};
use serde_json::Value as Json;
use std::{collections::BTreeSet, sync::Arc};

const INFO: FormatInfo = FormatInfo {
    backend: NAME,
    own_file: |name| {
        Some(match own_file(name)? {
            OwnFile::Metadata | OwnFile::RankMetadata(_) => strategy::OwnFile::Record,
            OwnFile::Data => strategy::OwnFile::Data,
            OwnFile::Unfinished => strategy::OwnFile::Unfinished,
        })
    },
    probes: &[METADATA, "__0.metadata"],
    ..FormatInfo::NEW
};

#[async_trait]
impl LoadFormat for TorchDistLoadConfig {
    fn info(&self) -> &FormatInfo {
        &INFO
    }

    fn settings(&self) -> Json {
        settings_of(self)
    }

    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        let OpenCx { store, limits, .. } = cx;
        let (table, rank_local) = match limits.read(store, &Name::new(METADATA)?).await? {
            Some(bytes) => (Table::parse(METADATA, bytes, &parsing(limits))?, None),
            None => {
                let (table, ranks) = rank_local(store, limits).await?;
                (table, Some(ranks))
            }
        };
        refuse_safetensors(store, &table).await?;
        Ok(Arc::new(TorchDistReader::new(cx, table, rank_local)))
    }
}

/// Refuses files that PyTorch saved with `SerializationFormat.SAFETENSORS`.
///
/// Such a file is a whole file of safetensors, but the metadata place each of its tensors at its
/// start, with the length of the elements alone. An archive is always longer than its elements.
async fn refuse_safetensors(store: &Arc<dyn Store>, table: &Table) -> Result<()> {
    let Some((place, bytes)) = first_chunk(table) else {
        return Ok(());
    };
    let name = match table.files.get(place.file as usize) {
        Some(Ok(name)) if place.offset == 0 && place.length == bytes => name,
        _ => return Ok(()),
    };
    match store.read(name, 0..9).await {
        Ok(head) if head.last() == Some(&b'{') => Err(StrategyError::Unsupported {
            strategy: format!("{NAME}/1"),
            what: format!(
                "reading {name} (a file of safetensors, from PyTorch's `SerializationFormat.SAFETENSORS`; `.metadata` places each of \
                 its tensors at byte 0, so PyTorch does not load it by default either; a copy whose name ends in `.safetensors` opens)"
            ),
        }),
        // Reading the items finds whatever else is wrong with the file.
        _ => Ok(()),
    }
}

/// Returns the place of the first chunk that has elements, and the number of their bytes.
fn first_chunk(table: &Table) -> Option<(Place, u64)> {
    let mut tensors = table.metadata.tensors();
    tensors.find_map(|t| {
        t.chunks().find_map(|(id, region)| {
            let bytes = chunk_bytes(&t, &region).filter(|bytes| *bytes > 0)?;
            Some((table.chunk(id)?, bytes))
        })
    })
}

/// Merges the files of all ranks. Only the file names tell which ranks there were. So a missing last rank shows only as a hole, but a
/// missing rank in between is named.
async fn rank_local(store: &Arc<dyn Store>, limits: &ReadLimits) -> Result<(Table, u32)> {
    let not = |why: String| StrategyError::NotACheckpoint {
        url: store.url(),
        why,
    };
    let top = store.top().await?;
    let files = || top.names().filter_map(own_file);
    let ranks: BTreeSet<u32> = files()
        .filter_map(|f| match f {
            OwnFile::RankMetadata(rank) => Some(rank),
            _ => None,
        })
        .collect();
    if ranks.is_empty() {
        let unfinished = top
            .names()
            .find(|name| own_file(name) == Some(OwnFile::Unfinished));
        return Err(not(match unfinished {
            Some(name) => format!("there is only a {name}, so the save was never finished"),
            None => "there is no .metadata, so either nothing was saved here or the save was never finished"
                .into(),
        }));
    }
    let world = ranks.last().map_or(0, |r| r.saturating_add(1));
    if let Some(lost) = (0..world).find(|r| !ranks.contains(r)) {
        return Err(not(format!(
            "__{lost}.metadata of rank {lost} is missing; ranks up to {} have one",
            world - 1
        )));
    }
    let (mut files, mut all) = (Vec::with_capacity(ranks.len()), 0u64);
    for r in ranks {
        let name = Name::new(format!("__{r}.metadata"))?;
        let len = store.len(&name).await?.unwrap_or(0);
        // The parsed forms of all files are in memory together, so they share one limit.
        all = all.saturating_add(len);
        limits.whole(format_args!("metadata of ranks 0 to {r}, together,"), all)?;
        files.push((name, len));
    }
    let mut table = TableBuilder::new(files.len(), all, &parsing(limits));
    for (name, len) in files {
        let bytes = store.read(&name, 0..len).await?;
        table.add(name.as_str(), bytes)?;
    }
    Ok((table.finish()?, world))
}
