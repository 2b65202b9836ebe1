use super::structure;
use crate::{Path, Result, Step, Tree, Value, ValueTree};
use indexmap::map::Entry;

/// Steps of a path: more would come from a damaged file, and would not fit the stack.
const DEPTH: usize = 400;
/// `None`s that fill the holes of lists, in all.
const PADDING: usize = 1 << 20;

/// Builds nested values from the paths that a checkpoint stores ([`PathOfKey`](super::PathOfKey)), without a template.
///
/// A [`Step::Key`] makes a dict, a [`Step::Index`] a list, and holes in lists are filled with [`Value::None`], all as PyTorch does.
/// Values that are lists or dicts themselves become nodes of the tree. An empty dict where a dict is already changes nothing.
///
/// # Errors
/// [`ModelError::Structure`](crate::ModelError::Structure) when a path is empty or deeper than 400 steps, when two paths
/// contradict each other, or when an index leaves a hole that no honest list has.
///
/// ```
/// use reshard_model::{Path, ValueTree, Step, Value, unflatten};
/// # fn main() -> Result<(), reshard_model::ModelError> {
/// let path = |steps: &[Step]| Path::from(steps);
/// let tree = unflatten([(path(&["a".into(), 1.into()]), Value::from(5)), (path(&["b.c".into()]), Value::from(6))])?;
/// assert_eq!(tree.at(&["a".into(), 0.into()]).and_then(ValueTree::leaf), Some(&Value::None));
/// assert_eq!(tree.get("b.c").and_then(ValueTree::leaf), Some(&Value::Int(6)));
/// # Ok(())
/// # }
/// ```
pub fn unflatten(entries: impl IntoIterator<Item = (Path, Value)>) -> Result<ValueTree> {
    let mut root = ValueTree::new();
    let mut padding = PADDING;
    for (path, value) in entries {
        if path.0.is_empty() || path.0.len() > DEPTH {
            let what = format!(
                "a stored path has {} steps; 1 to {DEPTH} are possible",
                path.0.len()
            );
            return Err(structure(&path.0[..path.0.len().min(8)], what));
        }
        let place = path
            .0
            .iter()
            .enumerate()
            .try_fold(&mut root, |tree, (i, step)| {
                let next = match path.0.get(i + 1) {
                    Some(Step::Index(_)) => ValueTree::List(Vec::new()),
                    Some(Step::Key(_)) => ValueTree::new(),
                    // Marks a place that is not taken yet.
                    None => HOLE,
                };
                enter(tree, step, next, &mut padding).map_err(|what| structure(&path.0[..=i], what))
            })?;
        if matches!((&*place, &value), (Tree::Dict(_), Value::Dict(d)) if d.is_empty()) {
            continue;
        }
        if *place != HOLE {
            return Err(structure(&path.0, "two stored values for one place"));
        }
        *place = ValueTree::Leaf(value);
    }
    // Values may be lists or dicts themselves.
    Ok(root.flat_map(&mut ValueTree::from))
}

/// A list, dict or value is never this: values come in by the caller, whose `None` is a leaf put in after the check.
const HOLE: ValueTree = ValueTree::Leaf(Value::None);

/// The child at `step`, made from `new` where there is none.
fn enter<'a>(
    tree: &'a mut ValueTree,
    step: &Step,
    new: ValueTree,
    padding: &mut usize,
) -> Result<&'a mut ValueTree, String> {
    let child = match (tree, step) {
        (Tree::Dict(d), Step::Key(_)) => match d.entry(step.clone()) {
            Entry::Occupied(e) => e.into_mut(),
            Entry::Vacant(e) => e.insert(HOLE),
        },
        (Tree::List(v), Step::Index(i)) => {
            let hole = |i: u64| format!("index {i} of a list of which almost nothing is stored");
            let i = usize::try_from(*i).map_err(|_| hole(*i))?;
            if i >= v.len() {
                *padding = padding
                    .checked_sub(i - v.len())
                    .ok_or_else(|| hole(i as u64))?;
                v.resize(i + 1, HOLE);
            }
            &mut v[i]
        }
        _ => {
            return Err(
                "by the stored paths, this is more than one of a list, a dict and a value".into(),
            );
        }
    };
    if *child == HOLE {
        *child = new;
    }
    Ok(child)
}
