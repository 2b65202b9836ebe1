//! Opening a directory: `.metadata`, or the `__{rank}.metadata` of all ranks.

use crate::{COMMON, METADATA, METADATA_JSON, MetadataJson, NAME, reader::TorchDistReader, table::Table};
use async_trait::async_trait;
use reshard_model::Dialect;
use reshard_storage::{Name, Store};
use reshard_strategy::{BackendVersion, OpenFormat, Result, StorageReader, StrategyError};
use reshard_torch_format::Limits;
use std::{collections::BTreeSet, sync::Arc};

/// The format.
#[derive(Debug)]
pub(crate) struct TorchDist;

#[async_trait]
impl OpenFormat for TorchDist {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
    }

    async fn open(&self, store: &Arc<dyn Store>) -> Result<Arc<dyn StorageReader>> {
        let name = Name::new(METADATA)?;
        let (table, rank_local) = match store.len(&name).await? {
            Some(len) => {
                (Table::parse(METADATA, &store.read(&name, 0..len).await?, &Limits::default())?, None)
            }
            None => {
                let (table, ranks) = rank_local(store).await?;
                (table, Some(ranks))
            }
        };
        let json = Name::new(METADATA_JSON)?;
        let dialect = match store.len(&json).await? {
            // Megatron Core writes it last. Read as PyTorch's, the checkpoint would have lost its common state.
            None if store.len(&Name::new(COMMON)?).await?.is_some() => {
                let why = "there is a common.pt, but no metadata.json, so the save of Megatron Core was never finished";
                return Err(StrategyError::NotACheckpoint { url: store.url(), why: why.into() });
            }
            None => Dialect::Dcp,
            Some(len) => {
                MetadataJson::parse(&store.read(&json, 0..len).await?)?;
                Dialect::Megatron
            }
        };
        Ok(Arc::new(TorchDistReader::new(Arc::clone(store), table, dialect, rank_local)))
    }
}

/// Puts the files of all ranks together. Which ranks there were is told by the names alone, so a missing last rank shows
/// only as a hole; one in between is named.
async fn rank_local(store: &Arc<dyn Store>) -> Result<(Table, u32)> {
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
    let mut files = Vec::new();
    for r in ranks {
        let name = Name::new(format!("__{r}.metadata"))?;
        let len = store.len(&name).await?.unwrap_or(0);
        files.push((name.to_string(), store.read(&name, 0..len).await?));
    }
    let views: Vec<(&str, &[u8])> = files.iter().map(|(n, b)| (n.as_str(), &b[..])).collect();
    Ok((Table::merge(&views, &Limits::default())?, world))
}
