//! The arrays of a place, by the names of its files.

use super::meta::{ArrayMeta, Fault, Node, parse_zarr_json, parse_zarray, parse_zmetadata};
use bytes::Bytes;
use reshard_storage::{Name, Store};
use reshard_strategy::{ReadLimits, Result};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The description of an array of Zarr v2.
pub(crate) const ZARRAY: &str = ".zarray";
/// The description of an array or a group of Zarr v3.
pub(crate) const ZARR_JSON: &str = "zarr.json";
/// Consolidated metadata of Zarr v2.
pub(crate) const ZMETADATA: &str = ".zmetadata";

/// The key of an array that is the place itself.
pub(crate) const LONE: &str = "tensor";

/// How many descriptions are read in one call.
const AT_ONCE: usize = 512;

/// An array, or what should be one.
#[derive(Debug)]
pub(crate) struct Found {
    /// Relative to the place, and empty if it is the place itself.
    pub(crate) folder: String,
    /// The file that describes it.
    pub(crate) description: String,
    /// The text of that file. `None` if it comes from consolidated metadata.
    pub(crate) text: Option<Bytes>,
    pub(crate) meta: Result<ArrayMeta, Fault>,
}

impl Found {
    /// The key of its tensor: the path of the array, joined by `/`.
    pub(crate) fn key(&self) -> &str {
        match &*self.folder {
            "" => LONE,
            folder => folder,
        }
    }
}

/// All arrays, sorted by folder. `skip` says which descriptions are none, by the folder and the length of the file.
///
/// A description in the folder of an array counts. Consolidated metadata tell of arrays whose folders have none.
pub(crate) async fn arrays(
    store: &Arc<dyn Store>,
    limits: &ReadLimits,
    files: &BTreeMap<Name, u64>,
    skip: impl Fn(&str, u64) -> bool,
) -> Result<Vec<Found>> {
    let mut described = Vec::new();
    let mut v3 = BTreeSet::new();
    for (name, bytes) in files {
        let (folder, file) = name
            .as_str()
            .rsplit_once('/')
            .unwrap_or(("", name.as_str()));
        if (file != ZARRAY && file != ZARR_JSON) || skip(folder, *bytes) {
            continue;
        }
        limits.whole(name, *bytes)?;
        if file == ZARR_JSON {
            v3.insert(folder);
        }
        described.push((folder, file, name, *bytes));
    }
    // A folder with both is read as v3, as zarr-python does it.
    described.retain(|(folder, file, ..)| *file == ZARR_JSON || !v3.contains(folder));

    let mut out = BTreeMap::new();
    let mut consolidated = Vec::new();
    for part in described.chunks(AT_ONCE) {
        let ranges = part
            .iter()
            .map(|(_, _, name, bytes)| ((*name).clone(), 0..*bytes));
        let texts = store.read_ranges(ranges.collect()).await?.0;
        for ((folder, file, name, _), text) in part.iter().zip(texts) {
            let meta = match *file {
                ZARRAY => parse_zarray(&text),
                _ => match parse_zarr_json(&text) {
                    Ok(Node::Array(array)) => *array,
                    Ok(Node::Group(group)) => {
                        // Groups below have what the group around them has.
                        if folder.is_empty() {
                            consolidated.extend(group.consolidated.into_iter().flatten());
                        }
                        continue;
                    }
                    Err(fault) => Err(fault),
                },
            };
            let found = Found {
                folder: (*folder).into(),
                description: name.to_string(),
                text: Some(text),
                meta,
            };
            out.insert(found.folder.clone(), found);
        }
    }
    let all = ZMETADATA;
    if let Some(bytes) = files.get(&Name::new(all)?) {
        limits.whole(all, *bytes)?;
        let text = store.read(&Name::new(all)?, 0..*bytes).await?;
        consolidated.extend(parse_zmetadata(&text).unwrap_or_default());
    }
    for (folder, node) in consolidated {
        if let Node::Array(meta) = node
            && Name::new(&*folder).is_ok()
            && !out.contains_key(&folder)
        {
            let found = Found {
                folder: folder.clone(),
                description: match files.contains_key(&Name::new(all)?) {
                    true => all.into(),
                    false => ZARR_JSON.into(),
                },
                text: None,
                meta: *meta,
            };
            out.insert(folder, found);
        }
    }
    Ok(out.into_values().collect())
}
