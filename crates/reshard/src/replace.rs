//! What an overwriting save replaces: the files of the checkpoint that lies there, and nothing else.

use crate::{
    formats::Formats,
    opened::HowToOpen,
    sidecar::{SIDECAR, Sidecar},
};
use reshard_megatron::{COMMON, METADATA_JSON, Whose};
use reshard_storage::{Entry, IfExists, Name, PlaceKind, StorageError, Store, StoreExt};
use reshard_strategy::{FileRole, Registry, StrategyError};
use std::sync::Arc;

type Result<T, E = StrategyError> = std::result::Result<T, E>;

/// What an overwriting save finds.
#[derive(Debug, Default)]
pub(crate) struct Replaced {
    pub(crate) if_exists: IfExists,
    /// Files that stay though the checkpoint says that it is made of them.
    pub(crate) stays: Vec<Name>,
}

/// What to do with what lies at a place that is to be overwritten. That must be a checkpoint itself, or what an unfinished
/// save left of one; a folder of checkpoints is neither. Where no file is seen, there is nothing to replace.
pub(crate) async fn replace(store: &Arc<dyn Store>, registry: &Registry) -> Result<Replaced> {
    // Most of what could be named by mistake holds more files than one wants to walk through.
    let top = match store.top().await {
        Ok(top) => top,
        Err(StorageError::NotFound { .. }) => return Ok(Replaced::default()),
        Err(e) => return Err(e.into()),
    };
    let formats = Formats::of(registry)?;
    let sign = |name: &str| formats.own(name);
    let json = Whose::of(store).await;
    let checkpoint = formats.of_kind(PlaceKind::Folder).know(&top)
        || top.names().any(sign)
        || json == Whose::Megatrons
        || Sidecar::any(store).await.is_some();
    if !checkpoint {
        // Whether there is something else than files, the store finds when it begins.
        return if top.files.is_empty() { Ok(Replaced::default()) } else { Err(no_checkpoint()) };
    }
    // The new checkpoint could not be read beside it.
    let unclear = match json {
        Whose::Megatrons => None,
        Whose::Unclear => Some(METADATA_JSON),
        Whose::OfOthers => top.has(COMMON).then_some(COMMON),
    };
    if let Some(name) = unclear {
        return Err(refused(&format!(
            "nobody can tell whether its {name} is what a save of Megatron Core left or a file of another program; move it away"
        )));
    }
    let files = store.files().await?;
    let below = files.iter().filter_map(|f| f.name.as_str().rsplit_once('/'));
    if below.into_iter().any(|(_, name)| sign(name)) {
        return Err(refused("other checkpoints lie in it"));
    }
    let how = HowToOpen { registry: Some(registry.clone()), ..HowToOpen::default() };
    match owned(store, &how, files, json, &formats).await {
        Ok(Owned { files, stays }) => Ok(Replaced { if_exists: IfExists::Replace(files.into()), stays }),
        Err(StrategyError::Unknown { key, .. }) => {
            let why = format!(
                "it is a checkpoint of {}, whose files this program can't tell from those of others",
                key.name.backend
            );
            Err(refused(&why))
        }
        Err(StrategyError::Ambiguous { a, b, .. }) => {
            Err(refused(&format!("files of two formats lie in it, of {a} and of {b}")))
        }
        Err(e) => Err(e),
    }
}

fn refused(why: &str) -> StrategyError {
    let what = "replacing what lies there".into();
    StorageError::Unsupported { what, why: format!("{why}; name another place, or clear this one") }.into()
}

/// Why what lies somewhere is not replaced.
pub(crate) fn no_checkpoint() -> StrategyError {
    refused("it holds files, but is no checkpoint")
}

/// The files of a checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    /// Those that are surely its own.
    pub(crate) files: Vec<Name>,
    /// Those of which only the checkpoint says that they are.
    pub(crate) stays: Vec<Name>,
}

/// Which of these files are those of the checkpoint, whole or damaged or unfinished, that lies at a place. All of them have
/// names that programs give which write its format. A name that only a record gives doesn't count, since whoever wrote the
/// record may have wanted a file of others removed; and what is no record that can be read gives none.
///
/// # Errors
/// [`StrategyError::Unknown`] when it is of a format that is not linked; what the store says.
pub(crate) async fn files_of(
    store: &Arc<dyn Store>,
    how: &HowToOpen,
    files: Vec<Entry>,
    formats: &Formats,
) -> Result<Owned> {
    owned(store, how, files, Whose::of(store).await, formats).await
}

/// The same, when it is known whose the `metadata.json` is.
async fn owned(
    store: &Arc<dyn Store>,
    how: &HowToOpen,
    files: Vec<Entry>,
    json: Whose,
    formats: &Formats,
) -> Result<Owned> {
    // Of one format, where its record lies: a name of another one may be a stranger's.
    let of_one = formats.with_record(&files).unwrap_or_else(|| formats.clone());
    let added = |name: &Name| {
        name.as_str() == SIDECAR
            || (json == Whose::Megatrons && (name.as_str() == COMMON || reshard_megatron::owns(name)))
    };
    let known = |name: &Name| of_one.own(name.as_str()) || added(name);
    // As a rule names tell all, and nothing has to be opened.
    if of_one.0.len() == 1 && files.iter().all(|f| known(&f.name)) {
        return Ok(Owned { files: files.into_iter().map(|f| f.name).collect(), stays: Vec::new() });
    }
    match how.open_store(Arc::clone(store)).await {
        Ok(opened) => {
            let roles = opened.roles().await?.into_iter().filter(|(_, r)| *r != FileRole::Foreign);
            let (files, stays) = roles.map(|(f, _)| f.name).partition(|name| opened.owns(name));
            Ok(Owned { files, stays })
        }
        Err(
            e @ (StrategyError::Unknown { .. }
            | StrategyError::Ambiguous { .. }
            | StrategyError::Storage(StorageError::Io { .. })),
        ) => Err(e),
        // Damaged or unfinished: names have to do.
        Err(_) => {
            let files = files.into_iter().map(|f| f.name).filter(known).collect();
            Ok(Owned { files, stays: Vec::new() })
        }
    }
}
