//! `__metadata__` of files as annotations of the checkpoint.

use reshard_model::{Path, Value};
use reshard_plan::{AnnotationId, AnnotationKind, Annotations};
use reshard_storage::Name;
use std::collections::BTreeMap;

/// The entry that says for which framework a file was written.
pub(crate) const FORMAT: &str = "format";

/// The value that is written unless the source has another one. It is no annotation.
pub(crate) const PYTORCH: &str = "pt";

/// Entries of PyTorch's files of ranks. They describe the pieces of the file, and each save has its own.
const OF_RANKS: [&str; 2] = ["DCP_VERSION", "DCP_SHARDING_INFO"];

/// The texts of all files, each with the number of its file.
#[derive(Debug, Default)]
pub(crate) struct Texts(BTreeMap<Box<str>, Vec<(u32, String)>>);

impl Texts {
    /// Adds what a file says.
    pub(crate) fn add(&mut self, file: u32, metadata: BTreeMap<Box<str>, String>) {
        for (name, text) in metadata {
            if !is_of_format(&name, &text) {
                self.0.entry(name).or_default().push((file, text));
            }
        }
    }

    /// Texts of the whole checkpoint. If two files have different texts under one name, each is that of its file.
    pub(crate) fn annotations(self, files: &[(Name, Option<u64>)]) -> Annotations {
        let id = |name| AnnotationId::new(AnnotationKind::Text, Path::default(), name);
        let mut out = Annotations::default();
        for (name, texts) in self.0 {
            let agree = texts.windows(2).all(|w| matches!(w, [a, b] if a.1 == b.1));
            for (file, text) in texts {
                let file = files
                    .get(file as usize)
                    .map_or("", |(name, _)| name.as_str());
                let id = match agree {
                    true => id(name.clone()),
                    false => id(name.clone()).in_file(file),
                };
                out.insert(id, text);
            }
        }
        out
    }
}

fn is_of_format(name: &str, text: &str) -> bool {
    OF_RANKS.contains(&name) || (name == FORMAT && text == PYTORCH)
}

/// The texts that every file of a new checkpoint gets.
pub(crate) fn of_all_files(annotations: &Annotations) -> BTreeMap<Box<str>, String> {
    let text =
        |(id, value): (&AnnotationId, &Value)| Some((id.name.clone(), value.as_str()?.to_owned()));
    annotations
        .of_all_files(AnnotationKind::Text)
        .filter_map(text)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_on_which_files_agree_are_those_of_the_checkpoint() {
        let files = ["a.safetensors", "b.safetensors"].map(|name| (Name::new(name).unwrap(), None));
        let of = |all: &[(&str, &str)]| {
            let all = all
                .iter()
                .map(|(name, text)| ((*name).into(), (*text).to_owned()));
            all.collect()
        };
        let mut texts = Texts::default();
        texts.add(
            0,
            of(&[
                ("format", "pt"),
                ("v", "1"),
                ("lora", "{}"),
                ("DCP_VERSION", "1.0"),
            ]),
        );
        texts.add(1, of(&[("format", "pt"), ("v", "2")]));
        let found = texts.annotations(&files);
        let names: Vec<String> = found.iter().map(|(id, _)| id.to_string()).collect();
        assert_eq!(names, ["lora", "a.safetensors: v", "b.safetensors: v"]);
        assert_eq!(of_all_files(&found), of(&[("lora", "{}")]));
    }
}
