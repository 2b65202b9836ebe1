//! From state dicts back to a model and its optimizers.

use super::{
    GROUPS, ModelState, OptimizerState, PARAMS, STATE, StateDictOptions,
    changes::{Before, Changes},
    declared::{Declarations, by_id, local_part},
    flat::{params_of, unflatten_optimizer_state_dict},
    full,
    names::Named,
};
use crate::{OptimError, ParamId, Result};
use indexmap::IndexMap;
use reshard_comm::Cause;
use reshard_model::{Path, Step, Tree, Value, ValueTree};
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

/// Gives a model its state: PyTorch's function of the same name. A call that fails leaves the model as it was: with
/// [`strict`](StateDictOptions::strict) nothing is loaded if keys differ, and what was loaded before an error of the model is replaced by the old
/// values.
///
/// # Collective
/// With [`StateDictOptions::broadcast_from_rank0`]. Then a call that fails on one rank fails on all.
///
/// # Errors
/// [`OptimError::Incompatible`]; [`OptimError::Options`] if only the coordinator has the dict, and it is not full;
/// [`OptimError::NotWhole`] if a tensor has another shape than this rank declares; [`OptimError::Load`] with what the model says;
/// [`OptimError::Comm`].
pub async fn set_model_state_dict(
    model: &mut dyn ModelState,
    state: ValueTree,
    options: &StateDictOptions<'_>,
) -> Result<IncompatibleKeys> {
    let planned = receive_model(model, state, options).await;
    load(planned, Some(model), &mut [], options).await
}

async fn receive_model(
    model: &dyn ModelState,
    state: ValueTree,
    options: &StateDictOptions<'_>,
) -> Result<Planned> {
    let named = Named::all(model, options);
    let declared = named.as_deref().map(Declarations::of_model);
    let state = received(state, &declared.map_err(full::cause), options).await;
    plan_model(named?, state?, options)
}

/// What [`set_model_state_dict`] does once this rank has the state.
pub(super) fn load_model(
    model: &mut dyn ModelState,
    named: Vec<Named>,
    state: ValueTree,
    options: &StateDictOptions<'_>,
) -> Result<IncompatibleKeys> {
    let (keys, changes) = plan_model(named, state, options)?;
    let mut before = Before::default();
    match changes.load(Some(&mut *model), &mut [], &mut before) {
        Ok(()) => Ok(keys),
        Err(e) => Err(before.restore(e, Some(model), &mut [])),
    }
}

/// The keys that differ, and the values to load.
type Planned = (IncompatibleKeys, Changes);

