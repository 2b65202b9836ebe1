//! A map whose parameters are known.

use crate::{
    Limits, MapError, MappedTensor, Mapping, Result, Source,
    apply::{Entry, State},
    error::Fault,
    rule::{Direction, Rule},
};
use std::collections::BTreeMap;

/// Rules in order, whose parameters are known. Made by [`MapFile::bind`](crate::MapFile::bind).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    pub(crate) rules: Vec<Rule<u64>>,
}

impl Map {
    /// The map that undoes this one: the inverse of each rule, in the opposite order.
    ///
    /// # Errors
    /// [`MapError::NoInverse`] names the last rule that has none, and says why.
    pub fn inverse(&self) -> Result<Self> {
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
        })
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
            let tensor = MappedTensor::of_source(number, source.dtype, &source.shape);
            let tensor = tensor.map_err(|fault| MapError::Apply {
                rule: 0,
                verb: "",
                key: source.key.to_string(),
                shape: Some(source.shape.clone()),
                what: match fault {
                    Fault::Wrong(what) => what,
                    Fault::Pieces => "it has too many pieces".into(),
                },
            })?;
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
        self.run(
            first.sources.clone(),
            tensors.chain(objects).collect(),
            limits,
        )
    }

    fn run(
        &self,
        sources: Vec<Source>,
        entries: BTreeMap<String, Entry>,
        limits: Limits,
    ) -> Result<Mapping> {
        let mut state = State::new(entries, limits)?;
        for rule in self
            .rules
            .iter()
            .filter(|r| r.direction != Some(Direction::Inverse))
        {
            state.apply(rule)?;
        }
        let mut out = Mapping {
            sources,
            ..Mapping::default()
        };
        for (key, entry) in state.entries {
            match entry {
                Entry::Tensor(t) => drop(out.tensors.insert(key.into(), t)),
                Entry::Object(from) => drop(out.objects.insert(key.into(), from)),
            }
        }
        Ok(out)
    }
}
