//! An opened `.metadata`: the logical table, and where each chunk and object lies.

use crate::{
    limits::not_understood,
    metadata::{
        build::{Columns, MOST_AXES, NONE, Props, RawStorage, RawTensor, V},
        fields::Field,
        worth::{Beyond, MEMORY, STEPS, Worth},
    },
};
use bytes::Bytes;
use indexmap::IndexSet;
use reshard_model::{DType, Dims, Path, Region, Step};
use reshard_plan::{
    ChunkId, MemoryFormat, Metadata, MetadataBuilder, ObjectId, PlannerData, TensorId, TensorProperties,
};
use reshard_storage::Name;
use reshard_strategy::{LimitOption, Result, StrategyError, torch::no_damage};
use reshard_torch_format::{Error, Limits, pickle::run};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Where a stored item lies: an index into the files, offset and length in bytes, and an index into the transforms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) file: u32,
    pub(crate) transforms: u32,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// Stands for no location: the checkpoint doesn't say where the item lies.
const NOWHERE: Place = Place { file: u32::MAX, transforms: 0, offset: 0, length: 0 };

/// The signs by which the generations of writers are told apart.
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
    /// The file names. A refused name has an error text instead.
    pub(crate) files: Vec<std::result::Result<Name, String>>,
    /// Descriptors in the order of decoding; the first is "none".
    pub(crate) transforms: Vec<Vec<String>>,
    pub(crate) signs: Signs,
    /// Keys of tensors that Megatron Core stored flattened, with their original shape.
    pub(crate) flattened: BTreeMap<String, Dims>,
    /// Keys whose description is not understood, and why. The logical table lacks them.
    pub(crate) unknown: BTreeMap<String, String>,
}

impl Table {
    /// Reads one file.
    pub(crate) fn parse(file: &str, pickle: Bytes, limits: &Limits) -> Result<Self> {
        let mut b = TableBuilder::new(1, pickle.len() as u64, limits);
        b.add(file, pickle)?;
        b.finish()
    }

    fn stored(&self, key: &str) -> Stored {
        if self.unknown.contains_key(key) {
            return Stored::Unknown;
        }
        let tensor = || self.metadata.tensor(key).map(|t| Stored::Tensor(t.id()));
        self.metadata.object(key).map(Stored::Object).or_else(tensor).unwrap_or(Stored::Nothing)
    }

    pub(crate) fn chunk(&self, id: ChunkId) -> Option<Place> {
        self.chunks.get(id.0 as usize).copied().filter(|p| p.file != u32::MAX)
    }

    pub(crate) fn object(&self, id: ObjectId) -> Option<Place> {
        self.objects.get(id.0 as usize).copied().filter(|p| p.file != u32::MAX)
    }
}

/// What a key of a file stands for.
#[derive(Clone, Copy)]
enum Stored {
    /// Not looked up yet.
    Unasked,
    Nothing,
    /// Not understood.
    Unknown,
    Object(ObjectId),
    Tensor(TensorId),
}

/// Enters the locations of the items of one metadata file into the table.
struct Placing<'t> {
    table: &'t mut Table,
    /// The transforms of all files, by number.
    transforms: &'t mut IndexSet<Vec<String>>,
    worth: &'t mut Worth,
    columns: &'t Columns,
    file: &'t str,
}

