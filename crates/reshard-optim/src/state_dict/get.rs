//! From a model and its optimizers to state dicts.

use super::{
    GROUPS, ModelState, OptimizerState, PARAMS, STATE, StateDictOptions,
    declared::{by_id, declared, with_key},
    flat, full,
    names::Named,
};
use crate::{OptimError, Result};
use reshard_model::{Data, Leaf, StateDict, Step, Tree, Value, add_prefix_for_sharding};

/// The state dicts of a model and of its optimizers.
#[derive(Clone, Debug, Default)]
pub struct StateDicts {
    /// By canonical name.
    pub model: StateDict,
    /// `state` by canonical name, and `param_groups`, whose `params` are canonical names.
    pub optim: StateDict,
}

impl StateDicts {
    /// One state dict with both, under these names. The keys of sharded tensors begin with the names, too, as DCP's do.
    ///
    /// ```
    /// # use reshard_optim::StateDicts;
    /// let state = StateDicts::default().into_state_dict("model", "optim");
    /// assert!(state.get("model").is_some() && state.get("optim").is_some());
    /// ```
    pub fn into_state_dict(self, model: &str, optim: &str) -> StateDict {
        let mut state = StateDict::new();
        for (name, mut part) in [(model, self.model), (optim, self.optim)] {
            add_prefix_for_sharding(&mut part, &format!("{name}."));
            state.insert_tree(name, part);
        }
        state
    }
}

/// The parameters and buffers of a model, by canonical name: PyTorch's function of the same name.
///
/// # Collective
/// With [`StateDictOptions::full_state_dict`].
///
/// # Errors
/// [`OptimError::SameName`] if two have one name; [`OptimError::Model`] if a copy from a device fails; with whole tensors also
/// [`OptimError::NotWhole`], and [`OptimError::Comm`].
pub async fn get_model_state_dict(
    model: &dyn ModelState,
    options: &StateDictOptions<'_>,
) -> Result<StateDict> {
    finished(model_state_dict(model, options), options).await
}

pub(super) fn model_state_dict(
    model: &dyn ModelState,
    options: &StateDictOptions<'_>,
) -> Result<StateDict> {
    let named = Named::all(model, options)?.into_iter();
    let chosen = named.filter(|n| !(options.ignore_frozen_params && n.is_frozen()));
    Ok(Tree::Dict(
        chosen
            .map(|n| {
                let leaf = with_key(n.data, &n.fqn);
                (Step::from(n.fqn), Tree::Leaf(leaf))
            })
            .collect(),
    ))
}

/// The state of optimizers by canonical name, and all their param groups: PyTorch's function of the same name. The dict has
/// [one level](StateDictOptions::flatten_optimizer_state_dict) if the options say so.
///
/// # Collective
/// With [`StateDictOptions::full_state_dict`].
///
/// # Errors
/// [`OptimError::UnknownParam`] if an optimizer has a parameter that the model does not have, and those of
/// [`get_model_state_dict`].
pub async fn get_optimizer_state_dict(
    model: &dyn ModelState,
    optimizers: &[&dyn OptimizerState],
    options: &StateDictOptions<'_>,
) -> Result<StateDict> {
    let state = optimizer_state_dict(model, optimizers, options);
    let state = finished(state, options).await?;
    if options.flatten_optimizer_state_dict {
        return flat::flatten_optimizer_state_dict(state);
    }
    Ok(state)
}

/// Both state dicts: PyTorch's function of the same name.
///
/// # Collective
/// With [`StateDictOptions::full_state_dict`].
///
/// # Errors
/// Those of [`get_optimizer_state_dict`].
pub async fn get_state_dict(
    model: &dyn ModelState,
    optimizers: &[&dyn OptimizerState],
    options: &StateDictOptions<'_>,
) -> Result<StateDicts> {
    Ok(StateDicts {
        model: get_model_state_dict(model, options).await?,
        optim: get_optimizer_state_dict(model, optimizers, options).await?,
    })
}

fn optimizer_state_dict(
    model: &dyn ModelState,
    optimizers: &[&dyn OptimizerState],
    options: &StateDictOptions<'_>,
) -> Result<StateDict> {
    let named = Named::all(model, options)?;
    let params = by_id(&named);
    let (mut state, mut groups) = (StateDict::new(), Vec::new());
    for optimizer in optimizers {
        for group in optimizer.param_groups() {
            let mut names = Vec::new();
            for id in group.params {
                let entries = optimizer.state(id);
                let Some(param) = params.get(&id) else {
                    // It may lie outside of the chosen submodules.
                    if options.submodules.is_empty() {
                        let names = entries.iter().map(|(n, _)| n.to_string()).collect();
                        return Err(OptimError::UnknownParam { id, names });
                    }
                    continue;
                };
                names.push(Value::from(param.fqn.as_str()));
                if entries.is_empty() {
                    continue;
                }
                let mut of_param = StateDict::new();
                for (name, leaf) in entries {
                    let leaf = declared(param, id, &name, leaf)?;
                    of_param.insert(Step::Key(name), leaf);
                }
                state.insert_tree(param.fqn.as_str(), of_param);
            }
            let mut dict = StateDict::new();
            for (name, value) in group.options {
                dict.insert(Step::Key(name), value);
            }
            dict.insert(PARAMS, Value::List(names));
            groups.push(dict);
        }
    }
    let mut out = StateDict::new();
    out.insert_tree(STATE, state);
    out.insert_tree(GROUPS, Tree::List(groups));
    Ok(out)
}

/// Does what the options say of tensors. It is called after errors, too: the ranks wait for each other.
async fn finished(state: Result<StateDict>, options: &StateDictOptions<'_>) -> Result<StateDict> {
    let state = state.and_then(|state| match options.cpu_offload {
        true => in_host_memory(state),
        false => Ok(state),
    });
    if !options.full_state_dict {
        return state;
    }
    full::gather(state, options.comm, !options.cpu_offload).await
}

fn in_host_memory(mut state: StateDict) -> Result<StateDict> {
    let mut failed = None;
    state.visit_mut(&mut |path, leaf| {
        let name = || reshard_model::Path::from(path).to_string();
        let copied = match leaf {
            Leaf::Value(Value::Device(t)) => t.to_host(&name()).map(|t| *leaf = t.into()),
            Leaf::Tensor(t) => match &t.data {
                Data::Device(d) => d.to_host(&t.key).map(|host| t.data = host.into()),
                _ => Ok(()),
            },
            _ => Ok(()),
        };
        if let Err(e) = copied {
            failed.get_or_insert(e);
        }
    });
    failed.map_or(Ok(state), |e| Err(e.into()))
}