fn plan_model(
    named: Vec<Named>,
    state: ValueTree,
    options: &StateDictOptions<'_>,
) -> Result<Planned> {
    let Tree::Dict(mut state) = state else {
        let what = "the state dict of a model is a dict";
        return Err(OptimError::structure(&[], what));
    };
    let declared = Declarations::of_model(&named);
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for n in named {
        match state.shift_remove(&Step::from(n.fqn.as_str())) {
            Some(tree) => found.push((n, Value::from(tree))),
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

    let mut changes = Changes::default();
    for (n, mut value) in found {
        if is_whole(options) {
            let path = Path(vec![n.fqn.as_str().into()]);
            value = local_part(value, &path, &declared)?;
        }
        changes.model.push((n.own, n.fqn, value));
    }
    Ok((keys, changes))
}

/// Gives optimizers their state: PyTorch's function of the same name. The dict may have one level or not, whatever the options say. Parameters
/// are found by name, so the groups may have changed: each group gets the options of the stored groups that its parameters were in.
/// An option that has no counterpart today, such as `initial_lr`, is given, too.
///
/// With [`full_state_dict`](StateDictOptions::full_state_dict) each tensor is cut as [`OptimizerState::state`] declares it, which may be in
/// another way than the parameter is cut. A call that fails leaves the optimizers as they were, except that a group keeps options that it did
/// not have before.
///
/// # Collective
/// With [`StateDictOptions::broadcast_from_rank0`]. Then a call that fails on one rank fails on all.
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
    let planned = receive_optimizers(model, optimizers, state, options).await;
    load(planned, None, optimizers, options).await
}

async fn receive_optimizers(
    model: &dyn ModelState,
    optimizers: &[&mut dyn OptimizerState],
    state: ValueTree,
    options: &StateDictOptions<'_>,
) -> Result<Planned> {
    let named = Named::all(model, options);
    let known = named.as_ref().map_err(full::cause).and_then(|named| {
        Declarations::with_optimizers(named, optimizers).map_err(|e| full::cause(&e))
    });
    let state = received(state, &known, options).await;
    // The error itself says more than its cause.
    let named = named?;
    let declared = Declarations::with_optimizers(&named, optimizers)?;
    plan_optimizers(&named, &declared, optimizers, state?, options)
}

fn plan_optimizers(
    named: &[Named],
    declared: &Declarations,
    optimizers: &[&mut dyn OptimizerState],
    state: ValueTree,
    options: &StateDictOptions<'_>,
) -> Result<Planned> {
    let params = by_id(named);
    let groups = wanted_groups(optimizers, &params, options)?;
    let names: Vec<Vec<String>> = groups.iter().map(|g| g.names.clone()).collect();
    let mut stored = Stored::of(unflatten_optimizer_state_dict(state, &names)?)?;

    let (mut states, mut missing) = (Vec::new(), BTreeSet::new());
    let mut changes = Changes::default();
    for group in groups {
        for (id, fqn) in group.ids.iter().zip(&group.names) {
            let frozen = params.get(id).is_none_or(|p| p.is_frozen());
            match stored.state.shift_remove(&Step::from(fqn.as_str())) {
                Some(entries) => states.push((group.optimizer, *id, fqn.clone(), entries)),
                // A parameter that is not trained has no state; neither has one whose optimizer keeps none.
                None if frozen || optimizers[group.optimizer].state(*id).is_empty() => {}
                None => drop(missing.insert(format!("{STATE}.{fqn}"))),
            }
        }
        let values = stored.options_of(&group.names, &mut missing);
        let values = values.into_iter().collect();
        changes.groups.push((group.optimizer, group.index, values));
    }
    let keys = IncompatibleKeys {
        missing_keys: missing.into_iter().collect(),
        unexpected_keys: stored.unexpected(),
    }
    .judged("optimizer", options)?;

    for (optimizer, id, fqn, entries) in states {
        let Tree::Dict(entries) = entries else {
            return Err(OptimError::Load {
                name: format!("{STATE}.{fqn}"),
                source: "the state of a parameter is a dict by name".into(),
            });
        };
        let mut values = Vec::new();
        for (step, tree) in entries {
            let mut value = Value::from(tree);
            let entry = step.to_string();
            if is_whole(options) {
                let path = Path(vec![STATE.into(), fqn.as_str().into(), step]);
                value = local_part(value, &path, declared)?;
            }
            values.push((entry.into(), value));
        }
        changes.states.push((optimizer, id, fqn, values));
    }
    Ok((keys, changes))
}

/// Gives a model and its optimizers their state: PyTorch's function of the same name. It returns the keys of both; those of the optimizers
/// come last. A call that fails leaves the model and the optimizers as they were; [`set_optimizer_state_dict`] has the exception.
///
/// # Collective
/// With [`StateDictOptions::broadcast_from_rank0`]. Then a call that fails on one rank fails on all.
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
    let of_model = receive_model(model, model_state, options).await;
    // Other ranks take part in this, even if the model's state is refused here.
    let of_optimizers = receive_optimizers(model, optimizers, optim_state, options).await;
    let planned = of_model.and_then(|(mut keys, mut changes)| {
        let (more, of_optimizers) = of_optimizers?;
        keys.missing_keys.extend(more.missing_keys);
        keys.unexpected_keys.extend(more.unexpected_keys);
        changes.states = of_optimizers.states;
        changes.groups = of_optimizers.groups;
        Ok((keys, changes))
    });
    load(planned, Some(model), optimizers, options).await
}

/// Loads what was planned. If only the coordinator had the state, all ranks load it, or none.
async fn load(
    planned: Result<Planned>,
    mut model: Option<&mut (dyn ModelState + '_)>,
    optimizers: &mut [&mut dyn OptimizerState],
    options: &StateDictOptions<'_>,
) -> Result<IncompatibleKeys> {
    let agree = async |outcome: Result<()>| {
        let together = options.broadcast_from_rank0 && options.comm.size() > 1;
        match together {
            false => outcome,
            true => {
                let told = outcome.as_ref().map(|_| ()).map_err(full::cause);
                let agreed = options.comm.agree("broadcast state dict", told).await;
                outcome.and(agreed.map_err(OptimError::from))
            }
        }
    };
    let (planned, outcome) = match planned {
        Ok(planned) => (Some(planned), Ok(())),
        Err(e) => (None, Err(e)),
    };
    agree(outcome).await?;
    let (keys, changes) = planned.unwrap_or_default();

    let mut before = Before::default();
    let loaded = changes.load(model.as_deref_mut(), optimizers, &mut before);
    match agree(loaded).await {
        Ok(()) => Ok(keys),
        Err(e) => Err(before.restore(e, model, optimizers)),
    }
}

/// Whether tensors of the dict on this rank are whole. Those of the coordinator were cut on their way.
fn is_whole(options: &StateDictOptions<'_>) -> bool {
    options.full_state_dict && !options.broadcast_from_rank0
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
            return Err(OptimError::no_dict(&[]));
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
            Some(_) => return Err(OptimError::no_groups()),
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
    declared: &Result<Declarations, Cause>,
    options: &StateDictOptions<'_>,
) -> Result<ValueTree> {
    match (options.broadcast_from_rank0, options.full_state_dict) {
        (false, _) => Ok(state),
        (true, true) => {
            let declared = declared.as_ref().map_err(Clone::clone);
            full::scatter(state, declared, options.comm).await
        }
        (true, false) => Err(OptimError::Options(
            "`broadcast_from_rank0` needs `full_state_dict`: the coordinator's dict has no parts of other ranks",
        )),
    }
}
