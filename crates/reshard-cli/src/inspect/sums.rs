//! Sums over the tensors of a checkpoint: by module, element type and kind.

use crate::units;
use reshard::blocking::{Checkpoint, TensorHandle};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Modules are divided into their parts while there are at most this many rows.
const ROWS: usize = 12;

/// Modules are told apart down to this depth. A key may have any number of dots.
const DEPTH: usize = 8;

/// Names of the parts of a state dict in which optimizers are stored.
const OPTIMIZERS: [&str; 6] = [
    "optimizer",
    "optimizers",
    "optim",
    "optimizer_state",
    "optimizer_states",
    "optimizer_state_dict",
];

/// How much some tensors hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Sum {
    pub(super) tensors: u64,
    pub(super) elements: u64,
    pub(super) bytes: u64,
}

impl Sum {
    fn add(&mut self, t: &TensorHandle) {
        let elements = t.shape().volume().unwrap_or(u64::MAX);
        self.tensors += 1;
        self.elements = self.elements.saturating_add(elements);
        self.bytes = self.bytes.saturating_add(t.nbytes());
    }

    /// `290 tensors, 7,241,732,096 elements, 14.48 GB`.
    pub(super) fn text(&self) -> String {
        let (tensors, elements) = (
            units::some(self.tensors, "tensor"),
            units::some(self.elements, "element"),
        );
        format!("{tensors}, {elements}, {}", units::bytes(self.bytes))
    }
}

/// The sums of a checkpoint.
#[derive(Debug, Default, Serialize)]
pub(super) struct Sums {
    /// Elements of floating-point and complex tensors outside of optimizers, buffers included; tensors with tied elements count once.
    pub(super) parameters: u64,
    pub(super) by_dtype: BTreeMap<&'static str, Sum>,
    /// `model` and `optimizer`.
    pub(super) by_kind: BTreeMap<&'static str, Sum>,
    /// A number in a path is `*`, so that all layers are one module.
    pub(super) by_module: BTreeMap<String, Sum>,
}

impl Sums {
    pub(super) fn of(checkpoint: &Checkpoint) -> Self {
        let ties = checkpoint.ties().into_iter().filter(|tie| tie.is_whole);
        let again: BTreeSet<String> = ties.flat_map(|tie| tie.keys.into_iter().skip(1)).collect();
        let mut sums = Self::default();
        let mut root = Module::default();
        for t in checkpoint.tensors() {
            let kind = kind(t.key());
            sums.by_dtype.entry(t.dtype().name()).or_default().add(&t);
            sums.by_kind.entry(kind).or_default().add(&t);
            root.add(&t);
            let is_number = t.dtype().is_float() || t.dtype().is_complex();
            if kind == "model" && is_number && !again.contains(t.key()) {
                let elements = t.shape().volume().unwrap_or(u64::MAX);
                sums.parameters = sums.parameters.saturating_add(elements);
            }
        }
        sums.by_module = root.rows();
        sums
    }
}

fn steps(key: &str) -> impl Iterator<Item = &str> {
    key.split(['.', '/']).filter(|step| !step.is_empty())
}

/// An optimizer's tensors begin with its name, or with the name of a part that holds several (`chained_0.optimizer`).
fn kind(key: &str) -> &'static str {
    match steps(key).take(2).any(|step| OPTIMIZERS.contains(&step)) {
        true => "optimizer",
        false => "model",
    }
}

/// A module, with all that its parts hold.
#[derive(Debug, Default)]
struct Module {
    all: Sum,
    /// Of its own tensors.
    own: Sum,
    parts: BTreeMap<String, Module>,
}

impl Module {
    fn add(&mut self, t: &TensorHandle) {
        let mut path: Vec<&str> = steps(t.key()).collect();
        // The last one is the name of the parameter.
        path.pop();
        path.truncate(DEPTH);
        let mut module = self;
        module.all.add(t);
        for step in path {
            let is_number = step.bytes().all(|b| b.is_ascii_digit());
            let step = if is_number { "*" } else { step };
            if !module.parts.contains_key(step) {
                module.parts.insert(step.to_owned(), Self::default());
            }
            let Some(part) = module.parts.get_mut(step) else {
                return;
            };
            part.all.add(t);
            module = part;
        }
        module.own.add(t);
    }

    /// The sums of modules, the largest of which are divided into their parts.
    fn rows(&self) -> BTreeMap<String, Sum> {
        let mut rows: BTreeMap<String, &Self> = BTreeMap::from([(String::new(), self)]);
        let mut out: BTreeMap<String, Sum> = BTreeMap::new();
        loop {
            let fits = |m: &Self| {
                let own = usize::from(m.own.tensors > 0);
                let after = rows.len() - 1 + out.len() + m.parts.len() + own;
                !m.parts.is_empty() && after <= ROWS
            };
            let divided = rows.iter().filter(|(_, m)| fits(m));
            let Some((name, _)) = divided.max_by_key(|(_, m)| m.all.elements) else {
                break;
            };
            let name = name.clone();
            let Some(module) = rows.remove(&name) else {
                break;
            };
            if module.own.tensors > 0 {
                out.insert(name.clone(), module.own);
            }
            rows.extend(module.parts.iter().map(|(step, part)| {
                let dot = if name.is_empty() { "" } else { "." };
                (format!("{name}{dot}{step}"), part)
            }));
        }
        out.extend(rows.into_iter().map(|(name, module)| (name, module.all)));
        out
    }
}
