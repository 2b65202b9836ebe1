//! Which files a checkpoint consists of.

use crate::{
    OBJECTS, RECORD,
    index::Index,
    names::{self, INDEX, MODEL, Named},
    record::Record,
};
use bytes::Bytes;
use reshard_storage::{Entry, Listing, Name, PlaceKind, StoreExt};
use reshard_strategy::{OpenCx, Result, StrategyError};
use std::collections::{BTreeMap, BTreeSet};

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The files of tensors with their lengths, in the order of their names. None for a file that is not there.
    pub(super) files: Vec<(Name, Option<u64>)>,
    pub(super) index: Option<(Name, Index)>,
    pub(super) record: Option<Record>,
    /// The length of the file of objects, if it is there.
    pub(super) objects: Option<u64>,
    /// A file of tensors that other programs read instead of these, with the file that names these.
    pub(super) rival: Option<(Name, Name)>,
    /// Files of the model whose index does not name them.
    pub(super) unnamed: Vec<Name>,
}

impl Found {
    pub(super) async fn look(cx: &OpenCx) -> Result<Self> {
        let known = [INDEX, MODEL, OBJECTS, RECORD].map(Name::new);
        let known = known.into_iter().collect::<Result<_, _>>()?;
        let top = cx.store.top_or(|| known).await?;
        // What takes their names without being a file is no absent file.
        for name in [RECORD, INDEX] {
            let name = Name::new(name)?;
            if top.has_other(&name) {
                cx.store.len(&name).await?;
            }
        }
        let record = match top.has(RECORD) && !cx.saved_over {
            true => note(cx, &Name::new(RECORD)?).await?,
            false => None,
        };
        let mut found = Self {
            record,
            objects: top
                .files
                .iter()
                .find(|entry| entry.name.as_str() == OBJECTS)
                .map(|entry| entry.bytes),
            ..Self::default()
        };
        let names = match &found.record {
            Some(record) => record.files.keys().cloned().collect(),
            None => found.without_record(cx, &top).await?,
        };
        if found.record.is_none() {
            found.record = note_of_folder(cx, &names).await?;
        }
        found.rival = rival(&top, &names)?;
        if let (None, Some((index, _))) = (&found.record, &found.index) {
            found.unnamed = unnamed(&top, index, &names);
        }
        let lengths = |files: Vec<Entry>| files.into_iter().map(|e| (e.name, e.bytes));
        let mut there: BTreeMap<Name, u64> = lengths(top.files).collect();
        let mut others = names.clone();
        others.retain(|name| !there.contains_key(name));
        there.extend(lengths(cx.store.lengths(others).await?));
        let files = names.into_iter().map(|name| {
            let bytes = there.get(&name).copied();
            (name, bytes)
        });
        found.files = files.collect();
        Ok(found)
    }

    pub(super) fn index_name(&self) -> Option<&Name> {
        self.index.as_ref().map(|(name, _)| name)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.record.is_none() && self.index.is_none()
    }

    /// The files that the index names; or else the one file of a model; or else all of them.
    async fn without_record(&mut self, cx: &OpenCx, top: &Listing) -> Result<BTreeSet<Name>> {
        let named = |is: fn(&Named<'_>) -> bool| {
            let is = move |name: &&Name| Named::of(name.as_str()).as_ref().is_some_and(is);
            top.files.iter().map(|entry| &entry.name).filter(is)
        };
        let mut indexes = named(|named| matches!(named, Named::Index(_)));
        let usual = indexes.clone().find(|name| name.as_str() == INDEX);
        let first = usual.or_else(|| indexes.next());
        if let Some(name) = first {
            if let (None, Some(other)) = (usual, indexes.next()) {
                let what = format!(
                    "{} has the indexes of several models, {name} and {other}; put the files of one of them into a folder of their own",
                    cx.store.url()
                );
                return Err(StrategyError::Invalid(what));
            }
            let text = cx.limits.read(&cx.store, name).await?.unwrap_or_default();
            let index = Index::parse(&text).map_err(|fault| {
                let what = format!("it is no index of safetensors: {}", fault.what);
                StrategyError::corrupt(name, fault.offset, what)
            })?;
            let files = index.files.iter().cloned().collect();
            self.index = Some((name.clone(), index));
            return Ok(files);
        }
        let model = named(|named| *named == Named::Tensors("model")).next();
        if let Some(model) = model.filter(|name| name.as_str() == MODEL) {
            return Ok(BTreeSet::from([model.clone()]));
        }
        let mut all: BTreeSet<Name> = named(|named| matches!(named, Named::Tensors(_)))
            .cloned()
            .collect();
        // Whoever names one file wants that one, even of several, and whatever its ending is.
        match cx.kind {
            PlaceKind::Folder => all.extend(missing(&all)?),
            PlaceKind::File => all.extend(top.files.iter().map(|entry| entry.name.clone())),
            _ => {}
        }
        Ok(all)
    }
}

