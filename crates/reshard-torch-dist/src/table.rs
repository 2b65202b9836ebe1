//! An opened `.metadata`: the logical table, and where each chunk and object lies.

use crate::{
    limits::too_much,
    metadata::build::{Columns, NONE, Props, RawStorage, RawTensor, V},
};
use reshard_model::{DType, Dims, Path, Region, Step};
use reshard_plan::{
    ChunkId, MemoryFormat, Metadata, MetadataBuilder, ObjectId, PlannerData, TensorId, TensorProperties,
};
use reshard_storage::Name;
use reshard_strategy::{Result, StrategyError};
use reshard_torch_format::{Limits, pickle::run};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Where a stored item lies: an index into the files, offset and length in bytes, an index into the transforms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) file: u32,
    pub(crate) transforms: u32,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// No file: the checkpoint doesn't say where the item lies.
const NOWHERE: Place = Place { file: u32::MAX, transforms: 0, offset: 0, length: 0 };

/// What tells the generations of writers apart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signs {
    pub(crate) old_module: bool,
    pub(crate) arity: u8,
    pub(crate) has_tensors: bool,
    pub(crate) storage_meta: bool,
    pub(crate) checkpoint_id: Option<String>,
    pub(crate) save_id: bool,
    pub(crate) version: Option<String>,
    pub(crate) mcore_class: bool,
    pub(crate) mcore_data: bool,
    pub(crate) all_local_plans: bool,
    pub(crate) planner_data: bool,
}

/// One `.metadata`, or all `__{rank}.metadata` of a rank-local checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) metadata: Arc<Metadata>,
    pub(crate) chunks: Vec<Place>,
    pub(crate) objects: Vec<Place>,
    /// File names; an error text for those that are refused.
    pub(crate) files: Vec<std::result::Result<Name, String>>,
    /// Descriptors in the order of decoding; the first is "none".
    pub(crate) transforms: Vec<Vec<String>>,
    pub(crate) signs: Signs,
    /// Keys of tensors that Megatron Core stored flattened, with their original shape.
    pub(crate) flattened: BTreeMap<String, Dims>,
    /// Keys that are described in a way that is not understood, and what it is about them. The logical table lacks them.
    pub(crate) unknown: BTreeMap<String, String>,
}

impl Table {
    /// Reads one file.
    pub(crate) fn parse(file: &str, pickle: &[u8], limits: &Limits) -> Result<Self> {
        Self::merge(&[(file, pickle)], limits)
    }

    /// Reads one file, or the files of all ranks of a rank-local checkpoint, whose tensors are put together.
    pub(crate) fn merge(files: &[(&str, &[u8])], limits: &Limits) -> Result<Self> {
        let mut b = TableBuilder { merging: files.len() > 1, ..TableBuilder::default() };
        let mut parsed = Vec::new();
        for &(file, pickle) in files {
            let (columns, storage) = b.add(file, pickle, limits)?;
            parsed.push((file, columns, storage));
        }
        let TableBuilder { logical, planner_data, signs, flattened, unknown, .. } = b;
        let metadata = Arc::new(logical.finish(planner_data)?);
        let mut table = Self { metadata, signs, flattened, unknown, ..Self::default() };
        table.chunks = vec![NOWHERE; table.metadata.chunk_count()];
        table.objects = vec![NOWHERE; table.metadata.object_count()];
        table.transforms.push(Vec::new());
        for (file, columns, storage) in parsed {
            table.storage(file, &columns, storage)?;
        }
        Ok(table)
    }

    pub(crate) fn chunk(&self, id: ChunkId) -> Option<Place> {
        self.chunks.get(id.0 as usize).copied().filter(|p| p.file != u32::MAX)
    }

    pub(crate) fn object(&self, id: ObjectId) -> Option<Place> {
        self.objects.get(id.0 as usize).copied().filter(|p| p.file != u32::MAX)
    }

