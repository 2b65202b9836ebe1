//! State dicts of optimizers with one level.

use super::{GROUPS, PARAMS, STATE};
use crate::{OptimError, Result};
use reshard_model::{Leaf, Step, Tree, Value};
use std::collections::BTreeMap;

/// A leaf of a state dict, or of values: both may hold the names of a group's parameters.
pub trait NameList: From<Value> {
    /// The value, if it is one.
    fn value(&self) -> Option<&Value>;
}

impl NameList for Value {
    fn value(&self) -> Option<&Value> {
        Some(self)
    }
}

impl NameList for Leaf {
    fn value(&self) -> Option<&Value> {
        match self {
            Self::Value(v) => Some(v),
            _ => None,
        }
    }
}

/// The names of the parameters of a group.
pub(super) fn params_of<L: NameList>(group: &Tree<L>) -> Option<Vec<String>> {
    let name = |value: &Value| value.as_str().map(String::from);
    match group.get(PARAMS)? {
        Tree::Leaf(leaf) => leaf.value()?.as_seq()?.iter().map(name).collect(),
        // Text in a list that was stored element by element.
        Tree::List(names) => {
            let names = names.iter().map(|n| n.leaf()?.value().and_then(name));
            names.collect()
        }
        Tree::Dict(_) => None,
    }
}

/// Makes one level of a state dict by name: `state.{name}.{entry}`, and `param_groups.{name}.{option}` for each parameter of a group.
/// PyTorch's `flatten_optimizer_state_dict=True` gives this form. A dict that has one level already stays.
///
/// # Errors
/// [`OptimError::Structure`] if it is no state dict of an optimizer.
pub fn flatten_optimizer_state_dict<L: NameList + Clone>(optimizer: Tree<L>) -> Result<Tree<L>> {
    let Tree::Dict(mut dict) = optimizer else {
        return Err(OptimError::no_dict(&[]));
    };
    let mut flat = Tree::new();
    if let Some(state) = dict.shift_remove(&Step::from(STATE)) {
        let Tree::Dict(state) = state else {
            return Err(OptimError::no_dict(&[STATE.into()]));
        };
        for (fqn, entries) in state {
            let Tree::Dict(entries) = entries else {
                return Err(OptimError::no_dict(&[STATE.into(), fqn]));
            };
            for (name, entry) in entries {
                flat.insert_tree(format!("{STATE}.{fqn}.{name}"), entry);
            }
        }
    }
    if let Some(groups) = dict.shift_remove(&Step::from(GROUPS)) {
        let Tree::List(groups) = groups else {
            return Err(OptimError::no_groups());
        };
        for (i, group) in (0..).zip(groups) {
            let path = [GROUPS.into(), Step::Index(i)];
            let names = params_of(&group).ok_or_else(|| {
                OptimError::structure(&path, "`params` of a param group are a list of names")
            })?;
            let Tree::Dict(options) = group else {
                return Err(OptimError::no_dict(&path));
            };
            for fqn in names {
                for (name, option) in options.iter().filter(|(n, _)| **n != Step::from(PARAMS)) {
                    flat.insert_tree(format!("{GROUPS}.{fqn}.{name}"), option.clone());
                }
            }
        }
    }
    // What has one level already.
    for (key, tree) in dict {
        flat.insert_tree(key, tree);
    }
    Ok(flat)
}

/// Undoes [`flatten_optimizer_state_dict`]: `groups` has the names of the parameters of each group of the result. Options come from the first parameter of
/// a group that has some. What belongs to no parameter of a group stays where it is. A dict that is not flattened stays.
///
/// # Errors
/// [`OptimError::Structure`] if it is no dict.
pub fn unflatten_optimizer_state_dict<L: NameList>(
    optimizer: Tree<L>,
    groups: &[Vec<String>],
) -> Result<Tree<L>> {
    if [STATE, GROUPS]
        .iter()
        .any(|part| optimizer.get(part).is_some())
    {
        return Ok(optimizer);
    }
    let Tree::Dict(dict) = optimizer else {
        return Err(OptimError::no_dict(&[]));
    };
    let group_of: BTreeMap<&str, usize> = (0..)
        .zip(groups)
        .flat_map(|(i, names)| names.iter().map(move |n| (n.as_str(), i)))
        .collect();
    let (mut state, mut rest) = (Tree::new(), Tree::new());
    // Of each group: whose options they are, and the options.
    let mut options: Vec<Option<(String, Tree<L>)>> = groups.iter().map(|_| None).collect();
    for (key, tree) in dict {
        let text = key.to_string();
        match part_of(&text, &group_of) {
            Some((STATE, fqn, entry)) => {
                if state.get(fqn).is_none() {
                    state.insert_tree(fqn, Tree::new());
                }
                state.insert_at(&[fqn.into(), entry.into()], tree);
            }
            Some((_, fqn, option)) => {
                let group = group_of.get(fqn).and_then(|i| options.get_mut(*i));
                let Some(group) = group else { continue };
                let (first, group) = group.get_or_insert_with(|| (fqn.into(), Tree::new()));
                if first == fqn {
                    group.insert_tree(option, tree);
                }
            }
            None => drop(rest.insert_tree(key, tree)),
        }
    }
    let groups = options.into_iter().zip(groups).map(|(options, names)| {
        let mut group = options.map_or_else(Tree::new, |(_, options)| options);
        let names = names.iter().map(|n| Value::from(n.as_str()));
        group.insert(PARAMS, Value::List(names.collect()));
        group
    });
    rest.insert_tree(STATE, state);
    rest.insert_tree(GROUPS, Tree::List(groups.collect()));
    Ok(rest)
}

/// The part, parameter and entry that a key of one level names. Names of parameters have dots, so the longest one counts.
fn part_of<'k>(
    key: &'k str,
    params: &BTreeMap<&str, usize>,
) -> Option<(&'static str, &'k str, &'k str)> {
    [STATE, GROUPS].into_iter().find_map(|part| {
        let rest = key.strip_prefix(part)?.strip_prefix('.')?;
        let dots = rest.rmatch_indices('.').map(|(at, _)| at);
        let mut cuts = dots.map(|at| (&rest[..at], &rest[at + 1..]));
        let (fqn, entry) = cuts.find(|(fqn, _)| params.contains_key(fqn))?;
        Some((part, fqn, entry))
    })
}
