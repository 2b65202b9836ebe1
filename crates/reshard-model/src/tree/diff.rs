//! How two trees differ.

use super::{Path, Step, Tree, ValueTree};

/// What [`diff`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Places that only the first tree has.
    pub only_left: Vec<Path>,
    /// Places that only the second tree has.
    pub only_right: Vec<Path>,
    /// Places where the two have different things, with Python's names of their types.
    pub mismatch: Vec<(Path, String, String)>,
}

impl Difference {
    /// Whether the trees are equal.
    pub fn is_empty(&self) -> bool {
        self.only_left.is_empty() && self.only_right.is_empty() && self.mismatch.is_empty()
    }
}

/// Compares two trees, as Megatron's function of the same name, in the order of the first tree. Surplus elements of a longer
/// list are named with their whole path.
///
/// ```
/// use reshard_model::{ValueTree, diff};
/// let (mut a, mut b) = (ValueTree::new(), ValueTree::new());
/// a.insert("lr", 0.1);
/// a.insert("step", 7);
/// b.insert("lr", "0.1");
/// let d = diff(&a, &b);
/// assert_eq!(d.only_left[0].to_string(), "step");
/// assert_eq!((&*d.mismatch[0].1, &*d.mismatch[0].2), ("float", "str"));
/// ```
pub fn diff(left: &ValueTree, right: &ValueTree) -> Difference {
    let mut out = Difference::default();
    go(left, right, &mut Vec::new(), &mut out);
    out
}

fn go(left: &ValueTree, right: &ValueTree, path: &mut Vec<Step>, out: &mut Difference) {
    let at = |path: &[Step], step: Step| Path(path.iter().cloned().chain([step]).collect());
    match (left, right) {
        (Tree::Dict(a), Tree::Dict(b)) => {
            for (k, a) in a {
                let Some(b) = b.get(k) else {
                    out.only_left.push(at(path, k.clone()));
                    continue;
                };
                path.push(k.clone());
                go(a, b, path, out);
                path.pop();
            }

            // The walk above follows the order of the left tree, so keys that only the right one has come last.
            out.only_right.extend(
                b.keys()
                    .filter(|k| !a.contains_key(*k))
                    .map(|k| at(path, k.clone())),
            );
        }
        (Tree::List(a), Tree::List(b)) => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                path.push(Step::Index(i as u64));
                go(a, b, path, out);
                path.pop();
            }

            // One of the two ranges is empty, so only the longer list reports its surplus.
            let more = |from: usize, to: usize| (from..to).map(|i| at(path, Step::Index(i as u64)));
            out.only_left.extend(more(b.len(), a.len()));
            out.only_right.extend(more(a.len(), b.len()));
        }
        (Tree::Leaf(a), Tree::Leaf(b)) if a == b => {}
        _ => out.mismatch.push((
            Path::from(path.as_slice()),
            type_name(left),
            type_name(right),
        )),
    }
}

fn type_name(tree: &ValueTree) -> String {
    match tree {
        Tree::Dict(_) => "dict".into(),
        Tree::List(_) => "list".into(),
        Tree::Leaf(v) => v.type_name(),
    }
}