impl Placing<'_> {
    fn storage(&mut self, dict: u32) -> Result<()> {
        let (file, columns) = (self.file, self.columns);
        let first = self.table.files.len() as u32;
        let (mut files, mut transforms) = (BTreeMap::new(), BTreeMap::new());
        // A key may be long, and every item may name it. So the result of its look-up is kept.
        let mut stored = self.worth.filled(columns.texts(), Stored::Unasked).map_err(|b| beyond(file, b))?;
        for (index, storage) in columns.dict(dict).storage() {
            let index = columns.indices[index as usize];
            let Some(key) = columns.text_at(index.key) else {
                return Err(StrategyError::corrupt(file, None, "an entry of storage_data names no key"));
            };
            // A location without file, offset or length is damage, even if nobody wants the item.
            let raw = columns.storage(storage);
            if columns.text_at(raw.file).is_none() || raw.offset == u64::MAX || raw.length == u64::MAX {
                let what = format!("the place of {key:?} lacks its file, offset or length");
                return Err(StrategyError::corrupt(file, None, what));
            }
            let place = self.place(raw, &mut files, &mut transforms).map_err(|b| beyond(file, b))?;
            let of = &mut stored[index.key as usize];
            if let Stored::Unasked = of {
                *of = self.table.stored(key);
            }
            // An object has no offset, and a chunk has one. So the offset tells what the entry must belong to.
            match (index.offset(), *of) {
                (_, Stored::Unknown) => {}
                (None, Stored::Object(id)) => {
                    set(&mut self.table.objects, id.0, place, first).map_err(|what| twice(file, key, what))?
                }
                (Some((at, n)), Stored::Tensor(id)) => {
                    let hint = (index.hint != NONE).then_some(index.hint as usize);
                    let tensor = self.table.metadata.tensor_by_id(id);
                    // Bytes that no chunk owns are ignored.
                    if let Some(id) = tensor.and_then(|t| t.chunk_at(&columns.ints(at, n), hint)) {
                        set(&mut self.table.chunks, id.0, place, first)
                            .map_err(|what| twice(file, key, what))?;
                    } else {
                        // Such an entry is short, but searching for its chunk takes many steps. So steps are limited.
                        let steps = tensor.map_or(0, |t| t.chunk_count().max(1).ilog2() * n);
                        self.worth.steps(steps as usize).map_err(|b| beyond(file, b))?;
                    }
                }
                (None, _) => {
                    let what = format!("{key:?} has a place, but is no object");
                    return Err(StrategyError::corrupt(file, None, what));
                }
                (Some(_), _) => {
                    let what = format!("{key:?} has a place, but is no tensor");
                    return Err(StrategyError::corrupt(file, None, what));
                }
            }
        }
        Ok(())
    }

    fn place(
        &mut self,
        raw: RawStorage,
        files: &mut BTreeMap<u32, u32>,
        transforms: &mut BTreeMap<u32, u32>,
    ) -> std::result::Result<Place, Beyond> {
        let file = match (files.get(&raw.file), self.columns.text_at(raw.file)) {
            (Some(&known), _) => known,
            (None, None) => u32::MAX,
            (None, Some(name)) => {
                self.worth.take(name.len().saturating_mul(2).saturating_add(ENTRY))?;
                let known = self.table.files.len() as u32;
                self.table.files.push(file_name(name));
                files.insert(raw.file, known);
                known
            }
        };
        let transforms = match transforms.get(&raw.transforms) {
            _ if raw.transforms == NONE => 0,
            Some(&known) => known,
            None => {
                let texts = self.columns.descriptors(raw.transforms);
                let bytes = texts.clone().map(|t| t.len().saturating_add(size_of::<String>()));
                self.worth.take(bytes.fold(ENTRY, usize::saturating_add))?;
                let known = self.transforms.insert_full(texts.map(String::from).collect()).0 as u32;
                transforms.insert(raw.transforms, known);
                known
            }
        };
        Ok(Place { file, transforms, offset: raw.offset, length: raw.length })
    }
}

/// No file system has longer names.
const LONGEST_NAME: usize = 4096;

fn file_name(name: &str) -> std::result::Result<Name, String> {
    if name.len() > LONGEST_NAME {
        return Err(format!("a name of {} bytes; no file system has more than {LONGEST_NAME}", name.len()));
    }
    Name::new(name).map_err(|e| e.to_string())
}

/// The memory of an entry in a map, without its contents.
const ENTRY: usize = 128;

/// The error for a file that exceeds a limit. This does not show that the file is damaged.
fn beyond(file: &str, b: Beyond) -> StrategyError {
    let what = match b.limit {
        MEMORY => format!("{file} asks for more memory than what is made of a file of its length"),
        STEPS => format!("{file} names more things again and again than a file of its length"),
        other => {
            return not_understood(format!("reading {file}, which has more than {} {other},", b.max));
        }
    };
    StrategyError::Limit { what, option: LimitOption::MaxMemory, max: b.max }
}

/// An error of the pickle.
fn unreadable(file: &str, e: Error) -> StrategyError {
    if let Error::Limit { limit: limit @ (MEMORY | STEPS), max, .. } = e {
        return beyond(file, Beyond { limit, max });
    }
    let told = |why| not_understood(format!("reading {file} ({why})"));
    no_damage(&e, file, told).unwrap_or_else(|| StrategyError::Corrupt {
        file: file.into(),
        offset: None,
        what: "the metadata can't be read; the checkpoint is damaged or was never finished".into(),
        source: Some(Box::new(e)),
    })
}

