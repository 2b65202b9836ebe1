//! The rules of a map, and their inverses.

use crate::Pattern;
use reshard_model::{Cast, DType};

/// What a rule does. `N` is [`Number`](crate::number::Number) in a file, and `u64` when the parameters are known.
#[derive(Clone, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Verb<N> {
    Rename {
        from: Pattern,
        to: Pattern,
    },
    Drop(Vec<Pattern>),
    Keep(Vec<Pattern>),
    AddPrefix(String),
    StripPrefix(String),
    /// Strips the names of wrappers wherever they are.
    Canonical,
    Stack(Layers<N>),
    Unstack(Layers<N>),
    Split(Parts<N>),
    Concat(Parts<N>),
    // The rest changes the tensors of some keys in place.
    Interleave(Vec<Pattern>, Blocks<N>),
    Deinterleave(Vec<Pattern>, Blocks<N>),
    Transpose(Vec<Pattern>, Vec<usize>),
    Pad(Vec<Pattern>, Resize<N>),
    Trim(Vec<Pattern>, Resize<N>),
    /// With `lossless`, the elements are known to have values of type `to`.
    Cast {
        keys: Vec<Pattern>,
        from: Option<DType>,
        to: DType,
        lossless: bool,
    },
    Reshape {
        keys: Vec<Pattern>,
        from: Option<Vec<N>>,
        to: Vec<N>,
    },
}

/// Tensors of single layers, and the tensor in which they are stacked along an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layers<N> {
    pub(crate) single: Pattern,
    pub(crate) stacked: Pattern,
    pub(crate) axis: usize,
    /// The capture that is the number of the layer.
    pub(crate) index: String,
    pub(crate) count: Option<N>,
}

/// Tensors that follow each other along an axis, and the tensor that has them all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parts<N> {
    pub(crate) parts: Vec<Pattern>,
    pub(crate) whole: Pattern,
    pub(crate) axis: usize,
    /// Equal parts if there are none.
    pub(crate) sizes: Vec<N>,
}

/// Groups along an axis, and the sizes of the blocks of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocks<N> {
    pub(crate) axis: usize,
    pub(crate) groups: N,
    pub(crate) sizes: Vec<N>,
}

/// The new extent of an axis, and the old one if it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resize<N> {
    pub(crate) axis: usize,
    pub(crate) from: Option<N>,
    pub(crate) to: N,
    /// Whether what is cut off is padding, so that the inverse makes it anew.
    pub(crate) padding: bool,
}

/// A rule with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule<N> {
    /// Its number in the file; the first rule is 1.
    pub(crate) number: usize,
    pub(crate) verb: Verb<N>,
    /// Whether it may match nothing.
    pub(crate) optional: bool,
    /// Whether it only makes the layout uniform: a tensor that no other rule matches is unmapped.
    pub(crate) prepares: bool,
    /// Whether only the map or only its inverse has this rule, as it stands. `None`: the inverse has its inverse.
    pub(crate) direction: Option<Direction>,
    /// The rule is left out if this is 0.
    pub(crate) when: Option<N>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Inverse,
}

impl<N> Verb<N> {
    /// Its name in a file.
    pub(crate) fn name(&self) -> &'static str {
        self.into()
    }

    /// The patterns of the keys that the rule takes. `None` if it takes all keys.
    fn takes(&self) -> Option<&[Pattern]> {
        match self {
            Self::Rename { from: key, .. }
            | Self::Stack(Layers { single: key, .. })
            | Self::Unstack(Layers { stacked: key, .. })
            | Self::Split(Parts { whole: key, .. }) => Some(std::slice::from_ref(key)),
            Self::AddPrefix(_) | Self::StripPrefix(_) | Self::Canonical => None,
            Self::Concat(Parts { parts: keys, .. })
            | Self::Drop(keys)
            | Self::Keep(keys)
            | Self::Interleave(keys, _)
            | Self::Deinterleave(keys, _)
            | Self::Transpose(keys, _)
            | Self::Pad(keys, _)
            | Self::Trim(keys, _)
            | Self::Cast { keys, .. }
            | Self::Reshape { keys, .. } => Some(keys),
        }
    }
}

