//! The names of files.

use reshard_storage::Name;

/// Name of the backend.
pub const NAME: &str = "safetensors";

/// The file that reshard adds to a folder of safetensors: checksums, and what safetensors has no place for. Other programs ignore it.
pub const RECORD: &str = "reshard-safetensors.json";

/// The file of leaves that are no tensors, which reshard adds if it is asked to keep them. Other programs ignore it.
pub const OBJECTS: &str = "reshard-safetensors.objects";

/// The index of a model in several files, as `transformers` names it.
pub const INDEX: &str = "model.safetensors.index.json";

/// The one file of a model that needs no index.
pub(crate) const MODEL: &str = "model.safetensors";

/// The model in the names of files, unless the caller names it.
const MODEL_STEM: &str = "model";

const FILE: &str = ".safetensors";
const INDEX_END: &str = ".safetensors.index.json";

/// What a file is, by its name alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named<'n> {
    /// [`RECORD`].
    Record,
    /// [`OBJECTS`].
    Objects,
    /// The index of a model of this name.
    Index(&'n str),
    /// A file of tensors, without its ending.
    Tensors(&'n str),
}

impl<'n> Named<'n> {
    /// `None` for files of other formats.
    pub(crate) fn of(name: &'n str) -> Option<Self> {
        if name == RECORD {
            return Some(Self::Record);
        }
        if name == OBJECTS {
            return Some(Self::Objects);
        }
        let whole = |stem: &&str| !stem.is_empty() && !stem.contains('/');
        let index = name.strip_suffix(INDEX_END).filter(whole).map(Self::Index);
        index.or_else(|| name.strip_suffix(FILE).filter(whole).map(Self::Tensors))
    }

    /// Whether a save gives the file this name if no policy or caller chooses another. A file with another name may belong to another
    /// program: an adapter, or another model.
    pub(crate) fn is_usual(self) -> bool {
        match self {
            Self::Record | Self::Objects => true,
            Self::Index(model) => model == MODEL_STEM,
            Self::Tensors(stem) => {
                let model = of_several(stem).map_or(stem, |(model, ..)| model);
                let of_rank = model
                    .strip_prefix("shard-")
                    .and_then(|rest| rest.split_once('-'));
                of_rank.map_or(model, |(_, model)| model) == MODEL_STEM
            }
        }
    }

    /// Whether a save may give such a name to a file.
    pub(crate) fn is_saved(self) -> bool {
        match self {
            Self::Record | Self::Objects | Self::Index(_) => true,
            Self::Tensors(stem) => of_several(stem).is_some() || !stem.contains('-'),
        }
    }
}

/// The model, the number and the count of a file `MODEL-00001-of-00005`. Numbers start at 1.
pub(crate) fn of_several(stem: &str) -> Option<(&str, u64, u64)> {
    let number = |text: &str| {
        let digits = text.len() >= 5 && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse::<u64>().ok()).flatten()
    };
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (model, n) = rest.rsplit_once('-')?;
    let (n, count) = (number(n)?, number(count)?);
    (1..=count).contains(&n).then_some((model, n, count))
}

/// Whether the name of a file says that it is one of several of a model.
pub(crate) fn is_of_several(file: &Name) -> bool {
    matches!(Named::of(file.as_str()), Some(Named::Tensors(stem)) if of_several(stem).is_some())
}

/// The last part of a URL.
pub(crate) fn last_part(url: &str) -> &str {
    url.trim_end_matches('/').rsplit('/').next().unwrap_or(url)
}

/// Whether a checkpoint whose URL ends with this name is one file.
pub(crate) fn is_file(last_part: &str) -> bool {
    matches!(Named::of(last_part), Some(Named::Tensors(_)))
}

/// The file of a model that has so many. A single file needs no number.
pub(crate) fn file(model: &str, number: usize, count: usize) -> String {
    match count {
        1 => format!("{model}{FILE}"),
        _ => format!("{model}-{:05}-of-{count:05}{FILE}", number + 1),
    }
}

/// A file of a rank, as PyTorch DCP names it.
pub(crate) fn shard(rank: u32, model: &str, number: usize, count: usize) -> String {
    let rank = u64::from(rank) + 1;
    format!(
        "shard-{rank:05}-{model}-{:05}-of-{count:05}{FILE}",
        number + 1
    )
}

/// The index of a model.
pub(crate) fn index(model: &str) -> String {
    format!("{model}{INDEX_END}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_by_their_names() {
        for (name, want) in [
            (RECORD, Some(Named::Record)),
            (OBJECTS, Some(Named::Objects)),
            (INDEX, Some(Named::Index("model"))),
            (MODEL, Some(Named::Tensors("model"))),
            ("a.b.safetensors", Some(Named::Tensors("a.b"))),
            (".safetensors", None),
            ("sub/model.safetensors", None),
            ("model.safetensors.tmp", None),
            ("config.json", None),
        ] {
            assert_eq!(Named::of(name), want, "{name}");
        }
    }

    #[test]
    fn numbers_of_files_are_those_that_are_written() {
        assert_eq!(file("model", 0, 1), MODEL);
        assert_eq!(file("model", 1, 12), "model-00002-of-00012.safetensors");
        assert_eq!(
            shard(0, "model", 0, 1),
            "shard-00001-model-00001-of-00001.safetensors"
        );
        for (name, is_usual) in [
            (RECORD, true),
            (OBJECTS, true),
            (INDEX, true),
            ("adapter_model.safetensors.index.json", false),
            (MODEL, true),
            ("model-00002-of-00012.safetensors", true),
            ("shard-00001-model-00001-of-00001.safetensors", true),
            ("adapter_model.safetensors", false),
            ("adapter_model-00001-of-00002.safetensors", false),
        ] {
            let named = Named::of(name).unwrap();
            assert_eq!(named.is_usual(), is_usual, "{name}");
        }
        assert_eq!(of_several("model-00002-of-00012"), Some(("model", 2, 12)));
        for stem in [
            "model",
            "model-00013-of-00012",
            "model-00000-of-00002",
            "model-2-of-3",
            "m-0000x-of-00002",
        ] {
            assert_eq!(of_several(stem), None, "{stem}");
        }
    }
}