/// Reads one metadata file. For a rank-local checkpoint it reads the files of all ranks one after another, and merges their tensors.
#[derive(Debug, Default)]
pub(crate) struct TableBuilder {
    limits: Limits,
    logical: MetadataBuilder,
    planner_data: Option<PlannerData>,
    signs: Signs,
    flattened: BTreeMap<String, Dims>,
    unknown: BTreeMap<String, String>,
    objects: BTreeSet<String>,
    /// Whether several files are merged. A chunk that two of them describe counts once.
    merging: bool,
    seen: BTreeSet<(TensorId, Region)>,
    /// For each file its name, its columns, and the dict in them that says where items lie.
    parsed: Vec<(String, Columns, u32)>,
    /// The budget from which all of it is paid.
    worth: Worth,
}

impl TableBuilder {
    /// For so many files, which have so many bytes together.
    pub(crate) fn new(files: usize, bytes: u64, limits: &Limits) -> Self {
        Self { limits: *limits, merging: files > 1, worth: Worth::of(limits, bytes), ..Self::default() }
    }

    /// Makes the table of everything that was added.
    pub(crate) fn finish(self) -> Result<Table> {
        let Self { logical, planner_data, signs, flattened, unknown, parsed, mut worth, .. } = self;
        let metadata = Arc::new(logical.finish(planner_data)?);
        let mut table = Table { metadata, signs, flattened, unknown, ..Table::default() };
        let first = parsed.first().map_or(crate::METADATA, |(file, ..)| file);
        let mut nowhere = |n| worth.filled(n, NOWHERE).map_err(|b| beyond(first, b));
        table.chunks = nowhere(table.metadata.chunk_count())?;
        table.objects = nowhere(table.metadata.object_count())?;
        let mut transforms = IndexSet::from([Vec::new()]);
        for (file, columns, storage) in parsed {
            Placing {
                table: &mut table,
                transforms: &mut transforms,
                worth: &mut worth,
                columns: &columns,
                file: &file,
            }
            .storage(storage)?;
        }
        table.transforms = transforms.into_iter().collect();
        Ok(table)
    }

    /// Adds the contents of one `.metadata`. A tensor that was already added gets more chunks.
    pub(crate) fn add(&mut self, file: &str, pickle: Bytes) -> Result<()> {
        let columns = Columns::new(std::mem::take(&mut self.worth)).map_err(|b| beyond(file, b))?;
        let (root, mut columns) = self.columns(file, pickle, columns)?;
        let storage = self.logical(file, root, &mut columns)?;
        columns.forget_tensors();
        self.parsed.push((file.into(), columns, storage));
        Ok(())
    }

    /// Runs the pickle. Its bytes, which are most of the memory, are freed here, before the columns are processed.
    fn columns(&mut self, file: &str, pickle: Bytes, mut columns: Columns) -> Result<(V, Columns)> {
        let (root, end) = run(&pickle, &mut columns, &self.limits).map_err(|e| unreadable(file, e))?;
        self.worth = std::mem::take(&mut columns.worth);
        if end != pickle.len() {
            return Err(StrategyError::corrupt(
                file,
                Some(end as u64),
                "bytes follow the end of the metadata",
            ));
        }
        Ok((root, columns))
    }

