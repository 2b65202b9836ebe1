//! Applies rules to the tensors and objects of a checkpoint.

use crate::{
    Limits, MappedTensor, Pattern, Result,
    budget::{Budget, Now, check_name},
    error::Fault,
    pattern::Captures,
    rule::{Layers, Parts, Resize, Rule, Verb},
    tensor::{joined, sum},
};
use reshard_model::Dims;
use std::{
    collections::{BTreeMap, BTreeSet},
    slice,
};

/// The names that wrappers of modules add to keys.
const WRAPPERS: [&str; 4] = [
    "module.",
    "_orig_mod.",
    "_fsdp_wrapped_module.",
    "_checkpoint_wrapped_module.",
];

/// What has a key.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    Tensor(MappedTensor),
    /// An object, with its key in the checkpoint.
    Object(Box<str>),
}

impl Entry {
    fn shape(&self) -> Option<Dims> {
        match self {
            Self::Tensor(t) => Some(t.shape.clone()),
            Self::Object(_) => None,
        }
    }

    fn tensor(&self) -> Option<&MappedTensor> {
        match self {
            Self::Tensor(t) => Some(t),
            Self::Object(_) => None,
        }
    }
}

/// The tensors and objects after some of the rules.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) entries: BTreeMap<String, Entry>,
    pub(crate) known: Known,
    limits: Limits,
    budget: Budget,
}

/// The tensors of the checkpoint that a rule has mapped or dropped.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// By the number of the source.
    sources: BTreeSet<usize>,
    /// Keys of tensors without elements, which have no pieces to find their source by.
    empty: BTreeSet<String>,
    /// Sources and objects that a rule has dropped, each with the number of the rule.
    pub(crate) dropped: BTreeMap<Origin, (usize, &'static str)>,
}

/// Where an item comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// The tensor of the checkpoint with this number.
    Source(usize),
    /// The object of this key, or the tensor without elements.
    Key(Box<str>),
}

impl Known {
    /// Notes that a rule maps or drops what has this key.
    fn add(&mut self, key: &str, entry: &Entry) {
        match entry {
            Entry::Tensor(t) if t.pieces.is_empty() => drop(self.empty.insert(key.into())),
            Entry::Tensor(t) => self.sources.extend(t.pieces.iter().map(|p| p.source)),
            Entry::Object(_) => {}
        }
    }

    /// Notes that a rule drops it.
    fn drop(&mut self, now: Now, key: &str, entry: &Entry) {
        self.add(key, entry);
        let by = (now.rule, now.verb);
        match entry {
            Entry::Tensor(t) if !t.pieces.is_empty() => {
                let sources = t.pieces.iter().map(|p| (Origin::Source(p.source), by));
                self.dropped.extend(sources);
            }
            Entry::Tensor(_) => drop(self.dropped.insert(Origin::Key(key.into()), by)),
            Entry::Object(from) => drop(self.dropped.insert(Origin::Key(from.clone()), by)),
        }
    }

    /// Whether a rule has mapped or dropped a tensor of the checkpoint.
    pub(crate) fn has(&self, source: usize, key: &str) -> bool {
        self.sources.contains(&source) || self.empty.contains(key)
    }
}

/// A key that a rule took out of the state.
struct Taken {
    key: String,
    captures: Captures,
    entry: Entry,
}

impl State {
    /// Before the first rule.
    ///
    /// # Errors
    /// A name is so long that matching it would take much memory.
    pub(crate) fn new(entries: BTreeMap<String, Entry>, limits: Limits) -> Result<Self> {
        let mut budget = Budget::default();
        for (key, entry) in &entries {
            check_name(key)?;
            budget.count(key, entry.tensor());
        }
        Ok(Self {
            entries,
            known: Known::default(),
            limits,
            budget,
        })
    }

