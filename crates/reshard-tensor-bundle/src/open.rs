//! Finds the bundle of a place, and reads its index.

use crate::{
    TensorBundleLoadConfig,
    index::Index,
    names::{self, DataFile, INDEX, KEY, RECORD, STATE, VARIABLES, VERSION},
    reader::BundleReader,
    record::Record,
    state_file::CheckpointState,
};
use async_trait::async_trait;
use reshard_model::ErrorKind;
use reshard_storage::{Depth, Listing, Name, PlaceKind, StorageError, Store, StoreExt};
use reshard_strategy::{
    Detection, FormatInfo, LimitOption, LoadFormat, OpenCx, OwnFile, ReadLimits, Refused, Result,
    StorageReader, StrategyError, read_small, settings_of,
};
use serde_json::Value as Json;
use std::{collections::BTreeMap, sync::Arc};

const INFO: FormatInfo = FormatInfo {
    backend: KEY,
    version: VERSION,
    own_file,
    detect: Some(detect),
    probes: &[INDEX, "variables/variables.index"],
    lives_in: &[PlaceKind::Folder, PlaceKind::Prefix],
    ..FormatInfo::NEW
};

fn own_file(name: &str) -> Option<OwnFile> {
    if name.contains('/') {
        return None;
    }
    match name {
        _ if name.strip_suffix(INDEX).is_some() => Some(OwnFile::Record),
        _ if name.strip_suffix(RECORD).is_some() || DataFile::parse(name).is_some() => {
            Some(OwnFile::Data)
        }
        _ => None,
    }
}

/// The name of an index alone is too common.
fn detect(top: &Listing) -> Detection {
    let of_data = |stem: &str| {
        let mut files = top.names().filter_map(DataFile::parse);
        files.any(|file| file.stem == stem)
    };
    let is_index = |name: &str| match name.strip_suffix(INDEX) {
        Some("" | VARIABLES) => true,
        Some(stem) => !stem.contains('/') && (of_data(stem) || top.has(STATE)),
        None => false,
    };
    let is_data = |name: &str| !name.contains('/') && DataFile::parse(name).is_some();
    match () {
        () if top.names().any(is_index) => Detection::Yes,
        () if top.names().any(is_data) => Detection::Likely,
        () => Detection::No,
    }
}

#[async_trait]
impl LoadFormat for TensorBundleLoadConfig {
    fn info(&self) -> &FormatInfo {
        &INFO
    }

    fn settings(&self) -> Json {
        settings_of(self)
    }

    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        let OpenCx {
            store,
            limits,
            dialect,
            ..
        } = cx;
        let top = match store.list(None, Depth::One).await {
            Ok(listed) => Some(listed),
            Err(StorageError::Unsupported { .. }) => None,
            Err(e) => return Err(e.into()),
        };
        let stem = stem(store, top.as_ref()).await?;
        let name = Name::new(format!("{stem}{INDEX}"))?;
        let Some(table) = limits.read(store, &name).await? else {
            return Err(StrategyError::NotACheckpoint {
                url: store.url(),
                why: format!("it has no {name}"),
            });
        };
        let record = record(store, limits, &stem, (&table, top.as_ref())).await?;
        let has_record = record.is_some();
        let memory = limits.memory(table.len() as u64);
        let mut index =
            Index::parse(&table, record, memory).map_err(|why| of_index(&name, why, memory))?;
        let files = files(store, &stem, &index, top).await?;
        Ok(Arc::new(BundleReader {
            store: Arc::clone(store),
            limits: *limits,
            dialect: *dialect,
            metadata: Arc::new(std::mem::take(&mut index.metadata)),
            stem,
            index,
            files,
            has_record,
        }))
    }
}

/// Whether there is a file. It is asked for if the place was not listed.
async fn exists(store: &Arc<dyn Store>, top: Option<&Listing>, name: &Name) -> Result<bool> {
    match top {
        Some(top) if !name.as_str().contains('/') => Ok(top.has(name.as_str())),
        _ => Ok(store.exists(name).await?),
    }
}

