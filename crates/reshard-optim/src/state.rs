//! Whole state dicts of optimizers.

use crate::{
    OptimError, ParamId, Result, ShardedParams, make_sharded_optimizer_tensor,
    state_dict::{GROUPS, PARAMS, STATE},
};
use reshard_model::{Leaf, LocalNonpersistent, StateDict, Step, Tree, Value, ValueTree};
use std::collections::BTreeSet;

const STEP: &str = "step";
const COMMON_STEP: &str = "common_step";

/// The number of a parameter, as a key of `state`.
fn id_of(step: &Step) -> Option<ParamId> {
    match step {
        Step::Index(i) => Some(ParamId(*i)),
        // PyTorch's DCP writes int keys as text.
        Step::Key(k) => k.parse().ok().map(ParamId),
    }
}

/// The entries of `state` that belong to parameters.
fn params_of<L>(optimizer: &mut Tree<L>) -> Result<impl Iterator<Item = (ParamId, &mut Tree<L>)>> {
    let Tree::Dict(dict) = optimizer else {
        return Err(OptimError::no_dict(&[]));
    };
    let entries = match dict.get_mut(&Step::from(STATE)) {
        Some(Tree::Dict(entries)) => Some(entries),
        None => None,
        Some(_) => {
            let what = "the state of an optimizer is a dict by param id";
            return Err(OptimError::structure(&[STATE.into()], what));
        }
    };
    let entries = entries.into_iter().flatten();
    Ok(entries.filter_map(|(step, entry)| Some((id_of(step)?, entry))))
}

/// Declares the state of an optimizer as the model declares its parameters: Megatron Core's function of the same name.
///
/// `optimizer` has the form of PyTorch's `Optimizer.state_dict()`: `state` by param id and name, and `param_groups`. Each tensor
/// of the state gets the key `optimizer.state.{name}.{key of the parameter}`. State whose name is in `exclude` is dropped. The
/// `params` of each group are not saved, because the numbers mean nothing in another job; a load gives them back.
///
/// # Errors
/// [`OptimError::UnknownParam`], and what [`make_sharded_optimizer_tensor`] says. Then `optimizer` is partly changed.
pub fn optim_state_to_sharding_state(
    optimizer: &mut StateDict,
    params: &ShardedParams,
    exclude: &BTreeSet<&str>,
) -> Result<()> {
    for (id, entry) in params_of(optimizer)? {
        let path = [STATE.into(), Step::Index(id.0)];
        let Tree::Dict(state) = entry else {
            let what = "the state of a parameter is a dict by name";
            return Err(OptimError::structure(&path, what));
        };
        state.retain(|name, _| !matches!(name, Step::Key(name) if exclude.contains(&**name)));
        let Some(param) = params.get(id) else {
            if state.is_empty() {
                continue;
            }
            let names = state.keys().map(ToString::to_string).collect();
            return Err(OptimError::UnknownParam { id, names });
        };
        for (name, tree) in state {
            let prefix = format!("optimizer.state.{name}");
            let leaf = match std::mem::take(tree) {
                Tree::Leaf(Leaf::Value(Value::Tensor(t))) => {
                    make_sharded_optimizer_tensor(param, t, &prefix)?
                }
                Tree::Leaf(Leaf::Value(Value::Device(t))) => {
                    make_sharded_optimizer_tensor(param, t, &prefix)?
                }
                // It is declared already, for example with a flattened range.
                Tree::Leaf(leaf @ (Leaf::Tensor(_) | Leaf::Factory(_) | Leaf::Object(_))) => leaf,
                other => {
                    let found = match &other {
                        Tree::Leaf(Leaf::Value(v)) => v.type_name(),
                        Tree::Leaf(_) => "local value".into(),
                        Tree::Dict(_) => "dict".into(),
                        Tree::List(_) => "list".into(),
                    };
                    let key = format!("{prefix}.{}", param.key());
                    return Err(OptimError::NoTensor { key, id, found });
                }
            };
            *tree = Tree::Leaf(leaf);
        }
    }
    keep_params_local(optimizer)
}