    /// Applies a rule.
    pub(crate) fn apply(&mut self, rule: &Rule<u64>) -> Result<()> {
        let now = Now {
            rule: rule.number,
            verb: rule.verb.name(),
            maps: !rule.prepares,
            limits: self.limits,
        };
        let changed = match &rule.verb {
            Verb::Rename { from, to } => self.rename(now, from, to)?,
            Verb::Drop(keys) => {
                let dropped = self.take(now, keys)?;
                for taken in &dropped {
                    self.known.drop(now, &taken.key, &taken.entry);
                }
                dropped.len()
            }
            Verb::Keep(keys) => self.keep(now, keys)?,
            Verb::AddPrefix(prefix) => {
                self.rename_all(now, prefix.len(), |key| Ok(format!("{prefix}{key}")))?
            }
            Verb::StripPrefix(prefix) => self.rename_all(now, 0, |key| {
                let rest = key.strip_prefix(&**prefix).map(String::from);
                rest.ok_or_else(|| {
                    format!("it does not begin with `{prefix}`; use `rename` if only some keys do")
                })
            })?,
            Verb::Canonical => self.rename_all(now, 0, |key| Ok(canonical(key)))?,
            Verb::Stack(layers) => self.stack(now, layers)?,
            Verb::Unstack(layers) => self.unstack(now, layers)?,
            Verb::Split(parts) => self.split(now, parts)?,
            Verb::Concat(parts) => self.concat(now, parts)?,
            Verb::Interleave(keys, blocks) => {
                self.edit(now, keys, blocks.sizes.len(), |t, room| {
                    let max = room(t.shape.len() + 1);
                    t.interleave(blocks, max)
                })?
            }
            Verb::Deinterleave(keys, blocks) => {
                self.edit(now, keys, blocks.sizes.len(), |t, room| {
                    let max = room(t.shape.len() + 1);
                    t.deinterleave(blocks, max)
                })?
            }
            Verb::Transpose(keys, axes) => self.edit(now, keys, 0, |t, _| t.transpose(axes))?,
            Verb::Pad(keys, to) => self.edit(now, keys, 0, |t, _| {
                check_resize(&t, to, true).and_then(|()| t.embed(to.axis, 0, to.to))
            })?,
            Verb::Trim(keys, to) => self.edit(now, keys, 0, |t, room| {
                check_resize(&t, to, false)
                    .and_then(|()| t.slice(to.axis, 0, to.to, room(t.shape.len())))
            })?,
            Verb::Cast { keys, from, to, .. } => self.edit(now, keys, 0, |t, _| match from {
                Some(from) if *from != t.dtype => {
                    Err(Fault::wrong(format!("it has type {}, not {from}", t.dtype)))
                }
                _ => t.cast(*to),
            })?,
            Verb::Reshape { keys, from, to } => self.edit(now, keys, 0, |t, room| match from {
                Some(from) if from[..] != t.shape[..] => Err(Fault::wrong(format!(
                    "its shape is not {}, as `from` says",
                    Dims::from(&from[..])
                ))),
                _ => t.reshape(to[..].into(), room(to.len())),
            })?,
        };
        if changed == 0 && !rule.optional && !self.entries.is_empty() {
            let first = self.entries.keys().next().map_or("", |k| k);
            let what = "the rule matches none of the keys, of which this is the first; correct its pattern, or say `optional = true`";
            return Err(now.error(first, None, what));
        }
        self.budget.check(now)
    }

    /// Drops everything but the keys that one of the patterns matches, if there are any.
    fn keep(&mut self, now: Now, keys: &[Pattern]) -> Result<usize> {
        let kept = self.take(now, keys)?;
        if kept.is_empty() {
            return Ok(0);
        }
        for (key, entry) in std::mem::take(&mut self.entries) {
            self.known.drop(now, &key, &entry);
        }
        self.budget.clear();
        let count = kept.len();
        for taken in kept {
            self.put(now, taken.key, taken.entry)?;
        }
        Ok(count)
    }

