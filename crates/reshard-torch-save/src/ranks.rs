//! The format `("rank_files", 1)`: a folder with one file of each rank, whose tensors are DTensors or ShardedTensors.

pub(crate) mod compare;
mod gather;
mod layout;
pub(crate) mod merge;
pub(crate) mod names;
pub(crate) mod part;

use crate::{
    error::refused_file,
    file::TorchFile,
    reader::{Kind, TorchSaveReader},
    table::Table,
};
use async_trait::async_trait;
use gather::{Gathered, RankFile};
use layout::Layouts;
use names::RankName;
use reshard_model::ErrorKind;
use reshard_storage::{Entry, StoreExt as _};
use reshard_strategy::{
    FormatInfo, LoadFormat, OpenCx, Result, StorageReader, StrategyError, few, register_format,
    settings_of,
};
use reshard_torch_format::Contents;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::{collections::BTreeSet, sync::Arc};

/// Name of the format, and of its configuration's tag.
pub const RANK_FILES: &str = "rank_files";

/// Settings of the load strategy `("rank_files", 1)`. There is none for saves: the format is read-only.
///
/// ```
/// use reshard_strategy::LoadShardedStrategy;
/// use reshard_torch_save as _; // linked, and so registered
/// let config = r#"{ "format": "rank_files", "item": "model" }"#;
/// let strategy: LoadShardedStrategy = serde_json::from_str(config).unwrap();
/// assert_eq!(strategy.key().backend.as_ref(), "rank_files");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RankFilesLoadConfig {
    /// The item to read: `model` of `model_world_size_4_rank_0.pt`. Keys are those of the item then. By default all items are read, and if
    /// there are several, the name of the item is the first part of each key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
}

impl RankFilesLoadConfig {
    /// Sets the item to read.
    #[must_use]
    pub fn with_item(self, item: impl Into<String>) -> Self {
        let item = Some(item.into());
        Self { item }
    }
}

register_format!(
    RANK_FILES,
    1,
    LoadSharded(reshard_strategy::load_format::<RankFilesLoadConfig>)
);

const INFO: FormatInfo = FormatInfo {
    backend: RANK_FILES,
    detect: Some(names::detect),
    ..FormatInfo::NEW
};

#[async_trait]
impl LoadFormat for RankFilesLoadConfig {
    fn info(&self) -> &FormatInfo {
        &INFO
    }

    fn settings(&self) -> Json {
        settings_of(self)
    }

    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        let top = cx.store.top().await?;
        let layouts = Layouts::read(cx).await?;
        let named = chosen(&top.files, self.item.as_deref(), &layouts, cx)?;
        let items: BTreeSet<&str> = named.iter().map(|(of, _)| &*of.item).collect();
        let mut gathered = Gathered::new(items.len() > 1, layouts);
        let mut files = Vec::with_capacity(named.len());
        for (of, file) in named {
            let name = file.name.clone();
            let opened = match opened(cx, file, of.is_safetensors).await {
                Err(e) if e.kind() == ErrorKind::Unavailable => return Err(e),
                opened => opened,
            };
            let n = files.len() as u32;
            match opened {
                Ok((file, contents)) => {
                    gathered.add(RankFile::new(n, &of, &name), &file, contents);
                    files.push(Some(file));
                }
                Err(e) => {
                    gathered.broken(
                        RankFile::new(n, &of, &name),
                        refused_file(&e, name.as_str()),
                    );
                    files.push(None);
                }
            }
        }
        if !gathered.has_parts() {
            return Err(no_parts(cx, &gathered));
        }
        let reader = TorchSaveReader::new(cx, files, Table::default(), Kind::Ranks);
        let table = gathered.merge(&reader, &cx.limits).await?;
        Ok(Arc::new(reader.with_table(table)))
    }
}

/// The error for files of which nothing says that they are parts of one checkpoint.
fn no_parts(cx: &OpenCx, gathered: &Gathered) -> StrategyError {
    let names = few(gathered.names().iter().map(String::as_str));
    let broken = match gathered.first_broken() {
        Some(why) => format!(" ({why})"),
        None => String::new(),
    };
    let why = format!(
        "{names} hold no DTensor and no ShardedTensor, so nothing says how their tensors belong together{broken}; name one of the files"
    );
    let url = cx.store.url();
    StrategyError::NotACheckpoint { url, why }
}

/// The files that are read, with what their names say, by item and rank.
fn chosen(
    top: &[Entry],
    item: Option<&str>,
    layouts: &Layouts,
    cx: &OpenCx,
) -> Result<Vec<(RankName, Entry)>> {
    let mut named: Vec<(RankName, Entry)> = Vec::new();
    for file in top {
        // `metadata.pkl` may give other names to files.
        let of = layouts.name(file.name.as_str());
        if let Some(of) = of.or_else(|| RankName::of(file.name.as_str())) {
            named.push((of, file.clone()));
        }
    }
    // Safetensors have placements only in `metadata.pkl`.
    named.retain(|(of, _)| !of.is_safetensors || layouts.is_there());
    let sure = |of: &RankName| of.is_sure || layouts.is_there();
    if named.iter().any(|(of, _)| sure(of)) {
        named.retain(|(of, _)| sure(of));
    }
    let items: BTreeSet<String> = named.iter().map(|(of, _)| of.item.clone()).collect();
    if let Some(item) = item {
        if !items.contains(item) {
            let have = few(items.iter().map(String::as_str));
            let what = format!("it has no item {item:?}, but {have}");
            return Err(StrategyError::NotStored { what });
        }
        named.retain(|(of, _)| of.item == item);
    }
    named.sort_by(|(a, _), (b, _)| (&a.item, a.rank).cmp(&(&b.item, b.rank)));
    for pair in named.windows(2) {
        if let [(a, one), (b, other)] = pair
            && (&a.item, a.rank) == (&b.item, b.rank)
        {
            let what = format!(
                "{} and {} are both of rank {}, so which of them counts is not known; move one away",
                one.name, other.name, a.rank
            );
            return Err(StrategyError::Invalid(what));
        }
    }
    if named.is_empty() {
        let url = cx.store.url();
        let why = "it has no file whose name ends with the number of a rank, such as model_world_size_4_rank_0.pt".into();
        return Err(StrategyError::NotACheckpoint { url, why });
    }
    Ok(named)
}

/// A file, and what it holds.
async fn opened(cx: &OpenCx, file: Entry, is_safetensors: bool) -> Result<(TorchFile, Contents)> {
    let Entry { name, bytes, .. } = file;
    if is_safetensors {
        return TorchFile::safetensors(&cx.store, name, bytes, &cx.limits).await;
    }
    let file = TorchFile::open(cx, name, bytes, false).await?;
    let contents = file.contents(&cx.limits)?;
    Ok((file, contents))
}
