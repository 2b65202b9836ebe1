//! torchao's quantised tensors: their inner tensors are items, and the metadata that opens them again is an annotation.

use crate::{ConvertError, Result};
use reshard::{
    Checkpoint, Value,
    model::Path,
    plan::{AnnotationId, AnnotationKind},
};
use reshard_torch_format::Subclass;
use std::collections::BTreeMap;

/// The entry of safetensors that lists the tensors of a state dict.
const NAMES: &str = "tensor_names";

/// A tensor of torchao's, or a plain one that its metadata names.
#[derive(Debug)]
pub(crate) struct Stated {
    /// The annotation that states it.
    id: AnnotationId,
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
pub(crate) fn stated(source: &Checkpoint) -> Vec<Stated> {
    let metadata = source.metadata();
    let all = metadata.annotations();
    let of_classes = all.of_all_files(AnnotationKind::TensorSubclass);
    let of_classes = of_classes.filter_map(|(id, value)| {
        let subclass = Subclass::of(value)?;
        let inner = subclass.inner();
        let paths = inner
            .iter()
            .filter_map(|name| Subclass::inner_path(&id.path, name));
        Some(Stated {
            id: id.clone(),
            class: Some(subclass.name().to_owned()),
            name: id.path.to_string(),
            inner: paths.map(|path| path.to_string()).collect(),
        })
    });
    let mut out: Vec<Stated> = of_classes.collect();
    let texts: BTreeMap<&str, (&AnnotationId, &str)> = all
        .of_all_files(AnnotationKind::Text)
        .filter_map(|(id, value)| Some((&*id.name, (id, value.as_str()?))))
        .collect();
    for name in names(texts.get(NAMES).map_or("", |(_, text)| text)) {
        let Some((id, text)) = texts.get(&*name) else {
            continue;
        };
        let Ok(entry) = serde_json::from_str::<serde_json::Value>(text) else {
            continue;
        };
        let class = entry.get("_type").and_then(|class| class.as_str());
        let class = class.filter(|class| *class != "Tensor").map(str::to_owned);
        let inner = match (&class, name.rsplit_once('.')) {
            (None, _) => vec![name.clone()],
            (Some(_), of) => {
                // Since torchao 0.15, and before.
                let new = of.map(|(module, own)| format!("{module}._{own}_"));
                let old = format!("{name}:");
                let keys = metadata.tensors().map(|t| t.key().to_owned());
                let is_inner = |key: &String| {
                    key.starts_with(&old) || new.as_ref().is_some_and(|new| key.starts_with(new))
                };
                keys.filter(is_inner).collect()
            }
        };
        out.push(Stated {
            id: (*id).clone(),
            class,
            name,
            inner,
        });
    }
    out
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
    all: &[Stated],
    fate: &impl Fn(&str) -> Fate,
    (format, annotates): (String, impl Fn(AnnotationKind) -> bool),
) -> Result<()> {
    for stated in all {
        stated.check(fate, source)?;
        if let Some(class) = &stated.class
            && !stated.is_gone(fate)
            && !annotates(stated.id.kind)
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
pub(crate) fn is_gone(all: &[Stated], id: &AnnotationId, fate: &impl Fn(&str) -> Fate) -> bool {
    let of = all.iter().find(|stated| stated.id == *id);
    of.is_some_and(|stated| stated.is_gone(fate))
}

/// The list of tensors in the metadata without those that the copy doesn't have. `None` for another annotation.
pub(crate) fn names_of_copy(
    all: &[Stated],
    (id, value): (&AnnotationId, &Value),
    fate: &impl Fn(&str) -> Fate,
) -> Option<Value> {
    let list = AnnotationId::new(AnnotationKind::Text, Path::default(), NAMES);
    if *id != list || all.is_empty() {
        return None;
    }
    let gone = |name: &String| {
        let of = all.iter().find(|stated| stated.name == *name);
        of.is_some_and(|stated| stated.is_gone(fate))
    };
    let all = names(value.as_str()?);
    let quoted = |name: String| serde_json::Value::from(name).to_string();
    let kept: Vec<String> = all
        .into_iter()
        .filter(|name| !gone(name))
        .map(quoted)
        .collect();
    Some(Value::from(format!("[{}]", kept.join(", "))))
}
