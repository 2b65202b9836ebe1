//! What the files of a checkpoint hold, by key.

use crate::{
    dicts::Dicts,
    error::{refused, refused_file},
    file::TorchFile,
    index::Parsed,
    names::INDEX,
    ranks::{
        names::ranks,
        part::{Missing, OfRank, Parts, Replica},
    },
};
use reshard_model::{Path, PathOfKey, Region};
use reshard_plan::{Annotations, Metadata, MetadataBuilder, PlannerData, TensorProperties};
use reshard_strategy::{REPEATED, ReadLimits, Refused, Result, repeats};
use reshard_torch_format::{
    Contents, Found, FoundModule, FoundSubclass, Leaf, ObjectAt, TensorRef,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// A leaf, and the number of its file.
pub(crate) type At<T> = (u32, T);

#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) metadata: Metadata,
    /// By the number of the chunk. Each tensor with elements is one chunk.
    pub(crate) tensors: Vec<At<TensorRef>>,
    /// By the number of the object.
    pub(crate) objects: Vec<At<ObjectAt>>,
    /// Leaves that can't be read.
    pub(crate) refused: BTreeMap<Box<str>, Refused>,
    /// Tensors in which very many elements share few bytes, with the bytes of both; empty if they are together not too many.
    pub(crate) repeats: BTreeMap<Box<str>, (u64, u64)>,
    /// The modules of the files.
    pub(crate) modules: Vec<At<FoundModule>>,
    /// The number of tensors of each class of torchao.
    pub(crate) subclasses: BTreeMap<Box<str>, u64>,
    /// Leaves that the index does not name, with their files.
    pub(crate) unnamed: Vec<(Box<str>, String)>,
    /// Pieces of tensors that several ranks hold, but for the one that is read.
    pub(crate) replicas: Vec<Replica>,
    /// Tensors that are not whole, because the files of these ranks are not there.
    pub(crate) absent: BTreeMap<Box<str>, Arc<BTreeSet<u32>>>,
    /// Files of ranks that are missing, in words.
    pub(crate) missing: Vec<String>,
    /// Files of ranks that can't be opened.
    pub(crate) broken: Vec<Refused>,
    /// Files of items that are not read.
    pub(crate) others: Vec<String>,
}

/// A table that is made. Its metadata come last.
#[derive(Default)]
pub(crate) struct TableBuilder {
    pub(crate) table: Table,
    builder: MetadataBuilder,
    paths: PathOfKey,
    dicts: Dicts,
    /// The ranks that the last tensor lacks.
    pub(crate) missing: Option<Missing>,
}

impl Table {
    /// Of one file.
    pub(crate) fn of(file: &TorchFile, limits: &ReadLimits) -> Result<Self> {
        let mut tables = TableBuilder::default();
        let contents = file.contents(limits)?;
        if let ([only], false) = (&*contents.leaves, contents.opens) {
            tables.dicts.add_lone(0, &only.path.to_string());
        }
        for found in tables.describe(0, file, contents) {
            let key: Box<str> = found.path.to_string().into();
            tables.add(0, file, key, found)?;
        }
        let annotations = std::mem::take(&mut tables.dicts).of_one_file(file.name.as_str());
        let mut table = tables.finish_with_paths(annotations, limits)?;
        table.missing = table.missing_of_part();
        Ok(table)
    }

    /// The ranks that hold the rest of the tensors of one file, in words.
    fn missing_of_part(&self) -> Vec<String> {
        // Most tensors lack the same ranks.
        let mut all: BTreeSet<u32> = BTreeSet::new();
        let mut last: Option<&Arc<BTreeSet<u32>>> = None;
        for missing in self.absent.values() {
            if !last.is_some_and(|last| Arc::ptr_eq(last, missing)) {
                all.extend(&**missing);
            }
            last = Some(missing);
        }
        match all.is_empty() {
            true => Vec::new(),
            false => vec![format!("the files of {} are missing", ranks(all))],
        }
    }