    /// Takes the keys that one of the patterns matches, in order.
    fn take(&mut self, now: Now, patterns: &[Pattern]) -> Result<Vec<Taken>> {
        let mut matching = Vec::new();
        for key in self.entries.keys() {
            for pattern in patterns {
                self.budget.step(now, pattern.steps(key))?;
                if let Some(captures) = pattern.captures(key) {
                    self.budget.taking(now, key, &captures)?;
                    matching.push((key.clone(), captures));
                    break;
                }
            }
        }
        let mut taken = Vec::with_capacity(matching.len());
        for (key, captures) in matching {
            let Some(entry) = self.entries.remove(&key) else {
                continue;
            };
            self.budget.remove(&key, entry.tensor());
            if now.maps {
                let pieces = entry.tensor().map_or(0, |t| t.pieces.len());
                self.budget.step(now, pieces as u64)?;
                self.known.add(&key, &entry);
            }
            taken.push(Taken {
                key,
                captures,
                entry,
            });
        }
        Ok(taken)
    }

    /// Takes tensors; an object that matches is an error.
    fn take_tensors(
        &mut self,
        now: Now,
        patterns: &[Pattern],
    ) -> Result<Vec<(String, Captures, MappedTensor)>> {
        let tensor = |taken: Taken| match taken.entry {
            Entry::Tensor(t) => Ok((taken.key, taken.captures, t)),
            Entry::Object(_) => {
                let what = "it is an object, not a tensor; drop it first, or use a pattern that does not match it";
                Err(now.error(&taken.key, None, what))
            }
        };
        self.take(now, patterns)?.into_iter().map(tensor).collect()
    }

    fn put(&mut self, now: Now, key: String, entry: Entry) -> Result<()> {
        let shape = entry.shape();
        if self.entries.contains_key(&key) {
            return Err(now.error(
                &key,
                shape,
                "two of them would have this key; drop or rename one of them first",
            ));
        }
        self.budget.add(now, &key, entry.tensor())?;
        self.entries.insert(key, entry);
        Ok(())
    }

    fn rename(&mut self, now: Now, from: &Pattern, to: &Pattern) -> Result<usize> {
        let taken = self.take(now, slice::from_ref(from))?;
        let count = taken.len();
        for t in taken {
            let name = now.fill(to, &t.captures, &t.key)?;
            self.put(now, name, t.entry)?;
        }
        Ok(count)
    }

    /// Gives each key a new name, which is at most `more` bytes longer.
    fn rename_all(
        &mut self,
        now: Now,
        more: usize,
        name: impl Fn(&str) -> Result<String, String>,
    ) -> Result<usize> {
        let all = std::mem::take(&mut self.entries);
        self.budget.clear();
        for (key, entry) in all {
            let len = key.len().saturating_add(more);
            self.budget.step(now, len as u64 + 1)?;
            if more > 0 {
                now.name_len(&key, len)?;
            }
            let new = name(&key).and_then(|new| match new.is_empty() {
                true => Err("nothing would be left of its name".into()),
                false => Ok(new),
            });
            let new = new.map_err(|what| now.error(&key, entry.shape(), what))?;
            // A name that stays as it is was not matched, and a rule that prepares maps nothing.
            if now.maps && new != *key {
                self.known.add(&key, &entry);
            }
            self.put(now, new, entry)?;
        }
        Ok(self.entries.len())
    }

    /// Changes tensors in place. Each piece is cut `cuts` times and once more. `change` learns how many pieces may be made.
    fn edit(
        &mut self,
        now: Now,
        keys: &[Pattern],
        cuts: usize,
        change: impl Fn(MappedTensor, &dyn Fn(usize) -> usize) -> Result<MappedTensor, Fault>,
    ) -> Result<usize> {
        let taken = self.take_tensors(now, keys)?;
        let count = taken.len();
        for (key, _, tensor) in taken {
            let shape = tensor.shape.clone();
            let pieces = tensor.pieces.len() as u64;
            self.budget
                .step(now, pieces.saturating_mul(cuts as u64 + 1))?;
            let room = |axes| self.budget.room(now, axes);
            let changed = change(tensor, &room).map_err(|f| now.fault(&key, Some(shape), f))?;
            self.put(now, key, Entry::Tensor(changed))?;
        }
        Ok(count)
    }