    /// Adds to the logical table. Returns the dict that says where items lie.
    fn logical(&mut self, file: &str, root: V, columns: &mut Columns) -> Result<u32> {
        let corrupt = |what: &str| StrategyError::corrupt(file, None, what);
        let V::Root(root) = root else {
            return Err(corrupt("it holds no torch.distributed.checkpoint.metadata.Metadata"));
        };
        let root = columns.roots[root as usize].clone();
        // Facts about the writer, for `inspect`. If they are missing or have another type, that is no error.
        self.signs.mcore_class |= root.subclass;
        self.signs.all_local_plans |= root.field(Field::AllLocalPlans).is_some();
        self.signs.mcore_data |= root.field(Field::McoreData).is_some();
        if let Some(V::Meta(m)) = root.field(Field::StorageMeta) {
            let m = &columns.metas[m as usize];
            self.signs.storage_meta = true;
            self.signs.save_id = m.save_id;
            self.signs.checkpoint_id = m.checkpoint_id.and_then(|id| columns.text_at(id)).map(Into::into);
        }
        if let Some(V::Str(v)) = root.field(Field::Version) {
            self.signs.version = columns.text_at(v).map(Into::into);
        }
        if let Some(V::Dict(d)) = root.field(Field::McoreData) {
            self.mcore_data(columns, d).map_err(|b| beyond(file, b))?;
        }
        if let Some(V::Dict(d)) = root.field(Field::PlannerData) {
            self.planner_data(columns, d).map_err(|b| beyond(file, b))?;
        }
        // Without these two dicts there is no checkpoint.
        let Some(V::Dict(d)) = root.field(Field::StateDictMetadata) else {
            return Err(corrupt("it has no state_dict_metadata"));
        };
        let Some(V::Dict(storage)) = root.field(Field::StorageData) else {
            return Err(corrupt("it has no storage_data, so nothing says where the items lie"));
        };
        let strange = self.strange_places(columns, storage).map_err(|b| beyond(file, b))?;
        self.entries(file, columns, d, &strange)?;
        Ok(storage)
    }

    /// Which keys have locations that are objects of unknown classes.
    fn strange_places(&mut self, columns: &Columns, dict: u32) -> std::result::Result<StrangePlaces, Beyond> {
        let mut strange = StrangePlaces::default();
        let pairs = &columns.dict(dict).pairs;
        self.worth.steps(pairs.len())?;
        for pair in pairs {
            match pair {
                (V::Index(index), V::Stranger) => {
                    strange.keys.insert(columns.indices[*index as usize].key);
                    self.worth.take(ENTRY)?;
                }
                (V::Stranger, _) => strange.unnamed = true,
                _ => {}
            }
        }
        if strange.unnamed {
            strange.places = self.worth.filled(columns.texts(), 0)?;
            for (index, _) in columns.dict(dict).storage() {
                if let Some(n) = strange.places.get_mut(columns.indices[index as usize].key as usize) {
                    *n += 1;
                }
            }
        }
        Ok(strange)
    }

    fn entries(
        &mut self,
        file: &str,
        columns: &mut Columns,
        dict: u32,
        strange: &StrangePlaces,
    ) -> Result<()> {
        let beyond = |b: Beyond| beyond(file, b);
        let mut seen: Vec<bool> = Vec::new();
        for (key, value) in columns.take_pairs(dict) {
            let Some(number) = columns.key(key, &mut self.worth).map_err(beyond)? else {
                return Err(StrategyError::corrupt(file, None, "a key of state_dict_metadata is no str"));
            };
            let known = number as usize;
            if known >= seen.len() {
                let more = known + 1 - seen.len();
                self.worth.room(&mut seen, more).map_err(beyond)?;
                seen.resize(known + 1, false);
            }
            let key = columns.text_at(number).unwrap_or_default();
            if std::mem::replace(&mut seen[known], true) {
                return Err(twice(file, key, "is there twice"));
            }
            // Pays for its text in the table and in the builder, and for its entry.
            let bytes = key.len().saturating_mul(4).saturating_add(2 * ENTRY);
            self.worth.take(bytes).map_err(beyond)?;
            let chunks = match value {
                V::Tensor(t) => columns.chunks_in(&columns.tensors[t as usize]),
                V::BytesItem => 1,
                _ => 0,
            };
            match value {
                _ if strange.concern(number, chunks) => {
                    self.not_understood(key, "the form of its place is not one that reshard knows".into())
                        .map_err(beyond)?;
                }
                V::Tensor(t) => self.tensor(file, columns, key, &columns.tensors[t as usize])?,
                // Every rank of a rank-local checkpoint has its own copy. The first one counts.
                V::BytesItem if self.merging && !self.objects.insert(key.into()) => {}
                V::BytesItem => drop(self.logical.add_object(key)?),
                _ => {
                    self.not_understood(
                        key,
                        "it is neither a tensor nor an object that reshard knows".into(),
                    )
                    .map_err(beyond)?;
                }
            }
        }
        Ok(())
    }

    /// Records that a key is not understood. Only reads of this key will fail.
    fn not_understood(&mut self, key: &str, what: String) -> std::result::Result<(), Beyond> {
        // Pays for the copies of its description in messages.
        self.worth.take(key.len().saturating_add(what.len()).saturating_mul(3).saturating_add(ENTRY))?;
        self.unknown.entry(key.into()).or_insert(what);
        Ok(())
    }

