//! Megatron Core's way: what isn't sharded is common state.

use super::{Parts, Slot, structure};
use crate::{FlatStateDict, Leaf, Path, Result, Sharded, StateDict, Step, Tree, Value, ValueTree};
use indexmap::IndexMap;

pub(super) fn split(state: StateDict) -> Result<Parts> {
    let mut flat = FlatStateDict::new();
    let Halves { slots, common } = part(state, &mut Vec::new(), &mut flat)?;
    Ok(Parts::new(
        flat,
        common.unwrap_or_default(),
        slots.unwrap_or_default(),
    ))
}

/// A subtree, parted. A half is there when it has a leaf; empty containers are common.
#[derive(Default)]
struct Halves {
    slots: Option<Tree<Slot>>,
    common: Option<ValueTree>,
}

fn part(tree: StateDict, path: &mut Vec<Step>, flat: &mut FlatStateDict) -> Result<Halves> {
    let slot = |slot| {
        Ok(Halves {
            slots: Some(Tree::Leaf(slot)),
            common: None,
        })
    };

    // Sharded leaves leave a slot behind. Everything else, empty containers too, is common.
    match tree {
        Tree::Leaf(Leaf::Value(Value::Local(l)) | Leaf::Local(l)) => slot(Slot::Local(l)),
        Tree::Leaf(Leaf::Value(v)) => Ok(Halves {
            slots: None,
            common: Some(ValueTree::Leaf(v)),
        }),
        Tree::Leaf(Leaf::Tensor(t)) => {
            t.validate()?;
            named(&t.key, path)?;
            flat.insert(Path::from(path.as_slice()), Sharded::Tensor(t));
            slot(Slot::Sharded)
        }
        Tree::Leaf(Leaf::Object(o)) => {
            o.validate()?;
            named(&o.key, path)?;
            flat.insert(Path::from(path.as_slice()), Sharded::Object(o));
            slot(Slot::Sharded)
        }
        Tree::Leaf(Leaf::Factory(_)) => Err(structure(path, "a factory built another factory")),
        Tree::Dict(d) if d.is_empty() => Ok(Halves {
            slots: None,
            common: Some(ValueTree::new()),
        }),
        Tree::List(v) if v.is_empty() => Ok(Halves {
            slots: None,
            common: Some(ValueTree::List(Vec::new())),
        }),
        Tree::Dict(d) => {
            let (mut slots, mut common) = (IndexMap::with_capacity(d.len()), IndexMap::new());
            flat.reserve(d.len());
            for (k, v) in d {
                path.push(k);
                let halves = part(v, path, flat)?;
                let Some(k) = path.pop() else { continue };
                match (halves.slots, halves.common) {
                    (Some(s), Some(c)) => {
                        slots.insert(k.clone(), s);
                        common.insert(k, c);
                    }
                    (Some(s), None) => drop(slots.insert(k, s)),
                    (None, Some(c)) => drop(common.insert(k, c)),
                    (None, None) => {}
                }
            }
            Ok(Halves {
                slots: (!slots.is_empty()).then_some(Tree::Dict(slots)),
                common: (!common.is_empty()).then_some(Tree::Dict(common)),
            })
        }
        Tree::List(v) => {
            let n = v.len();
            let (mut slots, mut common) = (Vec::new(), Vec::new());
            for (i, v) in v.into_iter().enumerate() {
                path.push(Step::Index(i as u64));
                let halves = part(v, path, flat)?;
                path.pop();
                slots.extend(halves.slots);
                common.extend(halves.common);
            }
            // Each half of a list closes up, so the two fit together again only if each has every element.
            if !slots.is_empty() && !common.is_empty() && (slots.len(), common.len()) != (n, n) {
                let what = "this list mixes sharded and common leaves, which a load could not put together again; \
                            put them into dicts, or into two lists";
                return Err(structure(path, what));
            }
            Ok(Halves {
                slots: (!slots.is_empty()).then_some(Tree::List(slots)),
                common: (!common.is_empty()).then_some(Tree::List(common)),
            })
        }
    }
}

fn named(key: &str, path: &[Step]) -> Result<()> {
    if key.is_empty() {
        return Err(structure(
            path,
            "a sharded leaf needs a key in Megatron's dialect",
        ));
    }
    Ok(())
}