    fn storage(&mut self, file: &str, columns: &Columns<'_>, dict: u32) -> Result<()> {
        let first = self.files.len() as u32;
        let (mut files, mut transforms) = (BTreeMap::new(), BTreeMap::new());
        for &(index, storage) in &columns.dict(dict).storage {
            let index = columns.indices[index as usize];
            let Some(key) = columns.text_at(index.key) else {
                return Err(StrategyError::corrupt(file, None, "an entry of storage_data names no key"));
            };
            let raw = columns.storages[storage as usize];
            if columns.text_at(raw.file).is_none() || raw.offset == u64::MAX || raw.length == u64::MAX {
                let what = format!("the place of {key:?} lacks its file, offset or length");
                return Err(StrategyError::corrupt(file, None, what));
            }
            let place = self.place(columns, raw, &mut files, &mut transforms);
            if self.unknown.contains_key(key) {
                continue;
            }
            match index.offset() {
                None => match self.metadata.object(key) {
                    Some(id) => {
                        set(&mut self.objects, id.0, place, first).map_err(|what| twice(file, key, what))?
                    }
                    None => {
                        let what = format!("{key:?} has a place, but is no object");
                        return Err(StrategyError::corrupt(file, None, what));
                    }
                },
                Some((at, n)) => match self.metadata.tensor(key) {
                    // Bytes that no chunk owns are ignored.
                    Some(t) => {
                        if let Some(id) = t.chunk_at(
                            &columns.ints(at, n),
                            (index.hint != NONE).then_some(index.hint as usize),
                        ) {
                            set(&mut self.chunks, id.0, place, first)
                                .map_err(|what| twice(file, key, what))?;
                        }
                    }
                    None => {
                        let what = format!("{key:?} has a place, but is no tensor");
                        return Err(StrategyError::corrupt(file, None, what));
                    }
                },
            }
        }
        Ok(())
    }

    fn place(
        &mut self,
        columns: &Columns<'_>,
        raw: RawStorage,
        files: &mut BTreeMap<u32, u32>,
        transforms: &mut BTreeMap<u32, u32>,
    ) -> Place {
        let file = columns.text_at(raw.file).map_or(u32::MAX, |name| {
            *files.entry(raw.file).or_insert_with(|| {
                self.files.push(Name::new(name).map_err(|e| e.to_string()));
                self.files.len() as u32 - 1
            })
        });
        let transforms = if raw.transforms == NONE {
            0
        } else {
            *transforms.entry(raw.transforms).or_insert_with(|| {
                let texts = columns.descriptors(raw.transforms);
                let at = self.transforms.iter().position(|t| *t == texts);
                at.unwrap_or_else(|| {
                    self.transforms.push(texts);
                    self.transforms.len() - 1
                }) as u32
            })
        };
        Place { file, transforms, offset: raw.offset, length: raw.length }
    }
}

/// The logical half, while files are read.
#[derive(Debug, Default)]
struct TableBuilder {
    logical: MetadataBuilder,
    planner_data: Option<PlannerData>,
    signs: Signs,
    flattened: BTreeMap<String, Dims>,
    unknown: BTreeMap<String, String>,
    objects: BTreeSet<String>,
    /// Several files are put together; what they say twice counts once.
    merging: bool,
    seen: BTreeSet<(TensorId, Region)>,
}

