use super::structure;
use crate::{
    Leaf, ModelError, Result, Sharded, ShardedTensorFactory, StateDict, Step, Tree, ValueTree,
};

/// Replaces each factory by what it builds, and gives the factories back at their paths: lists become dicts with int keys
/// there, so that places are kept. An empty dict when there is none.
///
/// # Errors
/// Whatever a factory says.
pub fn expand_factories(state: StateDict) -> Result<(StateDict, Tree<ShardedTensorFactory>)> {
    if !any(&state) {
        return Ok((state, Tree::new()));
    }
    let mut factories = Tree::new();
    let state = state.try_map(&mut |path, leaf| {
        let Leaf::Factory(f) = leaf else {
            return Ok(Some(Tree::Leaf(leaf)));
        };
        let built = f.build()?.map(&mut |sharded| match sharded {
            Sharded::Tensor(t) => Leaf::Tensor(t),
            Sharded::Object(o) => Leaf::Object(o),
        });
        let place = path.iter().fold(&mut factories, |tree, step| match tree {
            Tree::Dict(d) => d.entry(step.clone()).or_default(),
            leaf => leaf,
        });
        *place = Tree::Leaf(f);
        Ok::<_, ModelError>(Some(built))
    })?;
    Ok((state.unwrap_or_default(), factories))
}

/// Whether a state dict has factories.
pub(super) fn any(state: &StateDict) -> bool {
    state.any(&|leaf| matches!(leaf, Leaf::Factory(_)))
}

/// Makes one value again of the subtree of each factory, as Megatron's `apply_factory_merges`.
///
/// # Errors
/// [`ModelError::Structure`] with the path: a key of `factories` is missing in `loaded`, a
/// list has another length, an index is out of its bounds, a list is asked for a key. And whatever a factory says.
pub fn merge_factories(
    loaded: ValueTree,
    factories: &Tree<ShardedTensorFactory>,
) -> Result<ValueTree> {
    merge(loaded, factories, &mut Vec::new())
}

fn merge(
    loaded: ValueTree,
    factories: &Tree<ShardedTensorFactory>,
    path: &mut Vec<Step>,
) -> Result<ValueTree> {
    let at = |child: &mut ValueTree, step: &Step, f, path: &mut Vec<Step>| {
        path.push(step.clone());
        *child = merge(std::mem::take(child), f, path)?;
        path.pop();
        Ok(())
    };

    // A factory ends the descent, whatever lies there. It alone knows what its parts look like.
    match (loaded, factories) {
        (loaded, Tree::Leaf(f)) => (f.merge)(f, loaded).map(ValueTree::Leaf),
        (Tree::Dict(mut d), Tree::Dict(factories)) => {
            for (step, f) in factories {
                match d.get_mut(step) {
                    Some(child) => at(child, step, f, path)?,
                    None => {
                        let what = format!("what the factory at key {step} built was not loaded");
                        return Err(structure(path, what));
                    }
                }
            }
            Ok(Tree::Dict(d))
        }
        (Tree::List(mut v), Tree::List(factories)) => {
            if v.len() != factories.len() {
                let what = format!(
                    "cannot merge two lists with different lengths ({} and {})",
                    v.len(),
                    factories.len()
                );
                return Err(structure(path, what));
            }
            for (i, (child, f)) in v.iter_mut().zip(factories).enumerate() {
                at(child, &Step::Index(i as u64), f, path)?;
            }
            Ok(Tree::List(v))
        }
        // Expanding a list leaves a dict with int keys, since only some elements may be factories.
        (Tree::List(mut v), Tree::Dict(factories)) => {
            let len = v.len();
            for (step, f) in factories {
                let Step::Index(i) = step else {
                    return Err(structure(
                        path,
                        format!("invalid key {step:?} of a factory in a list"),
                    ));
                };
                match usize::try_from(*i).ok().and_then(|i| v.get_mut(i)) {
                    Some(child) => at(child, step, f, path)?,
                    None => {
                        let what =
                            format!("the factory's index {i} is out of bounds of a list of {len}");
                        return Err(structure(path, what));
                    }
                }
            }
            Ok(Tree::List(v))
        }
        (Tree::Leaf(_), _) => Err(structure(
            path,
            "a value was loaded where the template has a dict or list with factories",
        )),
        (Tree::Dict(_), Tree::List(_)) => Err(structure(
            path,
            "a dict was loaded where the template has a list of factories",
        )),
    }
}
