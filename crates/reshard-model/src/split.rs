//! From a state dict to what a checkpoint holds, and back.
//!
//! [`split`] takes a [`StateDict`] apart into the leaves that planners see, the common state, and a [`Skeleton`] that remembers
//! where everything was; [`Skeleton::join`] builds the result of a load from them. All are pure functions of their arguments.

use crate::{
    Data, Dialect, FlatStateDict, Leaf, LentView, LocalNonpersistent, ModelError, Path, Payload,
    Result, Sharded, ShardedTensorFactory, StateDict, Step, Tensor, Tree, Value, ValueTree,
    error::structure,
};
use indexmap::IndexMap;
use std::{borrow::Cow, collections::BTreeMap};

mod dcp;
mod factories;
mod megatron;
mod plain;
mod unflatten;

pub use factories::{expand_factories, merge_factories};
pub use plain::PlainTensor;
pub use unflatten::unflatten;

/// The path under which each key was saved: PyTorch's `planner_data`. Here a [`Step::Index`] is always an index of a list,
/// because int keys of dicts are text, as in PyTorch.
pub type PathOfKey = IndexMap<Box<str>, Path>;

/// PyTorch's rules for which containers are flattened and which are one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flatten {
    /// Since 2.4: every dict is flattened. A list is flattened if it contains a tensor or dict, directly or in inner lists.
    #[default]
    Torch2_4,
    /// Until 2.3: a dict or list is flattened if it contains a tensor anywhere. For templates that must find old keys.
    Torch2_3,
    /// `flatten_state_dict=False`: what is below the top is one object.
    TopLevel,
}

/// The parts of a state dict.
#[derive(Debug)]
pub struct Parts {
    /// The leaves for planners and for the sharded strategy, by path.
    pub flat: FlatStateDict,
    /// The common state, which the coordinator saves. Only [`Dialect::Megatron`] has any.
    pub common: ValueTree,
    /// The path of each key. Only [`Dialect::Dcp`] stores them.
    pub paths: PathOfKey,
    /// The paths of empty dicts. No item's name contains them, so [`Dialect::Dcp`] loses them unless a sidecar keeps them. The
    /// paths have the form of [`PathOfKey`].
    pub dropped_empty: Vec<Path>,
    /// The structure of the state dict.
    pub skeleton: Skeleton,
}

/// The structure of a state dict without its leaves. It has enough to put loaded leaves into their places.
#[derive(Clone, Debug)]
pub struct Skeleton {
    slots: Tree<Slot>,
    factories: Tree<ShardedTensorFactory>,
    lent: BTreeMap<Path, Lent>,
}

#[derive(Clone, Debug)]
enum Slot {
    /// A sharded leaf.
    Sharded,
    /// A plain value that became an item of its own.
    Value,
    /// Never left.
    Local(LocalNonpersistent),
}

/// A factory's handle on the buffer that its parts are views of. A load needs every handle on a buffer, so this one is
/// forgotten until the parts are back.
#[derive(Clone, Debug)]
struct Lent {
    view: LentView,
    buffer: usize,
}

/// Splits a state dict: expands factories, sets local leaves aside, and separates sharded leaves from common state.
///
/// In [`Dialect::Dcp`] every leaf becomes a sharded leaf. A tensor becomes a [`ShardedTensor`](crate::ShardedTensor) of one
/// piece, and anything else a [`ShardedObject::item`](crate::ShardedObject::item). Its key is its path joined with dots. A
/// sharded leaf keeps its own key, unless it is empty. [`Dialect::TensorsOnly`] does the same, but accepts tensors only.
///
/// # Errors
/// [`ModelError::Structure`] with the path: the top is no dict; a list mixes common and sharded leaves
/// ([`Dialect::Megatron`], which could not join such a list again); two paths have one name ([`Dialect::Dcp`]); a leaf is no
/// tensor ([`Dialect::TensorsOnly`]). [`ModelError::Invalid`] if a leaf contradicts itself. Any error of a factory.
///
/// ```
/// use indexmap::IndexMap;
/// use reshard_model::{Dialect, ValueTree, ShardedTensor, StateDict, Tensor, Value, split};
///
/// # fn main() -> Result<(), reshard_model::ModelError> {
/// let mut state = StateDict::new();
/// state.insert("w", ShardedTensor::full("weight", Tensor::from_vec(&[2], vec![1f32, 2.0])?));
/// state.insert("step", 7);
/// let parts = split(state, Dialect::Megatron)?;
/// assert_eq!((parts.flat.len(), parts.flat[0].key()), (1, "weight"));
///
/// // a load fills the leaves and reads the common state
/// let loaded: IndexMap<_, _> =
///     parts.flat.into_keys().map(|path| (path, Value::from(1.5))).collect();
/// let mut common = ValueTree::new();
/// common.insert("step", 8);
/// let result = parts.skeleton.join(loaded, common)?;
/// assert_eq!(result.get("w").and_then(ValueTree::leaf), Some(&Value::from(1.5)));
/// assert_eq!(result.get("step").and_then(ValueTree::leaf), Some(&Value::from(8)));
/// # Ok(())
/// # }
/// ```
pub fn split(state: StateDict, dialect: Dialect) -> Result<Parts> {
    split_as(state, dialect, Flatten::default())
}