    fn tensor(&mut self, file: &str, columns: &Columns, key: &str, raw: &RawTensor) -> Result<()> {
        let corrupt = |what: String| StrategyError::corrupt(file, None, format!("tensor {key}: {what}"));
        let Description { size: (at, n), props, dtype } = match describe(columns, raw) {
            Ok(described) => described,
            Err(what) => {
                return self.not_understood(key, what).map_err(|b| beyond(file, b));
            }
        };
        // Pays for strides, shape, and for each chunk its coordinates (in 64 bits, and again while they are sorted) and its numbers.
        let axes = (n as usize + 1).saturating_mul(4 * size_of::<u64>());
        let each = axes.saturating_add(if self.merging { 2 * ENTRY } else { 64 });
        let bytes = columns.chunks_in(raw).saturating_mul(each).saturating_add(axes);
        self.worth.take(bytes).map_err(|b| beyond(file, b))?;
        let shape = &columns.ints(at, n);
        self.signs.has_tensors = true;
        self.signs.old_module |= props.old_module;
        self.signs.arity = self.signs.arity.max(props.arity);
        // One file has each key once. If several files have a tensor, its chunks are merged.
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
                    strides: props.strides.filter(|s| s.1 == n).map(|(at, n)| columns.ints(at, n)[..].into()),
                };
                self.logical.add_tensor(key, dtype, shape, properties)?
            }
        };
        for c in columns.chunks_of(raw) {
            let Some((offsets, sizes)) = columns.chunk(c) else {
                return Err(corrupt("a chunk's offsets and sizes differ in length".into()));
            };
            let region = Region::new(offsets, sizes);
            // In a rank-local checkpoint, every rank lists its own copy of a replicated tensor.
            if self.merging && !self.seen.insert((id, region.clone())) {
                continue;
            }
            self.logical.add_chunk(id, &region)?;
        }
        Ok(())
    }

    fn mcore_data(&mut self, columns: &mut Columns, dict: u32) -> std::result::Result<(), Beyond> {
        for i in 0..columns.dict(dict).pairs.len() {
            let (key, value) = columns.dict(dict).pairs[i];
            let (Some(key), V::Dict(d)) = (self.key(columns, key)?, value) else { continue };
            let fields = &columns.dict(d).pairs;
            self.worth.steps(fields.len())?;
            for &(name, shape) in fields {
                if let (V::Str(name), V::Ints(at, n) | V::Size(at, n)) = (name, shape)
                    && columns.text_at(name) == Some("nd_reformulated_orig_global_shape")
                {
                    // Room is made for the next power of two.
                    self.worth.take((n as usize).saturating_mul(2 * size_of::<u64>()))?;
                    self.flattened.insert(key.clone(), columns.ints(at, n));
                }
            }
        }
        Ok(())
    }

    fn planner_data(&mut self, columns: &mut Columns, dict: u32) -> std::result::Result<(), Beyond> {
        self.signs.planner_data = true;
        let mut paths = match self.planner_data.take() {
            Some(PlannerData::Paths(p)) => p,
            _ => Default::default(),
        };
        for i in 0..columns.dict(dict).pairs.len() {
            let (key, path) = columns.dict(dict).pairs[i];
            let mut steps = Vec::new();
            match path {
                V::Tuple(t) => {
                    let items = columns.tuple_items(t).len();
                    self.worth.room(&mut steps, items)?;
                    for i in 0..items {
                        match columns.tuple_items(t)[i] {
                            V::Int(i) => steps.extend(u64::try_from(i).ok().map(Step::Index)),
                            step => steps.extend(self.key(columns, step)?.map(|k| Step::Key(k.into()))),
                        }
                    }
                }
                V::Ints(at, n) | V::Size(at, n) => {
                    self.worth.room(&mut steps, n as usize)?;
                    steps.extend(columns.ints(at, n).iter().copied().map(Step::Index));
                }
                _ => continue,
            }
            if let Some(key) = self.key(columns, key)? {
                paths.insert(key.into(), Path(steps));
            }
        }
        self.planner_data = Some(PlannerData::Paths(paths));
        Ok(())
    }

    /// A copy of a key's spelling, if it is a str.
    fn key(&mut self, columns: &mut Columns, key: V) -> std::result::Result<Option<String>, Beyond> {
        let Some(key) = columns.key(key, &mut self.worth)? else { return Ok(None) };
        let text = columns.text_at(key).unwrap_or_default();
        self.worth.take(text.len().saturating_add(ENTRY))?;
        Ok(Some(text.into()))
    }
}

