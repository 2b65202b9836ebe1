//! Annotations of the checkpoint: the classes of dicts, their attributes, the types of their keys, and the classes of tensors.

use crate::told::{At, DictPlan, PythonTensor};
use reshard_model::{ObjectCodec as _, Opaque, Path, Step, Value};
use reshard_plan::{AnnotationId, AnnotationKind, Annotations, PlanError, Result};
use reshard_torch_format::{FoundDict, FoundSubclass, KeyType, Subclass, TensorRef, TorchSave};
use std::collections::BTreeMap;

/// The kinds of annotations that a file has a place for.
pub(crate) const KINDS: &[AnnotationKind] = &[
    AnnotationKind::KeyType,
    AnnotationKind::ContainerType,
    AnnotationKind::ContainerState,
    AnnotationKind::TensorClass,
    AnnotationKind::TensorSubclass,
    AnnotationKind::Device,
    // Of tensors.
    AnnotationKind::SameObject,
];

/// The device of most tensors.
const CPU: &str = "cpu";

/// The class of parameters.
const PARAMETER: &str = "torch.nn.Parameter";

/// What the dicts of all files say, each with the number of its file.
#[derive(Debug, Default)]
pub(crate) struct Dicts(BTreeMap<AnnotationId, Vec<(u32, Option<Value>)>>);

impl Dicts {
    /// Adds the dicts of a file.
    pub(crate) fn add(&mut self, file: u32, dicts: Vec<FoundDict>) {
        for dict in dicts {
            for (key, kind) in dict.keys {
                let mut entry = dict.path.clone();
                entry.0.push(Step::Key(key));
                let id = AnnotationId::new(AnnotationKind::KeyType, entry, "");
                self.note(file, id, kind.name());
            }
            for (name, value) in dict.state {
                let id = AnnotationId::new(AnnotationKind::ContainerState, dict.path.clone(), name);
                self.0.entry(id).or_default().push((file, value));
            }
            if let Some(class) = dict.class {
                let id = AnnotationId::new(AnnotationKind::ContainerType, dict.path, "");
                self.note(file, id, Value::Opaque(class));
            }
        }
    }

    fn note(&mut self, file: u32, id: AnnotationId, value: impl Into<Value>) {
        let all = self.0.entry(id).or_default();
        all.push((file, Some(value.into())));
    }

    /// Adds dicts, lists and leaves of a file that are the same object as another, and the path of that.
    pub(crate) fn add_shared(&mut self, file: u32, shared: Vec<(Path, Path)>) {
        for (path, first) in shared {
            let id = AnnotationId::new(AnnotationKind::SameObject, path, "");
            self.note(file, id, first.to_string());
        }
    }

    /// Adds what Python knows of a tensor of a file.
    pub(crate) fn add_tensor(&mut self, file: u32, path: &Path, tensor: &TensorRef) {
        let class = tensor.is_parameter.then_some(PARAMETER);
        let view = (tensor.conj || tensor.neg).then_some("that it is a conjugated or negated view");
        let device = Some(&*tensor.storage.location).filter(|device| *device != CPU);
        let state = tensor.python_state.or(view);
        for (kind, name, value) in [
            (AnnotationKind::TensorClass, "", class),
            (AnnotationKind::PythonState, "", state),
            (AnnotationKind::Device, "device", device),
        ] {
            if let Some(value) = value {
                let id = AnnotationId::new(kind, path.clone(), name);
                self.note(file, id, value);
            }
        }
    }

    /// Adds what the values of objects of a file don't say.
    pub(crate) fn add_unsaid(&mut self, file: u32, unsaid: Vec<(Path, String)>) {
        for (path, what) in unsaid {
            let id = AnnotationId::new(AnnotationKind::PythonState, path, "");
            self.note(file, id, what);
        }
    }

    /// Adds the tensors of torchao of a file.
    pub(crate) fn add_subclasses(&mut self, file: u32, found: &[FoundSubclass]) {
        for of in found {
            let id = AnnotationId::new(AnnotationKind::TensorSubclass, of.path.clone(), "");
            let value = of.value.as_ref().map(Subclass::to_value);
            self.0.entry(id).or_default().push((file, value));
        }
    }

