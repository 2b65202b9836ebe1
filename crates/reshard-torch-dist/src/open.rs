//! Opening a directory: `.metadata`, or the `__{rank}.metadata` of all ranks.

use crate::{
    COMMON, METADATA, METADATA_JSON, MetadataJson, NAME,
    limits::parsing,
    reader::TorchDistReader,
    table::{Table, TableBuilder},
};
use async_trait::async_trait;
use reshard_model::Dialect;
use reshard_storage::{Name, Store};
use reshard_strategy::{
    BackendVersion, OpenCx, OpenFormat, ReadLimits, Result, StorageReader, StrategyError,
};
use std::{collections::BTreeSet, sync::Arc};

/// The format.
#[derive(Debug)]
pub(crate) struct TorchDist;

#[async_trait]
impl OpenFormat for TorchDist {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
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
        let json = Name::new(METADATA_JSON)?;
        let json = limits.read(store, &json).await?.map(|bytes| MetadataJson::parse(&bytes)).transpose()?;
        let dialect = match json.flatten() {
            // Megatron Core writes it last. Read as PyTorch's, the checkpoint would have lost its common state.
            None if store.len(&Name::new(COMMON)?).await?.is_some() => {
                let why = "there is a common.pt, but no metadata.json of Megatron Core, so its save was never finished";
                return Err(StrategyError::NotACheckpoint { url: store.url(), why: why.into() });
            }
            None => Dialect::Dcp,
            Some(_) => Dialect::Megatron,
        };
        Ok(Arc::new(TorchDistReader::new(cx, table, dialect, rank_local)))
    }
}

/// Puts the files of all ranks together. Which ranks there were is told by the names alone, so a missing last rank shows
/// only as a hole; one in between is named.
async fn rank_local(store: &Arc<dyn Store>, limits: &ReadLimits) -> Result<(Table, u32)> {
    let not = |why: String| StrategyError::NotACheckpoint { url: store.url(), why };
    let mut ranks = BTreeSet::new();
    let mut tmp = false;
    for entry in store.top().await? {
        let name = entry.name.as_str();
        tmp |= name == ".metadata.tmp";
        let rank = name
            .strip_prefix("__")
            .and_then(|n| n.strip_suffix(".metadata"))
            .and_then(|r| r.parse::<u32>().ok());
        ranks.extend(rank);
    }
    if ranks.is_empty() {
        let why = match tmp {
            true => "there is only a .metadata.tmp, so the save was never finished",
            false => "there is no .metadata, so either nothing was saved here or the save was never finished",
        };
        return Err(not(why.into()));
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
        // What is made of them is in memory together.
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