    /// Of the files of an index. Files that can't be opened come with the reason.
    pub(crate) fn indexed(
        files: &[Result<TorchFile, Refused>],
        index: Parsed,
        limits: &ReadLimits,
    ) -> Result<Self> {
        let mut tables = TableBuilder::default();
        let names: Vec<String> = index.files.keys().map(ToString::to_string).collect();
        for ((n, opened), (name, keys)) in (0..).zip(files).zip(index.files) {
            let leaves = opened.as_ref().map_err(Clone::clone).and_then(|file| {
                let contents = file.contents(limits);
                let mut contents = contents.map_err(|e| refused_file(&e, name.as_str()))?;
                // The index names a tensor of torchao, and the table its inner tensors.
                let subclasses = std::mem::take(&mut contents.subclasses);
                tables.note_subclasses(n, &subclasses);
                let inner = subclasses.into_iter();
                let inner: BTreeMap<String, Vec<Path>> = inner
                    .map(|found| (found.path.to_string(), found.inner))
                    .collect();
                Ok((file, tables.describe(n, file, contents), inner))
            });
            let (file, leaves, mut inner) = match leaves {
                Ok(found) => found,
                Err(why) => {
                    let all = keys.into_iter().map(|key| (key, why.clone()));
                    tables.table.refused.extend(all);
                    continue;
                }
            };
            let leaves = leaves.into_iter();
            let mut held: BTreeMap<Box<str>, Found> = leaves
                .map(|found| (found.path.to_string().into(), found))
                .collect();
            let keys = keys.into_iter().flat_map(|key| match inner.remove(&*key) {
                Some(paths) => paths.iter().map(|path| path.to_string().into()).collect(),
                None => vec![key],
            });
            let keys: Vec<Box<str>> = keys.collect();
            for key in keys {
                match held.remove(&key) {
                    Some(found) => tables.add(n, file, key, found)?,
                    None => {
                        let what =
                            format!("{key}: {INDEX} says that it lies here, but it does not");
                        let why = Refused::damaged(what).in_file(&name);
                        tables.table.refused.insert(key, why);
                    }
                }
            }
            let unnamed = held.into_keys().map(|key| (key, name.to_string()));
            tables.table.unnamed.extend(unnamed);
        }
        let flat = std::mem::take(&mut tables.paths);
        let paths = match index.paths {
            Some(noted) => noted,
            // A key of the index is one name, however many dots it has.
            None => flat
                .into_keys()
                .map(|key| (key.clone(), Path(vec![key.to_string().into()])))
                .collect(),
        };
        let annotations = std::mem::take(&mut tables.dicts).of_files(&names);
        tables.finish(paths, annotations, limits)
    }
}

impl TableBuilder {
    /// Notes what a file says beside its leaves, and returns these.
    fn describe(&mut self, n: u32, file: &TorchFile, contents: Contents) -> Vec<Found> {
        let records = file.unknown_records(&contents.storages);
        self.dicts.add(n, contents.dicts);
        self.dicts.add_shared(n, contents.shared);
        self.dicts.add_unsaid(n, contents.unsaid);
        self.note_subclasses(n, &contents.subclasses);
        self.dicts.add_records(n, records);
        if file.modules.open {
            // A copy is a dict of its tensors.
            let noted = contents.modules.iter().map(|module| {
                let hooks = match module.hooks {
                    true => ", whose hooks may change what state_dict() returns",
                    false => "",
                };
                (
                    module.path.clone(),
                    format!("a module of class {}{hooks}", module.class),
                )
            });
            self.dicts.add_unsaid(n, noted.collect());
        }
        let modules = contents.modules.into_iter().map(|mut module| {
            // The name of a lone object is not in the file.
            if !contents.opens {
                module.path = Path::default();
            }
            (n, module)
        });
        self.table.modules.extend(modules);
        contents.leaves
    }

    fn note_subclasses(&mut self, n: u32, found: &[FoundSubclass]) {
        self.dicts.add_subclasses(n, found);
        for found in found {
            let count = self.table.subclasses.entry(found.class.clone());
            *count.or_default() += 1;
        }
    }

