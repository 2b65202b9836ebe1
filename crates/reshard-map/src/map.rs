//! A map whose parameters are known.

use crate::{
    Additions, Dropped, Limits, MapError, MappedTensor, Mapping, Result, Source,
    additions::Sections,
    apply::{Entry, Known, Origin, State},
    error::Fault,
    rule::{Direction, Rule, Sides},
};
use std::collections::{BTreeMap, BTreeSet};

/// What happens to tensors of a checkpoint that no rule of a map matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unmapped {
    /// They keep their keys. The default of a map that says nothing else.
    #[default]
    Keep,
    /// They are left out.
    Drop,
    /// They are an error, as in the maps that come with this crate.
    Refuse,
}

/// Rules in order, whose parameters are known. Made by [`MapFile::bind`](crate::MapFile::bind).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    pub(crate) rules: Vec<Rule<u64>>,
    pub(crate) unmapped: Unmapped,
    pub(crate) sections: Sections<u64>,
    /// Whether it adds what the sections describe.
    pub(crate) is_inverse: bool,
    /// A parameter without which there is no inverse, and its description.
    pub(crate) inverse_needs: Option<(String, String)>,
}

impl Map {
    /// The map that undoes this one: the inverse of each rule, in the opposite order.
    ///
    /// # Errors
    /// [`MapError::NoInverse`] names the last rule that has none, and says why; [`MapError::Parameter`] names a parameter whose default is
    /// only for the map itself.
    pub fn inverse(&self) -> Result<Self> {
        if let Some((name, what)) = self.inverse_needs.clone() {
            return Err(MapError::Parameter { name, what });
        }
        let inverse = |rule: &Rule<u64>| {
            rule.inverse().map_err(|why| MapError::NoInverse {
                rule: rule.number,
                verb: rule.verb.name(),
                why,
            })
        };
        let rules = self.rules.iter().rev().map(inverse);
        Ok(Self {
            rules: rules.collect::<Result<_>>()?,
            unmapped: self.unmapped,
            sections: self.sections.clone(),
            is_inverse: !self.is_inverse,
            inverse_needs: None,
        })
    }

    /// The same map with another answer for tensors that no rule matches.
    #[must_use]
    pub fn with_unmapped(self, unmapped: Unmapped) -> Self {
        Self { unmapped, ..self }
    }

