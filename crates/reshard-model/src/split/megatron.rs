//! Megatron Core's way: what isn't sharded is common state.

use super::{Parts, Slot, structure};
use crate::{
    Data, FlatStateDict, Leaf, Path, Result, Sharded, StateDict, Step, Tree, Value, ValueTree,
};
use indexmap::IndexMap;
use std::borrow::Cow;

pub(super) fn split(state: Cow<'_, StateDict>) -> Result<Parts> {
    let mut flat = FlatStateDict::new();
    let (slots, common) = part(state, &mut Vec::new(), &mut flat)?;
    Ok(Parts::new(
        flat,
        common.unwrap_or_default(),
        slots.unwrap_or_default(),
    ))
}

/// The slots and the common state of a subtree. A half is there when it has a leaf; empty containers are common.
type Halves = (Option<Tree<Slot>>, Option<ValueTree>);

/// Leaves of a borrowed tree are cloned, and nothing else of it.
fn part(
    tree: Cow<'_, StateDict>,
    path: &mut Vec<Step>,
    flat: &mut FlatStateDict,
) -> Result<Halves> {
    match tree {
        Cow::Owned(Tree::Leaf(l)) => leaf(l, path, flat),
        Cow::Borrowed(Tree::Leaf(l)) => leaf(l.clone(), path, flat),
        Cow::Owned(Tree::Dict(d)) => {
            dict(d.into_iter().map(|(k, v)| (k, Cow::Owned(v))), path, flat)
        }
        Cow::Borrowed(Tree::Dict(d)) => {
            Data::prefetch(d.values().filter_map(|tree| match tree {
                Tree::Leaf(Leaf::Tensor(t)) => Some(&t.data),
                _ => None,
            }));
            dict(
                d.iter().map(|(k, v)| (k.clone(), Cow::Borrowed(v))),
                path,
                flat,
            )
        }
        Cow::Owned(Tree::List(v)) => list(v.into_iter().map(Cow::Owned), path, flat),
        Cow::Borrowed(Tree::List(v)) => list(v.iter().map(Cow::Borrowed), path, flat),
    }
}

/// Sharded leaves leave a slot behind. Everything else, empty containers too, is common.
fn leaf(leaf: Leaf, path: &[Step], flat: &mut FlatStateDict) -> Result<Halves> {
    let slot = |slot| Ok((Some(Tree::Leaf(slot)), None));
    match leaf {
        Leaf::Value(Value::Local(l)) | Leaf::Local(l) => slot(Slot::Local(l)),
        Leaf::Value(v) => Ok((None, Some(ValueTree::Leaf(v)))),
        Leaf::Tensor(t) => {
            t.validate()?;
            named(&t.key, path)?;
            flat.insert(Path::from(path), Sharded::Tensor(t));
            slot(Slot::Sharded)
        }
        Leaf::Object(o) => {
            o.validate()?;
            named(&o.key, path)?;
            flat.insert(Path::from(path), Sharded::Object(o));
            slot(Slot::Sharded)
        }
        Leaf::Factory(_) => Err(structure(path, "a factory built another factory")),
    }
}

fn dict<'a>(
    dict: impl ExactSizeIterator<Item = (Step, Cow<'a, StateDict>)>,
    path: &mut Vec<Step>,
    flat: &mut FlatStateDict,
) -> Result<Halves> {
    if dict.len() == 0 {
        return Ok((None, Some(ValueTree::new())));
    }
    let (mut slots, mut common) = (IndexMap::with_capacity(dict.len()), IndexMap::new());
    flat.reserve(dict.len());
    for (k, v) in dict {
        path.push(k);
        let halves = part(v, path, flat)?;
        let Some(k) = path.pop() else { continue };
        match halves {
            (Some(s), Some(c)) => {
                slots.insert(k.clone(), s);
                common.insert(k, c);
            }
            (Some(s), None) => drop(slots.insert(k, s)),
            (None, Some(c)) => drop(common.insert(k, c)),
            (None, None) => {}
        }
    }
    Ok((
        (!slots.is_empty()).then_some(Tree::Dict(slots)),
        (!common.is_empty()).then_some(Tree::Dict(common)),
    ))
}

fn list<'a>(
    list: impl ExactSizeIterator<Item = Cow<'a, StateDict>>,
    path: &mut Vec<Step>,
    flat: &mut FlatStateDict,
) -> Result<Halves> {
    let n = list.len();
    if n == 0 {
        return Ok((None, Some(ValueTree::List(Vec::new()))));
    }
    let (mut slots, mut common) = (Vec::new(), Vec::new());
    for (i, v) in list.enumerate() {
        path.push(Step::Index(i as u64));
        let (slot, value) = part(v, path, flat)?;
        path.pop();
        slots.extend(slot);
        common.extend(value);
    }
    // Each half of a list closes up, so the two fit together again only if each has every element.
    if !slots.is_empty() && !common.is_empty() && (slots.len(), common.len()) != (n, n) {
        let what = "this list mixes sharded and common leaves, which a load could not put together again; \
                    put them into dicts, or into two lists";
        return Err(structure(path, what));
    }
    Ok((
        (!slots.is_empty()).then_some(Tree::List(slots)),
        (!common.is_empty()).then_some(Tree::List(common)),
    ))
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