/// Takes `params` of each group out of what is saved.
fn keep_params_local(optimizer: &mut StateDict) -> Result<()> {
    let Tree::Dict(dict) = optimizer else {
        return Ok(());
    };
    let groups = match dict.get_mut(&Step::from(GROUPS)) {
        Some(Tree::List(groups)) => groups,
        None => return Ok(()),
        Some(_) => return Err(OptimError::no_groups()),
    };
    for (i, group) in (0..).zip(groups) {
        let Tree::Dict(group) = group else {
            let path = [GROUPS.into(), Step::Index(i)];
            return Err(OptimError::structure(&path, "a param group is a dict"));
        };
        if let Some(params) = group.get_mut(&Step::from(PARAMS)) {
            let path = [GROUPS.into(), Step::Index(i), PARAMS.into()];
            let taken = std::mem::take(params).try_map(&mut |_, leaf| match leaf {
                Leaf::Value(v) => Ok(Some(ValueTree::Leaf(v))),
                Leaf::Local(local) => Ok(Some(ValueTree::Leaf(Value::Local(local)))),
                _ => {
                    let what = "params are numbers of parameters";
                    Err(OptimError::structure(&path, what))
                }
            })?;
            // A second call finds what the first one has made, and leaves it.
            *params = match taken.unwrap_or(ValueTree::List(Vec::new())) {
                ValueTree::Leaf(Value::Local(local)) => Tree::Leaf(Leaf::Local(local)),
                taken => LocalNonpersistent::new(Value::from(taken)).into(),
            };
        }
    }
    Ok(())
}

/// Takes the step of all parameters out of their state, if it is the same everywhere: Megatron Core stores it once.
///
/// # Errors
/// [`OptimError::UnequalSteps`]. Then nothing has changed.
pub fn take_common_step(optimizer: &mut StateDict) -> Result<Option<Value>> {
    let mut common: Option<(ParamId, Value)> = None;
    for (id, entry) in params_of(optimizer)? {
        let Some(step) = entry.get(STEP) else {
            continue;
        };
        let Tree::Leaf(Leaf::Value(step)) = step else {
            let path = [STATE.into(), Step::Index(id.0), STEP.into()];
            return Err(OptimError::structure(&path, "a step is a number"));
        };
        match &common {
            Some((first_id, first)) if first != step => {
                return Err(OptimError::UnequalSteps {
                    first_id: *first_id,
                    first: shown(first),
                    second_id: id,
                    second: shown(step),
                });
            }
            Some(_) => {}
            None => common = Some((id, step.clone())),
        }
    }
    for (_, entry) in params_of(optimizer)? {
        entry.remove(STEP);
    }
    Ok(common.map(|(_, step)| step))
}

/// A step in a message.
fn shown(step: &Value) -> String {
    match step {
        Value::Int(i) => i.to_string(),
        Value::Float(f) => f.to_string(),
        Value::Tensor(t) => {
            let first = |float: Vec<f32>| float.first().map(f32::to_string);
            let float = t.to_vec().ok().and_then(first);
            let first = |int: Vec<i64>| int.first().map(i64::to_string);
            float
                .or_else(|| t.to_vec().ok().and_then(first))
                .unwrap_or_else(|| format!("a tensor of {}", t.dtype()))
        }
        other => other.type_name(),
    }
}

/// Whether Python takes a step for true. Megatron Core stores no other.
fn is_truthy(step: &Value) -> bool {
    match step {
        Value::None => false,
        Value::Bool(b) => *b,
        Value::Int(i) => *i != 0,
        Value::Float(f) => *f != 0.,
        Value::Tensor(t) => t.to_bytes().iter().any(|b| *b != 0),
        _ => true,
    }
}

