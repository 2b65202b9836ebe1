use crate::{Result, Value, error::structure};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::fmt;

mod diff;
mod named;
mod select;

pub use diff::{Difference, diff};

/// One step of a path into a [`Tree`]: a dict key, or a list index. An int key of a dict is an index too.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Step {
    /// A str key of a dict.
    Key(Box<str>),
    /// An index of a list, or an int key of a dict.
    Index(u64),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(k) => f.write_str(k),
            Self::Index(i) => write!(f, "{i}"),
        }
    }
}

impl From<&str> for Step {
    fn from(s: &str) -> Self {
        Self::Key(s.into())
    }
}

impl From<String> for Step {
    fn from(s: String) -> Self {
        Self::Key(s.into())
    }
}

impl From<u64> for Step {
    fn from(i: u64) -> Self {
        Self::Index(i)
    }
}

/// Where a leaf lies in a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Path(pub Vec<Step>);

/// Steps joined with dots: PyTorch's fully qualified name (FQN).
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, s) in self.0.iter().enumerate() {
            write!(f, "{}{s}", if i == 0 { "" } else { "." })?;
        }
        Ok(())
    }
}

impl Path {
    /// The steps as Python writes subscripts, `["a.b"][0]`. This is unambiguous; the dotted name is not.
    pub fn quoted(&self) -> String {
        let step = |s: &Step| match s {
            Step::Key(k) => format!("[{k:?}]"),
            Step::Index(i) => format!("[{i}]"),
        };
        self.0.iter().map(step).collect()
    }
}

impl From<&[Step]> for Path {
    fn from(s: &[Step]) -> Self {
        Self(s.to_vec())
    }
}

/// A tree of dicts and lists. The leaf type says how far a state dict has been processed. Dicts keep their order.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree<L> {
    /// A dict with str or int keys.
    Dict(IndexMap<Step, Tree<L>>),
    /// A list.
    List(Vec<Tree<L>>),
    /// A leaf.
    Leaf(L),
}

/// A tree of values. A load returns one, and common state is one.
pub type ValueTree = Tree<Value>;

impl<L> Default for Tree<L> {
    fn default() -> Self {
        Self::Dict(IndexMap::new())
    }
}

impl<L> Tree<L> {
    /// An empty dict.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a leaf under a key of this dict, and returns the old entry. If this is a list or leaf, it becomes a dict, and the
    /// list or leaf is returned.
    pub fn insert(&mut self, key: impl Into<Step>, leaf: impl Into<L>) -> Option<Self> {
        self.insert_tree(key, Self::Leaf(leaf.into()))
    }

    /// Puts a subtree under a key of this dict, as [`insert`](Self::insert) does with a leaf.
    pub fn insert_tree(&mut self, key: impl Into<Step>, tree: Self) -> Option<Self> {
        let displaced = match self {
            Self::Dict(_) => None,
            _ => Some(std::mem::take(self)),
        };
        let Self::Dict(d) = self else {
            return displaced;
        };
        d.insert(key.into(), tree).or(displaced)
    }

    /// Puts a subtree at a path, and makes missing dicts and lists on the way. If there is something else on the way, or if an
    /// index would leave a hole in a list, nothing changes.
    pub fn insert_at(&mut self, path: &[Step], tree: Self) {
        /// What is missing, with the tree at its end.
        fn grown<L>(path: &[Step], tree: Tree<L>) -> Option<Tree<L>> {
            Some(match path {
                [] => tree,
                [Step::Index(0), rest @ ..] => Tree::List(vec![grown(rest, tree)?]),
                [Step::Index(_), ..] => return None,
                [key, rest @ ..] => Tree::Dict([(key.clone(), grown(rest, tree)?)].into()),
            })
        }
        match (self, path) {
            (Self::Dict(d), [first, rest @ ..]) => match d.get_mut(first) {
                Some(next) => next.insert_at(rest, tree),
                None => drop(grown(rest, tree).and_then(|new| d.insert(first.clone(), new))),
            },
            (Self::List(v), [Step::Index(i), rest @ ..]) => {
                let (at, len) = (usize::try_from(*i).unwrap_or(usize::MAX), v.len());
                match v.get_mut(at) {
                    Some(next) => next.insert_at(rest, tree),
                    None if at == len => v.extend(grown(rest, tree)),
                    None => {}
                }
            }
            _ => {}
        }
    }