/// The prefix of the bundle in a place. It is empty in a place of files with one prefix. `top` are the files directly in it, if they could be listed.
async fn stem(store: &Arc<dyn Store>, top: Option<&Listing>) -> Result<String> {
    if exists(store, top, &Name::new(INDEX)?).await? {
        return Ok(String::new());
    }
    let state = Name::new(STATE)?;
    let state = match top.is_none_or(|top| top.has(STATE)) {
        true => read_small(store, &state).await?,
        false => None,
    };
    if let Some(text) = state {
        let state = std::str::from_utf8(&text)
            .ok()
            .and_then(CheckpointState::parse);
        let state = state.ok_or_else(|| {
            StrategyError::corrupt(
                STATE,
                None,
                "it does not name the latest checkpoint; open one by its prefix",
            )
        })?;
        let stem = local(&state.model_checkpoint_path);
        let name = Name::new(format!("{stem}{INDEX}")).map_err(|e| {
            let what = format!("its latest checkpoint {stem:?} does not lie in this folder ({e}); open it by its prefix");
            StrategyError::corrupt(STATE, None, what)
        })?;
        return match exists(store, top, &name).await? {
            true => Ok(stem.into()),
            false => {
                let what = format!(
                    "it says that {stem:?} is the latest checkpoint, but there is no {name}; open another one by its prefix"
                );
                Err(StrategyError::corrupt(STATE, None, what))
            }
        };
    }
    if store
        .exists(&Name::new(format!("{VARIABLES}{INDEX}"))?)
        .await?
    {
        return Ok(VARIABLES.into());
    }
    let listed;
    let top = match top {
        Some(top) => top,
        None => {
            // It says why nobody can list it.
            listed = store.top().await?;
            &listed
        }
    };
    let stems: Vec<&str> = top
        .names()
        .filter_map(|name| name.strip_suffix(INDEX))
        .collect();
    match &*stems {
        [one] => Ok((*one).into()),
        [] => Err(StrategyError::NotACheckpoint {
            url: store.url(),
            why: format!("it has no file *{INDEX} of a TensorFlow checkpoint"),
        }),
        [first, .., last] => Err(StrategyError::NotACheckpoint {
            url: store.url(),
            why: format!(
                "it has {} TensorFlow checkpoints, from {first} to {last}, and no file `{STATE}` that says which is the latest; open one by its prefix, such as {}/{last}",
                stems.len(),
                store.url().trim_end_matches('/')
            ),
        }),
    }
}

/// A path in the state file, from this place on. An absolute one leads to where the checkpoint lay when it was written.
fn local(path: &str) -> &str {
    match path.starts_with('/') || path.contains("://") {
        true => path.rsplit('/').next().unwrap_or(path),
        false => path.trim_start_matches("./"),
    }
}

async fn record(
    store: &Arc<dyn Store>,
    limits: &ReadLimits,
    stem: &str,
    (index, top): (&[u8], Option<&Listing>),
) -> Result<Option<Record>> {
    let name = Name::new(format!("{stem}{RECORD}"))?;
    // What takes its name without being a file is no absent file.
    let has = |top: &Listing| top.has(name.as_str()) || top.has_other(&name);
    if !stem.contains('/') && top.is_some_and(|top| !has(top)) {
        return Ok(None);
    }
    let Some(bytes) = limits.read(store, &name).await? else {
        return Ok(None);
    };
    let parsed = Record::parse(&bytes, crc32c::crc32c(index));
    parsed.map_err(|e| {
        let what = format!(
            "what reshard noted can't be parsed: {e}; remove it to read what TensorFlow reads"
        );
        StrategyError::corrupt(name, None, what)
    })
}

fn of_index(name: &Name, why: Refused, memory: u64) -> StrategyError {
    match why.kind {
        ErrorKind::Corrupt => StrategyError::corrupt(name, why.offset, why.what),
        ErrorKind::Limit => StrategyError::Limit {
            what: format!("{name}: {}", why.what),
            option: LimitOption::MaxMemory,
            max: memory,
        },
        _ => StrategyError::Undecoded {
            what: format!("{name} ({})", why.what),
        },
    }
}

/// The files of the bundle that are there, with their lengths.
async fn files(
    store: &Arc<dyn Store>,
    stem: &str,
    index: &Index,
    top: Option<Listing>,
) -> Result<BTreeMap<Name, u64>> {
    let folder = stem
        .rsplit_once('/')
        .map(|(folder, _)| Name::new(folder))
        .transpose()?;
    let listed = match top.filter(|_| folder.is_none()) {
        Some(top) => Ok(top),
        None => store.list(folder.as_ref(), Depth::One).await,
    };
    match listed {
        Ok(listed) => {
            let of_bundle =
                |name: &Name| DataFile::parse(name.as_str()).is_some_and(|file| file.stem == stem);
            let files = listed
                .files
                .into_iter()
                .filter(|file| of_bundle(&file.name));
            Ok(files.map(|file| (file.name, file.bytes)).collect())
        }
        // Those that hold anything are asked for, where nothing can be listed.
        Err(StorageError::Unsupported { .. }) => {
            let named = index.claimed.keys();
            let named = named.map(|shard| Name::new(names::data(stem, *shard, index.shards)));
            let found = store.present(named.collect::<Result<_, _>>()?).await?;
            let found = found.into_iter().map(|file| (file.name, file.bytes));
            Ok(found.collect())
        }
        Err(e) => Err(e.into()),
    }
}
