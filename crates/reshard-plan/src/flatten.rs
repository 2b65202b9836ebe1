//! DCP's flat state dicts, and the nested ones that they came from.

use crate::{PlanError, Result};
use indexmap::{IndexMap, map::Entry};
use reshard_model::{Leaf, ModelError, Path, StateDict, Step, Tree, Value};

/// A state dict as DCP sees it.
#[derive(Clone, Debug, Default)]
pub struct Flattened {
    /// Every leaf with its path. The text of a path is DCP's key (FQN), and no two have the same.
    pub leaves: IndexMap<Path, Leaf>,
    /// Empty dicts, of which DCP keeps nothing.
    pub empty: Vec<Path>,
}

/// Flattens by the rules of PyTorch 2.4 and later: dicts are always descended, and their int keys become strs; a list is
/// descended when it holds, maybe in lists in it, a sharded leaf, a tensor or a dict, else it is one leaf.
///
/// # Errors
/// [`ModelError::Structure`] naming both paths when two leaves would have one key.
///
/// ```
/// use reshard_model::{StateDict, Value};
/// use reshard_plan::{flatten, unflatten};
///
/// # fn main() -> Result<(), reshard_plan::PlanError> {
/// let mut inner = StateDict::new();
/// inner.insert("step", 7);
/// let mut state = StateDict::new();
/// state.insert_tree("optimizer", inner);
///
/// let flat = flatten(state)?;
/// let keys: Vec<String> = flat.leaves.keys().map(ToString::to_string).collect();
/// assert_eq!(keys, ["optimizer.step"]);
///
/// let nested = unflatten(flat.leaves, || Value::None.into())?;
/// assert!(nested.get("optimizer").unwrap().get("step").is_some());
/// # Ok(())
/// # }
/// ```
pub fn flatten(state: StateDict) -> Result<Flattened> {
    let mut walk = Walk::default();
    walk.descend(state, &mut Vec::new())?;
    Ok(walk.out)
}

#[derive(Default)]
struct Walk {
    out: Flattened,
    /// The path of each key, with ints where they were.
    keys: IndexMap<String, Vec<Step>>,
    /// The path so far, with ints where they are.
    at: Vec<Step>,
}

impl Walk {
    fn descend(&mut self, tree: StateDict, path: &mut Vec<Step>) -> Result<()> {
        match tree {
            Tree::Leaf(leaf) => self.leaf(leaf, path),
            Tree::Dict(d) if d.is_empty() => {
                // An empty state dict is not an empty dict in one.
                if !path.is_empty() {
                    self.out.empty.push(Path(path.iter().map(str_step).collect()));
                }
                Ok(())
            }
            Tree::Dict(d) => d.into_iter().try_for_each(|(step, inner)| {
                path.push(str_step(&step));
                self.at.push(step);
                let done = self.descend(inner, path);
                self.at.pop();
                path.pop();
                done
            }),
            Tree::List(v) if v.iter().any(is_node) => v.into_iter().enumerate().try_for_each(|(i, inner)| {
                path.push(Step::Index(i as u64));
                self.at.push(Step::Index(i as u64));
                let done = self.descend(inner, path);
                self.at.pop();
                path.pop();
                done
            }),
            list => {
                let value = value(list);
                self.leaf(Leaf::Value(value), path)
            }
        }
    }

    fn leaf(&mut self, leaf: Leaf, path: &[Step]) -> Result<()> {
        let path = Path::from(path);
        match self.keys.entry(path.to_string()) {
            Entry::Occupied(o) => {
                let what = format!("two leaves have this key: {:?} and {:?}; rename one", o.get(), self.at);
                Err(ModelError::Structure { path: o.key().clone(), what }.into())
            }
            Entry::Vacant(v) => {
                v.insert(self.at.clone());
                self.out.leaves.insert(path, leaf);
                Ok(())
            }
        }
    }
}

