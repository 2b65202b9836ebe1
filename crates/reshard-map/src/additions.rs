//! Objects and common state that the inverse of a map adds, because Megatron Core expects them.

use crate::{Limits, MapError, MappedTensor, Pattern, Result, pattern::Captures};
use reshard_model::{Construct, Opaque, ShardedObject, Value};
use std::collections::BTreeMap;

/// The most cells of all arrays together. Each becomes an object in memory when it is written.
const MAX_CELLS: u64 = 1 << 17;

/// The capture of a key that stands for the number of an array.
pub(crate) const NUMBER: &str = "n";

/// The sections `[[object]]`, `[common]` and `[args]` of a mapping file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sections<N> {
    pub(crate) arrays: Vec<Array<N>>,
    /// Values of common state, by name.
    pub(crate) common: BTreeMap<String, Origin<N>>,
    /// Attributes of the `argparse.Namespace` that common state has as `args`.
    pub(crate) args: BTreeMap<String, Origin<N>>,
}

impl<N> Default for Sections<N> {
    fn default() -> Self {
        Self {
            arrays: Vec::new(),
            common: BTreeMap::new(),
            args: BTreeMap::new(),
        }
    }
}

/// Arrays of objects whose cells are all `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Array<N> {
    pub(crate) keys: Vec<Pattern>,
    /// The shape of each array.
    pub(crate) cells: Vec<N>,
    /// The number of arrays that each key stands for. `None` for one, without a number in its key.
    pub(crate) each: Option<N>,
    /// A tensor without which there are no such arrays.
    pub(crate) needs: Option<Pattern>,
    /// There are no such arrays if this is 0.
    pub(crate) when: Option<N>,
}

/// A constant of common state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Constant(pub(crate) Value);

/// Values compare floats by their bits.
impl Eq for Constant {}

/// The origin of a value of common state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin<N> {
    Constant(Constant),
    /// A number, or with `flag` whether it is other than 0.
    Number {
        number: N,
        flag: bool,
    },
    /// Whether there is a tensor of this key.
    Tensor(Pattern),
    /// The extent of the last axis of the first tensor that matches.
    Width(Pattern),
    Config(Lookup),
}

/// A value of `config.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lookup {
    /// The first of these paths that is there counts.
    pub(crate) paths: Vec<String>,
    pub(crate) becomes: Becomes,
    /// Whether it may be missing without a word.
    pub(crate) optional: bool,
}

/// The translation of a value of `config.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Becomes {
    Same,
    /// Always this value.
    Then(Constant),
    /// The value that is listed for this text.
    Listed(BTreeMap<String, Constant>),
}

impl<N> Sections<N> {
    /// The sections with each number replaced.
    pub(crate) fn bind<M, E>(self, f: &mut dyn FnMut(N) -> Result<M, E>) -> Result<Sections<M>, E> {
        let arrays = self.arrays.into_iter().map(|array| {
            let cells = array.cells.into_iter().map(&mut *f);
            Ok(Array {
                keys: array.keys,
                cells: cells.collect::<Result<_, E>>()?,
                each: array.each.map(&mut *f).transpose()?,
                needs: array.needs,
                when: array.when.map(&mut *f).transpose()?,
            })
        });
        let arrays = arrays.collect::<Result<_, E>>()?;
        let mut values = |all: BTreeMap<String, Origin<N>>| {
            let bound = all.into_iter();
            let bound = bound.map(|(name, origin)| Ok((name, origin.bind(&mut *f)?)));
            bound.collect::<Result<_, E>>()
        };
        Ok(Sections {
            arrays,
            common: values(self.common)?,
            args: values(self.args)?,
        })
    }
}

impl<N> Origin<N> {
    fn bind<M, E>(self, f: &mut dyn FnMut(N) -> Result<M, E>) -> Result<Origin<M>, E> {
        Ok(match self {
            Self::Number { number, flag } => Origin::Number {
                number: f(number)?,
                flag,
            },
            Self::Constant(value) => Origin::Constant(value),
            Self::Tensor(key) => Origin::Tensor(key),
            Self::Width(key) => Origin::Width(key),
            Self::Config(lookup) => Origin::Config(lookup),
        })
    }
}

/// Objects and common state that a map adds to the tensors and objects of a checkpoint, for Megatron Core. Only the inverse of a map adds
/// any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Additions {
    objects: Vec<Box<str>>,
    values: Vec<Pending>,
}

