//! The leaves of all files, by key.

use super::{layout::Layouts, names::RankName};
use crate::{dicts::Dicts, error::refused, file::TorchFile};
use reshard_model::{Path, Step};
use reshard_storage::Name;
use reshard_strategy::Refused;
use reshard_torch_format::{Contents, Found, FoundDict, Leaf, ObjectAt, PartRef, TensorRef};
use std::collections::{BTreeMap, BTreeSet};

/// One file of a rank.
#[derive(Clone, Debug)]
pub(super) struct RankFile {
    /// Its number.
    pub(super) n: u32,
    pub(super) item: Box<str>,
    pub(super) rank: u32,
    world: Option<u32>,
    pub(super) name: String,
}

impl RankFile {
    pub(super) fn new(n: u32, of: &RankName, name: &Name) -> Self {
        Self {
            n,
            item: of.item.as_str().into(),
            rank: of.rank,
            world: of.world,
            name: name.to_string(),
        }
    }

    /// The number of ranks, if the name has it.
    pub(super) fn world(&self) -> Option<u32> {
        self.world
    }
}

/// What one file has of a key.
#[derive(Debug)]
pub(super) enum Held {
    Part(Box<PartRef>),
    Tensor(Box<TensorRef>),
    Object(ObjectAt),
}

impl Held {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Part(_) => "a part of a tensor",
            Self::Tensor(_) => "a whole tensor",
            Self::Object(_) => "an object",
        }
    }
}

/// A key, and what each file has of it.
#[derive(Debug, Default)]
pub(super) struct Leaves {
    pub(super) item: Box<str>,
    pub(super) path: Path,
    /// With the number of the file.
    pub(super) of: Vec<(u32, Held)>,
    pub(super) refused: Option<Refused>,
}

/// The leaves of all files.
pub(super) struct Gathered {
    /// Whether the item is a part of each key.
    has_items: bool,
    pub(super) layouts: Layouts,
    pub(super) files: Vec<RankFile>,
    pub(super) leaves: BTreeMap<Box<str>, Leaves>,
    pub(super) dicts: Dicts,
    /// Files that can't be opened.
    pub(super) broken: Vec<(RankFile, Refused)>,
}

impl Gathered {
    pub(super) fn new(has_items: bool, layouts: Layouts) -> Self {
        Self {
            has_items,
            layouts,
            files: Vec::new(),
            leaves: BTreeMap::new(),
            dicts: Dicts::default(),
            broken: Vec::new(),
        }
    }

    pub(super) fn has_items(&self) -> bool {
        self.has_items
    }

    /// Adds a file that can't be opened.
    pub(super) fn broken(&mut self, file: RankFile, why: Refused) {
        self.files.push(file.clone());
        self.broken.push((file, why));
    }

    pub(super) fn first_broken(&self) -> Option<String> {
        let (file, why) = self.broken.first()?;
        Some(format!("{}: {}", file.name, why.what))
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.files.iter().map(|file| file.name.clone()).collect()
    }

    /// Whether any tensor is a part.
    pub(super) fn has_parts(&self) -> bool {
        let mut held = self.leaves.values().flat_map(|leaves| &leaves.of);
        held.any(|(_, held)| matches!(held, Held::Part(_)))
    }

    /// The ranks of an item whose files could be opened.
    pub(super) fn ranks(&self, item: &str) -> BTreeSet<u32> {
        let of_item = self.files.iter().filter(|file| *file.item == *item);
        let broken: BTreeSet<u32> = self.broken.iter().map(|(file, _)| file.n).collect();
        let opened = of_item.filter(|file| !broken.contains(&file.n));
        opened.map(|file| file.rank).collect()
    }

    /// How many ranks the files of an item are of, if their names or `metadata.pkl` say it.
    pub(super) fn world(&self, item: &str) -> Option<u32> {
        let of_item = self.files.iter().filter(|file| *file.item == *item);
        let named = of_item.filter_map(|file| file.world).max();
        named.or_else(|| self.layouts.world())
    }

    /// Adds the leaves of a file.
    pub(super) fn add(&mut self, file: RankFile, opened: &TorchFile, contents: Contents) {
        let prefix =
            (self.has_items && !file.item.is_empty()).then(|| Step::Key(file.item.clone()));
        let placed = |mut path: Path| {
            if let Some(step) = &prefix {
                path.0.insert(0, step.clone());
            }
            path
        };
        let n = file.n;
        let dicts = contents.dicts.into_iter().map(|dict| FoundDict {
            path: placed(dict.path),
            ..dict
        });
        self.dicts.add(n, dicts.collect());
        // The merged checkpoint has the inner tensors alone.
        let subclasses = contents.subclasses.iter();
        let subclasses = subclasses.map(|found| {
            (
                placed(found.path.clone()),
                format!("the class {}", found.class),
            )
        });
        self.dicts.add_unsaid(n, subclasses.collect());
        let shared = contents.shared.into_iter();
        let shared = shared.map(|(path, first)| (placed(path), placed(first)));
        self.dicts.add_shared(n, shared.collect());
        let unsaid = contents.unsaid.into_iter();
        let unsaid = unsaid.map(|(path, what)| (placed(path), what));
        self.dicts.add_unsaid(n, unsaid.collect());
        for Found { path, leaf, .. } in contents.leaves {
            // The name of the only leaf of a file without a dict is not in the file.
            let own = match contents.opens || prefix.is_none() {
                true => path,
                false => Path::default(),
            };
            let key: Box<str> = own.to_string().into();
            let held = self.held(&file, opened, &key, leaf);
            let path = placed(own);
            let of = self.leaves.entry(path.to_string().into());
            let of = of.or_insert_with(|| Leaves {
                item: file.item.clone(),
                path,
                ..Leaves::default()
            });
            match held {
                Ok(held) => of.of.push((n, held)),
                Err(why) => drop(of.refused.get_or_insert(why)),
            }
        }
        self.files.push(file);
    }

    fn held(
        &self,
        file: &RankFile,
        opened: &TorchFile,
        key: &str,
        leaf: Leaf,
    ) -> Result<Held, Refused> {
        let refuse = |e| refused(key, e, &file.name);
        match leaf {
            Leaf::Object(at) => Ok(Held::Object(at)),
            Leaf::Tensor(described) => {
                let fits = described.and_then(|t| opened.has(&t.storage).map(|()| t));
                let tensor = fits.map_err(refuse)?;
                match self.layouts.part(&file.item, key, file.rank, &tensor) {
                    Some(part) => Ok(Held::Part(Box::new(part.map_err(refuse)?))),
                    None => Ok(Held::Tensor(tensor)),
                }
            }
            Leaf::Part(part) => {
                for (_, tensor) in &part.pieces {
                    opened.has(&tensor.storage).map_err(refuse)?;
                }
                match self.layouts.contradicts(&file.item, key, &part) {
                    Some(noted) => {
                        let what = format!(
                            "{noted}, but the tensor says {} of shape {}",
                            part.layout, part.shape
                        );
                        Err(Refused::damaged(what).in_file(&file.name))
                    }
                    None => Ok(Held::Part(part)),
                }
            }
        }
    }
}
