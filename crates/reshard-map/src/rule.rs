//! The rules of a map, and their inverses.

use crate::{Pattern, cast::keeps_all};
use reshard_model::DType;

/// What a rule does. `N` is [`Number`](crate::number::Number) in a file, and `u64` when the parameters are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verb<N> {
    Rename {
        from: Pattern,
        to: Pattern,
    },
    Drop {
        keys: Vec<Pattern>,
    },
    Keep {
        keys: Vec<Pattern>,
    },
    AddPrefix {
        prefix: String,
    },
    StripPrefix {
        prefix: String,
    },
    /// Strips the names of wrappers wherever they are.
    Canonical,
    Stack {
        from: Pattern,
        to: Pattern,
        layers: Layers<N>,
    },
    Unstack {
        from: Pattern,
        to: Pattern,
        layers: Layers<N>,
    },
    /// Equal parts if `sizes` is empty.
    Split {
        from: Pattern,
        to: Vec<Pattern>,
        axis: usize,
        sizes: Vec<N>,
    },
    Concat {
        from: Vec<Pattern>,
        to: Pattern,
        axis: usize,
        sizes: Vec<N>,
    },
    Interleave {
        keys: Vec<Pattern>,
        blocks: Blocks<N>,
    },
    Deinterleave {
        keys: Vec<Pattern>,
        blocks: Blocks<N>,
    },
    Transpose {
        keys: Vec<Pattern>,
        axes: Vec<usize>,
    },
    Pad {
        keys: Vec<Pattern>,
        axis: usize,
        from: Option<N>,
        to: N,
    },
    /// With `padding`, what is cut off is padding, and the inverse makes it anew.
    Trim {
        keys: Vec<Pattern>,
        axis: usize,
        from: Option<N>,
        to: N,
        padding: bool,
    },
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

/// The axis along which layers are stacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layers<N> {
    pub(crate) axis: usize,
    /// The capture that is the number of the layer.
    pub(crate) index: String,
    pub(crate) count: Option<N>,
}

/// Groups along an axis, and the sizes of the blocks of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocks<N> {
    pub(crate) axis: usize,
    pub(crate) groups: N,
    pub(crate) sizes: Vec<N>,
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
        match self {
            Self::Rename { .. } => "rename",
            Self::Drop { .. } => "drop",
            Self::Keep { .. } => "keep",
            Self::AddPrefix { .. } => "add_prefix",
            Self::StripPrefix { .. } => "strip_prefix",
            Self::Canonical => "canonical",
            Self::Stack { .. } => "stack",
            Self::Unstack { .. } => "unstack",
            Self::Split { .. } => "split",
            Self::Concat { .. } => "concat",
            Self::Interleave { .. } => "interleave",
            Self::Deinterleave { .. } => "deinterleave",
            Self::Transpose { .. } => "transpose",
            Self::Pad { .. } => "pad",
            Self::Trim { .. } => "trim",
            Self::Cast { .. } => "cast",
            Self::Reshape { .. } => "reshape",
        }
    }
}

impl<N> Verb<N> {
    /// The patterns of the keys that the rule takes. `None` if it takes all keys.
    fn takes(&self) -> Option<&[Pattern]> {
        match self {
            Self::Rename { from, .. }
            | Self::Stack { from, .. }
            | Self::Unstack { from, .. }
            | Self::Split { from, .. } => Some(std::slice::from_ref(from)),
            Self::AddPrefix { .. } | Self::StripPrefix { .. } | Self::Canonical => None,
            Self::Concat { from: keys, .. }
            | Self::Drop { keys }
            | Self::Keep { keys }
            | Self::Interleave { keys, .. }
            | Self::Deinterleave { keys, .. }
            | Self::Transpose { keys, .. }
            | Self::Pad { keys, .. }
            | Self::Trim { keys, .. }
            | Self::Cast { keys, .. }
            | Self::Reshape { keys, .. } => Some(keys),
        }
    }