/// A value of common state that may depend on `config.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pending {
    /// Whether it is an attribute of `args`.
    of_args: bool,
    name: Box<str>,
    state: PendingState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PendingState {
    Known(Constant),
    Unknown(String),
    Config(Lookup),
}

/// Common state that a map adds; made by [`Additions::common`].
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct AddedCommon {
    /// The values, by their names at the top of common state.
    pub values: Vec<(Box<str>, Value)>,
    /// Every value by its path, such as `args.num_layers`, with the reason if it is not known and therefore not added.
    pub entries: Vec<(Box<str>, Option<String>)>,
}

impl Additions {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.values.is_empty()
    }

    /// The keys of all cells of arrays of objects, as they are stored: `key/shard_0_2`. The value of each is `None`.
    pub fn objects(&self) -> impl ExactSizeIterator<Item = &str> {
        self.objects.iter().map(|key| &**key)
    }

    /// The values of common state. `config` looks up a path such as `rope_parameters.rope_theta` in the `config.json` of transformers.
    pub fn common(&self, config: impl Fn(&str) -> Option<Value>) -> AddedCommon {
        let mut out = AddedCommon::default();
        let mut args = Vec::new();
        for pending in &self.values {
            let path = match pending.of_args {
                true => format!("args.{}", pending.name),
                false => pending.name.to_string(),
            };
            let Some(value) = pending.state.value(&config) else {
                continue;
            };
            let unknown = value.map(|value| match pending.of_args {
                true => args.push((Value::Str(pending.name.clone()), value)),
                false => out.values.push((pending.name.clone(), value)),
            });
            out.entries.push((path.into(), unknown.err()));
        }
        if !args.is_empty() {
            out.values.push(("args".into(), namespace(args)));
        }
        out
    }

    /// The additions of bound sections to a checkpoint that has these tensors.
    pub(crate) fn of(
        sections: &Sections<u64>,
        tensors: &BTreeMap<Box<str>, MappedTensor>,
        limits: Limits,
    ) -> Result<Self> {
        let mut search = Search {
            tensors,
            steps: 0,
            limits,
        };
        let mut out = Self::default();
        for array in &sections.arrays {
            let is_needed = match &array.needs {
                Some(pattern) => search.find(pattern)?.is_some(),
                None => true,
            };
            if is_needed && array.when != Some(0) {
                out.add_cells(array, limits)?;
            }
        }
        for (of_args, all) in [(false, &sections.common), (true, &sections.args)] {
            for (name, origin) in all {
                out.values.push(Pending {
                    of_args,
                    name: name.as_str().into(),
                    state: origin.state(&mut search)?,
                });
            }
        }
        Ok(out)
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        self.objects.extend(other.objects.iter().cloned());
        self.values.extend(other.values.iter().cloned());
    }

    fn add_cells(&mut self, array: &Array<u64>, limits: Limits) -> Result<()> {
        let too_much = |what: &str, limit, option| MapError::Limit {
            what: format!("{what} that `[[object]]` adds"),
            limit,
            option,
        };
        let cells = array.cells.iter().copied().try_fold(1u64, u64::checked_mul);
        let count = cells.and_then(|n| n.checked_mul(array.each.unwrap_or(1)));
        let count = count.and_then(|n| n.checked_mul(array.keys.len() as u64));
        let max = MAX_CELLS.min(limits.names as u64);
        let all = count.and_then(|n| n.checked_add(self.objects.len() as u64));
        if all.is_none_or(|n| n > max) {
            return Err(too_much("cells of arrays", max, "names"));
        }
        if count == Some(0) {
            return Ok(());
        }
        let old = self.objects.iter().map(|key| key.len() as u64);
        let mut bytes: u64 = old.sum();
        for key in &array.keys {
            for number in 0..array.each.unwrap_or(1) {
                let captures: Captures = [(NUMBER.to_owned(), number.to_string())].into();
                // The parser has allowed no other capture.
                let key = key.fill(&captures).unwrap_or_default();
                for cell in 0..cells.unwrap_or(0) {
                    let offset = offset_of(cell, &array.cells);
                    let object = ShardedObject::new(&key, Value::None, &array.cells, &offset, 0);
                    let object =
                        object.map_err(|e| MapError::of_item(&key, None, e.to_string()))?;
                    let stored = object.unique_key().to_string();
                    bytes = bytes.saturating_add(stored.len() as u64);
                    if bytes > limits.name_bytes {
                        let max = limits.name_bytes;
                        return Err(too_much("bytes of keys of cells", max, "name_bytes"));
                    }
                    self.objects.push(stored.into());
                }
            }
        }
        Ok(())
    }
}