    /// Adds the records of a file that nothing of it names.
    pub(crate) fn add_records(&mut self, file: u32, records: Vec<(String, u64)>) {
        for (name, bytes) in records {
            let id = AnnotationId::new(AnnotationKind::Record, Path::default(), name);
            self.note(file, id, i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }

    /// Notes that a file is one leaf of this key, and no dict.
    pub(crate) fn add_lone(&mut self, file: u32, key: &str) {
        let id = AnnotationId::new(AnnotationKind::ContainerType, Path::default(), "");
        self.note(file, id, format!("no dict, but {key}"));
    }

    /// Those of a single file: each is that of the checkpoint, if it could be read.
    pub(crate) fn of_one_file(self, file: &str) -> Annotations {
        self.annotations(|_, value, _| value.is_some(), |_| file.into())
    }

    /// Those of several files, which hold flat dicts: a fact about the root is that of the checkpoint if all files agree.
    pub(crate) fn of_files(self, names: &[String]) -> Annotations {
        let all = names.len();
        let name = |n: u32| names.get(n as usize).map_or("", String::as_str).into();
        self.annotations(
            |id, value, files| {
                let is_whole = id.kind != AnnotationKind::ContainerType || files == all;
                let is_of_tensor = matches!(
                    id.kind,
                    AnnotationKind::TensorClass
                        | AnnotationKind::TensorSubclass
                        | AnnotationKind::Device
                );
                let is_of_root = id.path.0.is_empty() || is_of_tensor;
                is_of_root && value.is_some() && is_whole
            },
            name,
        )
    }

    /// Those of the files of ranks: each is that of the checkpoint if all ranks that have it agree.
    pub(crate) fn of_ranks(self, names: &[String]) -> Annotations {
        let name = |n: u32| names.get(n as usize).map_or("", String::as_str).into();
        self.annotations(|_, value, _| value.is_some(), name)
    }

    fn annotations(
        self,
        whole: impl Fn(&AnnotationId, &Option<Value>, usize) -> bool,
        name: impl Fn(u32) -> Box<str>,
    ) -> Annotations {
        let mut out = Annotations::default();
        for (id, values) in self.0 {
            let agree = values.windows(2).all(|w| matches!(w, [a, b] if a.1 == b.1));
            let files = values.len();
            for (file, value) in values {
                let id = match agree && whole(&id, &value, files) {
                    true => id.clone(),
                    false => id.clone().in_file(name(file)),
                };
                out.insert(id, value.unwrap_or(Value::None));
            }
        }
        out
    }
}

/// The types of keys of dicts, by the paths of the entries.
pub(crate) struct KeyTypes<'a>(BTreeMap<&'a Path, KeyType>);

impl<'a> KeyTypes<'a> {
    pub(crate) fn of(annotations: &'a Annotations) -> Self {
        let of = annotations.of_all_files(AnnotationKind::KeyType);
        let kind = |(id, value): (&'a AnnotationId, &'a Value)| {
            Some((&id.path, KeyType::named(value.as_str()?)?))
        };
        Self(of.filter_map(kind).collect())
    }

