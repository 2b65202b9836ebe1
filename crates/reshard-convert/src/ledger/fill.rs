//! Fills the ledger of a conversion: looks up what becomes of each item of the source.

use super::{Change, ItemKind, Ledger, Outcome};
use crate::{Convert, annotations::Fates, fit::CommonAs, mapped::Mapped, nested, source::Source};
use reshard::{
    DType, ReadLimits, Region, StoredCommon, Value, ValueTree,
    model::{Layout, Path, Payload, Step},
    plan::{AnnotationKind, Entry, MemoryFormat, TensorRef},
    strategy::{Producer, decode_object, torch::TorchObjects},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    convert::identity,
};

/// Everything that decides about the items of a source.
pub(crate) struct Account<'a> {
    /// Its keys are the caller's choice. With a map, they choose among the mapped ones.
    pub(crate) setup: &'a Convert<'a>,
    pub(crate) source: &'a Source,
    pub(crate) fates: &'a Fates<'a>,
}

impl Account<'_> {
    /// The outcome of each item of the source.
    pub(crate) fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::default();
        let in_object = self.source.stored_common.as_ref();
        let in_object = in_object.and_then(StoredCommon::object_key);
        let split = self.split_objects();
        let producer = self.setup.source.producer();
        for entry in self.setup.source.metadata().entries() {
            let key = entry.key();
            let (kind, changes) = match entry {
                Entry::Tensor(t) => (ItemKind::Tensor, self.tensor(&t, &producer)),
                // Its values are in the ledger.
                Entry::Object(..) if in_object == Some(key) => continue,
                Entry::Object(..) => (ItemKind::Object, self.object(key, &split)),
            };
            ledger.add(kind, key, changes.map_or_else(identity, Outcome::with));
        }
        // Where not even the description is understood, nothing says what it describes. Arrays of Zarr are such items.
        let metadata = self.setup.source.metadata();
        let unknown =
            |key: &&String| metadata.tensor(key).is_none() && metadata.object(key).is_none();
        for key in self.setup.keys.unread.keys().filter(unknown) {
            if let Some(outcome) = self.unread(key) {
                ledger.add(ItemKind::Tensor, &**key, outcome);
            }
        }
        self.add_common(&mut ledger);
        for (kind, name, outcome) in &self.source.added {
            ledger.add(*kind, name.clone(), outcome.clone());
        }
        self.add_annotations(&mut ledger);
        self.add_ties(&mut ledger);
        for key in &producer.scales {
            let outcome = self.left_out("the tensor that it scales is dequantised");
            ledger.add(ItemKind::Tensor, &**key, outcome);
        }
        for key in &producer.copies {
            let kind = match self.setup.source.metadata().object(key) {
                Some(_) => ItemKind::Object,
                None => ItemKind::Tensor,
            };
            let outcome =
                self.left_out("a rank-local checkpoint is read as its lowest rank saved it");
            ledger.add(kind, format!("{key} of other ranks"), outcome);
        }
        for name in producer.save.into_keys() {
            let outcome = self.left_out("the copy is a save of its own");
            ledger.add(ItemKind::Save, name, outcome);
        }
        ledger.0.sort_by_key(|entry| entry.kind);
        ledger
    }

    /// The outcome of an item that is left out because it can't be read.
    fn unread(&self, key: &str) -> Option<Outcome> {
        let why = self.setup.keys.unread.get(key)?;
        Some(self.left_out(&format!("it can't be read: {why}")))
    }

    fn left_out(&self, why: &str) -> Outcome {
        Outcome::LeftOut(why.into())
    }

    /// The outcome of an item that is carried over as it is, or by the rewritten optimizer. `None` if its content is in another item.
    fn carried(&self, key: &str, what: &str) -> Result<Vec<Change>, Outcome> {
        if let Some(outcome) = self.unread(key) {
            return Err(outcome);
        }
        if !self.setup.keys.has(key) {
            return Err(self.left_out("its key is not chosen"));
        }
        match self.fates.canonical.key(key) {
            None => Err(Outcome::Changed(vec![Change::ByParameter])),
            Some(to) => self.under(key, to, what),
        }
    }

    /// The outcome of an item whose key in the copy is `to`.
    fn under(&self, key: &str, to: &str, what: &str) -> Result<Vec<Change>, Outcome> {
        match to {
            to if !self.fates.fit.has(to) => Err(self.no_place(what)),
            to if to == key => Ok(Vec::new()),
            to => Ok(vec![Change::Renamed(to.into())]),
        }
    }

    fn no_place(&self, what: &str) -> Outcome {
        self.left_out(&format!(
            "{} has no place for {what}",
            self.fates.target.key()
        ))
    }

    /// The changes of a tensor, or its outcome if the copy does not have it as such.
    fn tensor(&self, t: &TensorRef<'_>, producer: &Producer) -> Result<Vec<Change>, Outcome> {
        let (key, dtype) = (t.key(), t.dtype());
        let (mut changes, made) = match &self.setup.mapped {
            None => (self.carried(key, dtype.name())?, dtype),
            Some(mapped) => self.mapped(mapped, t)?,
        };
        if producer.dequantized.contains(key) {
            changes.insert(0, Change::Dequantized);
        }
        let to = self.fates.fit.written(made);
        if to != dtype {
            changes.push(Change::Cast { from: dtype, to });
        }
        if has_other_order(t) {
            changes.push(Change::RowMajor);
        }
        if t.properties().requires_grad && !self.fates.target.keeps_gradients() {
            changes.push(Change::WithoutGradient);
        }
        if t.original_shape().is_some() {
            changes.push(Change::Unflattened);
        }
        Ok(changes)
    }

    /// What a map makes of a tensor, and of which element type.
    fn mapped(&self, mapped: &Mapped, t: &TensorRef<'_>) -> Result<(Vec<Change>, DType), Outcome> {
        let of = mapped.needed.get(t.key());
        let to = of.into_iter().flat_map(|of| &of.keys);
        let to: Vec<String> = to.filter(|to| self.fates.fit.has(to)).cloned().collect();
        let Some(of) = of else {
            return Err(self.map_leaves_out(mapped, t.key()));
        };
        if to.is_empty() {
            return Err(self.no_place(t.dtype().name()));
        }
        let mut changes = match mapped.unmapped.contains(t.key()) {
            true => Vec::new(),
            false => vec![Change::Mapped(to)],
        };
        let all = t.global_shape().volume().unwrap_or(u64::MAX);
        if of.elements < all {
            changes.push(Change::Trimmed(all - of.elements));
        }
        Ok((changes, of.dtype.unwrap_or(t.dtype())))
    }

    fn map_leaves_out(&self, mapped: &Mapped, key: &str) -> Outcome {
        self.left_out(match (mapped.left_out.get(key), &self.setup.keys.chosen) {
            (Some(why), _) => why,
            (None, None) => "no tensor of the map has anything of it",
            (None, Some(_)) => "none of its keys in the copy is chosen",
        })
    }

    /// The objects that the copy has as several items, by their keys in the copy, with the number of items.
    fn split_objects(&self) -> BTreeMap<&str, u64> {
        // What such a format reads is split already.
        if !self.fates.fit.splits_objects() || self.setup.source.capabilities().splits_objects {
            return BTreeMap::new();
        }
        let objects = self.source.objects_and_payloads();
        let split = objects.filter_map(|(key, payload)| {
            let value = value_of(key, payload)?;
            let items = nested::items(&value);
            let is_one = matches!(&items[..], [(path, _)] if path.0.is_empty());
            (!is_one).then_some((key, items.len() as u64))
        });
        split.collect()
    }

    /// The changes of an object, or its outcome if the copy does not have it as such.
    fn object(&self, key: &str, split: &BTreeMap<&str, u64>) -> Result<Vec<Change>, Outcome> {
        let (mut changes, to) = match &self.setup.mapped {
            None => {
                let to = self.fates.canonical.key(key);
                (self.carried(key, "objects")?, to.unwrap_or(key))
            }
            Some(mapped) => {
                let to = mapped.objects.get(key);
                let to = to.ok_or_else(|| self.map_leaves_out(mapped, key))?;
                (self.under(key, to, "objects")?, &**to)
            }
        };
        if self.fates.fit.is_common(to) {
            changes.push(Change::IntoCommon);
        }
        if let Some(items) = split.get(to) {
            changes.push(Change::Split(*items));
        }
        Ok(changes)
    }

    fn add_common(&self, ledger: &mut Ledger) {
        let Some(stored) = self.source.stored_common.as_ref() else {
            return;
        };
        let Some(old) = decoded(stored) else {
            // It is carried over undecoded, or refused.
            ledger.add(ItemKind::Common, "common state", Outcome::Kept);
            return;
        };
        let items: BTreeSet<&str> = match self.fates.fit.common {
            CommonAs::Items => self.source.keys().collect(),
            _ => BTreeSet::new(),
        };
        let new = self.fates.canonical.common.as_ref();
        let new = new.map(|new| ValueTree::from(new.clone()));
        old.visit(&mut |path: &[Step], value: &Value| {
            let path = Path::from(path);
            let outcome = match (self.fates.fit.common, &new) {
                (CommonAs::Nothing, _) => self.no_place("common state"),
                (CommonAs::Items, _) => {
                    let item = item_of(&path, &items);
                    Outcome::with(vec![Change::IntoItem(item)])
                }
                (CommonAs::Common(_), Some(new))
                    if new.at(&path.0).and_then(|at| at.leaf()) != Some(value) =>
                {
                    Outcome::with(vec![Change::ByParameter])
                }
                (CommonAs::Common(_), _) => Outcome::Kept,
            };
            ledger.add(ItemKind::Common, path.to_string(), outcome);
        });
    }

    fn add_annotations(&self, ledger: &mut Ledger) {
        let stated = self.setup.source.metadata().annotations();
        for (id, _) in stated.iter() {
            let outcome = match self.fates.why_not(id) {
                None => Outcome::Kept,
                // The entry of the dict is there.
                Some(_) if id.kind == AnnotationKind::KeyType && self.fates.has(id) => {
                    Outcome::with(vec![Change::AsText])
                }
                Some(why) => Outcome::LeftOut(why),
            };
            ledger.add(ItemKind::of(id.kind), id.to_string(), outcome);
        }
        for (key, what) in &self.source.unsaid {
            let outcome = self.no_place(what);
            ledger.add(ItemKind::TensorClass, &**key, outcome);
        }
    }

    fn add_ties(&self, ledger: &mut Ledger) {
        for tie in self.setup.source.ties() {
            let carried = |key: &&String| match &self.setup.mapped {
                Some(mapped) => mapped.needs(key),
                None => {
                    let to = self.fates.canonical.key(key);
                    self.setup.keys.has(key) && to.is_some_and(|to| self.fates.fit.has(to))
                }
            };
            let is_cast = |key: &String| {
                let tensor = self.setup.source.metadata().tensor(key);
                tensor.is_some_and(|t| self.fates.fit.written(t.dtype()) != t.dtype())
            };
            let carried = tie.keys.iter().filter(carried).count();
            let stays = self.fates.keeps_ties
                && tie.is_whole
                && carried == tie.keys.len()
                && self.setup.mapped.is_none()
                && !tie.keys.iter().any(is_cast);
            let outcome = match carried {
                0 | 1 => self.left_out("fewer than two of its tensors are carried over"),
                _ if stays => Outcome::Kept,
                _ => Outcome::with(vec![Change::Untied]),
            };
            ledger.add(ItemKind::Tie, tie.keys.join(" = "), outcome);
        }
    }
}

