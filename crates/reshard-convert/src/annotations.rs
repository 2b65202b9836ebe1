//! The annotations of a source that its copy states, too.

use crate::{
    Result,
    fit::Fit,
    keys::Keys,
    optimizer::Canonical,
    target::Target,
    torchao::{self, Fate, Quantised},
};
use reshard::{
    Checkpoint, Dialect, Value,
    model::{Path, Step},
    plan::{AnnotationId, AnnotationKind, Annotations, PlannerData},
};
use std::{collections::BTreeSet, sync::Arc};

/// What becomes of each annotation of the source.
pub(crate) struct Fates<'a> {
    source: &'a Checkpoint,
    pub(crate) target: &'a Target,
    pub(crate) fit: &'a Fit,
    pub(crate) canonical: &'a Canonical,
    /// Whether tensors that share elements in the source still do in the copy, if they are carried over as they are: one rank has all
    /// tensors whole, and the format stores their elements once.
    pub(crate) keeps_ties: bool,
    /// The keys that are carried over under their own names.
    carried: BTreeSet<&'a str>,
    /// The paths of dicts, lists and leaves of the copy.
    nodes: BTreeSet<Path>,
    /// The keys that are carried over, under their own names or others.
    chosen: BTreeSet<&'a str>,
    /// The tensors that metadata of torchao states.
    torchao: Quantised,
}

impl<'a> Fates<'a> {
    pub(crate) fn of(
        source: &'a Checkpoint,
        (target, keeps_ties): (&'a Target, bool),
        (keys, canonical, fit): (&Keys<'_>, &'a Canonical, &'a Fit),
    ) -> Self {
        let stored = source.metadata();
        let mut out = Self {
            source,
            target,
            fit,
            canonical,
            keeps_ties,
            carried: BTreeSet::new(),
            nodes: BTreeSet::new(),
            chosen: BTreeSet::new(),
            torchao: torchao::stated(source),
        };
        if stored.annotations().is_empty() {
            return out;
        }
        let stays = |key: &&str| keys.has(key) && canonical.key(key) == Some(*key) && fit.has(key);
        if !out.torchao.is_empty() {
            let goes =
                |key: &&str| keys.has(key) && canonical.key(key).is_some_and(|to| fit.has(to));
            out.chosen = stored.entries().map(|e| e.key()).filter(goes).collect();
        }
        out.carried = stored.entries().map(|e| e.key()).filter(stays).collect();
        if let Some(PlannerData::Paths(paths)) = stored.planner_data() {
            for (_, path) in paths
                .iter()
                .filter(|(key, _)| out.carried.contains(&***key))
            {
                for n in 0..=path.0.len() {
                    out.nodes.insert(Path::from(&path.0[..n]));
                }
            }
        }
        out
    }

    /// Those that the copy states.
    pub(crate) fn kept(&self) -> Annotations {
        let all = self.source.metadata().annotations().iter();
        let kept = all.filter(|(id, _)| self.why_not(id).is_none());
        let fate = |key: &str| self.fate(key);
        kept.map(|(id, value)| {
            let names = torchao::names_of_copy(&self.torchao, (id, value), &fate);
            (id.clone(), names.unwrap_or_else(|| value.clone()))
        })
        .collect()
    }

    /// What becomes of an inner tensor of torchao.
    fn fate(&self, key: &str) -> Fate {
        let tensor = self.source.metadata().tensor(key);
        let same_type = tensor.is_some_and(|t| self.fit.written(t.dtype()) == t.dtype());
        match (self.carried.contains(key), self.chosen.contains(key)) {
            (true, _) if same_type => Fate::Same,
            (false, false) => Fate::Gone,
            _ => Fate::Changed,
        }
    }

    /// Refuses a copy in which torchao could not open its tensors again.
    pub(crate) fn check_torchao(&self) -> Result<()> {
        let fate = |key: &str| self.fate(key);
        let annotates = |kind| self.target.annotates(kind);
        let target = (self.target.key().to_string(), annotates);
        torchao::check(self.source, &self.torchao, &fate, target)
    }

    /// Why the copy does not state an annotation of the source.
    pub(crate) fn why_not(&self, id: &AnnotationId) -> Option<Arc<str>> {
        let value = self.source.metadata().annotations().get(id);
        let text = value.and_then(Value::as_str);
        let what = match id.kind {
            AnnotationKind::Text => "metadata of the whole checkpoint",
            AnnotationKind::Attribute => "attributes",
            AnnotationKind::DimensionNames => "names of axes",
            AnnotationKind::KeyType => "keys that are no text",
            AnnotationKind::ContainerType => "types of dicts",
            AnnotationKind::TensorClass => "parameters",
            AnnotationKind::TensorSubclass => "the metadata of torchao's tensors",
            AnnotationKind::PythonState => text.unwrap_or_default(),
            AnnotationKind::SameObject => "one object at two places",
            AnnotationKind::Device => "devices of tensors",
            AnnotationKind::Record => "records of other programs",
            _ => "attributes of dicts",
        };
        if !self.target.annotates(id.kind) {
            return Some(format!("{} has no place for {what}", self.target.key()).into());
        }
        if id.file.is_some() && value == Some(&Value::None) {
            return Some("it holds tensors, or is too large".into());
        }
        if id.file.is_some() {
            return Some(
                "only one file of the source states it, or files contradict each other".into(),
            );
        }
        if id.kind == AnnotationKind::ContainerType && text.is_some() {
            return Some("the copy is a dict with this item".into());
        }
        let fate = |key: &str| self.fate(key);
        let stays = match id.kind {
            AnnotationKind::Text | AnnotationKind::TensorSubclass => {
                !torchao::is_gone(&self.torchao, id, &fate)
            }
            _ if self.canonical.is_mapped => {
                return Some("keys and shapes come from a map".into());
            }
            AnnotationKind::SameObject if !self.is_one_tensor(id, text) => {
                return Some("the copy has it at each place for itself".into());
            }
            AnnotationKind::Attribute | AnnotationKind::DimensionNames => self.has_array(&id.path),
            _ if self.fit.dialect == Dialect::Megatron => {
                return Some("common state has plain dicts".into());
            }
            _ => self.nodes.contains(&id.path),
        };
        (!stays).then(|| "nothing of it is carried over".into())
    }

    /// Whether the copy has something at the path of an annotation about a dict.
    pub(crate) fn has(&self, id: &AnnotationId) -> bool {
        id.file.is_none() && self.nodes.contains(&id.path)
    }

    /// Whether a tensor that is the same object as an earlier one still is in the copy.
    fn is_one_tensor(&self, id: &AnnotationId, first: Option<&str>) -> bool {
        let stays = |key: &str| {
            let tensor = self.source.metadata().tensor(key);
            self.carried.contains(key)
                && tensor.is_some_and(|t| t.bytes() > 0 && self.fit.written(t.dtype()) == t.dtype())
        };
        self.keeps_ties && stays(&id.path.to_string()) && first.is_some_and(stays)
    }

    /// Whether an array is carried over, or one below the group.
    fn has_array(&self, path: &Path) -> bool {
        let [Step::Key(node)] = &*path.0 else {
            return path.0.is_empty();
        };
        let below = format!("{node}/");
        let first = self.carried.range::<&str, _>(&*below..).next();
        let is_group = first.is_some_and(|key| key.starts_with(&below));
        is_group || self.carried.contains(&**node)
    }
}