    fn stack(&mut self, now: Now, layers: &Layers<u64>) -> Result<usize> {
        let taken = self.take_tensors(now, slice::from_ref(&layers.single))?;
        let count = taken.len();
        let mut stacks: BTreeMap<Captures, BTreeMap<u64, (String, MappedTensor)>> = BTreeMap::new();
        for (key, mut captures, tensor) in taken {
            let number = captures.remove(&layers.index).and_then(|n| n.parse().ok());
            let number: u64 =
                number.ok_or_else(|| now.error(&key, None, "it has no number of a layer"))?;
            stacks
                .entry(captures)
                .or_default()
                .insert(number, (key, tensor));
        }
        for (captures, stack) in stacks {
            let Some((key, first)) = stack.values().next().cloned() else {
                continue;
            };
            let shape = Some(first.shape);
            let want = layers.count.unwrap_or(stack.len() as u64);
            if let Some(missing) = (0..want).find(|n| !stack.contains_key(n)) {
                let what = format!("number {missing} of the {want} that are stacked is missing");
                return Err(now.error(&key, shape, what));
            }
            if stack.len() as u64 != want {
                let what = format!(
                    "{} would be stacked, but there should be {want}",
                    stack.len()
                );
                return Err(now.error(&key, shape, what));
            }
            let name = now.fill(&layers.stacked, &captures, &key)?;
            let parts = stack.into_values().map(|(_, t)| t).collect();
            let stacked =
                MappedTensor::stack(parts, layers.axis).map_err(|f| now.fault(&key, shape, f))?;
            self.put(now, name, Entry::Tensor(stacked))?;
        }
        Ok(count)
    }

    fn unstack(&mut self, now: Now, layers: &Layers<u64>) -> Result<usize> {
        let taken = self.take_tensors(now, slice::from_ref(&layers.stacked))?;
        let count = taken.len();
        for (key, mut captures, tensor) in taken {
            let fault = |f| now.fault(&key, Some(tensor.shape.clone()), f);
            let extent = tensor.extent(layers.axis).map_err(fault)?;
            if let Some(want) = layers.count.filter(|n| *n != extent) {
                let what = format!(
                    "axis {} has {extent} places, but there should be {want}",
                    layers.axis
                );
                return Err(fault(Fault::wrong(what)));
            }
            if extent > self.limits.names as u64 {
                return Err(now.names());
            }
            for number in 0..extent {
                self.budget.step(now, tensor.pieces.len() as u64)?;
                let room = self.budget.room(now, tensor.shape.len());
                captures.insert(layers.index.clone(), number.to_string());
                let name = now.fill(&layers.single, &captures, &key)?;
                let layer = tensor.slice(layers.axis, number, 1, room).map_err(fault)?;
                self.put(now, name, Entry::Tensor(layer.remove_axis(layers.axis)))?;
            }
        }
        Ok(count)
    }

    fn split(&mut self, now: Now, rule: &Parts<u64>) -> Result<usize> {
        let (axis, parts) = (rule.axis, &rule.parts);
        let taken = self.take_tensors(now, slice::from_ref(&rule.whole))?;
        let count = taken.len();
        for (key, captures, tensor) in taken {
            let fault = |f| now.fault(&key, Some(tensor.shape.clone()), f);
            let extent = tensor.extent(axis).map_err(fault)?;
            let sizes = sizes_of(extent, axis, parts.len(), &rule.sizes).map_err(fault)?;
            let mut at = 0;
            for (pattern, size) in parts.iter().zip(sizes) {
                let name = now.fill(pattern, &captures, &key)?;
                self.budget.step(now, tensor.pieces.len() as u64)?;
                let room = self.budget.room(now, tensor.shape.len());
                let part = tensor.slice(axis, at, size, room).map_err(fault)?;
                self.put(now, name, Entry::Tensor(part))?;
                at += size;
            }
        }
        Ok(count)
    }

