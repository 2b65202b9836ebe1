//! Makes the table of one metadata file, or of those of all ranks.

use super::{
    Item, Place, Signs, Table,
    place::{ENTRY, Placing, beyond, twice},
    ranks::{Declared, Ranks, without_place},
};
use crate::limits::not_understood;
use crate::metadata::{
    StorageMeta,
    build::{Columns, MOST_AXES, Props, RawDict, RawTensor, V, key_in},
    fields::Field,
    worth::{Beyond, MEMORY, STEPS, Within, Worth},
};
use bytes::Bytes;
use indexmap::IndexSet;
use reshard_model::{DType, Dims, ErrorKind, Path, Region, Step, shortened};
use reshard_plan::{
    MemoryFormat, MetadataBuilder, ObjectId, PlannerData, TensorId, TensorProperties,
};
use reshard_strategy::{Result, StrategyError, torch::no_damage};
use reshard_torch_format::{Error, Limits, pickle::run};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Stands for no location: the checkpoint doesn't say where the item lies.
const NOWHERE: Place = Place {
    file: u32::MAX,
    transforms: 0,
    offset: 0,
    length: 0,
};

impl Table {
    /// Reads one file.
    pub(crate) fn parse(file: &str, pickle: Bytes, limits: &Limits) -> Result<Self> {
        let mut b = TableBuilder::new(1, pickle.len() as u64, limits);
        b.add(file, pickle)?;
        b.finish()
    }
}

/// The logical table knows of no file.
fn in_file(file: &str, e: StrategyError) -> StrategyError {
    match e {
        StrategyError::Plan(e) if e.kind() == ErrorKind::Corrupt => {
            StrategyError::corrupt(file, None, e.to_string())
        }
        e => e,
    }
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
    /// Whether several files are merged. A chunk that two of them describe counts once.
    merging: bool,
    ranks: Ranks,
    parsed: Vec<Parsed>,
    /// The budget from which all of it is paid.
    worth: Worth,
}

/// A file whose entries are in the logical table, and whose places are not entered yet.
#[derive(Debug)]
struct Parsed {
    file: Arc<str>,
    columns: Columns,
    /// Where items lie.
    places: RawDict,
    /// If several files are merged, what it lists.
    listed: Vec<Item>,
}

impl TableBuilder {
    /// For so many files, which have so many bytes together.
    pub(crate) fn new(files: usize, bytes: u64, limits: &Limits) -> Self {
        Self {
            limits: *limits,
            merging: files > 1,
            worth: Worth::of(limits, bytes),
            ..Self::default()
        }
    }

    /// Makes the table of everything that was added.
    pub(crate) fn finish(self) -> Result<Table> {
        let Self {
            mut logical,
            planner_data,
            signs,
            flattened,
            unknown,
            merging,
            ranks,
            parsed,
            mut worth,
            ..
        } = self;

        // The keys must all be known before places can be put to them, because a place may come in any file.
        for (key, original) in flattened {
            if let Some(id) = logical.tensor(&key) {
                logical.set_original_shape(id, original);
            }
        }
        let first = parsed.first().map_or(crate::METADATA, |p| &*p.file);
        let metadata = logical.finish(planner_data);
        let metadata = Arc::new(metadata.map_err(|e| in_file(first, e.into()))?);
        let mut table = Table {
            metadata,
            signs,
            unknown,
            contradictions: ranks.contradictions,
            ..Table::default()
        };

        // Every chunk and every object gets a slot. One that stays `NOWHERE` has lost its storage entry.
        let mut nowhere = |n| worth.filled(n, NOWHERE).map_err(|b| beyond(first, b));
        table.chunks = nowhere(table.metadata.chunk_count())?;
        table.objects = nowhere(table.metadata.object_count())?;

        // Number 0 is the empty list, which stands for items without transforms.
        let mut transforms = IndexSet::from([Vec::new()]);
        for one in parsed {
            let Parsed {
                file,
                columns,
                places,
                listed,
            } = one;
            let mut placing = Placing {
                table: &mut table,
                transforms: &mut transforms,
                worth: &mut worth,
                columns: &columns,
                file: &file,
                merging,
                placed: Vec::new(),
            };
            placing.storage(&places)?;
            let placed = placing.placed;
            for item in without_place(listed, placed) {
                let lost = worth.push(&mut table.lost, (item, Arc::clone(&file)));
                lost.map_err(|b| beyond(&file, b))?;
            }
        }
        table.transforms = transforms.into_iter().collect();
        if merging {
            table.unite_copies();
            // An item that has no place at all is told as such.
            let mut lost = std::mem::take(&mut table.lost);
            lost.retain(|(item, _)| table.place(*item).is_some());
            table.lost = lost;
        }
        Ok(table)
    }