    /// The subtree under a str key.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.step(&Step::from(key))
    }

    fn step(&self, step: &Step) -> Option<&Self> {
        match (self, step) {
            (Self::Dict(d), _) => d.get(step),
            (Self::List(v), Step::Index(i)) => v.get(usize::try_from(*i).ok()?),
            _ => None,
        }
    }

    /// The subtree at a path.
    pub fn at(&self, path: &[Step]) -> Option<&Self> {
        path.iter().try_fold(self, Self::step)
    }

    /// The subtree at a path, to change it.
    pub fn at_mut(&mut self, path: &[Step]) -> Option<&mut Self> {
        path.iter().try_fold(self, |tree, step| match (tree, step) {
            (Self::Dict(d), _) => d.get_mut(step),
            (Self::List(v), Step::Index(i)) => v.get_mut(usize::try_from(*i).ok()?),
            _ => None,
        })
    }

    /// The leaf, if this is one.
    pub fn leaf(&self) -> Option<&L> {
        if let Self::Leaf(l) = self {
            Some(l)
        } else {
            None
        }
    }

    /// The leaf, if this is one.
    pub fn into_leaf(self) -> Option<L> {
        if let Self::Leaf(l) = self {
            Some(l)
        } else {
            None
        }
    }

    /// Removes the subtree under a str key from this dict, and returns it.
    pub fn remove(&mut self, key: &str) -> Option<Self> {
        if let Self::Dict(d) = self {
            d.shift_remove(&Step::from(key))
        } else {
            None
        }
    }

    /// Whether any leaf is as `f` says. It makes no paths, so it is quick.
    pub(crate) fn any(&self, f: &impl Fn(&L) -> bool) -> bool {
        match self {
            Self::Leaf(l) => f(l),
            Self::Dict(d) => d.values().any(|v| v.any(f)),
            Self::List(v) => v.iter().any(|v| v.any(f)),
        }
    }

    /// Calls `f` on each leaf with its path, in order.
    pub fn visit<'a>(&'a self, f: &mut impl FnMut(&[Step], &'a L)) {
        fn go<'a, L>(tree: &'a Tree<L>, path: &mut Vec<Step>, f: &mut impl FnMut(&[Step], &'a L)) {
            let mut child = |step: Step, tree, path: &mut Vec<Step>| {
                path.push(step);
                go(tree, path, f);
                path.pop();
            };
            match tree {
                Tree::Leaf(l) => f(path, l),
                Tree::Dict(d) => d.iter().for_each(|(k, v)| child(k.clone(), v, path)),
                Tree::List(v) => (0..)
                    .zip(v)
                    .for_each(|(i, v)| child(Step::Index(i), v, path)),
            }
        }
        go(self, &mut Vec::new(), f);
    }

    /// Calls `f` on each leaf with its path, in order. `f` may change the leaf.
    pub fn visit_mut(&mut self, f: &mut impl FnMut(&[Step], &mut L)) {
        fn go<L>(tree: &mut Tree<L>, path: &mut Vec<Step>, f: &mut impl FnMut(&[Step], &mut L)) {
            let mut child = |step: Step, tree, path: &mut Vec<Step>| {
                path.push(step);
                go(tree, path, f);
                path.pop();
            };
            match tree {
                Tree::Leaf(l) => f(path, l),
                Tree::Dict(d) => d.iter_mut().for_each(|(k, v)| child(k.clone(), v, path)),
                Tree::List(v) => (0..)
                    .zip(v)
                    .for_each(|(i, v)| child(Step::Index(i), v, path)),
            }
        }
        go(self, &mut Vec::new(), f);
    }

    /// The same tree with another leaf for each.
    pub fn map<M>(self, f: &mut impl FnMut(L) -> M) -> Tree<M> {
        self.flat_map(&mut |leaf| Tree::Leaf(f(leaf)))
    }

    /// The same tree with a subtree in place of each leaf.
    pub(crate) fn flat_map<M>(self, f: &mut impl FnMut(L) -> Tree<M>) -> Tree<M> {
        match self {
            Self::Leaf(l) => f(l),
            Self::Dict(d) => Tree::Dict(d.into_iter().map(|(k, v)| (k, v.flat_map(f))).collect()),
            Self::List(v) => Tree::List(v.into_iter().map(|v| v.flat_map(f)).collect()),
        }
    }

    /// Makes a new tree from this one, by value, so nothing is cloned and the leaf type may change. `f` returns a subtree for
    /// each leaf, or `None` to drop the leaf. A dict that loses all its entries is dropped too, but an empty dict stays. In a
    /// list the later elements move up.
    ///
    /// # Errors
    /// The first error of `f`.
    pub fn try_map<M, E>(
        self,
        f: &mut impl FnMut(&[Step], L) -> Result<Option<Tree<M>>, E>,
    ) -> Result<Option<Tree<M>>, E> {
        self.try_map_below(false, &mut Vec::new(), f)
    }

    /// As [`try_map`](Self::try_map) of a subtree at `path`. With `keep_dicts`, a dict that is an element of a list is never dropped,
    /// so its neighbours don't move.
    pub(crate) fn try_map_below<M, E>(
        self,
        keep_dicts: bool,
        path: &mut Vec<Step>,
        f: &mut impl FnMut(&[Step], L) -> Result<Option<Tree<M>>, E>,
    ) -> Result<Option<Tree<M>>, E> {
        Ok(match self {
            Self::Leaf(l) => f(path, l)?,
            Self::Dict(d) => {
                // Only a dict that loses its entries here disappears. One that was empty before stays.
                let was_empty = d.is_empty();
                let mut out = IndexMap::new();
                for (k, v) in d {
                    path.push(k);
                    let new = v.try_map_below(keep_dicts, path, f)?;
                    if let (Some(k), Some(new)) = (path.pop(), new) {
                        out.insert(k, new);
                    }
                }
                (was_empty || !out.is_empty()).then_some(Tree::Dict(out))
            }
            Self::List(v) => {
                let was_empty = v.is_empty();
                let mut out = Vec::new();
                for (i, v) in (0..).zip(v) {
                    path.push(Step::Index(i));
                    let keep = keep_dicts && matches!(v, Self::Dict(_));
                    let new = v.try_map_below(keep_dicts, path, f)?;
                    out.extend(new.or_else(|| keep.then(Tree::new)));
                    path.pop();
                }
                (was_empty || !out.is_empty()).then_some(Tree::List(out))
            }
        })
    }

    /// Puts the leaves of `other` into this tree, as Megatron's `merge`: dicts by key, lists of equal length by index.
    ///
    /// # Errors
    /// [`ModelError::Structure`](crate::ModelError::Structure) with the path when both have a leaf at one place, or lists differ in length.
    pub fn merge(&mut self, other: Self) -> Result<()> {
        fn go<L>(a: &mut Tree<L>, b: Tree<L>, path: &mut Vec<Step>) -> Result<()> {
            // Only containers of the same kind can be joined. A leaf on either side means that two values claim one
            // place.
            match (a, b) {
                (Tree::Dict(a), Tree::Dict(b)) => {
                    for (k, v) in b {
                        match a.get_mut(&k) {
                            None => drop(a.insert(k, v)),
                            Some(old) => {
                                path.push(k);
                                go(old, v, path)?;
                                path.pop();
                            }
                        }
                    }
                    Ok(())
                }
                (Tree::List(a), Tree::List(b)) if a.len() == b.len() => {
                    for (i, (a, b)) in a.iter_mut().zip(b).enumerate() {
                        path.push(Step::Index(i as u64));
                        go(a, b, path)?;
                        path.pop();
                    }
                    Ok(())
                }
                (Tree::List(a), Tree::List(b)) => {
                    let (a, b) = (a.len(), b.len());
                    let what =
                        format!("cannot merge two lists with different lengths ({a} and {b})");
                    Err(structure(path, what))
                }
                _ => Err(structure(path, "two values for one place")),
            }
        }
        go(self, other, &mut Vec::new())
    }
}