/// The sharded state dict of an optimizer without distribution, as Megatron Core's `FP32Optimizer` makes it: the step of all
/// parameters is common state `state.common_step`, and [`optim_state_to_sharding_state`] declares the rest. A step of 0 is not
/// stored.
///
/// # Errors
/// [`OptimError::UnequalSteps`], and those of [`optim_state_to_sharding_state`].
pub fn sharded_optim_state(optimizer: &mut StateDict, params: &ShardedParams) -> Result<()> {
    let step = take_common_step(optimizer)?;
    optim_state_to_sharding_state(optimizer, params, &BTreeSet::from([STEP]))?;
    if let (Some(step), Tree::Dict(dict)) = (step.filter(is_truthy), optimizer)
        && let Some(state) = dict.get_mut(&Step::from(STATE))
    {
        state.insert(COMMON_STEP, step);
    }
    Ok(())
}

/// Declares the float32 copies of parameters in lower precision, which Megatron Core's `Float16OptimizerWithFloat16Params` keeps as
/// `fp32_from_fp16_params`: for each param group a list, in the order of its `params`. The keys are
/// `optimizer.state.fp32_param.{key of the parameter}`.
///
/// # Errors
/// [`OptimError::UnknownParam`], and what [`make_sharded_optimizer_tensor`] says.
pub fn fp32_from_fp16_params<T: Into<crate::OptimTensor>>(
    groups: impl IntoIterator<Item = Vec<(ParamId, T)>>,
    params: &ShardedParams,
) -> Result<StateDict> {
    let declare = |(id, tensor): (ParamId, T)| {
        let param = params.get(id).ok_or_else(|| OptimError::UnknownParam {
            id,
            names: vec!["fp32_param".into()],
        })?;
        make_sharded_optimizer_tensor(param, tensor, "optimizer.state.fp32_param").map(Tree::Leaf)
    };
    let group = |tensors: Vec<(ParamId, T)>| {
        let tensors: Result<Vec<StateDict>> = tensors.into_iter().map(declare).collect();
        tensors.map(Tree::List)
    };
    Ok(Tree::List(
        groups.into_iter().map(group).collect::<Result<_>>()?,
    ))
}

/// Makes the state dict of an optimizer of what was loaded: the common step is copied back into the state of each parameter, and
/// `params` of each group are values again.
///
/// # Errors
/// [`OptimError::Structure`] if it does not have the form of an optimizer's state dict.
pub fn restore_optim_state(optimizer: &mut ValueTree) -> Result<()> {
    let step = match optimizer {
        Tree::Dict(dict) => dict
            .get_mut(&Step::from(STATE))
            .and_then(|state| state.remove(COMMON_STEP)),
        _ => None,
    };
    for (_, entry) in params_of(optimizer)? {
        if let Some(step) = &step {
            entry.insert_tree(STEP, step.clone());
        }
    }
    optimizer.visit_mut(&mut |path, leaf| {
        let is_params = matches!(path, [Step::Key(a), Step::Index(_), Step::Key(b)] if &**a == GROUPS && &**b == PARAMS);
        if let Value::Local(local) = &*leaf
            && is_params
            && let Some(params) = local.0.downcast_ref::<Value>()
        {
            *leaf = params.clone();
        }
    });
    Ok(())
}

/// The state dict of several optimizers as one: Megatron Core's `ChainedOptimizer`. A single one stays as it is. Several become a dict
/// by index. With `prefix`, the keys of each begin with `chained_{index}.`: Megatron Core up to 0.14 always writes them so, later
/// releases do unless the state is of a form that can be loaded with any parallelism.
pub fn chained_optim_state(optimizers: Vec<StateDict>, prefix: bool) -> StateDict {
    if optimizers.len() == 1 {
        return optimizers.into_iter().next().unwrap_or_default();
    }
    let child = |(i, mut state): (u64, StateDict)| {
        if prefix {
            reshard_model::add_prefix_for_sharding(&mut state, &format!("chained_{i}."));
        }
        (Step::Index(i), state)
    };
    Tree::Dict((0..).zip(optimizers).map(child).collect())
}