    /// Whether it only chooses keys, and changes none.
    fn chooses(&self) -> bool {
        matches!(self, Self::Drop { .. } | Self::Keep { .. })
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
                    changed |= takes && !rule.verb.chooses();
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
                if let Some(lost) = from
                    .names()
                    .find(|n| to.names().filter(|t| t == n).count() != 1)
                {
                    return Err(format!(
                        "the new name must have `{{{lost}}}` once, or the old one can't be found"
                    ));
                }
                Self::Rename { from: to, to: from }
            }
            Self::Drop { .. } | Self::Keep { .. } => {
                return Err("what it drops can't be made again".into());
            }
            Self::Canonical => return Err("nothing says which wrappers there were".into()),
            Self::AddPrefix { prefix } => Self::StripPrefix { prefix },
            Self::StripPrefix { prefix } => Self::AddPrefix { prefix },
            Self::Stack { from, to, layers } => Self::Unstack {
                from: to,
                to: from,
                layers,
            },
            Self::Unstack { from, to, layers } => Self::Stack {
                from: to,
                to: from,
                layers,
            },
            Self::Split {
                from,
                to,
                axis,
                sizes,
            } => Self::Concat {
                from: to,
                to: from,
                axis,
                sizes,
            },
            Self::Concat {
                from,
                to,
                axis,
                sizes,
            } => Self::Split {
                from: to,
                to: from,
                axis,
                sizes,
            },
            Self::Interleave { keys, blocks } => Self::Deinterleave { keys, blocks },
            Self::Deinterleave { keys, blocks } => Self::Interleave { keys, blocks },
            one => return one.inverse_in_place(),
        })
    }

    /// The same for rules that change tensors under their own keys.
    fn inverse_in_place(self) -> Result<Self, String> {
        Ok(match self {
            Self::Transpose { keys, axes } => {
                let place = |a| axes.iter().position(|b| *b == a).unwrap_or(a);
                Self::Transpose {
                    keys,
                    axes: (0..axes.len()).map(place).collect(),
                }
            }
            Self::Pad {
                keys,
                axis,
                from: Some(from),
                to,
            } => Self::Trim {
                keys,
                axis,
                from: Some(to),
                to: from,
                padding: true,
            },
            Self::Trim {
                keys,
                axis,
                from: Some(from),
                to,
                padding: true,
            } => Self::Pad {
                keys,
                axis,
                from: Some(to),
                to: from,
            },
            Self::Trim { padding: false, .. } => {
                return Err(
                    "what it cuts off is lost; if it is padding, say `padding = true`".into(),
                );
            }
            Self::Pad { .. } | Self::Trim { .. } => {
                return Err("the size before is not known; say it in `from`".into());
            }
            Self::Cast {
                keys,
                from: Some(from),
                to,
                lossless,
            } if lossless || keeps_all(from, to) => Self::Cast {
                keys,
                from: Some(to),
                to: from,
                lossless: true,
            },
            Self::Cast { from: None, .. } => {
                return Err("the type before is not known; say it in `from`".into());
            }
            Self::Cast { .. } => {
                return Err(
                    "it loses range or precision; if no element does, say `lossless = true`".into(),
                );
            }
            Self::Reshape {
                keys,
                from: Some(from),
                to,
            } => Self::Reshape {
                keys,
                from: Some(to),
                to: from,
            },
            Self::Reshape { .. } => {
                return Err("the shape before is not known; say it in `from`".into());
            }
            other => return Err(format!("nothing is known of `{}`", other.name())),
        })
    }
}

impl<N> Verb<N> {
    /// The rule with each number replaced.
    pub(crate) fn bind<M, E>(self, f: &mut dyn FnMut(N) -> Result<M, E>) -> Result<Verb<M>, E> {
        let mut all = |ns: Vec<N>| ns.into_iter().map(&mut *f).collect::<Result<Vec<M>, E>>();
        Ok(match self {
            Self::Rename { from, to } => Verb::Rename { from, to },
            Self::Drop { keys } => Verb::Drop { keys },
            Self::Keep { keys } => Verb::Keep { keys },
            Self::AddPrefix { prefix } => Verb::AddPrefix { prefix },
            Self::StripPrefix { prefix } => Verb::StripPrefix { prefix },
            Self::Canonical => Verb::Canonical,
            Self::Stack { from, to, layers } => Verb::Stack {
                from,
                to,
                layers: layers.bind(f)?,
            },
            Self::Unstack { from, to, layers } => Verb::Unstack {
                from,
                to,
                layers: layers.bind(f)?,
            },
            Self::Split {
                from,
                to,
                axis,
                sizes,
            } => Verb::Split {
                from,
                to,
                axis,
                sizes: all(sizes)?,
            },
            Self::Concat {
                from,
                to,
                axis,
                sizes,
            } => Verb::Concat {
                from,
                to,
                axis,
                sizes: all(sizes)?,
            },
            Self::Interleave { keys, blocks } => Verb::Interleave {
                keys,
                blocks: blocks.bind(f)?,
            },
            Self::Deinterleave { keys, blocks } => Verb::Deinterleave {
                keys,
                blocks: blocks.bind(f)?,
            },
            Self::Transpose { keys, axes } => Verb::Transpose { keys, axes },
            Self::Pad {
                keys,
                axis,
                from,
                to,
            } => Verb::Pad {
                keys,
                axis,
                from: from.map(&mut *f).transpose()?,
                to: f(to)?,
            },
            Self::Trim {
                keys,
                axis,
                from,
                to,
                padding,
            } => Verb::Trim {
                keys,
                axis,
                from: from.map(&mut *f).transpose()?,
                to: f(to)?,
                padding,
            },
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
                from: from.map(&mut all).transpose()?,
                to: all(to)?,
            },
        })
    }
}

impl<N> Layers<N> {
    fn bind<M, E>(self, f: &mut dyn FnMut(N) -> Result<M, E>) -> Result<Layers<M>, E> {
        Ok(Layers {
            axis: self.axis,
            index: self.index,
            count: self.count.map(f).transpose()?,
        })
    }
}

impl<N> Blocks<N> {
    fn bind<M, E>(self, f: &mut dyn FnMut(N) -> Result<M, E>) -> Result<Blocks<M>, E> {
        Ok(Blocks {
            axis: self.axis,
            groups: f(self.groups)?,
            sizes: self.sizes.into_iter().map(f).collect::<Result<_, _>>()?,
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
