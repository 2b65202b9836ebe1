//! Parameters of an optimizer, and what the model's state dict declares of them.

use crate::{OptimError, Result};
use reshard_model::{Dims, Layout, Leaf, Path, ShardedTensor, ShardedTensorFactory, StateDict};
use std::{collections::BTreeMap, fmt};

/// The number of a parameter in an optimizer's state dict: the key of its entry in `state`, and an element of `params` in a
/// param group.
///
/// PyTorch counts all parameters of all groups, in order. A frozen parameter in a group has a number and no state; one that is in
/// no group has no number. So give each parameter the number that the optimizer has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub u64);

impl fmt::Display for ParamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a model declares of a parameter, without its data. Optimizer state is declared in the same way.
#[derive(Clone, Debug)]
pub struct ModelParam {
    pub(crate) id: ParamId,
    pub(crate) declared: Declared,
    /// The shape that state of the parameter must have, if it is known.
    pub(crate) shape: Option<Dims>,
    /// The parameter's elements lie in memory in another order than row-major.
    pub(crate) transposed: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Declared {
    Tensor(ShardedTensor),
    Factory(ShardedTensorFactory),
}

impl ModelParam {
    pub(crate) fn of(id: ParamId, leaf: &Leaf) -> Option<Self> {
        let (declared, data, shape) = match leaf {
            Leaf::Tensor(t) => (
                Declared::Tensor(t.without_data()),
                &t.data,
                Some(t.local_shape.clone()),
            ),
            Leaf::Factory(f) => (
                Declared::Factory(f.without_data()),
                &f.data,
                f.data.spec().map(|(_, shape)| shape),
            ),
            _ => return None,
        };
        Some(Self {
            id,
            declared,
            shape,
            transposed: data.layout().is_some_and(is_transposed),
        })
    }

    /// Whether data of this shape is what the rank holds of it.
    pub(crate) fn has_shape(&self, shape: &Dims) -> bool {
        self.shape.as_ref() == Some(shape)
    }

    /// Its number.
    pub fn id(&self) -> ParamId {
        self.id
    }

    /// Its key in the checkpoint.
    pub fn key(&self) -> &str {
        match &self.declared {
            Declared::Tensor(t) => &t.key,
            Declared::Factory(f) => &f.key,
        }
    }
}

/// Whether elements do not lie in memory in row-major order. They may have others between them, as in a part of a larger tensor.
fn is_transposed(layout: &Layout) -> bool {
    let axes = layout.shape().iter().zip(layout.strides());
    let strides: Vec<u64> = axes.filter(|(n, _)| **n > 1).map(|(_, s)| *s).collect();
    strides.windows(2).any(|pair| pair[0] < pair[1])
}

/// The parameters of an optimizer, by number. Made by [`param_id_to_sharded_param_map`].
#[derive(Clone, Debug, Default)]
pub struct ShardedParams(pub(crate) BTreeMap<ParamId, ModelParam>);

impl ShardedParams {
    /// The parameter of a number.
    pub fn get(&self, id: ParamId) -> Option<&ModelParam> {
        self.0.get(&id)
    }

    /// All parameters, by number.
    pub fn iter(&self) -> impl Iterator<Item = &ModelParam> {
        self.0.values()
    }
}

/// Finds what the model declares of each parameter of an optimizer: Megatron Core's `get_param_id_to_sharded_param_map`.
///
/// Megatron finds a parameter by the identity of its tensor. Here you give its number and its name in the model's state dict, which
/// is its path with dots. As in Megatron, a name that the model does not declare is passed over (its state is an error later), and
/// of several numbers for one parameter the first one counts.
///
/// # Errors
/// [`OptimError::SameId`]; [`OptimError::SameName`] if two leaves have one of the names.
pub fn param_id_to_sharded_param_map<'a>(
    model: &StateDict,
    params: impl IntoIterator<Item = (ParamId, &'a str)>,
) -> Result<ShardedParams> {
    let mut leaves: BTreeMap<String, Vec<&Leaf>> = BTreeMap::new();
    model.visit(&mut |path, leaf| {
        if matches!(leaf, Leaf::Tensor(_) | Leaf::Factory(_)) {
            leaves
                .entry(Path::from(path).to_string())
                .or_default()
                .push(leaf);
        }
    });
    let mut names: BTreeMap<ParamId, &str> = BTreeMap::new();
    let mut out = ShardedParams::default();
    for (id, name) in params {
        if let Some(first) = names.insert(id, name).filter(|first| *first != name) {
            return Err(OptimError::SameId {
                id,
                first: first.into(),
                second: name.into(),
            });
        }

        // Taking it out of the table makes the first number of a parameter count.
        let Some(found) = leaves.remove(name) else {
            continue;
        };
        let [leaf] = found[..] else {
            return Err(OptimError::SameName { name: name.into() });
        };
        if let Some(param) = ModelParam::of(id, leaf) {
            out.0.insert(id, param);
        }
    }
    Ok(out)
}
