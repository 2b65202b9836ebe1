//! The arrays of a place, by the names of its files.

use super::meta::{
    ArrayMeta, MAX_TEXT, Node, no_attributes, parse_zarr_json, parse_zarray, parse_zmetadata,
    takes, too_long,
};
use crate::{
    names::{ZARR_JSON, ZARRAY, ZATTRS, ZMETADATA, join, split},
    place::PlaceFiles,
    stated::{LONE, Stated},
};
use bytes::Bytes;
use reshard_storage::{Name, Store};
use reshard_strategy::{LimitOption, ReadLimits, Refused, Result, StrategyError, read_in_batches};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// An array, or what should be one.
#[derive(Debug)]
pub(crate) struct Found {
    /// Relative to the place, and empty if it is the place itself.
    pub(crate) folder: String,
    /// The file that describes it.
    pub(crate) description: String,
    /// The text of that file. `None` if it comes from consolidated metadata.
    pub(crate) text: Option<Bytes>,
    pub(crate) meta: Result<ArrayMeta, Refused>,
    /// Whether the text is the one that was written, and nobody has read the file.
    pub(crate) is_assumed: bool,
}

/// The descriptions that were written, if a record tells them.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    /// By the names of their files.
    pub(crate) of: BTreeMap<String, Bytes>,
    /// Whether these are all arrays that there should be.
    pub(crate) all: bool,
}

impl Found {
    fn new(
        folder: &str,
        description: &str,
        text: Option<Bytes>,
        meta: Result<ArrayMeta, Refused>,
    ) -> Self {
        Self {
            folder: folder.into(),
            description: description.into(),
            text,
            meta,
            is_assumed: false,
        }
    }

    /// What can't be read, for this reason.
    pub(crate) fn refused(folder: &str, description: &str, why: Refused) -> Self {
        Self::new(folder, description, None, Err(why))
    }

    /// The key of its tensor: the path of the array, joined by `/`.
    pub(crate) fn key(&self) -> &str {
        match &*self.folder {
            "" => LONE,
            folder => folder,
        }
    }
}

/// The files that describe arrays or groups: the folder, the name in it, the whole name and the length.
fn descriptions(
    files: &PlaceFiles,
    skip: impl Fn(&str, u64) -> bool,
) -> Vec<(&str, &str, &Name, u64)> {
    let mut described = Vec::new();
    let mut v3 = BTreeSet::new();
    for (name, bytes) in files.iter() {
        let (folder, file) = split(name.as_str());
        if (file != ZARRAY && file != ZARR_JSON) || skip(folder, *bytes) {
            continue;
        }
        if file == ZARR_JSON {
            v3.insert(folder);
        }
        described.push((folder, file, name, *bytes));
    }
    // A folder with both is read as v3, as zarr-python does it.
    described.retain(|(folder, file, ..)| *file == ZARR_JSON || !v3.contains(folder));
    described
}

/// All arrays, sorted by folder. `skip` says which descriptions are none, by the folder and the length of the file.
///
/// A description in the folder of an array counts. Consolidated metadata tell of arrays whose folders have none. A description of `written` whose file
/// has the written length is not read; if all of them have, nothing else is looked for. `stated` gets attributes and names of axes.
pub(crate) async fn arrays(
    store: &Arc<dyn Store>,
    limits: &ReadLimits,
    files: &PlaceFiles,
    skip: impl Fn(&str, u64) -> bool,
    (written, stated): (&Texts, &mut Stated),
) -> Result<Vec<Found>> {
    let mut described = descriptions(files, &skip);
    let mut out = unreadable(files, &skip);
    described.retain(|(folder, file, ..)| *file == ZARR_JSON || !out.contains_key(*folder));
    let (mut consolidated, mut root) = (Vec::new(), None);
    let mut assumed = 0;
    described.retain(|(folder, file, name, bytes)| {
        let text = written.of.get(name.as_str());
        let text = text.filter(|text| text.len() as u64 == *bytes);
        let meta = match text.map(|text| parsed(limits, file, text)) {
            Some(Node::Array(meta)) => *meta,
            // A file with holes may say that it is as long as it likes.
            None if *bytes > MAX_TEXT as u64 => Err(too_long(file, *bytes)),
            Some(Node::Group(_)) | None => return true,
        };
        assumed += usize::from(text.is_some());
        let found = Found {
            is_assumed: text.is_some(),
            ..Found::new(folder, name.as_str(), text.cloned(), meta)
        };
        out.insert(found.folder.clone(), found);
        false
    });
    if written.all && assumed == written.of.len() {
        return Ok(out.into_values().collect());
    }
    let part = |(_, _, name, bytes): &(_, _, &Name, u64)| ((*name).clone(), 0..*bytes);
    let take = |(folder, file, name, _): (&str, &str, &Name, u64), text: Bytes| {
        if file == ZARR_JSON && affords(limits, &text) {
            stated.add_node(folder, &text);
            if folder.is_empty() {
                root = Some(text.clone());
            }
        }
        match parsed(limits, file, &text) {
            Node::Array(meta) => {
                let found = Found::new(folder, name.as_str(), Some(text), *meta);
                out.insert(folder.into(), found);
            }
            // Groups below have what the group around them has.
            Node::Group(nodes) if folder.is_empty() => consolidated.extend(nodes),
            Node::Group(_) => {}
        }
    };
    read_in_batches(&**store, described, part, take).await?;
    described_above(store, limits, files, (consolidated, root), stated, &mut out).await?;
    Ok(out.into_values().collect())
}

