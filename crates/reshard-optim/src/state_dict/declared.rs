//! Which part of a whole tensor this rank loads, as its model and optimizers declare it.

use super::{GROUPS, STATE, names::Named, source::OptimizerState};
use crate::{ModelParam, OptimError, ParamId, Result, make_sharded_optimizer_tensor};
use bytes::Bytes;
use reshard_model::{Dims, Leaf, Path, Region, ShardedTensor, Step, Tensor, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A rank's part of a tensor: regions, and the shape in which the rank keeps them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Want {
    pub(super) regions: Vec<Region>,
    pub(super) shape: Dims,
}

impl Want {
    /// All of a tensor.
    fn whole(shape: &Dims) -> Self {
        Self {
            regions: vec![Region::whole(shape)],
            shape: shape.clone(),
        }
    }

    /// No elements, for a tensor that this rank does not know.
    fn nothing() -> Self {
        Self {
            regions: Vec::new(),
            shape: [0].into(),
        }
    }

    /// The part that a leaf declares of a tensor of this shape: all of it, unless the leaf is sharded.
    fn of(leaf: &Leaf, shape: &Dims) -> Result<Self, String> {
        match leaf {
            Leaf::Tensor(t) if t.global_shape == *shape => Ok(Self {
                regions: regions(t),
                shape: t.data_shape(),
            }),
            Leaf::Tensor(t) => Err(format!(
                "its shape is {shape} in the state dict, and {} in the declaration of this rank",
                t.global_shape
            )),
            Leaf::Factory(f) => Err(format!(
                "the factory {} makes several tensors of it; whole tensors can't be cut for it",
                f.key
            )),
            _ => Ok(Self::whole(shape)),
        }
    }

    /// The part of a tensor of optimizer state. The parameter does not tell how the state is cut, so without a declaration it is not cut.
    fn of_state(state: Option<&Leaf>, param: &Leaf, shape: &Dims) -> Result<Self, String> {
        match (state, param) {
            (Some(state), _) => Self::of(state, shape),
            (None, Leaf::Tensor(t)) if t.global_shape == *shape && t.data_shape() != *shape => {
                Err("the optimizer does not declare this state on this rank, so it is not known how to cut it; \
                     let `OptimizerState::state` return what the optimizer would have after a step"
                    .into())
            }
            (None, _) => Ok(Self::whole(shape)),
        }
    }

    pub(super) fn cut(&self, tensor: &Tensor) -> Vec<Bytes> {
        let filled = self.regions.iter().filter(|r| !r.is_empty());
        filled.map(|r| tensor.narrow(r).to_bytes()).collect()
    }

    /// This rank's part of a whole tensor.
    fn part(&self, whole: Tensor, path: &Path) -> Result<Tensor> {
        if self.shape == *whole.shape() {
            return Ok(whole);
        }
        let bytes = self.cut(&whole).concat();
        let part = Tensor::new(whole.dtype(), &self.shape, bytes);
        part.map_err(|e| not_whole(path, e.to_string()))
    }
}

/// What the model and the optimizers of this rank declare, by canonical name.
#[derive(Debug, Default)]
pub(super) struct Declarations {
    named: BTreeMap<String, Leaf>,
    /// The state of each parameter, by name.
    state: BTreeMap<String, BTreeMap<String, Leaf>>,
}

impl Declarations {
    pub(super) fn of_model(named: &[Named]) -> Self {
        let leaf = |n: &Named| (n.fqn.clone(), n.data.clone());
        Self {
            named: named.iter().map(leaf).collect(),
            state: BTreeMap::new(),
        }
    }

    pub(super) fn with_optimizers(
        named: &[Named],
        optimizers: &[&mut dyn OptimizerState],
    ) -> Result<Self> {
        let mut out = Self::of_model(named);
        let params = by_id(named);
        for optimizer in optimizers {
            for id in optimizer.param_groups().into_iter().flat_map(|g| g.params) {
                let Some(param) = params.get(&id) else {
                    continue;
                };
                let of_param = out.state.entry(param.fqn.clone()).or_default();
                for (name, leaf) in optimizer.state(id) {
                    let leaf = declared(param, id, &name, leaf)?;
                    of_param.insert(name.into(), leaf);
                }
            }
        }
        Ok(out)
    }