/// Keys of dicts are strs in DCP's paths.
fn str_step(step: &Step) -> Step {
    Step::Key(step.to_string().into())
}

/// Whether a list that holds it is descended.
fn is_node(tree: &StateDict) -> bool {
    match tree {
        Tree::Dict(_) => true,
        Tree::List(v) => v.iter().any(is_node),
        Tree::Leaf(Leaf::Value(v)) => matches!(v, Value::Tensor(_) | Value::Device(_) | Value::Dict(_)),
        Tree::Leaf(_) => true,
    }
}

/// A list of plain values as one value.
fn value(tree: StateDict) -> Value {
    match tree {
        Tree::Leaf(Leaf::Value(v)) => v,
        Tree::List(v) => Value::List(v.into_iter().map(value).collect()),
        // Not in a list without nodes.
        Tree::Leaf(_) | Tree::Dict(_) => Value::None,
    }
}

/// How deep paths may go: a path of a hostile file must not overflow the stack.
const DEPTH: usize = 128;
/// How many elements of lists may be made up.
const PADDING: u64 = 1 << 20;

/// Puts leaves where their paths say: a str step is a key of a dict, an int step an index of a list. What no path names of a
/// list becomes `pad()`.
///
/// # Errors
/// [`PlanError::Corrupt`] when one place would be two things, a path has more than 128 steps, or lists would be padded with
/// more than a million elements.
pub fn unflatten<L>(leaves: impl IntoIterator<Item = (Path, L)>, pad: impl Fn() -> L) -> Result<Tree<L>> {
    let mut root = Slot::Empty;
    let mut padding = 0;
    for (path, leaf) in leaves {
        if path.0.len() > DEPTH {
            return Err(PlanError::corrupt(&path.to_string(), "a path of more than 128 steps"));
        }
        let mut at = &mut root;
        for step in &path.0 {
            at = at.step(step, &mut padding).map_err(|what| PlanError::corrupt(&path.to_string(), what))?;
        }
        if !matches!(at, Slot::Empty) {
            return Err(PlanError::corrupt(&path.to_string(), "two leaves have this path"));
        }
        *at = Slot::Leaf(leaf);
    }
    Ok(match root {
        Slot::Empty => Tree::new(),
        root => root.tree(&pad),
    })
}

/// A tree under construction.
enum Slot<L> {
    Empty,
    Leaf(L),
    Dict(IndexMap<Step, Slot<L>>),
    List(Vec<Slot<L>>),
}

impl<L> Slot<L> {
    /// The slot below, made when it is not there.
    fn step(&mut self, step: &Step, padding: &mut u64) -> Result<&mut Self, &'static str> {
        if let Self::Empty = self {
            *self = match step {
                Step::Key(_) => Self::Dict(IndexMap::new()),
                Step::Index(_) => Self::List(Vec::new()),
            };
        }
        match (self, step) {
            (Self::Dict(d), step) => Ok(d.entry(step.clone()).or_insert(Self::Empty)),
            (Self::List(v), Step::Index(i)) => {
                let missing = i.saturating_sub(v.len() as u64);
                *padding = padding.saturating_add(missing);
                if *padding > PADDING {
                    return Err("a list with too large an index");
                }
                let i = *i as usize;
                if i >= v.len() {
                    v.resize_with(i + 1, || Self::Empty);
                }
                Ok(&mut v[i])
            }
            _ => Err("its path crosses another's"),
        }
    }

    fn tree(self, pad: &impl Fn() -> L) -> Tree<L> {
        match self {
            Self::Empty => Tree::Leaf(pad()),
            Self::Leaf(l) => Tree::Leaf(l),
            Self::Dict(d) => Tree::Dict(d.into_iter().map(|(k, v)| (k, v.tree(pad))).collect()),
            Self::List(v) => Tree::List(v.into_iter().map(|v| v.tree(pad)).collect()),
        }
    }
}
