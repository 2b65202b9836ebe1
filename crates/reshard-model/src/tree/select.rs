//! Taking leaves out of trees.

use super::{Step, Tree};
use crate::{Result, error::structure};
use indexmap::IndexMap;

impl<L> Tree<L> {
    /// The leaves, in order.
    pub fn nested_values(&self) -> Vec<&L> {
        let mut out = Vec::new();
        self.visit(&mut |_, l| out.push(l));
        out
    }

    /// The leaves, in order.
    pub fn into_nested_values(self) -> Vec<L> {
        let mut out = Vec::new();
        let _ = self.map(&mut |l| out.push(l));
        out
    }

    /// Separates the leaves for which `matches` is true from the others, as Megatron's function of the same name. Returns
    /// (matching, others).
    ///
    /// It keeps the structure, but in lists the later elements move up, so indices change. With `lists_as_dicts` lists become
    /// dicts with int keys, which keep their positions. A container that loses all its leaves is dropped. A container that had
    /// none goes to the others.
    ///
    /// # Errors
    /// [`ModelError::Structure`](crate::ModelError::Structure) when the tree is a leaf.
    pub fn extract_matching_values(
        self,
        lists_as_dicts: bool,
        matches: &mut impl FnMut(&L) -> bool,
    ) -> Result<(Self, Self)> {
        if let Self::Leaf(_) = self {
            return Err(structure(&[], "only a dict or a list can be split in two"));
        }
        let is_list = matches!(self, Self::List(_)) && !lists_as_dicts;
        let (yes, no) = self.part(lists_as_dicts, matches);
        let empty = || match is_list {
            true => Self::List(Vec::new()),
            false => Self::new(),
        };
        Ok((yes.unwrap_or_else(empty), no.unwrap_or_else(empty)))
    }

    /// The two halves. Each is there if it has a leaf, and the second one also if the whole has none.
    fn part(
        self,
        lists_as_dicts: bool,
        matches: &mut impl FnMut(&L) -> bool,
    ) -> (Option<Self>, Option<Self>) {
        match self {
            Self::Leaf(l) if matches(&l) => (Some(Self::Leaf(l)), None),
            Self::Leaf(l) => (None, Some(Self::Leaf(l))),
            // A key goes to both halves if its subtree has leaves of both kinds.
            Self::Dict(d) => {
                let was_empty = d.is_empty();
                let (mut yes, mut no) = (IndexMap::new(), IndexMap::new());
                for (k, v) in d {
                    let (a, b) = v.part(lists_as_dicts, matches);
                    a.and_then(|a| yes.insert(k.clone(), a));
                    b.and_then(|b| no.insert(k, b));
                }
                (
                    (!yes.is_empty()).then_some(Self::Dict(yes)),
                    (was_empty || !no.is_empty()).then_some(Self::Dict(no)),
                )
            }
            // Int keys keep the positions of the elements, which a shortened list would lose.
            Self::List(v) if lists_as_dicts => {
                let d = (0..).zip(v).map(|(i, v)| (Step::Index(i), v));
                Self::Dict(d.collect()).part(lists_as_dicts, matches)
            }
            Self::List(v) => {
                let was_empty = v.is_empty();
                let (mut yes, mut no) = (Vec::new(), Vec::new());
                for v in v {
                    let (a, b) = v.part(lists_as_dicts, matches);
                    yes.extend(a);
                    no.extend(b);
                }
                (
                    (!yes.is_empty()).then_some(Self::List(yes)),
                    (was_empty || !no.is_empty()).then_some(Self::List(no)),
                )
            }
        }
    }
}
