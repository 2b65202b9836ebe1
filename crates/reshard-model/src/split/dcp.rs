//! PyTorch DCP's way: every leaf is an item under its path.

use super::{Flatten, Parts, PathOfKey, Slot, structure};
use crate::{
    FlatStateDict, Leaf, Path, Payload, Result, Sharded, ShardedObject, ShardedTensor, StateDict,
    Step, Tree, Value, ValueTree,
};
use indexmap::IndexMap;

pub(super) fn split(state: StateDict, flatten: Flatten) -> Result<Parts> {
    let mut out = Items {
        flatten,
        ..Items::default()
    };
    let slots = match open(state) {
        // The top is always taken apart.
        Tree::Dict(d) => out.dict(d)?,
        other => out.take(other)?,
    };
    let mut parts = Parts::new(out.flat, ValueTree::new(), slots);
    parts.paths = out.paths;
    parts.dropped_empty = out.dropped_empty;
    Ok(parts)
}

/// Containers inside of value leaves become containers of the tree.
fn open(tree: StateDict) -> StateDict {
    tree.flat_map(&mut |leaf| match leaf {
        Leaf::Value(v @ (Value::Dict(_) | Value::List(_))) => {
            ValueTree::from(v).map(&mut Leaf::Value)
        }
        leaf => Tree::Leaf(leaf),
    })
}

/// What PyTorch keeps apart: tensors, and leaves that a load treats one by one.
fn is_tensor(leaf: &Leaf) -> bool {
    !matches!(leaf, Leaf::Value(v) if !matches!(v, Value::Tensor(_) | Value::Device(_) | Value::Local(_)))
}

/// What a name of an item belongs to.
struct Name {
    path: Path,
    /// Only this leaf may have it: it comes from the path. Several pieces of a tensor may have one key.
    alone: bool,
}

#[derive(Default)]
struct Items {
    flatten: Flatten,
    flat: FlatStateDict,
    paths: PathOfKey,
    names: IndexMap<String, Name>,
    dropped_empty: Vec<Path>,
    path: Vec<Step>,
    /// The path with int keys of dicts as text.
    kinds: Vec<Step>,
}

impl Items {
    fn take(&mut self, tree: StateDict) -> Result<Tree<Slot>> {
        match tree {
            Tree::Leaf(leaf) => self.leaf(leaf),
            whole if !self.descends(&whole) => match whole.try_map(&mut |_, leaf| match leaf {
                Leaf::Value(v) => Ok(Some(ValueTree::Leaf(v))),
                _ => Err(structure(
                    &[],
                    "this dict or list is stored as one object, but has a leaf that is not a value",
                )),
            })? {
                Some(value) => self.leaf(Leaf::Value(value.into())),
                None => Ok(Tree::new()),
            },
            Tree::Dict(d) => self.dict(d),
            Tree::List(v) => {
                let mut out = Vec::with_capacity(v.len());
                for (i, v) in v.into_iter().enumerate() {
                    let step = Step::Index(i as u64);
                    out.push(self.below(step.clone(), step, v)?);
                }
                Ok(Tree::List(out))
            }
        }
    }

    fn dict(&mut self, d: IndexMap<Step, StateDict>) -> Result<Tree<Slot>> {
        if d.is_empty() && !self.path.is_empty() {
            self.dropped_empty.push(Path(self.kinds.clone()));
        }
        for k in d.keys().filter(|k| matches!(k, Step::Index(_))) {
            let text = Step::from(k.to_string());
            if d.contains_key(&text) {
                let at = |k: &Step| Path(self.path.iter().chain([k]).cloned().collect()).quoted();
                let what = format!(
                    "{} and {} have the same name, because keys are saved as text; rename one",
                    at(k),
                    at(&text)
                );
                return Err(structure(&self.path, what));
            }
        }
        let mut out = IndexMap::with_capacity(d.len());
        for (k, v) in d {
            let slots = self.below(k.clone(), Step::Key(k.to_string().into()), v)?;
            out.insert(k, slots);
        }
        Ok(Tree::Dict(out))
    }

    fn below(&mut self, step: Step, kind: Step, tree: StateDict) -> Result<Tree<Slot>> {
        self.path.push(step);
        self.kinds.push(kind);
        let slots = self.take(tree)?;
        self.path.pop();
        self.kinds.pop();
        Ok(slots)
    }

    /// Whether a container is taken apart.
    fn descends(&self, tree: &StateDict) -> bool {
        let any = |tree: &StateDict| match tree {
            Tree::Leaf(l) => is_tensor(l),
            Tree::Dict(_) if self.flatten == Flatten::Torch2_4 => true,
            container => self.descends(container),
        };
        if self.flatten == Flatten::TopLevel {
            return false;
        }
        match tree {
            Tree::Leaf(_) => false,
            Tree::Dict(d) => self.flatten == Flatten::Torch2_4 || d.values().any(any),
            Tree::List(v) => v.iter().any(any),
        }
    }

    fn leaf(&mut self, leaf: Leaf) -> Result<Tree<Slot>> {
        let fqn = || Path(self.path.clone()).to_string();

        // `alone` says that the name is the path. No second leaf may have it, whereas pieces of one tensor share their
        // own key.
        let (sharded, slot, alone) = match leaf {
            Leaf::Local(l) | Leaf::Value(Value::Local(l)) => return Ok(Tree::Leaf(Slot::Local(l))),
            Leaf::Factory(_) => {
                return Err(structure(&self.path, "a factory built another factory"));
            }
            Leaf::Tensor(mut t) => {
                let alone = t.key.is_empty();
                if alone {
                    t.key = fqn().into();
                }
                t.validate()?;
                (Sharded::Tensor(t), Slot::Sharded, alone)
            }
            Leaf::Object(mut o) => {
                let alone = o.key.is_empty();
                if alone {
                    o.key = fqn().into();
                }
                o.validate()?;
                (Sharded::Object(o), Slot::Sharded, alone)
            }
            Leaf::Value(value) => {
                let key = fqn();
                let sharded = match value {
                    Value::Tensor(t) => ShardedTensor::full(&key, t).into(),
                    Value::Device(t) => ShardedTensor::template(&key, t.dtype(), t.shape())
                        .with_data(t)
                        .into(),
                    v => ShardedObject::item(&key, Payload::Value(v)).into(),
                };
                (sharded, Slot::Value, true)
            }
        };

        // The name is checked before the leaf is stored, so `flat` never has two leaves for one item.
        self.name(&sharded, alone)?;
        self.flat.insert(Path(self.path.clone()), sharded);
        Ok(Tree::Leaf(slot))
    }

    fn name(&mut self, sharded: &Sharded, alone: bool) -> Result<()> {
        let name = sharded.unique_key().into_owned();
        let path = Path(self.path.clone());
        if let Some(other) = self.names.get(&name) {
            if alone || other.alone {
                let what = format!(
                    "the leaves at {} and {} would both be saved as {name:?}; rename one",
                    other.path.quoted(),
                    path.quoted()
                );
                return Err(structure(&self.path, what));
            }
            return Ok(());
        }
        self.paths
            .insert(name.as_str().into(), Path(self.kinds.clone()));
        self.names.insert(name, Name { path, alone });
        Ok(())
    }
}