/// The number of keys of a checkpoint that rules match, and that the rules of the inverse match. Keys that a rule only drops or keeps
/// count for neither side, but `any` says whether a rule matches anything at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sides {
    pub(crate) these: usize,
    pub(crate) inverse: usize,
    pub(crate) any: bool,
}

impl Sides {
    /// The most steps of patterns. A map that needs more is not judged.
    const STEPS: u64 = 1 << 26;

    /// Matches rules against keys as they are before all rules. It needs no parameters.
    pub(crate) fn of<'k, N: Clone>(
        rules: &[Rule<N>],
        keys: impl Iterator<Item = &'k str> + Clone,
    ) -> Self {
        let inverse: Vec<Rule<N>> = rules.iter().filter_map(|r| r.inverse().ok()).collect();
        let mut left = Self::STEPS;
        let mut out = Self::default();
        for key in keys {
            for (side, rules) in [(true, rules), (false, &inverse)] {
                let [mut chosen, mut changed] = [false; 2];
                let rules = rules.iter();
                for rule in rules.filter(|rule| rule.direction != Some(Direction::Inverse)) {
                    let patterns = rule.verb.takes();
                    let steps = |p: &Pattern| p.steps(key);
                    let steps: u64 = patterns.map_or(1, |all| all.iter().map(steps).sum());
                    left = left.saturating_sub(steps);
                    let takes = patterns.is_none_or(|all| all.iter().any(|p| p.matches(key)));
                    chosen |= takes;
                    changed |= takes && !matches!(rule.verb, Verb::Drop(_) | Verb::Keep(_));
                }
                match side {
                    true => out.these += usize::from(changed),
                    false => out.inverse += usize::from(changed),
                }
                out.any |= side && chosen;
            }
            if left == 0 {
                return Self {
                    any: true,
                    ..Self::default()
                };
            }
        }
        out
    }
}

impl<N: Clone> Verb<N> {
    /// The rule that undoes it, or the reason why there is none.
    pub(crate) fn inverse(&self) -> Result<Self, String> {
        Ok(match self.clone() {
            Self::Rename { from, to } => {
                let lost = |name: &&str| to.names().filter(|to| to == name).count() != 1;
                if let Some(lost) = from.names().find(lost) {
                    return Err(format!(
                        "the new name must have `{{{lost}}}` once, or the old one can't be found"
                    ));
                }
                Self::Rename { from: to, to: from }
            }
            Self::Drop(_) | Self::Keep(_) => {
                return Err("what it drops can't be made again".into());
            }
            Self::Canonical => return Err("nothing says which wrappers there were".into()),
            Self::AddPrefix(prefix) => Self::StripPrefix(prefix),
            Self::StripPrefix(prefix) => Self::AddPrefix(prefix),
            Self::Stack(layers) => Self::Unstack(layers),
            Self::Unstack(layers) => Self::Stack(layers),
            Self::Split(parts) => Self::Concat(parts),
            Self::Concat(parts) => Self::Split(parts),
            Self::Interleave(keys, blocks) => Self::Deinterleave(keys, blocks),
            Self::Deinterleave(keys, blocks) => Self::Interleave(keys, blocks),
            Self::Transpose(keys, axes) => {
                let place = |a| axes.iter().position(|b| *b == a).unwrap_or(a);
                Self::Transpose(keys, (0..axes.len()).map(place).collect())
            }
            Self::Pad(keys, resize) => Self::Trim(keys, resize.inverse()?),
            Self::Trim(_, Resize { padding: false, .. }) => {
                return Err(
                    "what it cuts off is lost; if it is padding, say `padding = true`".into(),
                );
            }
            Self::Trim(keys, resize) => Self::Pad(keys, resize.inverse()?),
            Self::Cast { from: None, .. } => {
                return Err("the type before is not known; say it in `from`".into());
            }
            Self::Cast {
                keys,
                from: Some(from),
                to,
                lossless,
            } if lossless || Cast::Lossless.allows(from, to) => Self::Cast {
                keys,
                from: Some(to),
                to: from,
                lossless: true,
            },
            Self::Cast { .. } => {
                return Err(
                    "it loses range or precision; if no element does, say `lossless = true`".into(),
                );
            }
            Self::Reshape { keys, from, to } => Self::Reshape {
                keys,
                from: Some(to),
                to: from.ok_or("the shape before is not known; say it in `from`")?,
            },
        })
    }
}