impl TableBuilder {
    /// Adds what one `.metadata` says. Tensors that are there already get more chunks. What says where items lie comes back.
    fn add<'p>(&mut self, file: &str, pickle: &'p [u8], limits: &Limits) -> Result<(Columns<'p>, u32)> {
        let mut columns = Columns::default();
        let (root, end) = run(pickle, &mut columns, limits).map_err(|e| {
            too_much(&e, file).unwrap_or_else(|| StrategyError::Corrupt {
                file: file.into(),
                offset: None,
                what: "the metadata can't be read; the checkpoint is damaged or was never finished".into(),
                source: Some(Box::new(e)),
            })
        })?;
        if end != pickle.len() {
            return Err(StrategyError::corrupt(
                file,
                Some(end as u64),
                "bytes follow the end of the metadata",
            ));
        }
        let corrupt = |what: &str| StrategyError::corrupt(file, None, what);
        let V::Root(root) = root else {
            return Err(corrupt("it holds no torch.distributed.checkpoint.metadata.Metadata"));
        };
        let root = columns.roots[root as usize].clone();
        let field = |name: &str| root.fields.iter().rev().find(|(k, _)| k.as_str() == name).map(|(_, v)| v);
        self.signs.mcore_class |= root.subclass;
        self.signs.all_local_plans |= field("all_local_plans").is_some();
        self.signs.mcore_data |= field("mcore_data").is_some();
        if let Some(V::Meta(m)) = field("storage_meta") {
            let m = &columns.metas[*m as usize];
            self.signs.storage_meta = true;
            self.signs.save_id = m.save_id.is_some();
            self.signs.checkpoint_id.clone_from(&m.checkpoint_id);
        }
        if let Some(V::Str(v)) = field("version") {
            self.signs.version = Some(v.as_str().into());
        }
        if let Some(V::Dict(d)) = field("mcore_data") {
            self.mcore_data(&columns, *d);
        }
        if let Some(V::Dict(d)) = field("planner_data") {
            self.planner_data(&columns, *d);
        }
        let Some(V::Dict(d)) = field("state_dict_metadata") else {
            return Err(corrupt("it has no state_dict_metadata"));
        };
        self.entries(file, &columns, *d)?;
        match field("storage_data") {
            Some(V::Dict(d)) => Ok((columns, *d)),
            _ => Err(corrupt("it has no storage_data, so nothing says where the items lie")),
        }
    }

    fn entries(&mut self, file: &str, columns: &Columns<'_>, dict: u32) -> Result<()> {
        for (key, value) in &columns.dict(dict).pairs {
            let V::Str(key) = key else {
                return Err(StrategyError::corrupt(file, None, "a key of state_dict_metadata is no str"));
            };
            let key = key.as_str();
            match value {
                V::Tensor(t) => self.tensor(file, columns, key, &columns.tensors[*t as usize])?,
                // Every rank of a rank-local checkpoint has its own copy; the first one counts.
                V::BytesItem if self.merging && !self.objects.insert(key.into()) => {}
                V::BytesItem => drop(self.logical.add_object(key)?),
                _ => {
                    self.not_understood(key, "it is neither a tensor nor an object that reshard knows".into())
                }
            }
        }
        Ok(())
    }

    /// Fails only what wants the key.
    fn not_understood(&mut self, key: &str, what: String) {
        self.unknown.entry(key.into()).or_insert(what);
    }

    fn tensor(&mut self, file: &str, columns: &Columns<'_>, key: &str, raw: &RawTensor) -> Result<()> {
        let corrupt = |what: String| StrategyError::corrupt(file, None, format!("tensor {key}: {what}"));
        let Description { size: (at, n), props, dtype } = match describe(columns, raw) {
            Ok(described) => described,
            Err(what) => {
                self.not_understood(key, what);
                return Ok(());
            }
        };
        let shape = &columns.ints(at, n);
        self.signs.has_tensors = true;
        self.signs.old_module |= props.old_module;
        self.signs.arity = self.signs.arity.max(props.arity);
        // A dict has a key once: what several ranks have is put together, what one file has twice is damaged.
        let id = match self.logical.tensor(key).filter(|_| self.merging) {
            Some(id) => id,
            None => {
                let properties = TensorProperties {
                    requires_grad: props.requires_grad,
                    pin_memory: props.pin_memory,
                    memory_format: match props.mem_format {
                        0 => MemoryFormat::Contiguous,
                        1 => MemoryFormat::ChannelsLast,
                        _ => MemoryFormat::Preserve,
                    },
                    strides: props.strides.clone().filter(|s| s.len() == shape.len()).map(Into::into),
                };
                self.logical.add_tensor(key, dtype, shape, properties)?
            }
        };
        for &c in columns.chunks_of(raw) {
            let Some((offsets, sizes)) = columns.chunk(c) else {
                return Err(corrupt("a chunk's offsets and sizes differ in length".into()));
            };
            let region = Region::new(offsets, sizes);
            // A tensor that every rank of a rank-local checkpoint holds is there once a rank.
            if self.merging && !self.seen.insert((id, region.clone())) {
                continue;
            }
            self.logical.add_chunk(id, &region)?;
        }
        Ok(())
    }

    fn mcore_data(&mut self, columns: &Columns<'_>, dict: u32) {
        for (key, value) in &columns.dict(dict).pairs {
            let (V::Str(key), V::Dict(d)) = (key, value) else { continue };
            for (name, shape) in &columns.dict(*d).pairs {
                if let (V::Str(name), V::Ints(at, n) | V::Size(at, n)) = (name, shape)
                    && name.as_str() == "nd_reformulated_orig_global_shape"
                {
                    self.flattened.insert(key.as_str().into(), columns.ints(*at, *n));
                }
            }
        }
    }

    fn planner_data(&mut self, columns: &Columns<'_>, dict: u32) {
        self.signs.planner_data = true;
        let mut paths = match self.planner_data.take() {
            Some(PlannerData::Paths(p)) => p,
            _ => Default::default(),
        };
        for (key, path) in &columns.dict(dict).pairs {
            let (V::Str(key), Some(steps)) = (key, columns.elements(path)) else { continue };
            let steps = steps.iter().filter_map(|s| match s {
                V::Str(s) => Some(Step::Key(s.as_str().into())),
                V::Int(i) => u64::try_from(*i).ok().map(Step::Index),
                _ => None,
            });
            paths.insert(key.as_str().into(), Path(steps.collect()));
        }
        self.planner_data = Some(PlannerData::Paths(paths));
    }
}