/// Adds the arrays that only consolidated metadata describe: the nodes of the root group, or a `.zmetadata`. Reads attributes.
async fn described_above(
    store: &Arc<dyn Store>,
    limits: &ReadLimits,
    files: &BTreeMap<Name, u64>,
    (mut consolidated, mut root): (Vec<(String, Node)>, Option<Bytes>),
    stated: &mut Stated,
    out: &mut BTreeMap<String, Found>,
) -> Result<()> {
    let all = ZMETADATA;
    if let Some(&bytes) = files.get(&Name::new(all)?) {
        let nodes = match bytes > MAX_TEXT as u64 {
            true => Err(too_long(all, bytes)),
            false => match store.read(&Name::new(all)?, 0..bytes).await? {
                text if !affords(limits, &text) => Err(too_large(all, &text)),
                text => {
                    let nodes = parse_zmetadata(&text);
                    root.get_or_insert(text);
                    nodes
                }
            },
        };
        match nodes {
            Ok(nodes) => consolidated.extend(nodes),
            // Nobody knows which arrays it describes.
            Err(fault) => drop(out.insert(all.into(), Found::refused(all, all, fault))),
        }
    }
    attributes(store, limits, files, stated, out).await?;
    // What nodes state themselves counts.
    if let Some(root) = root {
        stated.add_consolidated(&root);
    }
    let told_by = match files.contains_key(&Name::new(all)?) {
        true => all,
        false => ZARR_JSON,
    };
    for (folder, node) in consolidated {
        let Node::Array(meta) = node else {
            continue;
        };
        if let Some(own) = out.get(&folder) {
            let differ = matches!((&own.meta, &*meta), (Ok(own), Ok(meta)) if own != meta);
            if differ {
                stated.contradicted.insert(folder);
            }
        } else if Name::new(&*folder).is_ok() {
            let found = Found::new(&folder, told_by, None, *meta);
            out.insert(folder, found);
        }
    }
    Ok(())
}

/// Reads the attributes of arrays and groups of Zarr v2. A file that has none is an item of its own that is damaged.
async fn attributes(
    store: &Arc<dyn Store>,
    limits: &ReadLimits,
    files: &BTreeMap<Name, u64>,
    stated: &mut Stated,
    out: &mut BTreeMap<String, Found>,
) -> Result<()> {
    let of_v2 = |name: &Name| {
        let folder = name.as_str().strip_suffix(ZATTRS)?;
        let folder = folder
            .strip_suffix('/')
            .or(folder.is_empty().then_some(""))?;
        let v3 = Name::new(join(folder, ZARR_JSON));
        let is_v3 = v3.is_ok_and(|v3| files.contains_key(&v3));
        (!is_v3).then(|| folder.to_owned())
    };
    let mut refuse = |name: &Name, fault| {
        let found = Found::refused(name.as_str(), name.as_str(), fault);
        out.insert(name.to_string(), found);
    };
    let all = files.iter();
    let mut all: Vec<(String, &Name, u64)> = all
        .filter_map(|(name, bytes)| Some((of_v2(name)?, name, *bytes)))
        .collect();
    all.retain(|(_, name, bytes)| {
        let fits = *bytes <= MAX_TEXT as u64;
        if !fits {
            refuse(name, too_long(ZATTRS, *bytes));
        }
        fits
    });
    let part = |(_, name, bytes): &(_, &Name, u64)| ((*name).clone(), 0..*bytes);
    let take = |(folder, name, _): (String, &Name, u64), text: Bytes| {
        if !affords(limits, &text) {
            refuse(name, too_large(ZATTRS, &text));
        } else if !stated.add_attributes(&folder, &text) {
            refuse(name, no_attributes());
        }
    };
    read_in_batches(&**store, all, part, take).await?;
    Ok(())
}

/// Arrays whose descriptions are no files, and attributes that are none.
fn unreadable(files: &PlaceFiles, skip: impl Fn(&str, u64) -> bool) -> BTreeMap<String, Found> {
    let mut out = BTreeMap::new();
    for (folder, file, what) in files.obstacles(&[ZARR_JSON, ZARRAY, ZMETADATA, ZATTRS]) {
        let description = join(folder, file);
        let array = match file {
            ZMETADATA => ZMETADATA,
            ZATTRS => &*description,
            _ if skip(folder, 0) => continue,
            _ => folder,
        };
        let fault = Refused::damaged(format!("{what}, and should be its {file}"));
        out.insert(array.into(), Found::refused(array, &description, fault));
    }
    out
}

/// Parses a description.
fn parsed(limits: &ReadLimits, file: &str, text: &[u8]) -> Node {
    let array = match file {
        _ if !affords(limits, text) => Err(too_large(file, text)),
        ZARRAY => parse_zarray(text),
        _ => match parse_zarr_json(text) {
            Ok(node) => return node,
            Err(fault) => Err(fault),
        },
    };
    Node::Array(Box::new(array))
}

/// Fails if parsing the text of a file would take more memory than the limits allow.
pub(crate) fn check_memory(limits: &ReadLimits, name: &str, text: &[u8]) -> Result<()> {
    if affords(limits, text) {
        return Ok(());
    }
    Err(StrategyError::Limit {
        what: format!("{name} takes too much memory as it is parsed"),
        option: LimitOption::MaxMemory,
        max: limits.memory(text.len() as u64),
    })
}

/// Whether the parsed form of a JSON text takes no more memory than it may.
fn affords(limits: &ReadLimits, text: &[u8]) -> bool {
    takes(text) <= limits.memory(text.len() as u64)
}

fn too_large(file: &str, text: &[u8]) -> Refused {
    Refused::unknown(format!(
        "{file} of {} bytes, which takes too much memory as it is parsed; the option max_memory raises the limit",
        text.len()
    ))
}