/// Locations in `storage_data` that are objects of unknown classes.
#[derive(Debug, Default)]
struct StrangePlaces {
    /// The numbers of the keys that have such locations.
    keys: BTreeSet<u32>,
    /// Whether the keys of some of them are unknown. Then the known locations of each key are counted.
    unnamed: bool,
    places: Vec<u32>,
}

impl StrangePlaces {
    /// Whether one of the items of a key may have such a location.
    fn concern(&self, key: u32, items: usize) -> bool {
        let known = || self.places.get(key as usize).map_or(0, |n| *n as usize);
        self.keys.contains(&key) || self.unnamed && known() < items
    }
}

/// What must be known of a tensor.
struct Description<'c> {
    size: (u32, u32),
    props: &'c Props,
    dtype: DType,
}

/// Or why a tensor can't be read: a later PyTorch may describe it in another way.
fn describe<'c>(columns: &'c Columns, raw: &RawTensor) -> std::result::Result<Description<'c>, String> {
    let other = |what: &str| format!("the form of its {what} is not one that reshard knows");
    let props = raw.props.map(|p| &columns.props[p as usize]);
    if let Some((_, n)) = raw.size.filter(|(_, n)| *n > MOST_AXES.into()) {
        return Err(format!("it has {n} axes, more than {MOST_AXES}"));
    }
    if columns.has_other_chunks(raw) {
        return Err(other("chunks"));
    }
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