/// What must be known of a tensor.
struct Description<'c> {
    size: (u32, u32),
    props: &'c Props,
    dtype: DType,
}

/// Or why a tensor can't be read: a later PyTorch may describe it in another way.
fn describe<'c>(columns: &'c Columns<'_>, raw: &RawTensor) -> std::result::Result<Description<'c>, String> {
    let other = |what: &str| format!("the form of its {what} is not one that reshard knows");
    let props = raw.props.map(|p| &columns.props[p as usize]);
    match (raw.odd, raw.size, props) {
        (Some(field), ..) => Err(other(field)),
        (None, Some(size), Some(props @ Props { dtype: Some(dtype), odd: false, .. })) => {
            Ok(Description { size, props, dtype: *dtype })
        }
        (None, Some(_), Some(Props { unknown: Some(name), .. })) => {
            let name = columns.text_at(*name).unwrap_or_default();
            Err(format!("its element type torch.{name} is not one that reshard knows"))
        }
        (None, _, Some(_)) => Err(other("size or properties")),
        (None, _, None) => Err("it has no properties".into()),
    }
}

/// The first place counts, of equal keys of several ranks; one rank's files start at `first`, and it has each key once.
fn set(places: &mut [Place], id: u32, place: Place, first: u32) -> std::result::Result<(), &'static str> {
    let Some(p) = places.get_mut(id as usize) else { return Ok(()) };
    match p.file {
        u32::MAX => *p = place,
        file if file >= first => return Err("has two places"),
        _ => {}
    }
    Ok(())
}

fn twice(file: &str, key: &str, what: &str) -> StrategyError {
    StrategyError::corrupt(file, None, format!("{key:?} {what}"))
}

/// Items that say of themselves where they lie, made ranges of files.
impl Table {
    /// The file of an item.
    pub(crate) fn file(&self, place: Place) -> Result<Name> {
        match self.files.get(place.file as usize) {
            Some(Ok(name)) => Ok(name.clone()),
            Some(Err(e)) => {
                Err(StrategyError::corrupt(crate::METADATA, None, format!("a file name is refused: {e}")))
            }
            None => Err(StrategyError::corrupt(crate::METADATA, None, "an item has no file")),
        }
    }

    /// The bytes of an item in its file.
    pub(crate) fn range(&self, place: Place) -> Result<std::ops::Range<u64>> {
        let end = place.offset.checked_add(place.length).filter(|e| *e <= i64::MAX as u64);
        let end =
            end.ok_or_else(|| StrategyError::corrupt(crate::METADATA, None, "an item ends past 2^63 bytes"))?;
        Ok(place.offset..end)
    }

    /// What was done to an item's archive, in the order of undoing it.
    pub(crate) fn descriptors(&self, place: Place) -> &[String] {
        self.transforms.get(place.transforms as usize).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn is_transformed(&self, place: Place) -> bool {
        place.transforms != 0
    }
}

/// Reads the pickle of a `.metadata` file, for fuzzing and measuring: the number of tensors, chunks and objects.
///
/// # Errors
/// What is wrong with it, and at which byte.
pub fn parse_metadata(pickle: &[u8]) -> Result<(usize, usize, usize)> {
    let table = Table::parse(crate::METADATA, pickle, &Limits::default())?;
    let m = &table.metadata;
    Ok((m.tensor_count(), m.chunk_count(), m.object_count()))
}