    /// Adds the contents of one `.metadata`. A tensor that was already added gets more chunks.
    pub(crate) fn add(&mut self, file: &str, pickle: Bytes) -> Result<()> {
        let before = self.worth.left();
        let columns = Columns::new(std::mem::take(&mut self.worth)).map_err(|b| beyond(file, b))?;
        let (root, mut columns) = self.columns(file, pickle, columns)?;
        let drawn = before.saturating_sub(self.worth.left());
        if self.merging {
            self.ranks
                .begin(file, &mut self.worth)
                .map_err(|b| beyond(file, b))?;
        }
        let storage = self.logical(file, root, &mut columns)?;
        let places = columns.only_places(storage);
        if self.merging {
            // There may be very many ranks, so the memory of what is needed of each file only for a while counts once.
            let kept = columns.takes(&places);
            self.worth.give_back(drawn.saturating_sub(kept));
        }
        self.parsed.push(Parsed {
            file: file.into(),
            columns,
            places,
            listed: self.ranks.take_listed(),
        });
        Ok(())
    }

    /// Runs the pickle. Its bytes, which are most of the memory, are freed here, before the columns are processed.
    fn columns(&mut self, file: &str, pickle: Bytes, mut columns: Columns) -> Result<(V, Columns)> {
        let (root, end) =
            run(&pickle, &mut columns, &self.limits).map_err(|e| unreadable(file, e))?;
        self.worth = std::mem::take(&mut columns.worth);
        if end != pickle.len() {
            let what = "bytes follow the end of the metadata";
            return Err(StrategyError::corrupt(file, Some(end as u64), what));
        }
        Ok((root, columns))
    }

    /// Adds to the logical table. Returns the dict that says where items lie.
    fn logical(&mut self, file: &str, root: V, columns: &mut Columns) -> Result<u32> {
        let corrupt = |what: &str| StrategyError::corrupt(file, None, what);
        let V::Root(root) = root else {
            return Err(corrupt(
                "it holds no torch.distributed.checkpoint.metadata.Metadata",
            ));
        };
        let root = columns.roots[root as usize].clone();
        // Facts about the writer, for `inspect`. If they are missing or have another type, that is no error.
        self.signs.mcore_class |= root.subclass;
        self.signs.all_local_plans |= root.field(Field::AllLocalPlans).is_some();
        self.signs.mcore_data |= root.field(Field::McoreData).is_some();
        if let Some(V::Meta(m)) = root.field(Field::StorageMeta) {
            self.storage_meta(columns, m).map_err(|b| beyond(file, b))?;
        }
        if let Some(V::Str(v)) = root.field(Field::Version) {
            self.signs.version = columns.texts.get(v).map(Into::into);
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
            return Err(corrupt(
                "it has no storage_data, so nothing says where the items lie",
            ));
        };
        let strange = self
            .strange_places(columns, storage)
            .map_err(|b| beyond(file, b))?;
        let entries = self.entries(file, columns, d, &strange);
        entries.map_err(|e| in_file(file, e))?;
        Ok(storage)
    }