    /// Applies the rules to the tensors and objects of a checkpoint. It reads none of them.
    ///
    /// # Errors
    /// [`MapError::Apply`] names the rule and the key that it can't be applied to; [`MapError::Limit`].
    pub fn apply<'a>(
        &self,
        tensors: impl IntoIterator<Item = Source>,
        objects: impl IntoIterator<Item = &'a str>,
        limits: Limits,
    ) -> Result<Mapping> {
        let sources: Vec<Source> = tensors.into_iter().collect();
        let mut entries = BTreeMap::new();
        for (number, source) in sources.iter().enumerate() {
            let tensor = of_source(number, source)?;
            entries.insert(source.key.to_string(), Entry::Tensor(tensor));
        }
        for key in objects {
            entries
                .entry(key.into())
                .or_insert_with(|| Entry::Object(key.into()));
        }
        self.run(sources, entries, limits)
    }

    /// Applies the rules to what another map has made, so that both are one.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn apply_after(&self, first: &Mapping, limits: Limits) -> Result<Mapping> {
        let tensors = first
            .tensors
            .iter()
            .map(|(key, t)| (key.to_string(), Entry::Tensor(t.clone())));
        let objects = first
            .objects
            .iter()
            .map(|(key, from)| (key.to_string(), Entry::Object(from.clone())));
        let mut out = self.run(
            first.sources.clone(),
            tensors.chain(objects).collect(),
            limits,
        )?;
        // Together they don't know only what neither knows.
        out.unmapped.retain(|key| first.unmapped.contains(key));
        out.dropped.extend(first.dropped.iter().cloned());
        out.additions.extend(&first.additions);
        Ok(out)
    }

    fn run(
        &self,
        sources: Vec<Source>,
        entries: BTreeMap<String, Entry>,
        limits: Limits,
    ) -> Result<Mapping> {
        // Before a rule misses something: the checkpoint may be one for the inverse. Rules of other maps may be made to match nothing.
        if self.unmapped == Unmapped::Refuse {
            check_sides(&self.rules, self.unmapped, entries.keys().map(|key| &**key))?;
        }
        let count = entries.len();
        // Rules that prepare also change tensors that no other rule maps.
        let prepares = self.rules.iter().any(|rule| rule.prepares);
        let before = match prepares {
            true => entries.clone(),
            false => Default::default(),
        };
        let mut state = State::new(entries, limits)?;
        for rule in self
            .rules
            .iter()
            .filter(|r| r.direction != Some(Direction::Inverse))
        {
            state.apply(rule)?;
        }
        if state.entries.is_empty() && count > 0 {
            return Err(MapError::Empty(count));
        }
        let mut out = Mapping {
            dropped: dropped(&state.known, &sources),
            sources,
            ..Mapping::default()
        };
        for (key, entry) in state.entries {
            match entry {
                Entry::Tensor(t) => drop(out.tensors.insert(key.into(), t)),
                Entry::Object(from) => drop(out.objects.insert(key.into(), from)),
            }
        }
        self.unmapped(&mut out, &state.known, before)?;
        if self.is_inverse {
            out.additions = Additions::of(&self.sections, &out.tensors, limits)?;
        }
        Ok(out)
    }

    /// Keeps, drops or refuses the tensors that no rule has matched. They stay as they were `before`, whatever rules that prepare did.
    fn unmapped(
        &self,
        out: &mut Mapping,
        known: &Known,
        before: BTreeMap<String, Entry>,
    ) -> Result<()> {
        let sources = out.sources.iter().enumerate();
        let unknown: BTreeSet<usize> = sources
            .filter(|(number, source)| !known.has(*number, &source.key))
            .map(|(number, _)| number)
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let key = |number: &usize| out.sources.get(*number).map(|source| source.key.clone());
        out.unmapped = unknown.iter().filter_map(key).collect();
        out.unmapped.sort();
        if self.unmapped == Unmapped::Refuse {
            let keys = out.sources.iter().map(|source| &*source.key);
            let sides = Sides::of(&self.rules, keys);
            return Err(MapError::Unmapped {
                keys: std::mem::take(&mut out.unmapped),
                inverse: sides.inverse > sides.these,
            });
        }

        let is_unknown = |t: &MappedTensor| {
            let mut sources = t.pieces.iter().map(|piece| piece.source);
            !t.pieces.is_empty() && sources.all(|source| unknown.contains(&source))
        };
        if self.unmapped == Unmapped::Drop {
            let empty: BTreeSet<&str> = out.unmapped.iter().map(|key| &**key).collect();
            let is_empty = |key: &str, t: &MappedTensor| t.pieces.is_empty() && empty.contains(key);
            out.tensors
                .retain(|key, t| !is_unknown(t) && !is_empty(key, t));
            out.dropped.extend(out.unmapped.iter().map(|key| Dropped {
                key: key.clone(),
                rule: None,
                verb: "unmapped",
            }));
            return Ok(());
        }
        if before.is_empty() {
            return Ok(());
        }
        out.tensors.retain(|_, t| !is_unknown(t));
        for (key, entry) in before {
            let Entry::Tensor(tensor) = entry else {
                continue;
            };
            if !is_unknown(&tensor) {
                continue;
            }
            let shape = tensor.shape.clone();
            if out.tensors.insert((&*key).into(), tensor).is_some() {
                let what = "no rule maps it, so it keeps its key, which a rule gives to another tensor; rename or drop it";
                return Err(MapError::of_item(&key, Some(shape), what.into()));
            }
        }
        Ok(())
    }
}

/// Fails if no rule matches any of the keys as they are stored although one must, or if a map that refuses unmapped tensors is used the
/// wrong way round. It needs no values of parameters.
pub(crate) fn check_sides<'k, N: Clone>(
    rules: &[Rule<N>],
    unmapped: Unmapped,
    mut keys: impl Iterator<Item = &'k str> + Clone,
) -> Result<()> {
    let sides = Sides::of(rules, keys.clone());
    let is_other = sides.inverse > sides.these;
    let must_match = rules.iter().any(|rule| {
        !rule.optional && rule.when.is_none() && rule.direction != Some(Direction::Inverse)
    });
    match keys.next() {
        Some(key) if (!sides.any && must_match) || (is_other && unmapped == Unmapped::Refuse) => {
            Err(MapError::NoMatch {
                key: key.into(),
                inverse: is_other,
            })
        }
        _ => Ok(()),
    }
}

/// The items that rules have dropped, by key.
fn dropped(known: &Known, sources: &[Source]) -> Vec<Dropped> {
    let dropped = known.dropped.iter().filter_map(|(origin, (rule, verb))| {
        let key = match origin {
            Origin::Source(number) => sources.get(*number)?.key.clone(),
            Origin::Key(key) => key.clone(),
        };
        Some(Dropped {
            key,
            rule: Some(*rule),
            verb,
        })
    });
    dropped.collect()
}

/// The tensor of the checkpoint with this number, as it is stored.
fn of_source(number: usize, source: &Source) -> Result<MappedTensor> {
    let tensor = MappedTensor::of_source(number, source.dtype, &source.shape);
    tensor.map_err(|fault| {
        let what = match fault {
            Fault::Wrong(what) => what,
            Fault::Pieces => "it has too many pieces".into(),
        };
        MapError::of_item(&source.key, Some(source.shape.clone()), what)
    })
}
