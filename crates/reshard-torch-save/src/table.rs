//! What the files of a checkpoint hold, by key.

use crate::{
    dicts::Dicts,
    error::{refused, refused_file},
    file::TorchFile,
    index::Parsed,
    names::INDEX,
};
use reshard_model::{Path, PathOfKey, Region};
use reshard_plan::{Annotations, Metadata, MetadataBuilder, PlannerData, TensorProperties};
use reshard_strategy::{REPEATED, ReadLimits, Refused, Result, repeats};
use reshard_torch_format::{Contents, Found, FoundModule, Leaf, ObjectAt, TensorRef};
use std::collections::BTreeMap;

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
    /// Leaves that the index does not name, with their files.
    pub(crate) unnamed: Vec<(Box<str>, String)>,
}

/// A table that is made. Its metadata come last.
#[derive(Default)]
struct TableBuilder {
    table: Table,
    builder: MetadataBuilder,
    paths: PathOfKey,
    dicts: Dicts,
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
        let paths = std::mem::take(&mut tables.paths);
        let annotations = std::mem::take(&mut tables.dicts).of_one_file(file.name.as_str());
        tables.finish(paths, annotations, limits)
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
                let contents = contents.map_err(|e| refused_file(&e, name.as_str()))?;
                Ok((file, tables.describe(n, file, contents)))
            });
            let (file, leaves) = match leaves {
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

    fn add(&mut self, n: u32, file: &TorchFile, key: Box<str>, found: Found) -> Result<()> {
        let name = file.name.as_str();
        let Found { path, leaf, .. } = found;
        match leaf {
            Leaf::Object(object) => {
                self.builder.add_object(&key)?;
                self.table.objects.push((n, object));
            }
            Leaf::Tensor(described) => {
                let fits = described.and_then(|t| file.has(&t.storage).map(|()| t));
                match fits {
                    Ok(tensor) => {
                        self.dicts.add_tensor(n, &path, &tensor);
                        self.tensor(n, &key, *tensor)?;
                    }
                    Err(e) => {
                        let why = refused(&key, e, name);
                        self.table.refused.insert(key, why);
                        return Ok(());
                    }
                }
            }
        }
        self.paths.insert(key, path);
        Ok(())
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
