//! Opens a file, or a folder with an index.

use crate::{
    NAME, TorchSaveLoadConfig,
    error::refused_file,
    file::{TorchFile, has_torch_content},
    index::{Index, Parsed},
    names::{INDEX, WEIGHTS, is_file, own_file},
    reader::{Kind, TorchSaveReader},
    table::Table,
};
use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use reshard_model::ErrorKind;
use reshard_storage::{Entry, Name, PlaceKind, Store, StoreExt};
use reshard_strategy::{
    Detection, FormatInfo, LoadFormat, OpenCx, Refused, Result, StorageReader, StrategyError,
    read_small, settings_of,
};
use serde_json::Value as Json;
use std::{collections::BTreeMap, sync::Arc};

/// So many files are opened at the same time, at most.
const MOST_AT_ONCE: usize = 16;

const INFO: FormatInfo = FormatInfo {
    backend: NAME,
    own_file,
    detect_file: Some(|file| match is_file(file.name.as_str()) {
        true => Detection::Yes,
        false => Detection::No,
    }),
    detect_content: Some(has_torch_content),
    probes: &[INDEX, WEIGHTS],
    lives_in: &[PlaceKind::Folder, PlaceKind::File],
    ..FormatInfo::NEW
};

#[async_trait]
impl LoadFormat for TorchSaveLoadConfig {
    fn info(&self) -> &FormatInfo {
        &INFO
    }

    fn settings(&self) -> Json {
        settings_of(self)
    }

    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        let index = match read_small(&cx.store, &Name::new(INDEX)?).await? {
            Some(bytes) => Some(Index::parse(&bytes)?),
            None => None,
        };
        let reader = match index {
            Some(index) => {
                let weights = Name::new(WEIGHTS)?;
                let is_read = index.files.contains_key(&weights);
                let rival = !is_read && cx.store.exists(&weights).await?;
                folder(cx, index, self.open_modules)
                    .await?
                    .with_rival(rival)
            }
            None => {
                let file = only_file(&cx.store).await?;
                let open = self.open_modules;
                let opened = TorchFile::open(cx, file.name, file.bytes, open).await?;
                let table = Table::of(&opened, &cx.limits)?;
                TorchSaveReader::new(cx, vec![Some(opened)], table, Kind::File)
            }
        };
        Ok(Arc::new(reader))
    }
}

/// The file of a place without an index.
async fn only_file(store: &Arc<dyn Store>) -> Result<Entry> {
    let name = Name::new(WEIGHTS)?;
    if let Some(bytes) = store.len(&name).await? {
        return Ok(Entry { name, bytes });
    }
    let mut top = store.top().await?;
    match (top.files.pop(), top.files.is_empty()) {
        (Some(file), true) => Ok(file),
        _ => {
            let why = format!(
                "it is neither a file of torch.save nor a folder with {WEIGHTS} or {INDEX}"
            );
            let url = store.url();
            Err(StrategyError::NotACheckpoint { url, why })
        }
    }
}

/// All files of an index. What is wrong with one of them does not hide the others.
async fn folder(cx: &OpenCx, index: Parsed, open_modules: bool) -> Result<TorchSaveReader> {
    let names = index.files.keys().cloned().collect();
    let lengths = cx.store.lengths(names).await?.into_iter();
    let lengths: BTreeMap<Name, u64> = lengths.map(|file| (file.name, file.bytes)).collect();
    let named = index
        .files
        .keys()
        .map(|name| (name.clone(), lengths.get(name).copied()));
    let named: Vec<(Name, Option<u64>)> = named.collect();
    let opened = stream::iter(named).map(|(name, bytes)| one_of(cx, name, bytes, open_modules));
    let opened = opened.buffered(at_once(cx));
    let files: Vec<std::result::Result<TorchFile, Refused>> = opened.try_collect().await?;
    let table = Table::indexed(&files, index, &cx.limits)?;
    let files = files.into_iter().map(Result::ok).collect();
    Ok(TorchSaveReader::new(cx, files, table, Kind::Indexed))
}

/// So many files are opened at the same time. Each may take as much memory as one.
fn at_once(cx: &OpenCx) -> usize {
    let hints = cx.store.hints();
    match hints.requests_are_dear() {
        true => hints.concurrency.clamp(1, MOST_AT_ONCE),
        false => 1,
    }
}

/// One of the files that an index names. What is wrong with it is a part of the result, unless it may be tried again.
async fn one_of(
    cx: &OpenCx,
    name: Name,
    bytes: Option<u64>,
    open_modules: bool,
) -> Result<std::result::Result<TorchFile, Refused>> {
    let Some(bytes) = bytes else {
        let what = format!("{INDEX} names this file, but it is not there");
        return Ok(Err(Refused::damaged(what).in_file(name)));
    };
    match TorchFile::open(cx, name.clone(), bytes, open_modules).await {
        Err(e) if e.kind() == ErrorKind::Unavailable => Err(e),
        opened => Ok(opened.map_err(|e| refused_file(&e, name.as_str()))),
    }
}
