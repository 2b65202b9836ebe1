//! The items of a checkpoint, and whether a ledger is true of a copy.

use futures::executor::block_on;
use reshard::{Checkpoint, DType, Dialect, ShardedObject, Value, model::Path};
use reshard_convert::{Change, ItemKind, Ledger, LedgerEntry, Outcome};
use std::collections::{BTreeMap, BTreeSet};

pub(super) type Named = (ItemKind, String);

pub(super) fn name_of(entry: &LedgerEntry) -> Named {
    (entry.kind, entry.name.to_string())
}

/// All items of a checkpoint, sorted, by another way than the ledger counts them.
pub(super) fn items(of: &Checkpoint) -> Vec<Named> {
    let facts = Facts::of(of);
    let mut out: Vec<Named> = Vec::new();
    out.extend(
        facts
            .tensors
            .keys()
            .map(|key| (ItemKind::Tensor, key.clone())),
    );
    out.extend(
        facts
            .objects
            .keys()
            .map(|key| (ItemKind::Object, key.clone())),
    );
    out.extend(
        facts
            .common
            .keys()
            .map(|path| (ItemKind::Common, path.clone())),
    );
    out.extend(facts.stated.keys().cloned());
    out.extend(facts.ties.iter().map(|tie| (ItemKind::Tie, tie.clone())));
    let save = of.producer().save.into_keys();
    out.extend(save.map(|name| (ItemKind::Save, name)));
    out.sort();
    out
}

/// The contents of a checkpoint.
pub(super) struct Facts {
    tensors: BTreeMap<String, (DType, Vec<u64>, Vec<u8>)>,
    objects: BTreeMap<String, Value>,
    common: BTreeMap<String, Value>,
    stated: BTreeMap<Named, Value>,
    ties: BTreeSet<String>,
}

impl Facts {
    pub(super) fn of(c: &Checkpoint) -> Self {
        let tensor = |t: reshard::TensorHandle| {
            let bytes = block_on(t.read(..)).unwrap().to_bytes().to_vec();
            (t.key().to_owned(), (t.dtype(), t.shape().to_vec(), bytes))
        };
        let mut common = BTreeMap::new();
        block_on(c.common()).unwrap().visit(&mut |path, value| {
            common.insert(Path::from(path).to_string(), value.clone());
        });
        let objects = c.objects().filter(|key| !key.starts_with("common_state/"));
        let object = |key: &str| (key.to_owned(), object(c, key));
        let stated = c.metadata().annotations().iter();
        Self {
            tensors: c.tensors().map(tensor).collect(),
            objects: objects.map(object).collect(),
            common,
            stated: stated
                .map(|(id, value)| ((ItemKind::of(id.kind), id.to_string()), value.clone()))
                .collect(),
            ties: c
                .ties()
                .into_iter()
                .map(|tie| tie.keys.join(" = "))
                .collect(),
        }
    }

    /// Checks that a copy has an item of the source as the ledger says.
    pub(super) fn agree(&self, source: &Self, entry: &LedgerEntry, what: &str) {
        let name = &*entry.name;
        match (entry.kind, &entry.outcome) {
            (ItemKind::Tensor, Outcome::Kept) => {
                assert_eq!(
                    self.tensors.get(name),
                    source.tensors.get(name),
                    "{what}: {entry}"
                );
            }
            (ItemKind::Tensor, Outcome::Changed(changes)) => {
                let (dtype, shape, _) = &self.tensors[name];
                assert_eq!(*shape, source.tensors[name].1, "{what}: {entry}");
                let cast =
                    |change: &Change| matches!(change, Change::Cast { to, .. } if to == dtype);
                assert!(changes.iter().any(cast), "{what}: {entry}");
            }
            (ItemKind::Tensor, Outcome::LeftOut(_)) => {
                assert!(!self.tensors.contains_key(name), "{what}: {entry}");
            }
            (ItemKind::Object, Outcome::Kept) => {
                assert_eq!(
                    self.objects.get(name),
                    source.objects.get(name),
                    "{what}: {entry}"
                );
            }
            (ItemKind::Object, Outcome::LeftOut(_)) => {
                assert!(!self.objects.contains_key(name), "{what}: {entry}");
            }
            (ItemKind::Common, Outcome::Kept) => {
                assert_eq!(
                    self.common.get(name),
                    source.common.get(name),
                    "{what}: {entry}"
                );
            }
            (ItemKind::Common, Outcome::Changed(changes)) => {
                let Some(Change::IntoItem(key)) = changes.first() else {
                    panic!("{what}: {entry}");
                };
                let is_there = self.objects.contains_key(key) || self.tensors.contains_key(key);
                assert!(is_there, "{what}: {entry}");
            }
            (ItemKind::Common, Outcome::LeftOut(_)) => {
                assert!(!self.common.contains_key(name), "{what}: {entry}");
            }
            (ItemKind::Tie, Outcome::Kept) => assert!(self.ties.contains(name), "{what}: {entry}"),
            // A copy in one file may have a tie by luck.
            (ItemKind::Tie, _) => {}
            (kind, Outcome::Kept) => {
                let id = (kind, name.to_owned());
                assert_eq!(
                    self.stated.get(&id),
                    source.stated.get(&id),
                    "{what}: {entry}"
                );
            }
            (kind, _) => {
                let is_there = self.stated.contains_key(&(kind, name.to_owned()));
                // Objects that become common state are leaves of a dict.
                assert!(!is_there || kind == ItemKind::Object, "{what}: {entry}");
            }
        }
    }

    /// Checks that a copy states nothing that the ledger does not keep, and has no tensors of its own.
    pub(super) fn has_nothing_else(&self, ledger: &Ledger, what: &str) {
        let entries = ledger.entries();
        let kept = entries.iter().filter(|e| e.outcome == Outcome::Kept);
        let kept: BTreeSet<Named> = kept.map(name_of).collect();
        for id in self.stated.keys() {
            assert!(kept.contains(id), "{what}: {id:?} is new");
        }
        let known: BTreeSet<&str> = entries.iter().flat_map(targets).collect();
        for key in self.tensors.keys().chain(self.objects.keys()) {
            assert!(known.contains(&**key), "{what}: {key} is new");
        }
    }
}

/// The keys that an item has in the copy.
fn targets(entry: &LedgerEntry) -> Vec<&str> {
    let changed = match &entry.outcome {
        Outcome::Changed(changes) => &changes[..],
        _ => &[],
    };
    let moved = changed.iter().filter_map(|change| match change {
        Change::IntoItem(key) => Some(&**key),
        _ => None,
    });
    moved.chain([&*entry.name]).collect()
}

/// The value of an object. Some formats put a list around that of a cell of an array of objects.
fn object(c: &Checkpoint, key: &str) -> Value {
    let is_cell = ShardedObject::empty_from_unique_key(key).is_ok();
    match block_on(c.object(key)).unwrap() {
        Value::List(mut all)
            if all.len() == 1
                && is_cell
                && c.object_lists()
                && c.dialect() == Dialect::Megatron =>
        {
            all.remove(0)
        }
        value => value,
    }
}
