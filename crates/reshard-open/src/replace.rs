//! Decides what an overwriting save replaces: the files of the old checkpoint, and nothing else.

use crate::{
    attempt::{folder_of, in_folder},
    opened::OpenOptions,
    outside::is_note,
    sidecar::{Sidecar, is_sidecar},
};
use reshard_megatron::{COMMON, METADATA_JSON, Whose};
use reshard_storage::{Entry, IfExists, Listing, Name, PlaceKind, StorageError, Store, StoreExt};
use reshard_strategy::{FileRole, Formats, Registry, StrategyError};
use std::sync::Arc;

type Result<T, E = StrategyError> = std::result::Result<T, E>;

/// What an overwriting save finds.
#[derive(Debug, Default)]
pub struct Replaced {
    /// What a new version does with the old one.
    pub if_exists: IfExists,
    /// Files that stay although the old checkpoint names them as its own.
    pub stays: Vec<Name>,
}

/// Decides what an overwriting save does with the contents of a place. They must be a checkpoint, or what an unfinished
/// save left of one. A folder of checkpoints is neither. If there is no file, there is nothing to replace.
pub async fn replace(
    store: &Arc<dyn Store>,
    registry: &Registry,
    kind: PlaceKind,
) -> Result<Replaced> {
    let Some(mut top) = top(store).await? else {
        return Ok(Replaced::default());
    };
    let mut formats = Formats::of(registry)?;
    match kind {
        PlaceKind::File => return replace_file(store, registry, &top).await,
        // Other files with the prefix, such as a log, are in nobody's way: a save creates its files and never replaces one.
        PlaceKind::Prefix => {
            formats = formats.of_kind(kind);
            top.files
                .retain(|file| formats.own(file.name.as_str()) || is_sidecar(file.name.as_str()));
        }
        _ => {}
    }
    let sign = |name: &str| formats.own(name);
    let json = Whose::of(store).await;
    let checkpoint = formats.of_kind(kind).know(&top)
        || top.names().any(sign)
        || json == Whose::Megatrons
        || Sidecar::any(store).await.is_some();
    if !checkpoint {
        // The store itself checks for other things than files when it begins.
        return if top.files.is_empty() {
            Ok(Replaced::default())
        } else {
            Err(no_checkpoint())
        };
    }
    // A file that nobody can attribute would stay, and would make the new checkpoint unreadable.
    let unclear = match json {
        Whose::Megatrons => None,
        Whose::Unclear => Some(METADATA_JSON),
        Whose::OfOthers => top.has(COMMON).then_some(COMMON),
    };
    if let Some(name) = unclear {
        return Err(refused(&format!(
            "nobody can tell whether its {name} belongs to a save of Megatron Core or to another program; move it away"
        )));
    }
    let how = OpenOptions {
        registry: Some(registry.clone()),
        ..OpenOptions::default()
    };
    files_to_replace(store, &how, json, &formats).await
}