/// Files whose names say that they belong to the model of an index, which does not name them.
fn unnamed(top: &Listing, index: &Name, named: &BTreeSet<Name>) -> Vec<Name> {
    let model = match Named::of(index.as_str()) {
        Some(Named::Index(model)) => model,
        _ => return Vec::new(),
    };
    let number_of_files = |name: &Name| match Named::of(name.as_str()) {
        Some(Named::Tensors(stem)) => names::of_several(stem)
            .filter(|(of, ..)| *of == model)
            .map(|(.., count)| count),
        _ => None,
    };
    // Files of another number are of an older model.
    let counts: BTreeSet<u64> = named.iter().filter_map(number_of_files).collect();
    let is_of_model = |name: &&Name| {
        let count = number_of_files(name);
        count.is_some_and(|count| named.is_empty() || counts.contains(&count))
    };
    let files = top.files.iter().map(|entry| &entry.name);
    let files = files.filter(|name| !named.contains(*name));
    files.filter(is_of_model).cloned().collect()
}

/// The file of a whole model next to an index of other files. `transformers` looks for `model.safetensors` first, and then for its
/// index.
fn rival(top: &Listing, names: &BTreeSet<Name>) -> Result<Option<(Name, Name)>> {
    for name in top.names() {
        let whole = match Named::of(name) {
            Some(Named::Index(model)) => names::file(model, 0, 1),
            Some(Named::Record) => MODEL.into(),
            _ => continue,
        };
        let is_read = names.iter().any(|read| read.as_str() == whole);
        if !is_read && top.has(&whole) {
            return Ok(Some((Name::new(whole)?, Name::new(name)?)));
        }
    }
    Ok(None)
}

/// What reshard noted in a file, if it is there.
async fn note(cx: &OpenCx, name: &Name) -> Result<Option<Record>> {
    let parse = |bytes: Bytes| {
        serde_json::from_slice(&bytes).map_err(|e| {
            let what = format!("what reshard noted can't be parsed: {e}");
            StrategyError::corrupt(name, None, what)
        })
    };
    let bytes = cx.limits.read(&cx.store, name).await?;
    bytes.map(parse).transpose()
}

/// What reshard noted of these files, if they lie in one folder, as they do in a place that keeps versions side by side.
async fn note_of_folder(cx: &OpenCx, files: &BTreeSet<Name>) -> Result<Option<Record>> {
    let folder = files.first().map_or("", Name::folder);
    if cx.saved_over || folder.is_empty() || files.iter().any(|f| f.folder() != folder) {
        return Ok(None);
    }
    // A note of other files belongs to another index.
    let noted = note(cx, &Name::new(folder)?.join(&Name::new(RECORD)?)).await?;
    Ok(noted.filter(|noted| noted.files.keys().eq(files)))
}

/// Files that other names tell of: where there is `model-00002-of-00003`, there are three. The files of ranks tell nothing, because a
/// rank may have none of them.
fn missing(all: &BTreeSet<Name>) -> Result<Vec<Name>> {
    let mut models = BTreeSet::new();
    for name in all {
        if let Some(Named::Tensors(stem)) = Named::of(name.as_str())
            && let Some((model, _, count)) = names::of_several(stem)
            && !model.starts_with("shard-")
        {
            models.insert((model, count));
        }
    }
    let mut out = Vec::new();
    for (model, count) in models {
        // A name may claim any number. The first one that is missing is enough to say so.
        for n in 0..usize::try_from(count).unwrap_or(usize::MAX) {
            let name = match count {
                1 => format!("{model}-00001-of-00001.safetensors"),
                _ => names::file(model, n, usize::try_from(count).unwrap_or(usize::MAX)),
            };
            let name = Name::new(name)?;
            if !all.contains(&name) {
                out.push(name);
                break;
            }
        }
    }
    Ok(out)
}
