//! From state dicts back to a model and its optimizers.

use super::{
    GROUPS, ModelState, OptimizerState, PARAMS, STATE, StateDictOptions,
    flat::{params_of, unflatten_optimizer_state_dict},
    full::{self, local_part},
    get::by_id,
    names::Named,
};
use crate::{OptimError, ParamId, Result};
use indexmap::IndexMap;
use reshard_model::{Step, Tree, Value, ValueTree};
use std::collections::{BTreeMap, BTreeSet};

/// Which keys a model or optimizer and the state dict that it took do not share: PyTorch's `_IncompatibleKeys`. Both are sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IncompatibleKeys {
    /// What the state dict does not have.
    pub missing_keys: Vec<String>,
    /// What only the state dict has.
    pub unexpected_keys: Vec<String>,
}

impl IncompatibleKeys {
    /// An error that names all of them, if the options ask for one.
    fn judged(self, of: &'static str, options: &StateDictOptions<'_>) -> Result<Self> {
        let differ = !(self.missing_keys.is_empty() && self.unexpected_keys.is_empty());
        if options.strict && differ {
            return Err(OptimError::Incompatible {
                of,
                missing: self.missing_keys,
                unexpected: self.unexpected_keys,
            });
        }
        Ok(self)
    }
}

/// Gives a model its state: PyTorch's function of the same name. Nothing is loaded if keys differ and
/// [`strict`](StateDictOptions::strict) is set.
///
/// # Collective
/// With [`StateDictOptions::broadcast_from_rank0`].
///
/// # Errors
/// [`OptimError::Incompatible`]; [`OptimError::Options`] if only the coordinator has the dict, and it is not full;
/// [`OptimError::Load`] with what the model says; [`OptimError::Comm`].
pub async fn set_model_state_dict(
    model: &mut dyn ModelState,
    state: ValueTree,
    options: &StateDictOptions<'_>,
) -> Result<IncompatibleKeys> {
    let named = Named::all(model, options);
    let state = received(state, &named, options).await?;
    load_model(model, named?, state, options)
}

/// What [`set_model_state_dict`] does once this rank has the state.
pub(super) fn load_model(
    model: &mut dyn ModelState,
    named: Vec<Named>,
    state: ValueTree,
    options: &StateDictOptions<'_>,
) -> Result<IncompatibleKeys> {
    let Tree::Dict(mut state) = state else {
        return Err(OptimError::structure(
            &[],
            "the state dict of a model is a dict",
        ));
    };

    // First all that can be refused.
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for n in named {
        match state.shift_remove(&Step::from(n.fqn.as_str())) {
            Some(tree) => found.push((Value::from(tree), n)),
            None if options.ignore_frozen_params && n.is_frozen() => {}
            None => missing.push(n.fqn),
        }
    }
    missing.sort();
    let mut unexpected: Vec<String> = state.keys().map(ToString::to_string).collect();
    unexpected.sort();
    let keys = IncompatibleKeys {
        missing_keys: missing,
        unexpected_keys: unexpected,
    }
    .judged("model", options)?;

    for (value, n) in found {
        let value = match options.full_state_dict {
            true => local_part(value, &n.data, &n.fqn)?,
            false => value,
        };
        let failed = |source| OptimError::Load {
            name: n.fqn.clone(),
            source,
        };
        model.load(&n.own, value).map_err(failed)?;
    }
    Ok(keys)
}