/// The contents of a place, if it exists. Only the top folder is listed: a place that was named by mistake may hold millions of files.
async fn top(store: &Arc<dyn Store>) -> Result<Option<Listing>> {
    match store.top().await {
        Ok(top) => Ok(Some(top)),
        Err(StorageError::NotFound { .. }) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Refuses files with a prefix that are a checkpoint, before a save writes anything. Its commit would refuse them, too.
pub async fn refuse_prefix(store: &Arc<dyn Store>, registry: &Registry) -> Result<()> {
    let Some(top) = top(store).await? else {
        return Ok(());
    };
    match Formats::of(registry)?.of_kind(PlaceKind::Prefix).know(&top) {
        true => Err(StorageError::Exists { path: store.url() }.into()),
        false => Ok(()),
    }
}

/// The same for a checkpoint that can be opened, whatever tells what it is.
pub async fn replace_opened(
    store: &Arc<dyn Store>,
    registry: &Registry,
    how: &OpenOptions,
) -> Result<Replaced> {
    let formats = Formats::of(registry)?;
    files_to_replace(store, how, Whose::of(store).await, &formats).await
}

/// Which files of a checkpoint a new version replaces.
async fn files_to_replace(
    store: &Arc<dyn Store>,
    how: &OpenOptions,
    json: Whose,
    formats: &Formats,
) -> Result<Replaced> {
    let files = store.files().await?;
    let below = files
        .iter()
        // Folders of attempts are no other checkpoints.
        .filter(|f| folder_of(&f.name).is_none())
        .filter_map(|f| f.name.as_str().rsplit_once('/'));
    if below.into_iter().any(|(_, name)| formats.own(name)) {
        return Err(refused("other checkpoints lie in it"));
    }
    match owned(store, how, files, json, formats).await {
        Ok(Owned { files, stays }) => Ok(Replaced {
            if_exists: IfExists::Replace(files.into()),
            stays,
        }),
        Err(StrategyError::Unknown { key, .. }) => {
            let why = format!(
                "it is a checkpoint of {}, whose files this program can't tell from files of other programs",
                key.name.backend
            );
            Err(refused(&why))
        }
        Err(StrategyError::Ambiguous { a, b, .. }) => Err(refused(&format!(
            "files of two formats lie in it, of {a} and of {b}"
        ))),
        Err(StrategyError::Limit { what, .. }) => Err(refused(&format!(
            "which of its files are those of the checkpoint can't be found out: {what}"
        ))),
        Err(e) => Err(e),
    }
}

/// One file is replaced if it is a checkpoint of a linked format, whole or damaged.
async fn replace_file(
    store: &Arc<dyn Store>,
    registry: &Registry,
    top: &Listing,
) -> Result<Replaced> {
    let [file] = &*top.files else {
        return Ok(Replaced::default());
    };
    let how = OpenOptions {
        registry: Some(registry.clone()),
        ..OpenOptions::default()
    };
    match how.open_store(Arc::clone(store)).await {
        Err(StrategyError::NotACheckpoint { .. }) => Err(refused("the file is not a checkpoint")),
        Err(
            e @ (StrategyError::Unknown { .. }
            | StrategyError::Ambiguous { .. }
            | StrategyError::Storage(_)),
        ) => Err(e),
        _ => Ok(Replaced {
            if_exists: IfExists::Replace([file.name.clone()].into()),
            stays: Vec::new(),
        }),
    }
}

/// What to do if a save can't replace what lies at its place.
pub const ADVICE: &str = "; name another place, or empty this one";

fn refused(why: &str) -> StrategyError {
    let what = "replacing what lies there".into();
    StorageError::Unsupported {
        what,
        why: format!("{why}{ADVICE}"),
    }
    .into()
}

/// The error for a place whose contents are no checkpoint.
pub fn no_checkpoint() -> StrategyError {
    refused("it holds files, but is not a checkpoint")
}

/// The files of a checkpoint.
#[derive(Debug, Default)]
pub struct Owned {
    /// Files that surely belong to it.
    pub files: Vec<Name>,
    /// Files that only the checkpoint itself names as its own.
    pub stays: Vec<Name>,
}

/// Which of these files belong to the checkpoint at a place. The checkpoint may be whole, damaged or unfinished. A file
/// belongs to it only if the programs of its format give such names. A name that only a record gives doesn't count: the
/// record may be made to have somebody's file removed, or may not be readable.
///
/// # Errors
/// [`StrategyError::Unknown`] if its format is not linked; errors of the store.
pub async fn files_of(
    store: &Arc<dyn Store>,
    how: &OpenOptions,
    files: Vec<Entry>,
    formats: &Formats,
) -> Result<Owned> {
    owned(store, how, files, Whose::of(store).await, formats).await
}

/// The same, for callers that know whose the `metadata.json` is.
async fn owned(
    store: &Arc<dyn Store>,
    how: &OpenOptions,
    files: Vec<Entry>,
    json: Whose,
    formats: &Formats,
) -> Result<Owned> {
    // If the record of one format is there, only this format's names count; other names may be a stranger's.
    let of_one = formats
        .with_record(&files)
        .unwrap_or_else(|| formats.clone());
    let added = |name: &Name| {
        is_sidecar(name.as_str())
            || (json == Whose::Megatrons
                && (name.as_str() == COMMON || reshard_megatron::owns(name)))
    };
    let known = |name: &Name| match in_folder(name.as_str()) {
        Some(inside) => of_one.own(inside) || is_sidecar(inside) || is_note(inside),
        None => of_one.own(name.as_str()) || added(name),
    };
    let by_names = |files: Vec<Entry>| Owned {
        files: in_order_of_removal(files.into_iter().map(|f| (f, None)).collect(), formats),
        stays: Vec::new(),
    };
    // Usually the names decide everything, and nothing has to be opened.
    if of_one.all.len() == 1 && files.iter().all(|f| known(&f.name)) {
        return Ok(by_names(files));
    }
    match how.open_store(Arc::clone(store)).await {
        Ok(opened) => {
            let roles = opened
                .roles()
                .await?
                .into_iter()
                .filter(|(_, r)| *r != FileRole::Foreign);
            let (files, stays): (Vec<_>, Vec<_>) = roles
                .map(|(f, role)| (f, Some(role)))
                .partition(|(file, _)| opened.owns(&file.name));
            Ok(Owned {
                files: in_order_of_removal(files, formats),
                stays: stays.into_iter().map(|(file, _)| file.name).collect(),
            })
        }
        Err(
            e @ (StrategyError::Unknown { .. }
            | StrategyError::Ambiguous { .. }
            | StrategyError::Limit { .. }
            | StrategyError::Storage(StorageError::Io { .. })),
        ) => Err(e),
        // The checkpoint is damaged or unfinished, so only names can decide.
        Err(_) => Ok(by_names(
            files.into_iter().filter(|f| known(&f.name)).collect(),
        )),
    }
}

/// The names of files in an order in which they can be removed: before the last of them is gone, those that are left can be told from
/// files of others. A name alone tells it of some files. Of others the record tells it, or the description of their array; so these go
/// after what they describe.
fn in_order_of_removal(files: Vec<(Entry, Option<FileRole>)>, formats: &Formats) -> Vec<Name> {
    let describes = formats.probes_in_folders();
    let place = |file: &Entry, role: Option<FileRole>| {
        let name = file.name.as_str();
        let Some((_, last)) = name.rsplit_once('/') else {
            return match name {
                METADATA_JSON => 5,
                _ if is_sidecar(name) || formats.of_record(name).is_some() => 4,
                _ if describes.contains(name) => 3,
                _ if matches!(role, Some(FileRole::Items | FileRole::Leftover)) => 0,
                _ => 3,
            };
        };
        match role {
            // Chunks that are not stored count as items in it.
            _ if describes.contains(last) => 2,
            Some(FileRole::Part) => 1,
            _ => 0,
        }
    };
    let mut all: Vec<(usize, usize, Name)> = files
        .into_iter()
        .map(|(file, role)| {
            let place = place(&file, role);
            // A group is told by the arrays in it, so its description goes before theirs.
            let depth = match place {
                2 => file.name.as_str().matches('/').count(),
                _ => 0,
            };
            (place, depth, file.name)
        })
        .collect();
    all.sort();
    all.into_iter().map(|(_, _, name)| name).collect()
}