/// Whether the elements of a tensor lay in another order than row-major in memory, as far as the source says.
pub(crate) fn has_other_order(t: &TensorRef<'_>) -> bool {
    let properties = t.properties();
    let Some(strides) = properties.strides else {
        return properties.memory_format != MemoryFormat::Contiguous;
    };
    let shape = t.shape();
    let whole = Region::whole(&shape);
    if t.chunks().any(|(_, region)| region == whole) {
        let own = Layout::new(1, 0, shape.clone(), strides.iter().copied().collect());
        return own.is_some_and(|own| !own.is_contiguous());
    }
    // Those of a part of the tensor: only their order counts.
    let long = strides.iter().zip(&shape).filter(|(_, n)| **n > 1);
    !long.is_sorted_by(|(before, _), (after, _)| before >= after)
}

/// The key of the item that holds a value of common state: its path, or that of a list around it.
fn item_of(path: &Path, items: &BTreeSet<&str>) -> String {
    let starts = (1..=path.0.len()).rev();
    let mut keys = starts.map(|n| Path::from(&path.0[..n]).to_string());
    let found = keys.find(|key| items.contains(&**key));
    found.unwrap_or_else(|| path.to_string())
}

/// An object as a value; `None` if it can't be decoded.
fn value_of(key: &str, payload: &Payload) -> Option<Value> {
    match payload {
        Payload::Value(value) => Some(value.clone()),
        payload => {
            let codec = TorchObjects::new(&ReadLimits::default());
            decode_object(&codec, key, payload.clone()).ok()
        }
    }
}

/// Common state as values; `None` if it can't be decoded.
fn decoded(stored: &StoredCommon) -> Option<ValueTree> {
    let value = value_of("common state", stored.payload())?;
    // In an object it is a cell of an array, which is stored as a list.
    let value = match (stored.object_key(), value) {
        (Some(_), Value::List(mut all)) if all.len() == 1 => all.remove(0),
        (_, value) => value,
    };
    Some(ValueTree::from(value))
}
