//! Of which format a checkpoint is, when nothing in it says so.

use crate::sidecar::Sidecar;
use reshard_storage::{Entry, Listing, Name, Store};
use reshard_strategy::{BackendVersion, Detection, LoadShardedStrategy, Registry, Result, StrategyError};
use std::{collections::BTreeSet, sync::Arc};

/// Asks all linked formats. Few names are looked for at first: thousands of ranks open a checkpoint at once, and each would
/// list thousands of files. Only where none of them is there, the place is listed.
///
/// # Errors
/// [`StrategyError::NotACheckpoint`] when no format knows it; [`StrategyError::Ambiguous`] when two do.
pub(crate) async fn recognise(store: &Arc<dyn Store>, registry: &Registry) -> Result<BackendVersion> {
    let formats = formats(registry)?;
    let probed = sure(&formats, &probe(store, &formats).await?);
    if let [format] = &*probed {
        return Ok(format.key());
    }
    if let Some(named) = Sidecar::read(store).await.0.and_then(|s| s.strategy) {
        return Ok(named);
    }
    let listed = store.top().await?;
    let sure = sure(&formats, &listed);
    let found = if sure.is_empty() { of(&formats, &listed, Detection::Likely) } else { sure };
    match &*found {
        [format] => Ok(format.key()),
        [] => Err(StrategyError::NotACheckpoint { url: store.url(), why: unknown(&formats, &listed) }),
        [a, b, ..] => Err(StrategyError::Ambiguous { url: store.url(), a: a.key(), b: b.key() }),
    }
}

type Formats = Vec<Arc<dyn LoadShardedStrategy>>;

fn formats(registry: &Registry) -> Result<Formats> {
    registry.all_load_sharded().map(|(_, config)| config.build()).collect()
}

fn sure(formats: &Formats, top: &Listing) -> Formats {
    of(formats, top, Detection::Yes)
}

fn of(formats: &Formats, top: &Listing, detected: Detection) -> Formats {
    formats.iter().filter(|f| f.detect(top) == detected).cloned().collect()
}

/// Those of the well-known files that are there.
async fn probe(store: &Arc<dyn Store>, formats: &Formats) -> Result<Listing> {
    let names: BTreeSet<&str> = formats.iter().flat_map(|f| f.probes()).copied().collect();
    let mut files = Vec::new();
    for name in names {
        let name = Name::new(name)?;
        if let Some(bytes) = store.len(&name).await? {
            files.push(Entry { name, bytes });
        }
    }
    Ok(Listing::of(files))
}

/// Why a place is no checkpoint.
fn unknown(formats: &Formats, top: &Listing) -> String {
    if top.is_empty() {
        return "nothing lies there".into();
    }
    let known = formats.iter().map(|f| match f.probes() {
        [] => f.key().to_string(),
        names => format!("{} ({})", f.key(), names.join(", ")),
    });
    format!(
        "none of its files is one by which a linked format knows its checkpoints: {}",
        known.collect::<Vec<_>>().join("; ")
    )
}