    /// Which keys have locations that are objects of unknown classes.
    fn strange_places(&mut self, columns: &Columns, dict: u32) -> Within<StrangePlaces> {
        let mut strange = StrangePlaces::default();
        let pairs = &columns.dicts.get(dict).pairs;
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
            strange.places = self.worth.filled(columns.texts.len(), 0)?;
            for (index, _) in columns.dicts.get(dict).storage() {
                let key = columns.indices[index as usize].key as usize;
                strange
                    .places
                    .get_mut(key)
                    .into_iter()
                    .for_each(|n| *n += 1);
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
            let number = key_in(&mut columns.texts, key, &mut self.worth).map_err(beyond)?;
            let Some(number) = number else {
                let what = "a key of state_dict_metadata is not a str";
                return Err(StrategyError::corrupt(file, None, what));
            };
            let known = number as usize;
            if known >= seen.len() {
                let more = known + 1 - seen.len();
                self.worth.room(&mut seen, more).map_err(beyond)?;
                seen.resize(known + 1, false);
            }
            let key = columns.texts.get(number).unwrap_or_default();
            if std::mem::replace(&mut seen[known], true) {
                return Err(twice(file, key, "occurs twice"));
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
                    let what = "its place is described in a form that this version does not know";
                    self.not_understood(key, what.into()).map_err(beyond)?;
                }
                V::Tensor(t) => self.tensor(file, columns, key, &columns.tensors[t as usize])?,
                V::BytesItem => self.object(file, key)?,
                _ => {
                    let what =
                        "it is neither a tensor nor an object of a form that this version knows";
                    self.not_understood(key, what.into()).map_err(beyond)?;
                }
            }
        }
        Ok(())
    }

    /// Records that a key is not understood. Only reads of this key will fail.
    fn not_understood(&mut self, key: &str, what: String) -> Within<()> {
        // Pays for the copies of its description in messages.
        let text = key.len().saturating_add(what.len());
        self.worth
            .take(text.saturating_mul(3).saturating_add(ENTRY))?;
        self.unknown.entry(key.into()).or_insert(what);
        Ok(())
    }

    fn object(&mut self, file: &str, key: &str) -> Result<()> {
        if !self.merging {
            self.logical.add_object(key)?;
            return Ok(());
        }
        // Every rank of a rank-local checkpoint has its own copy. The first one counts.
        let listed = match self.ranks.declared(key).cloned() {
            Some(Declared::Object(id)) => self.ranks.list(Item::Object(id), &mut self.worth),
            Some(Declared::Tensor(..)) => {
                let object = Declared::Object(ObjectId(0));
                self.ranks.contradict(key, &object, &mut self.worth)
            }
            None => {
                let id = self.logical.add_object(key)?;
                let object = Declared::Object(id);
                self.ranks
                    .declare(key, object, &mut self.worth)
                    .and_then(|()| self.ranks.list(Item::Object(id), &mut self.worth))
            }
        };
        listed.map_err(|b| beyond(file, b))
    }

    fn tensor(&mut self, file: &str, columns: &Columns, key: &str, raw: &RawTensor) -> Result<()> {
        let Description {
            size: (at, n),
            props,
            dtype,
        } = match describe(columns, raw) {
            Ok(described) => described,
            Err(what) => {
                return self.not_understood(key, what).map_err(|b| beyond(file, b));
            }
        };
        // Pays for strides, shape, and for each chunk its coordinates (in 64 bits, and again while they are sorted) and its numbers.
        let axes = (n as usize + 1).saturating_mul(4 * size_of::<u64>());
        let each = axes.saturating_add(if self.merging { 2 * ENTRY } else { 64 });
        let chunks = columns.chunks_in(raw).saturating_mul(each);
        let bytes = chunks.saturating_add(axes);
        self.worth.take(bytes).map_err(|b| beyond(file, b))?;
        let shape = &columns.ints(at, n);
        self.signs.has_tensors = true;
        self.signs.old_module |= props.old_module;
        self.signs.arity = self.signs.arity.max(props.arity);
        // One file has each key once. If several files have a tensor, its chunks are merged.
        let id = match self.ranks.declared(key) {
            Some(Declared::Tensor(id, known, whole)) if *known == dtype && whole == shape => *id,
            Some(_) => {
                let says = Declared::Tensor(TensorId(0), dtype, shape.clone());
                let told = self.ranks.contradict(key, &says, &mut self.worth);
                return told.map_err(|b| beyond(file, b));
            }
            None => {
                let properties = TensorProperties {
                    requires_grad: props.requires_grad,
                    pin_memory: props.pin_memory,
                    memory_format: match props.mem_format {
                        0 => MemoryFormat::Contiguous,
                        1 => MemoryFormat::ChannelsLast,
                        _ => MemoryFormat::Preserve,
                    },
                    strides: props
                        .strides
                        .filter(|s| s.1 == n)
                        .map(|(at, n)| columns.ints(at, n)[..].into()),
                };
                let id = self.logical.add_tensor(key, dtype, shape, properties)?;
                if self.merging {
                    let says = Declared::Tensor(id, dtype, shape.clone());
                    self.ranks
                        .declare(key, says, &mut self.worth)
                        .map_err(|b| beyond(file, b))?;
                }
                id
            }
        };
        for c in columns.chunks_of(raw) {
            let Some((offsets, sizes)) = columns.chunk(c) else {
                let what = format!("tensor {key}: a chunk's offsets and sizes differ in length");
                return Err(StrategyError::corrupt(file, None, what));
            };
            let region = Region::new(offsets, sizes);
            if !self.merging {
                self.logical.add_chunk(id, &region)?;
                continue;
            }
            // In a rank-local checkpoint, every rank lists its own copy of a replicated tensor.
            let add = || self.logical.add_chunk(id, &region);
            let chunk = self.ranks.chunk(id, &region, add)?;
            // PyTorch need not store anything for a chunk without elements.
            if !region.is_empty() {
                let listed = self.ranks.list(Item::Chunk(chunk), &mut self.worth);
                listed.map_err(|b| beyond(file, b))?;
            }
        }
        Ok(())
    }

    fn mcore_data(&mut self, columns: &mut Columns, dict: u32) -> Within<()> {
        for i in 0..columns.dicts.get(dict).pairs.len() {
            let (key, value) = columns.dicts.get(dict).pairs[i];
            let (Some(key), V::Dict(d)) = (self.key(columns, key)?, value) else {
                continue;
            };
            let fields = &columns.dicts.get(d).pairs;
            self.worth.steps(fields.len())?;
            for &(name, shape) in fields {
                if let (V::Str(name), V::Ints(at, n) | V::Size(at, n)) = (name, shape)
                    && columns.texts.get(name) == Some("nd_reformulated_orig_global_shape")
                {
                    // Room is made for the next power of two.
                    self.worth
                        .take((n as usize).saturating_mul(2 * size_of::<u64>()))?;
                    self.flattened.insert(key.clone(), columns.ints(at, n));
                }
            }
        }
        Ok(())
    }

    /// Copies what `storage_meta` says, so that it can be written again.
    fn storage_meta(&mut self, columns: &Columns, meta: u32) -> Within<()> {
        let raw = &columns.metas[meta as usize];
        let mut text = |number: u32| -> Within<String> {
            let text = columns.texts.get(number).unwrap_or_default();
            self.worth.take(text.len().saturating_add(ENTRY))?;
            Ok(text.into())
        };
        let mut meta = StorageMeta {
            checkpoint_id: raw.checkpoint_id.map(&mut text).transpose()?,
            save_id: raw.save_id.map(&mut text).transpose()?,
            load_id: raw.load_id.map(&mut text).transpose()?,
            modules: Vec::new(),
        };
        let modules = raw.modules.map_or(&[][..], |l| &columns.lists.get(l).items);
        for module in modules {
            if let V::Str(module) = module {
                meta.modules.push(text(*module)?);
            }
        }
        self.signs.storage_meta = true;
        self.signs.meta = meta;
        Ok(())
    }

    fn planner_data(&mut self, columns: &mut Columns, dict: u32) -> Within<()> {
        self.signs.planner_data = true;

        // The files of a rank-local checkpoint add to each other.
        let mut paths = match self.planner_data.take() {
            Some(PlannerData::Paths(p)) => p,
            _ => Default::default(),
        };

        // Items are fetched by number each time, because `key` needs the columns mutably.
        for i in 0..columns.dicts.get(dict).pairs.len() {
            let (key, path) = columns.dicts.get(dict).pairs[i];
            let mut steps = Vec::new();
            match path {
                V::Tuple(t) => {
                    let items = columns.tuples.get(t).len();
                    self.worth.room(&mut steps, items)?;
                    for i in 0..items {
                        let step = match columns.tuples.get(t)[i] {
                            V::Int(i) => u64::try_from(i).ok().map(Step::Index),
                            step => self.key(columns, step)?.map(|k| Step::Key(k.into())),
                        };
                        steps.extend(step);
                    }
                    // A path with a step that is neither a str nor an index, or a negative one, is no path. A shorter one would be
                    // another path.
                    if steps.len() < items {
                        continue;
                    }
                }
                // A tuple of ints only, as for nested lists, is kept in another form.
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
    fn key(&mut self, columns: &mut Columns, key: V) -> Within<Option<String>> {
        let Some(key) = key_in(&mut columns.texts, key, &mut self.worth)? else {
            return Ok(None);
        };
        let text = columns.texts.get(key).unwrap_or_default();
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
fn describe<'c>(
    columns: &'c Columns,
    raw: &RawTensor,
) -> std::result::Result<Description<'c>, String> {
    let other = |what: &str| format!("its {what} has a form that this version does not know");
    let props = raw.props.map(|p| &columns.props[p as usize]);

    // Faults are looked for from the most to the least precise, so the reason names what is really unknown.
    if let Some((_, n)) = raw.size.filter(|(_, n)| *n > MOST_AXES.into()) {
        return Err(format!(
            "it has {n} axes, and this version reads at most {MOST_AXES}"
        ));
    }
    if columns.has_other_chunks(raw) {
        return Err(other("chunks"));
    }
    match (raw.odd, raw.size, props) {
        (Some(field), ..) => Err(other(field)),
        (None, _, None) => Err("it has no properties".into()),
        (None, None, Some(_)) => Err(other("size or properties")),
        (None, Some(size), Some(props)) => match (props.dtype, props.odd, props.unknown) {
            (Some(dtype), false, _) => Ok(Description { size, props, dtype }),
            (_, _, Some(name)) => {
                let name = shortened(columns.texts.get(name).unwrap_or_default());
                Err(format!(
                    "its element type torch.{name} is not one that this version knows"
                ))
            }
            _ => Err(other("size or properties")),
        },
    }
}

/// An error of the pickle.
fn unreadable(file: &str, e: Error) -> StrategyError {
    if let Error::Limit {
        limit: limit @ (MEMORY | STEPS),
        max,
        ..
    } = e
    {
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