/// [`split`] by the rules of another PyTorch version. [`Dialect::Megatron`] has only one set of rules.
///
/// # Errors
/// As [`split`].
pub fn split_as(state: StateDict, dialect: Dialect, flatten: Flatten) -> Result<Parts> {
    split_cow(Cow::Owned(state), dialect, flatten)
}

/// [`split_as`] of a state dict that stays with the caller. Only leaves are cloned, which are handles on buffers.
///
/// # Errors
/// As [`split`].
pub fn split_ref(state: &StateDict, dialect: Dialect, flatten: Flatten) -> Result<Parts> {
    split_cow(Cow::Borrowed(state), dialect, flatten)
}

fn split_cow(state: Cow<'_, StateDict>, dialect: Dialect, flatten: Flatten) -> Result<Parts> {
    if !matches!(*state, Tree::Dict(_)) {
        return Err(structure(&[], "a state dict must be a dict"));
    }
    // Most states have no factories, and are left as they are.
    let (state, mut factories) = if factories::any(&state) {
        let (state, factories) = expand_factories(state.into_owned())?;
        (Cow::Owned(state), factories)
    } else {
        (state, Tree::new())
    };
    let mut parts = match dialect {
        Dialect::Megatron => megatron::split(state)?,
        Dialect::Dcp => dcp::split(state.into_owned(), flatten)?,
        Dialect::TensorsOnly => tensors_only(dcp::split(state.into_owned(), flatten)?)?,
    };
    parts.skeleton.lent = lend(&mut factories, &parts.flat);
    parts.skeleton.factories = factories;
    Ok(parts)
}

/// The same, if there is nothing but tensors.
fn tensors_only(parts: Parts) -> Result<Parts> {
    match parts
        .flat
        .iter()
        .find(|(_, leaf)| matches!(leaf, Sharded::Object(_)))
    {
        Some((path, _)) => {
            let what = "it is not a tensor, and the dialect tensors_only stores nothing else; leave it out, or choose another dialect";
            Err(structure(&path.0, what))
        }
        None => Ok(Parts {
            paths: PathOfKey::new(),
            ..parts
        }),
    }
}

impl Parts {
    fn new(flat: FlatStateDict, common: ValueTree, slots: Tree<Slot>) -> Self {
        let skeleton = Skeleton {
            slots,
            factories: Tree::new(),
            lent: BTreeMap::new(),
        };
        Self {
            flat,
            common,
            paths: PathOfKey::new(),
            dropped_empty: Vec::new(),
            skeleton,
        }
    }
}

/// Takes the factories' handles on buffers that leaves have too.
fn lend(factories: &mut Tree<ShardedTensorFactory>, flat: &FlatStateDict) -> BTreeMap<Path, Lent> {
    let mut lent = BTreeMap::new();
    if !factories.any(&|_| true) {
        return lent;
    }
    let buffers: BTreeMap<usize, &Tensor> = buffers(flat);
    factories.visit_mut(&mut |path, factory| {
        if let Data::Host(t) = &factory.data
            && buffers.contains_key(&t.buffer_id())
        {
            lent.insert(
                Path::from(path),
                Lent {
                    view: LentView::of(t),
                    buffer: t.buffer_id(),
                },
            );
            factory.data = Data::None;
        }
    });
    lent
}

fn buffers(flat: &FlatStateDict) -> BTreeMap<usize, &Tensor> {
    flat.values()
        .filter_map(|s| match s {
            Sharded::Tensor(t) => t.data.host(),
            Sharded::Object(_) => None,
        })
        .map(|t| (t.buffer_id(), t))
        .collect()
}

