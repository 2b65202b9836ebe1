//! A checkpoint without some of its arrays. The files of the other arrays stay as they are; what describes all arrays is written again.

use super::{
    files::{is_refused, role},
    opened::ZarrReader,
};
use crate::{
    array::{find::check_memory, meta::without_nodes},
    names::{ZARR_JSON, ZMETADATA, join, split, splits},
    record::Record,
    stated::LONE,
};
use reshard_model::Dialect;
use reshard_storage::{Entry, Name, Store};
use reshard_strategy::{FileRole, Records, Removal, Result, StorageReader as _, StrategyError};
use std::{collections::BTreeSet, sync::Arc};

/// What is left without the arrays whose keys start with `prefix`. `noted` is what reshard has noted, and in which file.
///
/// # Errors
/// The prefix is that of an array of which nobody can tell whether it belongs to the checkpoint; nothing would be left that could be
/// opened; I/O.
pub(super) async fn without(
    reader: &ZarrReader,
    noted: Option<(&'static str, Record)>,
    prefix: &str,
) -> Result<Removal> {
    let (keys, stay): (BTreeSet<&str>, BTreeSet<&str>) =
        known(reader).partition(|key| key.starts_with(prefix));
    refuse(reader, &keys, stay.is_empty() && noted.is_none())?;

    let folders = folders(&keys, &stay);
    let mut goes = Vec::new();
    for (name, bytes) in reader.files.iter() {
        let file = entry(name, *bytes);
        if lies_in(name.as_str(), &folders) && role(reader, &file) == FileRole::Part {
            goes.push(file.name);
        }
    }
    let stays = reader.metadata.tensors().filter(|t| stay.contains(t.key()));
    let chunks = stays.flat_map(|t| t.chunks()).map(|(chunk, _)| chunk);
    let keeps: BTreeSet<Name> = chunks
        .flat_map(|chunk| reader.locate_chunk(chunk))
        .map(|at| at.file)
        .collect();

    let mut records = Records::default();
    for file in around(&keys, &folders) {
        match consolidated(reader, &file, &folders).await? {
            Rewritten::Same => {}
            Rewritten::As(bytes) => records.files.push((file, bytes)),
            // It only repeats what the arrays say themselves, and it would name arrays that are gone.
            Rewritten::Unreadable => goes.push(file),
        }
    }
    if let Some((name, mut record)) = noted {
        record.arrays.retain(|key, _| !key.starts_with(prefix));
        record.planner_data = record.planner_data.map(|data| data.without(prefix));
        let bytes = record.to_bytes();
        let bytes = bytes.map_err(|e| StrategyError::Internal(format!("{name}: {e}")))?;
        records.commit = Some((Name::new(name)?, bytes));
    }
    let keys = keys.into_iter().map(str::to_owned).collect();
    let mut removal = Removal::new(keys, keeps.into_iter().collect(), records);
    removal.goes = goes;
    Ok(removal)
}

fn entry(name: &Name, bytes: u64) -> Entry {
    Entry {
        name: name.clone(),
        bytes,
    }
}

/// All keys, also of arrays that can't be read.
fn known(reader: &ZarrReader) -> impl Iterator<Item = &str> {
    let refused = reader.refused.keys().map(String::as_str);
    reader.metadata.tensors().map(|t| t.key()).chain(refused)
}

fn refuse(reader: &ZarrReader, keys: &BTreeSet<&str>, nothing_left: bool) -> Result<()> {
    let below = format!("{LONE}/");
    let in_folder = |name: &Name| name.as_str().starts_with(&below);
    if keys.contains(LONE) && !reader.files.keys().any(in_folder) {
        return Err(StrategyError::Invalid(format!(
            "the place itself is the array {LONE}; remove the place"
        )));
    }
    let strange = |key: &&&str| reader.refused.contains_key(**key) && !is_refused(reader, key);
    if let Some(key) = keys.iter().find(strange) {
        let what = "so nobody can tell whether the array belongs to the checkpoint; move its folder away, or name a longer prefix";
        let why = reader.refused.get(*key).map_or("", |why| &why.what);
        let file = reader.description(key);
        return Err(StrategyError::corrupt(
            file,
            None,
            format!("{key}: {why}, {what}"),
        ));
    }
    if nothing_left && !keys.is_empty() && reader.dialect != Dialect::Megatron {
        return Err(StrategyError::Invalid(
            "all arrays start with this prefix, so no checkpoint would be left; remove the place"
                .into(),
        ));
    }
    Ok(())
}

/// The folders above a path, without the place itself.
fn above(path: &str) -> impl Iterator<Item = &str> {
    splits(path).map(|(folder, _)| folder)
}

/// The folders of which nothing stays: those of the arrays that go, and of groups in which there was nothing else.
fn folders<'k>(keys: &BTreeSet<&'k str>, stay: &BTreeSet<&str>) -> BTreeSet<&'k str> {
    let is_empty = |folder: &&str| {
        let below = format!("{folder}/");
        let first = stay.range(&*below..).next();
        !stay.contains(folder) && !first.is_some_and(|key| key.starts_with(&below))
    };
    let groups = keys.iter().flat_map(|key| above(key)).filter(is_empty);
    groups.chain(keys.iter().copied()).collect()
}

fn lies_in(path: &str, folders: &BTreeSet<&str>) -> bool {
    above(path).any(|folder| folders.contains(folder))
}

/// The files in which groups that stay may describe arrays that go.
fn around(keys: &BTreeSet<&str>, folders: &BTreeSet<&str>) -> Vec<Name> {
    let groups: BTreeSet<&str> = keys.iter().flat_map(|key| above(key)).collect();
    let groups = groups.into_iter().filter(|group| !folders.contains(group));
    let names =
        groups.flat_map(|group| [ZARR_JSON, ZMETADATA].map(|file| format!("{group}/{file}")));
    let of_place = [ZARR_JSON, ZMETADATA].map(str::to_owned);
    of_place
        .into_iter()
        .chain(names)
        .filter_map(|name| Name::new(name).ok())
        .collect()
}

enum Rewritten {
    Same,
    As(bytes::Bytes),
    Unreadable,
}

/// The consolidated metadata of a group without the nodes in these folders.
async fn consolidated(
    reader: &ZarrReader,
    file: &Name,
    folders: &BTreeSet<&str>,
) -> Result<Rewritten> {
    let Some(bytes) = reader.files.get(file) else {
        return Ok(Rewritten::Same);
    };
    let store: &Arc<dyn Store> = &reader.store;
    if role(reader, &entry(file, *bytes)) != FileRole::Part {
        return Ok(Rewritten::Same);
    }
    let Some(text) = reader.limits.read(store, file).await? else {
        return Ok(Rewritten::Same);
    };
    check_memory(&reader.limits, file.as_str(), &text)?;
    let (group, name) = split(file.as_str());
    let is_gone = |node: &str| {
        let path = join(group, node);
        folders.contains(&*path) || lies_in(&path, folders)
    };
    Ok(match without_nodes(name, &text, is_gone) {
        Ok(None) => Rewritten::Same,
        Ok(Some(text)) => Rewritten::As(text),
        Err(_) if name == ZMETADATA => Rewritten::Unreadable,
        Err(_) => Rewritten::Same,
    })
}
