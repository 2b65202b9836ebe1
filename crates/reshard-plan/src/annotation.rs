//! Facts that a checkpoint states beside its tensors and objects.

use reshard_model::{Path, Value};
use std::{collections::BTreeMap, fmt};

/// The kind of an [`Annotations`] entry. Formats of one family have the same kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum AnnotationKind {
    /// A text under a name, of the whole checkpoint: an entry of `__metadata__` of safetensors.
    Text,
    /// A value of JSON under a name, of a group or an array of Zarr. The value of the annotation is the text of the JSON.
    Attribute,
    /// The names of the axes of a Zarr array: a list of texts and `None`s.
    DimensionNames,
    /// The type of a key of a dict that is not a str: `int`, `bool` or `None`. The path leads to the entry of the dict, with its key as
    /// text.
    KeyType,
    /// The class of a dict, such as `collections.OrderedDict`: the object of this class without its items.
    ContainerType,
    /// An attribute of a dict, such as `_metadata` of what `Module.state_dict` returns.
    ContainerState,
    /// The class of a tensor in Python: `torch.nn.Parameter`.
    TensorClass,
    /// A tensor of one of torchao's classes, whose inner tensors are items: the object without the elements of these.
    TensorSubclass,
    /// What else Python knows of a tensor or an object, in words: another class, attributes, or which parts are one object. No format
    /// writes it.
    PythonState,
    /// A dict, a list or a leaf that is the same object as an earlier one. The value is the path of that one, as text.
    SameObject,
    /// The device of a tensor, if it is not `cpu`: `cuda:0`. A load puts it where the caller says.
    Device,
    /// A record of an archive that the format does not know. The value is its length in bytes.
    Record,
}

/// The kind of an annotation, and what it is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct AnnotationId {
    /// Its kind.
    pub kind: AnnotationKind,
    /// The file that states it, if the files of the checkpoint contradict each other.
    pub file: Option<Box<str>>,
    /// What it is about: a dict, an entry of a dict, a group or an array. Empty for the whole checkpoint.
    pub path: Path,
    /// Its name there, if there may be several of the kind.
    pub name: Box<str>,
}

impl AnnotationId {
    /// An annotation of this kind about something.
    pub fn new(kind: AnnotationKind, path: Path, name: impl Into<Box<str>>) -> Self {
        Self {
            kind,
            file: None,
            path,
            name: name.into(),
        }
    }

    /// The same, stated by one of several files.
    #[must_use]
    pub fn in_file(self, file: impl Into<Box<str>>) -> Self {
        Self {
            file: Some(file.into()),
            ..self
        }
    }
}

/// `["state"]["0"]`, `_metadata`, `group/array units`; with a file `model.safetensors: format`.
impl fmt::Display for AnnotationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file}: ")?;
        }
        let path = match self.kind {
            AnnotationKind::Text
            | AnnotationKind::Attribute
            | AnnotationKind::DimensionNames
            | AnnotationKind::Record => self.path.to_string(),
            _ => self.path.quoted(),
        };
        match (&*path, &*self.name) {
            ("", "") => f.write_str("root"),
            ("", name) => f.write_str(name),
            (path, "") => f.write_str(path),
            (path, name) => write!(f, "{path} {name}"),
        }
    }
}

/// Facts that a checkpoint states beside its tensors and objects: texts of the whole, attributes, types of dicts and of their keys. A load
/// ignores them, and tools carry them over. Readers put them into the [`Metadata`](crate::Metadata), and writers take them from there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Annotations(BTreeMap<AnnotationId, Value>);

/// Values are compared by content, and floats by their bits.
impl Eq for Annotations {}

impl Annotations {
    /// Adds an annotation. If there is one about the same already, it is replaced.
    pub fn insert(&mut self, id: AnnotationId, value: impl Into<Value>) {
        self.0.insert(id, value.into());
    }

    /// The value of an annotation.
    pub fn get(&self, id: &AnnotationId) -> Option<&Value> {
        self.0.get(id)
    }

    /// All annotations, by kind, then by what they are about.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&AnnotationId, &Value)> {
        self.0.iter()
    }

    /// The annotations of a kind on which all files agree: those that a new checkpoint states.
    pub fn of_all_files(
        &self,
        kind: AnnotationKind,
    ) -> impl Iterator<Item = (&AnnotationId, &Value)> {
        self.iter()
            .filter(move |(id, _)| id.kind == kind && id.file.is_none())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(AnnotationId, Value)> for Annotations {
    fn from_iter<T: IntoIterator<Item = (AnnotationId, Value)>>(all: T) -> Self {
        Self(all.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_model::Step;

    #[test]
    fn an_annotation_is_named_by_what_it_is_about() {
        use AnnotationKind as Kind;
        let path = |steps: &[&str]| Path(steps.iter().map(|s| Step::from(*s)).collect());
        for (kind, at, name, want) in [
            (Kind::Text, path(&[]), "format", "format"),
            (Kind::Attribute, path(&[]), "units", "units"),
            (Kind::Attribute, path(&["a/b"]), "units", "a/b units"),
            (Kind::DimensionNames, path(&["a/b"]), "", "a/b"),
            (
                Kind::KeyType,
                path(&["state", "0"]),
                "",
                r#"["state"]["0"]"#,
            ),
            (Kind::ContainerType, path(&[]), "", "root"),
            (Kind::ContainerState, path(&[]), "_metadata", "_metadata"),
        ] {
            assert_eq!(AnnotationId::new(kind, at, name).to_string(), want);
        }
        let of_file = AnnotationId::new(Kind::Text, path(&[]), "format").in_file("x.safetensors");
        assert_eq!(of_file.to_string(), "x.safetensors: format");
    }
}