impl<N> Resize<N> {
    fn inverse(self) -> Result<Self, &'static str> {
        Ok(Self {
            axis: self.axis,
            from: Some(self.to),
            to: self
                .from
                .ok_or("the size before is not known; say it in `from`")?,
            padding: true,
        })
    }
}

impl<N> Verb<N> {
    /// The rule with each number replaced.
    pub(crate) fn bind<M, E>(self, f: &mut dyn FnMut(N) -> Result<M, E>) -> Result<Verb<M>, E> {
        Ok(match self {
            Self::Rename { from, to } => Verb::Rename { from, to },
            Self::Drop(keys) => Verb::Drop(keys),
            Self::Keep(keys) => Verb::Keep(keys),
            Self::AddPrefix(prefix) => Verb::AddPrefix(prefix),
            Self::StripPrefix(prefix) => Verb::StripPrefix(prefix),
            Self::Canonical => Verb::Canonical,
            Self::Stack(layers) => Verb::Stack(layers.bind(f)?),
            Self::Unstack(layers) => Verb::Unstack(layers.bind(f)?),
            Self::Split(parts) => Verb::Split(parts.bind(f)?),
            Self::Concat(parts) => Verb::Concat(parts.bind(f)?),
            Self::Interleave(keys, blocks) => Verb::Interleave(keys, blocks.bind(f)?),
            Self::Deinterleave(keys, blocks) => Verb::Deinterleave(keys, blocks.bind(f)?),
            Self::Transpose(keys, axes) => Verb::Transpose(keys, axes),
            Self::Pad(keys, resize) => Verb::Pad(keys, resize.bind(f)?),
            Self::Trim(keys, resize) => Verb::Trim(keys, resize.bind(f)?),
            Self::Cast {
                keys,
                from,
                to,
                lossless,
            } => Verb::Cast {
                keys,
                from,
                to,
                lossless,
            },
            Self::Reshape { keys, from, to } => Verb::Reshape {
                keys,
                from: from.map(|from| bind_all(from, f)).transpose()?,
                to: bind_all(to, f)?,
            },
        })
    }
}

fn bind_all<N, M, E>(all: Vec<N>, f: &mut dyn FnMut(N) -> Result<M, E>) -> Result<Vec<M>, E> {
    all.into_iter().map(f).collect()
}

impl<N> Layers<N> {
    fn bind<M, E>(self, f: &mut dyn FnMut(N) -> Result<M, E>) -> Result<Layers<M>, E> {
        Ok(Layers {
            single: self.single,
            stacked: self.stacked,
            axis: self.axis,
            index: self.index,
            count: self.count.map(f).transpose()?,
        })
    }
}

impl<N> Parts<N> {
    fn bind<M, E>(self, f: &mut dyn FnMut(N) -> Result<M, E>) -> Result<Parts<M>, E> {
        Ok(Parts {
            parts: self.parts,
            whole: self.whole,
            axis: self.axis,
            sizes: bind_all(self.sizes, f)?,
        })
    }
}

impl<N> Blocks<N> {
    fn bind<M, E>(self, f: &mut dyn FnMut(N) -> Result<M, E>) -> Result<Blocks<M>, E> {
        Ok(Blocks {
            axis: self.axis,
            groups: f(self.groups)?,
            sizes: bind_all(self.sizes, f)?,
        })
    }
}

impl<N> Resize<N> {
    fn bind<M, E>(self, f: &mut dyn FnMut(N) -> Result<M, E>) -> Result<Resize<M>, E> {
        Ok(Resize {
            axis: self.axis,
            from: self.from.map(&mut *f).transpose()?,
            to: f(self.to)?,
            padding: self.padding,
        })
    }
}

impl<N: Clone> Rule<N> {
    /// The rule of the inverse map that stands for this one.
    pub(crate) fn inverse(&self) -> Result<Self, String> {
        let (verb, direction) = match self.direction {
            None => (self.verb.inverse()?, None),
            Some(Direction::Forward) => (self.verb.clone(), Some(Direction::Inverse)),
            Some(Direction::Inverse) => (self.verb.clone(), Some(Direction::Forward)),
        };
        Ok(Self {
            verb,
            direction,
            ..self.clone()
        })
    }
}