    fn add(&mut self, n: u32, file: &TorchFile, key: Box<str>, found: Found) -> Result<()> {
        let name = file.name.as_str();
        let Found { path, leaf, .. } = found;
        match leaf {
            Leaf::Object(object) => self.object(n, key, path, object),
            Leaf::Part(part) => {
                let fits = part.pieces.iter().map(|(_, t)| file.has(&t.storage));
                let fits: Result<(), _> = fits.collect();
                let of = OfRank {
                    file: n,
                    name,
                    rank: None,
                    part,
                };
                let parts = match fits {
                    Ok(()) => Parts::of(vec![of], &BTreeSet::new(), &mut self.missing),
                    Err(e) => Err(refused(&key, e, name)),
                };
                match parts {
                    Ok(parts) => self.parts(&key, path, parts),
                    Err(why) => {
                        self.table.refused.insert(key, why);
                        Ok(())
                    }
                }
            }
            Leaf::Tensor(described) => {
                let fits = described.and_then(|t| file.has(&t.storage).map(|()| t));
                match fits {
                    Ok(tensor) => self.whole(n, key, path, *tensor),
                    Err(e) => {
                        let why = refused(&key, e, name);
                        self.table.refused.insert(key, why);
                        Ok(())
                    }
                }
            }
        }
    }

    fn tensor(&mut self, n: u32, key: &str, tensor: TensorRef) -> Result<()> {
        let layout = tensor.layout().ok();
        let strided = layout.as_ref().filter(|layout| !layout.is_contiguous());
        let properties = TensorProperties {
            requires_grad: tensor.requires_grad,
            strides: strided.map(|layout| layout.strides()[..].into()),
            ..TensorProperties::default()
        };
        let (dtype, shape) = (tensor.dtype, &tensor.shape);
        let id = self.builder.add_tensor(key, dtype, shape, properties)?;
        let bytes = layout.map_or(0, |layout| layout.bytes());
        if bytes == 0 {
            return Ok(());
        }
        self.builder.add_chunk(id, &Region::whole(&tensor.shape))?;
        if repeats(bytes, tensor.storage.len) {
            let repeats = &mut self.table.repeats;
            repeats.insert(key.into(), (bytes, tensor.storage.len));
        }
        self.table.tensors.push((n, tensor));
        Ok(())
    }

    /// Adds a tensor of which ranks hold parts.
    pub(crate) fn parts(&mut self, key: &str, path: Path, parts: Parts) -> Result<()> {
        let Parts {
            pieces,
            missing,
            of,
            ..
        } = parts;
        let Some((dtype, shape, requires_grad)) = of else {
            return Ok(());
        };
        let properties = TensorProperties {
            requires_grad,
            ..TensorProperties::default()
        };
        let id = self.builder.add_tensor(key, dtype, &shape, properties)?;
        for (region, holders) in pieces {
            let chunk = self.builder.add_chunk(id, &region)?;
            let mut holders = holders.into_iter();
            self.table.tensors.extend(holders.next());
            let others = holders.map(|(file, tensor)| Replica {
                of: chunk,
                file,
                tensor,
            });
            self.table.replicas.extend(others);
        }
        if !missing.is_empty() {
            self.table.absent.insert(key.into(), missing);
        }
        self.paths.insert(key.into(), path);
        Ok(())
    }

    /// Adds a tensor that one file holds as a whole.
    pub(crate) fn whole(
        &mut self,
        n: u32,
        key: Box<str>,
        path: Path,
        tensor: TensorRef,
    ) -> Result<()> {
        self.dicts.add_tensor(n, &path, &tensor);
        self.tensor(n, &key, tensor)?;
        self.paths.insert(key, path);
        Ok(())
    }

    /// Adds an object.
    pub(crate) fn object(&mut self, n: u32, key: Box<str>, path: Path, at: ObjectAt) -> Result<()> {
        self.builder.add_object(&key)?;
        self.table.objects.push((n, at));
        self.paths.insert(key, path);
        Ok(())
    }

    /// The table, with the paths of all leaves.
    pub(crate) fn finish_with_paths(
        mut self,
        annotations: Annotations,
        limits: &ReadLimits,
    ) -> Result<Table> {
        let paths = std::mem::take(&mut self.paths);
        self.finish(paths, annotations, limits)
    }

    fn finish(
        self,
        paths: PathOfKey,
        annotations: Annotations,
        limits: &ReadLimits,
    ) -> Result<Table> {
        let mut table = self.table;
        let all = table.repeats.values().map(|(bytes, _)| *bytes);
        if limits.allow_repeated || all.fold(0, u64::saturating_add) <= REPEATED {
            table.repeats.clear();
        }
        let metadata = self.builder.finish(Some(PlannerData::Paths(paths)))?;
        table.metadata = metadata.with_annotations(annotations);
        Ok(table)
    }
}