    fn concat(&mut self, now: Now, rule: &Parts<u64>) -> Result<usize> {
        let axis = rule.axis;
        let mut sets: BTreeMap<Captures, BTreeMap<usize, (String, MappedTensor)>> = BTreeMap::new();
        let mut count = 0;
        for (at, pattern) in rule.parts.iter().enumerate() {
            for (key, captures, tensor) in self.take_tensors(now, slice::from_ref(pattern))? {
                sets.entry(captures).or_default().insert(at, (key, tensor));
                count += 1;
            }
        }
        for (captures, set) in sets {
            let mut patterns = rule.parts.iter().enumerate();
            if let Some((_, missing)) = patterns.find(|(at, _)| !set.contains_key(at)) {
                let key = missing.fill(&captures).unwrap_or_default();
                let what = "it is missing; the others that are joined with it are there";
                return Err(now.error(&key, None, what));
            }
            let parts: Vec<_> = set.into_values().collect();
            let Some((key, first)) = parts.first().cloned() else {
                continue;
            };
            let fault = |f| now.fault(&key, Some(first.shape.clone()), f);
            for ((key, part), want) in parts.iter().zip(&rule.sizes) {
                let extent = part.extent(axis).map_err(fault)?;
                if extent != *want {
                    let what = format!("axis {axis} has {extent} places, and `sizes` says {want}");
                    return Err(now.error(key, Some(part.shape.clone()), what));
                }
            }
            // Without sizes the inverse makes equal parts.
            let mut extents = parts.iter().map(|(_, part)| part.shape.get(axis));
            if rule.sizes.is_empty() && extents.any(|extent| extent != first.shape.get(axis)) {
                let what = "the parts have different sizes; say them in `sizes`";
                return Err(fault(Fault::wrong(what)));
            }
            let name = now.fill(&rule.whole, &captures, &key)?;
            let parts = parts.into_iter().map(|(_, t)| t).collect();
            let whole = MappedTensor::concat(parts, axis).map_err(fault)?;
            self.put(now, name, Entry::Tensor(whole))?;
        }
        Ok(count)
    }
}

/// The sizes of the parts of an axis: those given, or equal ones.
fn sizes_of(extent: u64, axis: usize, parts: usize, sizes: &[u64]) -> Result<Vec<u64>, Fault> {
    if sizes.is_empty() {
        let parts = parts as u64;
        if !extent.is_multiple_of(parts) || parts == 0 {
            return Err(Fault::wrong(format!(
                "axis {axis} has {extent} places, which are not {parts} equal parts; say their sizes in `sizes`"
            )));
        }
        return Ok(vec![extent / parts; usize::try_from(parts).unwrap_or(0)]);
    }
    match sum(sizes) == Some(extent) {
        true => Ok(sizes.to_vec()),
        false => Err(Fault::wrong(format!(
            "axis {axis} has {extent} places, and not {} as `sizes` says",
            joined(sizes)
        ))),
    }
}

/// Checks that an axis can be padded or trimmed.
fn check_resize(t: &MappedTensor, resize: &Resize<u64>, larger: bool) -> Result<(), Fault> {
    let Resize { axis, from, to, .. } = *resize;
    let extent = t.extent(axis)?;
    if let Some(from) = from.filter(|n| *n != extent) {
        return Err(Fault::wrong(format!(
            "axis {axis} has {extent} places, and not {from} as `from` says"
        )));
    }
    if (larger && to < extent) || (!larger && to > extent) {
        let other = if larger { "trim" } else { "pad" };
        return Err(Fault::wrong(format!(
            "axis {axis} has {extent} places, so it can't get {to}; `{other}` does that"
        )));
    }
    Ok(())
}

/// A key without the names of wrappers. A wrapper's name is a whole component.
fn canonical(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    let mut rest = key;
    while !rest.is_empty() {
        if let Some(after) = WRAPPERS.iter().find_map(|w| rest.strip_prefix(w)) {
            rest = after;
            continue;
        }
        let end = rest.find('.').map_or(rest.len(), |dot| dot + 1);
        out.push_str(&rest[..end]);
        rest = &rest[end..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn names_of_wrappers_are_stripped_wherever_they_are_whole_components() {
        assert_eq!(
            canonical("module._orig_mod.layers.0._checkpoint_wrapped_module.w"),
            "layers.0.w"
        );
        assert_eq!(canonical("a._fsdp_wrapped_module.module.b"), "a.b");
        assert_eq!(canonical("my_module.w"), "my_module.w");
        assert_eq!(canonical("w.module"), "w.module");
    }
}