impl Skeleton {
    /// Makes the result of a load. It has the loaded leaves at their places, the local leaves unchanged ([`Value::Local`]), one
    /// value for each factory, and the common state that was read. A leaf that was not loaded is missing from its dict. In a
    /// list the later elements move up.
    ///
    /// # Errors
    /// [`ModelError::Structure`] with the path, if the common state has something at the place of a leaf, if a loaded leaf has
    /// no place, or if a factory's subtree does not fit. Any error of a factory's merge.
    pub fn join(self, mut loaded: IndexMap<Path, Value>, common: ValueTree) -> Result<ValueTree> {
        let mut fill = |path: &[Step], slot| {
            let mut value = || loaded.swap_remove(&Path::from(path));
            Ok::<_, ModelError>(match slot {
                Slot::Local(l) => Some(ValueTree::Leaf(Value::Local(l))),
                Slot::Sharded => value().map(ValueTree::Leaf),
                Slot::Value => value().map(ValueTree::from),
            })
        };
        let slots = self.slots;
        let filled = slots.try_map_below(true, &mut Vec::new(), &mut fill)?;
        if let Some(path) = loaded.keys().min() {
            return Err(structure(
                &path.0,
                "this was loaded, but the template has no such leaf",
            ));
        }
        let mut out = common;
        if let Some(filled) = filled {
            out.merge(filled)?;
        }
        merge_factories(out, &self.factories)
    }

    /// Makes the state dict that was split, with the leaves and common state of the arguments. A failed load uses it to return
    /// the caller's buffers. Leaves that are missing from `flat` are missing from the result.
    ///
    /// # Errors
    /// [`ModelError::Structure`] when `common` does not come from the same split.
    pub fn restore(mut self, mut flat: FlatStateDict, common: ValueTree) -> Result<StateDict> {
        // The factories' handles were forgotten for the load. They come back as views of the buffers that the parts
        // hold.
        let buffers = buffers(&flat);
        self.factories.visit_mut(&mut |path, factory| {
            if let Some(lent) = self.lent.remove(&Path::from(path))
                && let Some(t) = buffers.get(&lent.buffer)
            {
                factory.data = Data::Host(lent.view.handle(&t.buffer()));
            }
        });
        let slots = unfill(
            self.slots,
            Some(&self.factories),
            &mut Vec::new(),
            &mut flat,
        );
        let mut out = slots.unwrap_or_default();
        out.merge(common.map(&mut Leaf::Value))?;
        Ok(out)
    }
}

/// The leaves that slots stood for.
fn unfill(
    slots: Tree<Slot>,
    factories: Option<&Tree<ShardedTensorFactory>>,
    path: &mut Vec<Step>,
    flat: &mut FlatStateDict,
) -> Option<StateDict> {
    // A factory stands for everything that it built, so the slots below it are not needed.
    if let Some(Tree::Leaf(f)) = factories {
        return Some(f.clone().into());
    }

    // The tree of factories has dicts where this tree has lists, so it is asked by step and not walked alongside.
    let mut child = |step: Step, slots, path: &mut Vec<Step>| {
        let below = factories.and_then(|f| f.at(std::slice::from_ref(&step)));
        path.push(step);
        let out = unfill(slots, below, path, flat);
        Some((path.pop()?, out?))
    };
    Some(match slots {
        Tree::Dict(d) => Tree::Dict(
            d.into_iter()
                .filter_map(|(k, v)| child(k, v, path))
                .collect(),
        ),
        Tree::List(v) => Tree::List(
            v.into_iter()
                .enumerate()
                .filter_map(|(i, v)| child(Step::Index(i as u64), v, path))
                .map(|(_, v)| v)
                .collect(),
        ),
        Tree::Leaf(Slot::Local(l)) => l.into(),
        Tree::Leaf(Slot::Sharded) => match flat.swap_remove(&Path::from(path.as_slice()))? {
            Sharded::Tensor(t) => t.into(),
            Sharded::Object(o) => o.into(),
        },
        // A plain value that became an item turns back into the value that the caller gave.
        Tree::Leaf(Slot::Value) => match flat.swap_remove(&Path::from(path.as_slice()))? {
            Sharded::Tensor(t) => match t.data {
                Data::Host(t) => Tree::Leaf(Leaf::Value(Value::Tensor(t))),
                Data::Device(t) => Tree::Leaf(Leaf::Value(Value::Device(t))),
                Data::None | Data::Lazy(_) => t.into(),
            },
            Sharded::Object(o) => match o.data {
                Payload::Value(v) => ValueTree::from(v).map(&mut Leaf::Value),
                Payload::None | Payload::Encoded { .. } => o.into(),
            },
        },
    })
}