/// Looks for tensors, within the limits.
struct Search<'a> {
    tensors: &'a BTreeMap<Box<str>, MappedTensor>,
    steps: u64,
    limits: Limits,
}

impl<'a> Search<'a> {
    /// Returns the first tensor whose key matches.
    fn find(&mut self, pattern: &Pattern) -> Result<Option<&'a MappedTensor>> {
        for (key, tensor) in self.tensors {
            self.steps = self.steps.saturating_add(pattern.steps(key));
            if self.steps > self.limits.steps {
                return Err(MapError::Limit {
                    what: "steps of patterns in `[[object]]`, `[common]` and `[args]`".into(),
                    limit: self.limits.steps,
                    option: "steps",
                });
            }
            if pattern.matches(key) {
                return Ok(Some(tensor));
            }
        }
        Ok(None)
    }
}

impl Origin<u64> {
    fn state(&self, search: &mut Search<'_>) -> Result<PendingState> {
        Ok(match self {
            Self::Constant(value) => PendingState::Known(value.clone()),
            Self::Number { number, flag: true } => known(Value::Bool(*number != 0)),
            Self::Number { number, .. } => of_number(*number),
            Self::Tensor(key) => known(Value::Bool(search.find(key)?.is_some())),
            Self::Width(key) => {
                let width = search.find(key)?.and_then(|t| t.shape().last().copied());
                match width {
                    Some(width) => of_number(width),
                    None => PendingState::Unknown(format!("there is no tensor {key}")),
                }
            }
            Self::Config(lookup) => PendingState::Config(lookup.clone()),
        })
    }
}

impl PendingState {
    /// The value, or the reason why it is not known. `None` if nobody misses it.
    fn value(&self, config: &impl Fn(&str) -> Option<Value>) -> Option<Result<Value, String>> {
        match self {
            Self::Known(Constant(value)) => Some(Ok(value.clone())),
            Self::Unknown(why) => Some(Err(why.clone())),
            Self::Config(lookup) => lookup.value(config),
        }
    }
}

impl Lookup {
    fn value(&self, config: &impl Fn(&str) -> Option<Value>) -> Option<Result<Value, String>> {
        let mut paths = self.paths.iter();
        let Some((path, found)) = paths.find_map(|path| Some((path, config(path)?))) else {
            let why = format!("config.json has no `{}`", self.paths.join("` or `"));
            return (!self.optional).then_some(Err(why));
        };
        Some(match &self.becomes {
            Becomes::Same => Ok(found),
            Becomes::Then(Constant(value)) => Ok(value.clone()),
            Becomes::Listed(listed) => {
                let value = found.as_str().and_then(|text| listed.get(text));
                let value = value.map(|Constant(value)| value.clone());
                value.ok_or_else(|| format!("the map does not know the `{path}` of config.json"))
            }
        })
    }
}

fn known(value: Value) -> PendingState {
    PendingState::Known(Constant(value))
}

fn of_number(number: u64) -> PendingState {
    match i64::try_from(number) {
        Ok(number) => known(Value::Int(number)),
        Err(_) => PendingState::Unknown(format!("{number} is too large")),
    }
}

/// The offset of a cell, counted in row-major order.
fn offset_of(mut cell: u64, shape: &[u64]) -> Vec<u64> {
    let mut offset: Vec<u64> = shape
        .iter()
        .rev()
        .map(|extent| {
            let at = cell % (*extent).max(1);
            cell /= (*extent).max(1);
            at
        })
        .collect();
    offset.reverse();
    offset
}

/// An `argparse.Namespace`, as Megatron-LM keeps its arguments.
fn namespace(attributes: Vec<(Value, Value)>) -> Value {
    Value::Opaque(Box::new(Opaque {
        module: "argparse".into(),
        name: "Namespace".into(),
        construct: Construct::NewObj(Vec::new()),
        state: Some(Value::Dict(attributes)),
        items: Vec::new(),
        pairs: Vec::new(),
    }))
}