/// Gives optimizers their state: PyTorch's function of the same name. The dict may have one level or not, whatever the options say. Parameters
/// are found by name, so the groups may have changed: each group gets the options of the stored groups that its parameters were in.
/// An option that has no counterpart today, such as `initial_lr`, is given, too.
///
/// # Collective
/// With [`StateDictOptions::broadcast_from_rank0`].
///
/// # Errors
/// [`OptimError::Incompatible`], with keys such as `state.{name}` and `param_groups.{name}`; [`OptimError::Structure`]; [`OptimError::UnknownParam`]; and those of
/// [`set_model_state_dict`].
pub async fn set_optimizer_state_dict(
    model: &dyn ModelState,
    optimizers: &mut [&mut dyn OptimizerState],
    state: ValueTree,
    options: &StateDictOptions<'_>,
) -> Result<IncompatibleKeys> {
    let named = Named::all(model, options);
    let state = received(state, &named, options).await?;
    let named = named?;
    let params = by_id(&named);
    let groups = wanted_groups(optimizers, &params, options)?;
    let names: Vec<Vec<String>> = groups.iter().map(|g| g.names.clone()).collect();
    let mut stored = Stored::of(unflatten_optimizer_state_dict(state, &names)?)?;

    // First all that can be refused.
    let (mut states, mut missing) = (Vec::new(), BTreeSet::new());
    let mut of_groups: Vec<BTreeMap<Box<str>, Value>> = Vec::new();
    for group in &groups {
        for (id, fqn) in group.ids.iter().zip(&group.names) {
            let frozen = params.get(id).is_none_or(|p| p.is_frozen());
            match stored.state.shift_remove(&Step::from(fqn.as_str())) {
                Some(entries) => states.push((group.optimizer, *id, entries)),
                // A parameter that is not trained has no state; neither has one whose optimizer keeps none.
                None if frozen || optimizers[group.optimizer].state(*id).is_empty() => {}
                None => drop(missing.insert(format!("{STATE}.{fqn}"))),
            }
        }
        of_groups.push(stored.options_of(&group.names, &mut missing));
    }
    let keys = IncompatibleKeys {
        missing_keys: missing.into_iter().collect(),
        unexpected_keys: stored.unexpected(),
    }
    .judged("optimizer", options)?;

    for (optimizer, id, entries) in states {
        let Some(param) = params.get(&id) else {
            continue;
        };
        let name = format!("{STATE}.{}", param.fqn);
        let failed = |source| OptimError::Load {
            name: name.clone(),
            source,
        };
        let Tree::Dict(entries) = entries else {
            return Err(failed("the state of a parameter is a dict by name".into()));
        };
        let mut values = Vec::new();
        for (step, tree) in entries {
            let mut value = Value::from(tree);
            if options.full_state_dict {
                value = local_part(value, &param.data, &format!("{name}.{step}"))?;
            }
            values.push((step.to_string().into(), value));
        }
        optimizers[optimizer]
            .load_state(id, values)
            .map_err(failed)?;
    }
    for (group, values) in groups.iter().zip(of_groups) {
        let failed = |source| OptimError::Load {
            name: format!("{GROUPS}.{}", group.index),
            source,
        };
        let values = values.into_iter().collect();
        let optimizer = &mut optimizers[group.optimizer];
        optimizer.load_group(group.index, values).map_err(failed)?;
    }
    Ok(keys)
}

/// Gives a model and its optimizers their state: PyTorch's function of the same name. It returns the keys of both; those of the optimizers
/// come last.
///
/// # Collective
/// With [`StateDictOptions::broadcast_from_rank0`].
///
/// # Errors
/// Those of [`set_model_state_dict`] and [`set_optimizer_state_dict`].
pub async fn set_state_dict(
    model: &mut dyn ModelState,
    optimizers: &mut [&mut dyn OptimizerState],
    model_state: ValueTree,
    optim_state: ValueTree,
    options: &StateDictOptions<'_>,
) -> Result<IncompatibleKeys> {
    let mut keys = set_model_state_dict(model, model_state, options).await?;
    let more = set_optimizer_state_dict(model, optimizers, optim_state, options).await?;
    keys.missing_keys.extend(more.missing_keys);
    keys.unexpected_keys.extend(more.unexpected_keys);
    Ok(keys)
}

/// A group of an optimizer, with the names of its parameters.
struct Group {
    optimizer: usize,
    index: usize,
    ids: Vec<ParamId>,
    names: Vec<String>,
}

fn wanted_groups(
    optimizers: &[&mut dyn OptimizerState],
    params: &BTreeMap<ParamId, &Named>,
    options: &StateDictOptions<'_>,
) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    for (optimizer, o) in optimizers.iter().enumerate() {
        for (index, group) in o.param_groups().into_iter().enumerate() {
            let (mut ids, mut names) = (Vec::new(), Vec::new());
            for id in group.params {
                match params.get(&id) {
                    Some(param) => {
                        ids.push(id);
                        names.push(param.fqn.clone());
                    }
                    None if options.submodules.is_empty() => {
                        let names = o.state(id).iter().map(|(n, _)| n.to_string()).collect();
                        return Err(OptimError::UnknownParam { id, names });
                    }
                    None => {}
                }
            }
            groups.push(Group {
                optimizer,
                index,
                ids,
                names,
            });
        }
    }
    Ok(groups)
}

