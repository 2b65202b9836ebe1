//! torchao's quantised tensors: their inner tensors are items, and the metadata that opens them again is an annotation.

use crate::{ConvertError, Result};
use reshard::{
    Checkpoint, Value,
    model::Path,
    plan::{AnnotationId, AnnotationKind, Metadata},
};
use reshard_torch_format::Subclass;
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// The entry of safetensors that lists the tensors of a state dict.
const NAMES: &str = "tensor_names";

/// So many inner tensors of one tensor are looked for. torchao's classes have at most six.
const MOST: usize = 64;

/// The tensors that the metadata of torchao in a checkpoint states, by the annotations that state them.
pub(crate) type Quantised = BTreeMap<AnnotationId, Stated>;

/// A tensor of torchao's, or a plain one that its metadata names.
#[derive(Debug)]
pub(crate) struct Stated {
    /// Its class; `None` for a plain tensor.
    class: Option<String>,
    /// Its key in the state dict.
    name: String,
    /// The keys of its inner tensors.
    inner: Vec<String>,
}

/// What becomes of an item in the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is the same, under its own key.
    Same,
    /// It is left out.
    Gone,
    /// It has another key or type.
    Changed,
}

/// The tensors that the metadata of torchao in a checkpoint states.
pub(crate) fn stated(source: &Checkpoint) -> Quantised {
    let metadata = source.metadata();
    let all = metadata.annotations();
    let of_classes = all.of_all_files(AnnotationKind::TensorSubclass);
    let of_classes = of_classes.filter_map(|(id, value)| {
        let subclass = Subclass::of(value)?;
        let inner = subclass.inner();
        let paths = inner
            .iter()
            .filter_map(|name| Subclass::inner_path(&id.path, name));
        let stated = Stated {
            class: Some(subclass.name().to_owned()),
            name: id.path.to_string(),
            inner: paths.map(|path| path.to_string()).collect(),
        };
        Some((id.clone(), stated))
    });
    let mut out: Quantised = of_classes.collect();
    let texts: BTreeMap<&str, &str> = all
        .of_all_files(AnnotationKind::Text)
        .filter_map(|(id, value)| Some((&*id.name, value.as_str()?)))
        .collect();
    let Some(list) = texts.get(NAMES) else {
        return out;
    };
    let mut old: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for key in stored_keys(metadata) {
        if let Some((name, _)) = key.rsplit_once(':') {
            old.entry(name).or_default().push(key);
        }
    }
    for name in names(list) {
        let entry = texts.get(&*name);
        let Some(entry) = entry.and_then(|text| serde_json::from_str::<Json>(text).ok()) else {
            continue;
        };
        let class = entry.get("_type").and_then(Json::as_str);
        let class = class.filter(|class| *class != "Tensor").map(str::to_owned);
        let inner = match (&class, old.get(&*name)) {
            (None, _) => vec![name.clone()],
            (Some(_), Some(old)) => old.iter().map(|key| (*key).to_owned()).collect(),
            (Some(_), None) => listed(&name, &entry, metadata),
        };
        out.insert(of_text(&name), Stated { class, name, inner });
    }
    out
}

/// The keys of all tensors.
fn stored_keys(metadata: &Metadata) -> impl Iterator<Item = &str> {
    let entries = metadata.entries();
    entries.map(|entry| entry.key())
}

/// The inner tensors that an entry lists, as far as they are there. Before torchao 0.15 entries list none, and keys are like `layer.weight:qdata`.
fn listed(name: &str, entry: &Json, metadata: &Metadata) -> Vec<String> {
    let listed = entry.get("_tensor_data_names").and_then(Json::as_array);
    let listed = listed.into_iter().flatten().filter_map(Json::as_str);
    let keys = listed.take(MOST).filter_map(|own| {
        let (module, tensor) = name.rsplit_once('.')?;
        Some(format!("{module}._{tensor}_{own}"))
    });
    keys.filter(|key| metadata.tensor(key).is_some()).collect()
}

/// The annotation of an entry of safetensors.
fn of_text(name: &str) -> AnnotationId {
    AnnotationId::new(AnnotationKind::Text, Path::default(), name)
}

fn names(text: &str) -> Vec<String> {
    serde_json::from_str(text).unwrap_or_default()
}

impl Stated {
    /// Whether the copy lacks some of it, so that its metadata must not name it.
    pub(crate) fn is_gone(&self, fate: &impl Fn(&str) -> Fate) -> bool {
        let mut inner = self.inner.iter();
        self.inner.is_empty() || inner.any(|key| fate(key) != Fate::Same)
    }

    /// Fails if the copy would have only some of its inner tensors as they are.
    fn check(&self, fate: &impl Fn(&str) -> Fate, source: &Checkpoint) -> Result<()> {
        let Some(class) = &self.class else {
            return Ok(());
        };
        let fates: Vec<Fate> = self.inner.iter().map(|key| fate(key)).collect();
        let all = |wanted: Fate| fates.iter().all(|fate| *fate == wanted);
        if all(Fate::Same) || all(Fate::Gone) {
            return Ok(());
        }
        let changed = self.inner.iter().zip(&fates);
        let changed = changed.filter(|(_, fate)| **fate != Fate::Same);
        let (key, fate) = changed
            .map(|(key, fate)| (&**key, *fate))
            .next()
            .unwrap_or(("", Fate::Gone));
        let how = match fate {
            Fate::Gone => "be left out",
            _ => "get another key or type",
        };
        Err(ConvertError::TorchAo {
            src: source.url().into(),
            key: self.name.clone(),
            class: class.clone(),
            what: format!(
                "its inner tensor {key} would {how}, and torchao could not open the tensor again"
            ),
        })
    }
}

/// Fails if the copy would have inner tensors without the metadata that opens them, or metadata that isn't true.
pub(crate) fn check(
    source: &Checkpoint,
    all: &Quantised,
    fate: &impl Fn(&str) -> Fate,
    (format, annotates): (String, impl Fn(AnnotationKind) -> bool),
) -> Result<()> {
    for (id, stated) in all {
        stated.check(fate, source)?;
        if let Some(class) = &stated.class
            && !stated.is_gone(fate)
            && !annotates(id.kind)
        {
            return Err(ConvertError::TorchAo {
                src: source.url().into(),
                key: stated.name.clone(),
                class: class.clone(),
                what: format!(
                    "{format} has no place for the metadata with which torchao opens it again"
                ),
            });
        }
    }
    Ok(())
}

/// Whether an annotation states a tensor that the copy doesn't have.
pub(crate) fn is_gone(all: &Quantised, id: &AnnotationId, fate: &impl Fn(&str) -> Fate) -> bool {
    all.get(id).is_some_and(|stated| stated.is_gone(fate))
}

/// The list of tensors in the metadata without those that the copy doesn't have. `None` for another annotation.
pub(crate) fn names_of_copy(
    all: &Quantised,
    (id, value): (&AnnotationId, &Value),
    fate: &impl Fn(&str) -> Fate,
) -> Option<Value> {
    if *id != of_text(NAMES) || all.is_empty() {
        return None;
    }
    let gone = |name: &String| is_gone(all, &of_text(name), fate);
    let all = names(value.as_str()?);
    let quoted = |name: String| Json::from(name).to_string();
    let kept: Vec<String> = all
        .into_iter()
        .filter(|name| !gone(name))
        .map(quoted)
        .collect();
    Some(Value::from(format!("[{}]", kept.join(", "))))
}
