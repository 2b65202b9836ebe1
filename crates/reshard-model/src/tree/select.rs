//! Taking leaves out of trees.

use super::{Step, Tree};
use crate::{ModelError, Result};
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
    /// [`ModelError::Structure`] when the tree is a leaf.
    pub fn extract_matching_values(
        self,
        lists_as_dicts: bool,
        matches: &mut impl FnMut(&L) -> bool,
    ) -> Result<(Self, Self)> {
        Ok(match self {
            Self::Leaf(_) => {
                return Err(ModelError::Structure {
                    path: String::new(),
                    what: "only a dict or a list can be split in two".into(),
                });
            }
            // A key goes to both halves if its subtree has leaves of both kinds.
            Self::Dict(d) => {
                let (mut yes, mut no) = (IndexMap::new(), IndexMap::new());
                for (k, v) in d {
                    let (a, b) = v.part(lists_as_dicts, matches)?;
                    a.and_then(|a| yes.insert(k.clone(), a));
                    b.and_then(|b| no.insert(k, b));
                }
                (Self::Dict(yes), Self::Dict(no))
            }
            // Int keys keep the positions of the elements, which a shortened list would lose.
            Self::List(v) if lists_as_dicts => {
                let d = v
                    .into_iter()
                    .enumerate()
                    .map(|(i, v)| (Step::Index(i as u64), v))
                    .collect();
                return Self::Dict(d).extract_matching_values(lists_as_dicts, matches);
            }
            Self::List(v) => {
                let (mut yes, mut no) = (Vec::new(), Vec::new());
                for v in v {
                    let (a, b) = v.part(lists_as_dicts, matches)?;
                    yes.extend(a);
                    no.extend(b);
                }
                (Self::List(yes), Self::List(no))
            }
        })
    }

    fn part(
        self,
        lists_as_dicts: bool,
        matches: &mut impl FnMut(&L) -> bool,
    ) -> Result<(Option<Self>, Option<Self>)> {
        if let Self::Leaf(l) = self {
            let leaf = Self::Leaf;
            return Ok(if matches(&l) {
                (Some(leaf(l)), None)
            } else {
                (None, Some(leaf(l)))
            });
        }
        let was_empty = self.is_empty_container();
        let (yes, no) = self.extract_matching_values(lists_as_dicts, matches)?;
        let keep = |t: Self| (!t.is_empty_container()).then_some(t);
        Ok((keep(yes), if was_empty { Some(no) } else { keep(no) }))
    }

    fn is_empty_container(&self) -> bool {
        match self {
            Self::Dict(d) => d.is_empty(),
            Self::List(v) => v.is_empty(),
            Self::Leaf(_) => false,
        }
    }
}