/// Reads the pickle of a `.metadata` file, for fuzzing and measuring: the number of tensors, chunks and objects. The file's bytes
/// are given back before the table is made, if nobody else has them.
///
/// # Errors
/// What is wrong with it, and at which byte.
pub fn parse_metadata(pickle: impl Into<Bytes>) -> Result<(usize, usize, usize)> {
    let table = Table::parse(crate::METADATA, pickle.into(), &Limits::default())?;
    let m = &table.metadata;
    Ok((m.tensor_count(), m.chunk_count(), m.object_count()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Flavour, metadata::write};
    use reshard_plan::PieceId;
    use reshard_strategy::{StorageInfo, WriteResult};

    /// A `.metadata` of objects of these keys and lengths.
    fn objects(items: &[(&str, u64)], planner_data: Option<PlannerData>) -> Bytes {
        let mut b = Metadata::builder();
        let mut results = Vec::new();
        for &(key, length) in items {
            b.add_object(key).unwrap();
            let id = PieceId { key: key.into(), offset: None };
            let part = StorageInfo::new(Name::new("__0_0.distcp").unwrap(), 7..length.saturating_add(7));
            results.push(WriteResult { id, parts: vec![part] });
        }
        write(&b.finish(planner_data).unwrap(), &[results], Flavour::Universal, "").unwrap().into()
    }

    #[test]
    fn a_file_has_a_name_that_a_file_system_takes() {
        assert!(file_name(&"x".repeat(LONGEST_NAME)).is_ok());
        let e = file_name(&"x".repeat(LONGEST_NAME + 1)).unwrap_err();
        assert!(e.contains("a name of 4097 bytes"), "{e}");
    }

    #[test]
    fn of_the_files_of_ranks_each_has_a_place_once_and_the_first_counts() {
        let place = |file| Place { file, transforms: 0, offset: 7, length: 1 };
        let mut places = [place(u32::MAX); 2];
        set(&mut places, 0, place(3), 2).unwrap();
        assert_eq!(set(&mut places, 0, place(4), 2), Err("has two places"));
        assert_eq!(set(&mut places, 0, place(3), 3), Err("has two places"));
        // The next rank's files begin at the fifth.
        set(&mut places, 0, place(6), 5).unwrap();
        set(&mut places, 9, place(6), 5).unwrap();
        assert_eq!(places.map(|p| p.file), [3, u32::MAX]);
    }

    #[test]
    fn what_is_said_of_a_tensor_is_read_as_it_was_written() {
        let properties = |memory_format, requires_grad, strides: Option<&[u64]>| TensorProperties {
            memory_format,
            requires_grad,
            pin_memory: !requires_grad,
            strides: strides.map(Into::into),
        };
        let all = [
            properties(MemoryFormat::Contiguous, true, None),
            properties(MemoryFormat::ChannelsLast, false, Some(&[1, 5])),
            properties(MemoryFormat::Preserve, true, Some(&[5, 1])),
        ];
        let mut b = Metadata::builder();
        for (i, properties) in all.iter().enumerate() {
            let id = b.add_tensor(&i.to_string(), DType::Float32, &[5, 5], properties.clone()).unwrap();
            b.add_chunk(id, &Region::whole(&[5, 5])).unwrap();
        }
        let pickle = write(&b.finish(None).unwrap(), &[], Flavour::Torch215, "").unwrap();
        let table = Table::parse("m", pickle.into(), &Default::default()).unwrap();
        assert!(table.metadata.tensors().map(|t| t.properties()).eq(all));
    }

    #[test]
    fn lengths_of_all_sizes_are_kept() {
        let lengths = [0, 1, (1 << 32) - 2, (1 << 32) - 1, 1 << 32, i64::MAX as u64];
        let keys: Vec<String> = (0..lengths.len()).map(|i| i.to_string()).collect();
        let items: Vec<(&str, u64)> = keys.iter().map(String::as_str).zip(lengths).collect();
        let table = Table::parse("m", objects(&items, None), &Limits::default()).unwrap();
        assert_eq!(
            table.objects.iter().map(|p| (p.offset, p.length)).collect::<Vec<_>>(),
            lengths.map(|l| (7, l))
        );
    }

    #[test]
    fn lone_surrogates_are_spelled_when_read_and_surrogates_when_written() {
        let keys = ["a\\ud800b", "a\\\\ud800b", "\\\\\\udfff", "plain\\x"];
        let python: [&[u8]; 4] = [b"a\xed\xa0\x80b", b"a\\ud800b", b"\\\xed\xbf\xbf", b"plain\\x"];
        let paths = keys.iter().map(|k| ((*k).into(), Path(vec![Step::Key((*k).into()), Step::Index(1)])));
        let paths = PlannerData::Paths(paths.collect());
        let pickle = objects(&keys.map(|k| (k, 1)), Some(paths.clone()));
        for key in python {
            assert!(
                pickle.windows(key.len() + 1).any(|w| w[0] == key.len() as u8 && &w[1..] == key),
                "{key:?}"
            );
        }
        let table = Table::parse("m", pickle, &Limits::default()).unwrap();
        for (i, key) in keys.into_iter().enumerate() {
            assert_eq!(table.metadata.object(key), Some(ObjectId(i as u32)), "{key}");
        }
        assert_eq!(table.metadata.planner_data(), Some(&paths));
        assert!(table.objects.iter().all(|p| p.length == 1));
    }

    fn limits(memory: u64) -> Limits {
        Limits { memory: Some(memory), ..Limits::default() }
    }

    #[test]
    fn copies_of_a_key_are_drawn_from_the_budget() {
        let file = objects(&[(&"x".repeat(100_000), 1)], None);
        let read = |memory| Table::parse("m", file.clone(), &limits(memory)).map(drop);
        assert!(read(700_000).is_ok());
        // The columns have its text once, in twice the room. The table has more copies of it while it is built.
        assert_eq!(read(400_000).unwrap_err().kind(), reshard_model::ErrorKind::Limit);
    }

    #[test]
    fn ranks_together_have_one_budget() {
        let long = "x".repeat(100_000);
        let file = objects(&[(&long, 1)], None);
        let merge = |ranks: usize, memory| {
            let mut table = TableBuilder::new(ranks, (ranks * file.len()) as u64, &limits(memory));
            (0..ranks).try_for_each(|r| table.add(&format!("__{r}.metadata"), file.clone()))?;
            table.finish()
        };
        assert!(merge(1, 700_000).is_ok());
        assert!(merge(3, 7_000_000).is_ok());
        let e = merge(3, 700_000).unwrap_err();
        assert_eq!(e.kind(), reshard_model::ErrorKind::Limit);
        assert!(
            e.to_string().contains("asks for more memory") && e.to_string().contains("max_memory"),
            "{e}"
        );
    }
}