    /// The key at the end of this path of texts and indices, with its own type.
    pub(crate) fn key(&self, path: &[Step], text: &str) -> Option<At> {
        // Most checkpoints have no such key.
        if self.0.is_empty() {
            return None;
        }
        match (self.0.get(&Path::from(path))?, text) {
            (KeyType::Int, text) => text.parse().ok().map(At::Int),
            (KeyType::Bool, "True") => Some(At::Bool(true)),
            (KeyType::Bool, "False") => Some(At::Bool(false)),
            (KeyType::None, "None") => Some(At::None),
            _ => None,
        }
    }
}

/// What Python knows of the tensors, by their paths.
pub(crate) fn python_tensors(annotations: &Annotations) -> BTreeMap<&Path, PythonTensor> {
    let mut all: BTreeMap<&Path, PythonTensor> = BTreeMap::new();
    for (id, class) in annotations.of_all_files(AnnotationKind::TensorClass) {
        all.entry(&id.path).or_default().is_parameter = class.as_str() == Some(PARAMETER);
    }
    for (id, _) in annotations.of_all_files(AnnotationKind::SameObject) {
        all.entry(&id.path).or_default().is_again = true;
    }
    for (id, device) in annotations.of_all_files(AnnotationKind::Device) {
        all.entry(&id.path).or_default().device = device.as_str().map(Into::into);
    }
    all
}

/// The classes and attributes of dicts, for the plan of a file.
pub(crate) fn plans(annotations: &Annotations) -> Result<Vec<DictPlan>> {
    let mut states: BTreeMap<&Path, Vec<(Value, Value)>> = BTreeMap::new();
    for (id, value) in annotations.of_all_files(AnnotationKind::ContainerState) {
        let of = states.entry(&id.path).or_default();
        of.push((Value::from(&*id.name), value.clone()));
    }
    let codec = TorchSave::default();
    let mut out = Vec::new();
    for (id, value) in annotations.of_all_files(AnnotationKind::ContainerType) {
        let Value::Opaque(class) = value else {
            continue;
        };
        let mut class = class.clone();
        class.state = states.remove(&id.path).map(|mut all| match &mut *all {
            // A state that is no dict of attributes.
            [(name, value)] if name.as_str() == Some("") => std::mem::replace(value, Value::None),
            _ => Value::Dict(all),
        });
        let object = codec
            .encode(&Value::Opaque(class))
            .map_err(PlanError::planner)?;
        out.push(DictPlan {
            path: id.path.clone(),
            object,
        });
    }
    Ok(out)
}

/// The tensors of torchao without their inner tensors, for the plan of a file.
pub(crate) fn subclasses(annotations: &Annotations) -> Result<Vec<DictPlan>> {
    let codec = TorchSave::default();
    let all = annotations.of_all_files(AnnotationKind::TensorSubclass);
    all.map(|(id, value)| {
        let object = codec.encode(value).map_err(PlanError::planner)?;
        let path = id.path.clone();
        Ok(DictPlan { path, object })
    })
    .collect()
}

/// The objects of the classes of dicts, by path.
pub(crate) fn classes(plans: &[DictPlan]) -> reshard_strategy::Result<BTreeMap<Path, Box<Opaque>>> {
    let codec = TorchSave::default();
    let class = |plan: &DictPlan| {
        let value = codec.decode(&plan.object);
        let value = value.map_err(|e| reshard_strategy::StrategyError::Internal(e.to_string()))?;
        Ok(match value {
            Value::Opaque(class) => Some((plan.path.clone(), class)),
            _ => None,
        })
    };
    plans
        .iter()
        .filter_map(|plan| class(plan).transpose())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_model::Construct;
    use std::collections::BTreeSet;

    fn ordered() -> Box<Opaque> {
        Box::new(Opaque {
            module: "collections".into(),
            name: "OrderedDict".into(),
            construct: Construct::Reduce(Vec::new()),
            state: None,
            items: Vec::new(),
            pairs: Vec::new(),
        })
    }

    #[test]
    fn keys_get_their_types_back() {
        let path = |steps: &[&str]| Path(steps.iter().map(|s| Step::from(*s)).collect());
        let mut annotations = Annotations::default();
        for (key, kind) in [("-7", "int"), ("True", "bool"), ("None", "None")] {
            let id = AnnotationId::new(AnnotationKind::KeyType, path(&["state", key]), "");
            annotations.insert(id, kind);
        }
        let kinds = KeyTypes::of(&annotations);
        let key = |text: &str| kinds.key(&path(&["state", text]).0, text);
        assert_eq!(key("-7"), Some(At::Int(-7)));
        assert_eq!(key("True"), Some(At::Bool(true)));
        assert_eq!(key("None"), Some(At::None));
        assert_eq!(key("7"), None);
    }

    #[test]
    fn a_class_comes_back_with_its_attributes() {
        let mut annotations = Annotations::default();
        let id = |kind, name: &str| AnnotationId::new(kind, Path::default(), name);
        annotations.insert(
            id(AnnotationKind::ContainerType, ""),
            Value::Opaque(ordered()),
        );
        annotations.insert(id(AnnotationKind::ContainerState, "_metadata"), 7);
        let plans = plans(&annotations).unwrap();
        let found = classes(&plans).unwrap();
        let class = found.get(&Path::default()).unwrap();
        assert_eq!(
            class.state,
            Some(Value::Dict(vec![("_metadata".into(), 7.into())]))
        );
    }

    #[test]
    fn files_that_disagree_keep_their_facts() {
        let dict = |metadata: i64| FoundDict {
            path: Path::default(),
            class: Some(ordered()),
            state: vec![("_metadata".into(), Some(metadata.into()))],
            keys: Vec::new(),
        };
        let names = ["a.bin".to_owned(), "b.bin".to_owned()];
        for (second, want) in [
            (1, &["root", "_metadata"][..]),
            (2, &["root", "a.bin: _metadata", "b.bin: _metadata"]),
        ] {
            let mut dicts = Dicts::default();
            dicts.add(0, vec![dict(1)]);
            dicts.add(1, vec![dict(second)]);
            let found = dicts.of_files(&names);
            let found: BTreeSet<String> = found.iter().map(|(id, _)| id.to_string()).collect();
            assert_eq!(found, want.iter().map(|s| (*s).to_owned()).collect());
        }
    }
}