    /// This rank's part of a tensor at a path of the state dict of a model, or of an optimizer with or without levels.
    pub(super) fn want(&self, path: &Path, shape: &Dims) -> Result<Want> {
        let want = match self.find(path) {
            Place::Named(leaf) => Want::of(leaf, shape),
            Place::State(state, param) => Want::of_state(state, param, shape),
            Place::Option => Ok(Want::whole(shape)),
            Place::Unknown => Ok(Want::nothing()),
        };
        want.map_err(|what| not_whole(path, what))
    }

    fn find(&self, path: &Path) -> Place<'_> {
        let text = |at: usize| path.0.get(at).map(Step::to_string);
        let Some(first) = text(0) else {
            return Place::Unknown;
        };
        if let Some(leaf) = self.named.get(&first) {
            return Place::Named(leaf);
        }
        let state = |fqn: &str, entry: &str| {
            let of_param = self.state.get(fqn);
            let state = of_param.and_then(|of_param| of_param.get(entry));
            Some(Place::State(state, self.named.get(fqn)?))
        };
        if first == STATE {
            // A tensor inside of an entry is not sharded.
            let place = match (text(1), text(2), path.0.len()) {
                (Some(fqn), Some(entry), 3) => state(&fqn, &entry),
                (Some(fqn), ..) => self.named.get(&fqn).map(|_| Place::Option),
                _ => None,
            };
            return place.unwrap_or(Place::Unknown);
        }
        let part = |part: &str| first.strip_prefix(part)?.strip_prefix('.');
        if let Some(rest) = part(STATE) {
            // Names have dots, so the longest one counts.
            let mut dots = rest.rmatch_indices('.');
            let place = dots.find_map(|(at, _)| state(&rest[..at], &rest[at + 1..]));
            return place.unwrap_or(Place::Unknown);
        }
        match first == GROUPS || part(GROUPS).is_some() {
            true => Place::Option,
            false => Place::Unknown,
        }
    }
}

/// Error for a tensor of which no whole one can be made, or cut.
pub(super) fn not_whole(path: &Path, what: impl Into<String>) -> OptimError {
    OptimError::NotWhole {
        name: path.to_string(),
        what: what.into(),
    }
}

/// The meaning of a path.
enum Place<'d> {
    /// A parameter or buffer.
    Named(&'d Leaf),
    /// An entry of the state of a parameter, if the optimizer declares it, and the parameter.
    State(Option<&'d Leaf>, &'d Leaf),
    /// Something that is the same on all ranks.
    Option,
    Unknown,
}

/// Replaces a whole tensor by this rank's part; any other value stays.
pub(super) fn local_part(value: Value, path: &Path, declared: &Declarations) -> Result<Value> {
    match value {
        Value::Tensor(whole) => {
            let part = declared.want(path, whole.shape())?;
            Ok(part.part(whole, path)?.into())
        }
        other => Ok(other),
    }
}

/// The first name of each parameter. Tied weights have state under that one.
pub(super) fn by_id(named: &[Named]) -> BTreeMap<ParamId, &Named> {
    let mut by_id = BTreeMap::new();
    for n in named {
        if let Some((id, _)) = n.param {
            by_id.entry(id).or_insert(n);
        }
    }
    by_id
}

/// One entry of the state of a parameter. A plain tensor becomes sharded as the parameter is, if it has the parameter's local shape.
pub(super) fn declared(param: &Named, id: ParamId, name: &str, leaf: Leaf) -> Result<Leaf> {
    let key = format!("{STATE}.{}.{name}", param.fqn);
    let leaf = match (ModelParam::of(id, &param.data), leaf) {
        (Some(model), Leaf::Value(Value::Tensor(t))) if model.has_shape(t.shape()) => {
            make_sharded_optimizer_tensor(&model, t, STATE)?
        }
        (Some(model), Leaf::Value(Value::Device(t))) if model.has_shape(t.shape()) => {
            make_sharded_optimizer_tensor(&model, t, STATE)?
        }
        (_, leaf) => leaf,
    };
    Ok(with_key(leaf, &key))
}

/// The leaf with another key, if it has one.
pub(super) fn with_key(mut leaf: Leaf, key: &str) -> Leaf {
    match &mut leaf {
        Leaf::Tensor(t) => t.key = key.into(),
        Leaf::Object(o) => o.key = key.into(),
        Leaf::Factory(f) => f.key = key.into(),
        Leaf::Local(_) | Leaf::Value(_) => {}
    }
    leaf
}

/// What a rank holds of a tensor, as boxes in the order in which their elements lie.
pub(super) fn regions(t: &ShardedTensor) -> Vec<Region> {
    match &t.flattened_range {
        Some(range) => t.region().boxes(range.clone()).collect(),
        None => vec![t.region()],
    }
}
