//! What a conversion carries over if a map says so.

use crate::{
    ConvertError, Result,
    checks::Checks,
    keys::Keys,
    optimizer::Canonical,
    tensor::{Carried, has_places},
};
use reshard::{
    Checkpoint, DType, MappedCheckpoint, MappedTensorHandle,
    map::{AddedCommon, Dropped, Map},
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

/// Objects and common state that a map adds for Megatron Core.
#[derive(Debug, Default)]
pub(crate) struct Additions {
    /// The keys of cells whose value is `None`.
    pub(crate) objects: Vec<String>,
    pub(crate) common: AddedCommon,
}

/// The chosen tensors and objects of a mapped checkpoint.
#[derive(Debug)]
pub(crate) struct Mapped {
    checkpoint: MappedCheckpoint,
    tensors: Vec<MappedTensorHandle>,
    /// The mapped key of each object, by its key in the source.
    pub(crate) objects: BTreeMap<String, String>,
    /// The tensors of the source of which something is needed.
    pub(crate) needed: BTreeMap<String, Use>,
    /// Those of which the map casts something.
    pub(crate) cast: BTreeSet<String>,
    /// Those that no rule maps.
    pub(crate) unmapped: BTreeSet<String>,
    /// Why the map leaves out an item of the source, by its key.
    pub(crate) left_out: BTreeMap<String, String>,
}

impl Mapped {
    /// Applies a map. The keys are chosen by their mapped names.
    pub(crate) fn of(source: &Checkpoint, map: &Map, keys: &Keys<'_>) -> Result<Self> {
        let mapped = source.mapped(map).map_err(ConvertError::Map)?;
        let (mapping, stored) = (mapped.mapping(), mapped.mapping().sources());
        let tensors: Vec<_> = mapped.tensors().filter(|t| keys.has(t.key())).collect();
        let mut needed: BTreeMap<String, Use> = BTreeMap::new();
        let mut cast = BTreeSet::new();
        for tensor in &tensors {
            for key in tensor.stored_keys() {
                let of = needed.entry(key.to_owned()).or_default();
                of.keys.insert(tensor.key().to_owned());
                of.dtype = Some(tensor.dtype());
            }
            let made = mapping.tensor(tensor.key());
            for piece in made.into_iter().flat_map(|made| made.pieces()) {
                let Some(stored) = stored.get(piece.source) else {
                    continue;
                };
                if let Some(of) = needed.get_mut(&*stored.key) {
                    of.elements = of.elements.saturating_add(piece.volume());
                }
                if !piece.casts.is_empty() {
                    cast.insert(stored.key.to_string());
                }
            }
        }
        let objects = mapping.objects().filter(|(key, _)| keys.has(key));
        let objects = objects.map(|(key, stored)| (stored.to_owned(), key.to_owned()));
        let unmapped = mapping.unmapped().iter().map(|key| key.to_string());
        let left_out = mapping.dropped().iter();
        let left_out = left_out.map(|item| (item.key.to_string(), why(item)));
        Ok(Self {
            objects: objects.collect(),
            needed,
            cast,
            unmapped: unmapped.collect(),
            left_out: left_out.collect(),
            tensors,
            checkpoint: mapped,
        })
    }

    /// Whether something of an item of the source is carried over.
    pub(crate) fn needs(&self, key: &str) -> bool {
        self.needed.contains_key(key) || self.objects.contains_key(key)
    }

    /// The chosen objects and the common state that the map adds for Megatron Core.
    pub(crate) async fn additions(&self, keys: &Keys<'_>) -> Result<Additions> {
        let objects = self.checkpoint.mapping().additions().objects();
        Ok(Additions {
            objects: objects
                .filter(|key| keys.has(key))
                .map(String::from)
                .collect(),
            common: self
                .checkpoint
                .added_common()
                .await
                .map_err(ConvertError::Read)?,
        })
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