/// The state dict of optimizers, taken apart.
struct Stored {
    state: IndexMap<Step, ValueTree>,
    groups: Vec<StoredGroup>,
    /// What belongs to no parameter.
    rest: Vec<String>,
}

struct StoredGroup {
    names: Vec<String>,
    options: Vec<(Box<str>, Value)>,
    /// Names that a group of today has.
    known: BTreeSet<String>,
    taken: bool,
}

impl Stored {
    fn of(optimizer: ValueTree) -> Result<Self> {
        let Tree::Dict(mut dict) = optimizer else {
            let what = "the state dict of an optimizer is a dict";
            return Err(OptimError::structure(&[], what));
        };
        let state = match dict.shift_remove(&Step::from(STATE)) {
            Some(Tree::Dict(state)) => state,
            None => IndexMap::new(),
            Some(_) => {
                let what = "the state of an optimizer is a dict by name";
                return Err(OptimError::structure(&[STATE.into()], what));
            }
        };
        let groups = match dict.shift_remove(&Step::from(GROUPS)) {
            Some(Tree::List(groups)) => groups,
            None => Vec::new(),
            Some(_) => {
                let what = "param groups are a list";
                return Err(OptimError::structure(&[GROUPS.into()], what));
            }
        };
        let groups = (0..).zip(groups).map(|(i, group)| {
            StoredGroup::of(group).ok_or_else(|| {
                let path = [GROUPS.into(), Step::Index(i)];
                let what = "a param group is a dict whose `params` are a list of names; numbers are those of an optimizer's own state dict";
                OptimError::structure(&path, what)
            })
        });
        Ok(Self {
            state,
            groups: groups.collect::<Result<_>>()?,
            rest: dict.keys().map(ToString::to_string).collect(),
        })
    }

    /// The options of the groups that these parameters were in. Of two groups with one option, that of the later parameter counts.
    fn options_of(
        &mut self,
        names: &[String],
        missing: &mut BTreeSet<String>,
    ) -> BTreeMap<Box<str>, Value> {
        let mut options = BTreeMap::new();
        if names.is_empty() {
            // No name says which it was.
            let empty = |g: &&mut StoredGroup| g.names.is_empty() && !g.taken;
            if let Some(group) = self.groups.iter_mut().find(empty) {
                group.taken = true;
                options.extend(group.options.iter().cloned());
            }
        }
        for fqn in names {
            let stored = self.groups.iter_mut().find(|g| g.names.contains(fqn));
            let Some(group) = stored else {
                missing.insert(format!("{GROUPS}.{fqn}"));
                continue;
            };
            group.known.insert(fqn.clone());
            options.extend(group.options.iter().cloned());
        }
        options
    }

    /// The keys of what nobody has asked for.
    fn unexpected(&self) -> Vec<String> {
        let state = self.state.keys().map(|fqn| format!("{STATE}.{fqn}"));
        let groups = self.groups.iter().flat_map(|g| {
            let unknown = g.names.iter().filter(|n| !g.known.contains(*n));
            unknown.map(|fqn| format!("{GROUPS}.{fqn}"))
        });
        let mut keys: Vec<String> = state.chain(groups).chain(self.rest.clone()).collect();
        keys.sort();
        keys
    }
}

impl StoredGroup {
    fn of(group: ValueTree) -> Option<Self> {
        let names = params_of(&group)?;
        let Tree::Dict(dict) = group else {
            return None;
        };
        let options = dict
            .into_iter()
            .filter(|(name, _)| *name != Step::from(PARAMS));
        Some(Self {
            names,
            options: options
                .map(|(name, tree)| (name.to_string().into(), tree.into()))
                .collect(),
            known: BTreeSet::new(),
            taken: false,
        })
    }
}

/// The state dict, or the coordinator's if only that one has it.
async fn received(
    state: ValueTree,
    named: &Result<Vec<Named>>,
    options: &StateDictOptions<'_>,
) -> Result<ValueTree> {
    match (options.broadcast_from_rank0, options.full_state_dict) {
        (false, _) => Ok(state),
        (true, true) => full::scatter(state, named, options.comm).await,
        (true, false) => Err(OptimError::Options(
            "`broadcast_from_rank0` needs `full_state_dict`: the coordinator's dict has no parts of other ranks",
        )),
    }
}
