//! What a conversion carries over if a map says so.

use crate::{
    ConvertError, Result,
    checks::Checks,
    keys::Keys,
    optimizer::Canonical,
    tensor::{Carried, has_places},
};
use reshard::{
    Checkpoint, DType, MappedTensorHandle,
    map::{Dropped, Map},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// What a map makes of a stored tensor.
#[derive(Debug, Default)]
pub(crate) struct Use {
    /// The keys of the mapped tensors.
    pub(crate) keys: BTreeSet<String>,
    /// The number of its elements that they have.
    pub(crate) elements: u64,
    /// The element type of one of them.
    pub(crate) dtype: Option<DType>,
}

/// The chosen tensors and objects of a mapped checkpoint.
#[derive(Debug)]
pub(crate) struct Mapped {
    tensors: Vec<MappedTensorHandle>,
    /// The mapped key of each object, by its key in the source.
    objects: BTreeMap<String, String>,
    /// The tensors of the source of which something is needed.
    needed: BTreeMap<String, Use>,
    /// Those of which the map casts something.
    cast: BTreeSet<String>,
    /// Those that no rule maps.
    unmapped: BTreeSet<String>,
    /// Why the map leaves out an item of the source, by its key.
    left_out: BTreeMap<String, String>,
}

impl Mapped {
    /// Applies a map. The keys are chosen by their mapped names.
    pub(crate) fn of(source: &Checkpoint, map: &Map, keys: &Keys<'_>) -> Result<Self> {
        let mapped = source.mapped(map).map_err(ConvertError::Map)?;
        let tensors: Vec<_> = mapped.tensors().filter(|t| keys.has(t.key())).collect();
        let objects = mapped.mapping().objects().filter(|(key, _)| keys.has(key));
        let objects = objects.map(|(key, stored)| (stored.to_owned(), key.to_owned()));
        let mut needed: BTreeMap<String, Use> = BTreeMap::new();
        for tensor in &tensors {
            for key in tensor.stored_keys() {
                let of = needed.entry(key.to_owned()).or_default();
                of.keys.insert(tensor.key().to_owned());
                of.dtype = Some(tensor.dtype());
            }
            let made = mapped.mapping().tensor(tensor.key());
            for piece in made.into_iter().flat_map(|made| made.pieces()) {
                let stored = mapped.mapping().sources().get(piece.source);
                if let Some(of) = stored.and_then(|stored| needed.get_mut(&*stored.key)) {
                    of.elements = of.elements.saturating_add(piece.volume());
                }
            }
        }
        let sources = mapped.mapping().sources();
        let pieces = mapped.mapping().tensors();
        let pieces = pieces.filter(|(key, _)| keys.has(key));
        let pieces = pieces.flat_map(|(_, tensor)| tensor.pieces());
        let cast = pieces.filter(|piece| !piece.casts.is_empty());
        let cast = cast.filter_map(|piece| Some(sources.get(piece.source)?.key.to_string()));
        let cast = cast.collect();
        let left_out = mapped.mapping().dropped().iter();
        let left_out = left_out.map(|item| (item.key.to_string(), why(item)));
        Ok(Self {
            objects: objects.collect(),
            tensors,
            needed,
            cast,
            unmapped: mapped
                .mapping()
                .unmapped()
                .iter()
                .map(|key| key.to_string())
                .collect(),
            left_out: left_out.collect(),
        })
    }

    /// Whether something of an item of the source is carried over.
    pub(crate) fn needs(&self, key: &str) -> bool {
        self.needed.contains_key(key) || self.objects.contains_key(key)
    }

    /// What the map makes of a stored tensor, if anything.
    pub(crate) fn use_of(&self, key: &str) -> Option<&Use> {
        self.needed.get(key)
    }

    /// The mapped key of a stored object, if it is chosen.
    pub(crate) fn object(&self, stored: &str) -> Option<&str> {
        self.objects.get(stored).map(String::as_str)
    }

    /// Whether the map casts something of a tensor of the source.
    pub(crate) fn casts(&self, key: &str) -> bool {
        self.cast.contains(key)
    }

    /// Whether no rule maps a tensor of the source.
    pub(crate) fn is_unmapped(&self, key: &str) -> bool {
        self.unmapped.contains(key)
    }

    /// Which rule of the map leaves out an item of the source, if one does.
    pub(crate) fn why_not(&self, stored: &str) -> Option<&str> {
        self.left_out.get(stored).map(String::as_str)
    }

    /// What becomes of the items of the source. Fails if a chunk has no location.
    pub(crate) fn canonical(&self, source: &Checkpoint, checks: &Arc<Checks>) -> Result<Canonical> {
        for key in self.needed.keys() {
            has_places(&source.tensor(key).map_err(ConvertError::Read)?)?;
        }
        let tensors = self.tensors.iter().cloned();
        let tensors = tensors.map(|t| Carried::mapped(t, Arc::clone(checks)));
        Ok(Canonical::mapped(source, tensors.collect(), &self.objects))
    }
}

fn why(item: &Dropped) -> String {
    match item.rule {
        Some(rule) => format!("rule {rule} of the map ({}) leaves it out", item.verb),
        None => "no rule of the map knows it, and unmapped tensors are dropped".into(),
    }
}