/// Dicts with str or non-negative int keys and lists become nodes; everything else is a leaf.
impl From<Value> for ValueTree {
    fn from(value: Value) -> Self {
        let step = |k: &Value| match k {
            Value::Str(s) => Some(Step::Key(s.clone())),
            Value::Int(i) => u64::try_from(*i).ok().map(Step::Index),
            _ => None,
        };
        match value {
            Value::List(v) => Self::List(v.into_iter().map(Self::from).collect()),
            Value::Dict(d) => {
                let keys: Option<Vec<Step>> = d.iter().map(|(k, _)| step(k)).collect();
                match keys {
                    None => Self::Leaf(Value::Dict(d)),
                    Some(keys) => Self::Dict(
                        keys.into_iter()
                            .zip(d.into_iter().map(|(_, v)| v.into()))
                            .collect(),
                    ),
                }
            }
            leaf => Self::Leaf(leaf),
        }
    }
}

impl From<ValueTree> for Value {
    fn from(tree: ValueTree) -> Self {
        match tree {
            ValueTree::Leaf(v) => v,
            ValueTree::List(v) => Self::List(v.into_iter().map(Self::from).collect()),
            ValueTree::Dict(d) => Self::Dict(
                d.into_iter()
                    .map(|(k, v)| {
                        let k = match k {
                            Step::Key(k) => Self::Str(k),
                            Step::Index(i) => i64::try_from(i)
                                .map_or_else(|_| Self::Str(i.to_string().into()), Self::Int),
                        };
                        (k, v.into())
                    })
                    .collect(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_insert_displaces_comes_back() {
        let mut t = ValueTree::new();
        assert_eq!(t.insert("a", 1), None);
        assert_eq!(t.insert("a", 2), Some(ValueTree::Leaf(Value::Int(1))));
        let mut leaf = ValueTree::Leaf(Value::Int(7));
        assert_eq!(leaf.insert("a", 1), Some(ValueTree::Leaf(Value::Int(7))));
        assert_eq!(
            leaf.get("a").and_then(ValueTree::leaf),
            Some(&Value::Int(1))
        );
    }

    #[test]
    fn values_become_trees_and_back() {
        let v = Value::Dict(vec![
            (
                "a".into(),
                Value::List(vec![Value::Int(1), Value::Dict(vec![])]),
            ),
            (
                Value::Int(0),
                Value::Dict(vec![(Value::Float(0.5), Value::None)]),
            ),
        ]);
        let t = ValueTree::from(v.clone());
        assert_eq!(
            t.at(&["a".into(), 0.into()]).and_then(ValueTree::leaf),
            Some(&Value::Int(1))
        );
        assert_eq!(Value::from(t), v);
    }

    fn sample() -> ValueTree {
        let list = Value::List(vec![
            Value::Int(2),
            Value::Dict(vec![("c".into(), Value::Int(3))]),
        ]);
        ValueTree::from(Value::Dict(vec![
            ("a".into(), Value::Int(1)),
            ("b".into(), list),
        ]))
    }

    #[test]
    fn leaves_are_visited_in_order_with_their_paths() {
        let mut seen = Vec::new();
        sample().visit(&mut |p, v| seen.push((Path::from(p).to_string(), v.as_int().unwrap())));
        assert_eq!(
            seen,
            [("a".into(), 1), ("b.0".into(), 2), ("b.1.c".into(), 3)]
        );
        let mut t = sample();
        t.visit_mut(&mut |p, v| *v = Value::Int(p.len() as i64));
        assert_eq!(t.into_nested_values(), [1, 2, 3].map(Value::Int));
        assert_eq!(
            sample().map(&mut |v| v.type_name()).nested_values(),
            ["int"; 3]
        );
    }

    #[test]
    fn a_walk_drops_what_it_empties_and_keeps_what_was_empty() {
        let mut t = sample();
        t.insert_tree("empty", ValueTree::new());
        let odd = |_: &[Step], v: Value| {
            Ok::<_, ()>((v.as_int() != Some(3)).then_some(ValueTree::Leaf(v)))
        };
        let t = t.try_map(&mut { odd }).unwrap().unwrap();
        assert_eq!(
            t.at(&["b".into()]),
            Some(&ValueTree::List(vec![ValueTree::Leaf(Value::Int(2))]))
        );
        assert_eq!(t.get("empty"), Some(&ValueTree::new()));
        let nothing = sample().try_map::<Value, ()>(&mut |_, _| Ok(None)).unwrap();
        assert_eq!(nothing, None);
        assert_eq!(
            sample().try_map::<Value, _>(&mut |p, _| Err(p.len())),
            Err(1)
        );
    }

    #[test]
    fn what_is_not_there_is_none() {
        let mut t = sample();
        assert_eq!(t.at(&["b".into(), 2.into()]), None);
        assert_eq!(t.at(&["a".into(), "x".into()]), None);
        assert_eq!(t.at(&["b".into(), u64::MAX.into()]), None);
        assert_eq!(t.remove("x"), None);
        assert_eq!(t.remove("a"), Some(ValueTree::Leaf(Value::Int(1))));
        assert_eq!(t.leaf(), None);
    }

    #[test]
    fn paths_are_shown_as_names_and_as_subscripts() {
        let p = Path(vec!["a.b".into(), 0.into(), "c".into()]);
        assert_eq!(
            (p.to_string(), p.quoted()),
            ("a.b.0.c".into(), r#"["a.b"][0]["c"]"#.into())
        );
        let json = serde_json::to_string(&p).unwrap();
        assert_eq!(serde_json::from_str::<Path>(&json).unwrap(), p);
    }

    #[test]
    fn what_is_missing_on_the_way_is_made_and_nothing_else_changes() {
        let at = |steps: &[Step]| Path::from(steps);
        let mut t = sample();
        t.insert_at(
            &at(&["new".into(), "x".into(), 0.into(), "y".into()]).0,
            ValueTree::new(),
        );
        t.insert_at(
            &at(&["new".into(), "x".into(), 1.into()]).0,
            ValueTree::new(),
        );
        let list = ValueTree::List(vec![
            ValueTree::from(Value::Dict(vec![("y".into(), Value::Dict(vec![]))])),
            ValueTree::new(),
        ]);
        assert_eq!(t.at(&["new".into(), "x".into()]), Some(&list));
        let before = t.clone();
        for steps in [
            &["a".into(), "b".into()][..],
            &["a".into()],
            &["b".into(), 9.into()],
            &["hole".into(), 1.into()],
        ] {
            t.insert_at(steps, ValueTree::new());
        }
        assert_eq!(t, before);
    }

    #[test]
    fn parting_needs_a_container() {
        let e = ValueTree::Leaf(Value::None)
            .extract_matching_values(false, &mut |_| true)
            .unwrap_err();
        assert_eq!(
            e.to_string(),
            "at : only a dict or a list can be split in two"
        );
    }

    #[test]
    fn lists_of_other_lengths_differ_where_one_has_more() {
        let list = |n: i64| {
            ValueTree::from(Value::Dict(vec![(
                "a".into(),
                Value::List((0..n).map(Value::Int).collect()),
            )]))
        };
        let d = diff(&list(1), &list(3));
        let names: Vec<String> = d.only_right.iter().map(ToString::to_string).collect();
        assert_eq!(
            (names, d.only_left.len()),
            (vec!["a.1".to_owned(), "a.2".into()], 0)
        );
        assert_eq!(diff(&list(3), &list(1)).only_left.len(), 2);
        assert!(diff(&list(2), &list(2)).is_empty());
    }
}
