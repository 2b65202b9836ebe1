//! Reads the pickle of a `.metadata` file into columns. It never builds the objects, so a million chunks stay small.

use super::{
    fields::{Field, OF_ROOT},
    ints::{Ints, Run},
    names::Class,
    slots::Slots,
    spelling::spell,
    texts::Texts,
    worth::{Beyond, Worth, number},
};
use crate::transform::UNTOLD;
use reshard_model::{DType, Dims};
use reshard_torch_format::pickle::{Build, Built, Items, Refusal};
use std::{borrow::Cow, collections::BTreeMap, ops::Range};

/// A handle on a built value. A text is an index into `texts`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum V {
    None,
    Bool(bool),
    Int(i64),
    Str(u32),
    /// A str with lone surrogates, spelled as a key.
    Odd(u32),
    /// A tuple of ints that are not negative, or an empty one: a range of `ints`.
    Ints(u32, u32),
    /// The same as a torch.Size.
    Size(u32, u32),
    Tuple(u32),
    List(u32),
    Dict(u32),
    Class(Class),
    /// A name in the module `torch` that is no known class.
    OfTorch(u32),
    /// Result of `_get_layout`.
    Layout,
    /// Result of `MEM_FORMAT_ENCODING`.
    MemFormat(u8),
    Path(u32),
    Props(u32),
    Chunk(u32),
    Tensor(u32),
    BytesItem,
    Index(u32),
    Storage(u32),
    Meta(u32),
    Root(u32),
    /// An object of an unknown class.
    Stranger,
    /// Anything else. Its contents are ignored.
    Inert,
}

/// `TensorProperties`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Props {
    pub(crate) old_module: bool,
    pub(crate) dtype: Option<DType>,
    /// The name of an unknown dtype: an index into `texts`.
    pub(crate) unknown: Option<u32>,
    /// The state has an unknown form.
    pub(crate) odd: bool,
    pub(crate) requires_grad: bool,
    pub(crate) mem_format: u8,
    pub(crate) pin_memory: bool,
    /// Elements of the state tuple: 5, or 6 with strides.
    pub(crate) arity: u8,
    /// A range of `ints`.
    pub(crate) strides: Option<Run>,
}

/// `TensorStorageMetadata`.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawTensor {
    pub(crate) props: Option<u32>,
    pub(crate) size: Option<(u32, u32)>,
    /// The list of its chunks.
    pub(crate) chunks: Option<u32>,
    /// A field whose type is not that of any known version.
    pub(crate) odd: Option<&'static str>,
}

/// Stands for no number.
pub(crate) const NONE: u32 = u32::MAX;

/// Stands for transforms whose description has an unknown form.
const ODD: u32 = NONE - 1;

/// The memory of an entry in a map of numbers.
const ASIDE: usize = 48;

/// `MetadataIndex`, in 16 bytes, because there is one for every stored item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawIndex {
    /// Index into `texts`.
    pub(crate) key: u32,
    /// A hint: the position in the list of chunks.
    pub(crate) hint: u32,
    /// Offsets: a range of `ints`.
    at: u32,
    ndim: u8,
    has_offset: bool,
}

impl RawIndex {
    pub(crate) fn offset(self) -> Option<(u32, u32)> {
        self.has_offset.then_some((self.at, self.ndim.into()))
    }
}

/// The compact form of `_StorageInfo`, in 16 bytes.
#[derive(Clone, Copy, Debug)]
struct NarrowStorage {
    offset: u64,
    /// `NONE` if the object had no length, or if the length does not fit and is in `lengths`.
    length: u32,
    file: u32,
}

/// `_StorageInfo`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawStorage {
    /// Index into `texts`. `NONE` if the object had no path.
    pub(crate) file: u32,
    /// List of transform descriptors.
    pub(crate) transforms: u32,
    /// 2^64 - 1 if the object had none. The same holds for the length.
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// `StorageMeta`.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawMeta {
    pub(crate) checkpoint_id: Option<u32>,
    pub(crate) save_id: Option<u32>,
    pub(crate) load_id: Option<u32>,
    /// The list of them.
    pub(crate) modules: Option<u32>,
}

/// `Metadata`, by handles.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawRoot {
    pub(crate) subclass: bool,
    fields: [Option<V>; OF_ROOT],
}

impl RawRoot {
    pub(crate) fn field(&self, field: Field) -> Option<V> {
        self.fields.get(field as usize).copied().flatten()
    }

    fn set(&mut self, field: Field, value: V) {
        if let Some(f) = self.fields.get_mut(field as usize) {
            *f = Some(value);
        }
    }
}

/// Appends a value to its column, and returns its number.
fn add<T>(column: &mut Vec<T>, value: T, worth: &mut Worth) -> Result<u32, Beyond> {
    let i = number(column.len())?;
    worth.push(column, value)?;
    Ok(i)
}

/// A run of pairs of an index and a storage, in which both numbers grow by one from pair to pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pairs {
    index: u32,
    storage: u32,
    n: u32,
}

/// The items of a dict. Pairs of an index and a storage, which come by the million, are kept as runs.
#[derive(Debug, Default)]
pub(crate) struct RawDict {
    pub(crate) pairs: Vec<(V, V)>,
    storage: Vec<Pairs>,
}

impl RawDict {
    /// The items of `storage_data`: each is the number of an index and the number of a storage.
    pub(crate) fn storage(&self) -> impl Iterator<Item = (u32, u32)> {
        self.storage
            .iter()
            .flat_map(|p| (0..p.n).map(|i| (p.index + i, p.storage + i)))
    }

    fn push_storage(&mut self, index: u32, storage: u32, worth: &mut Worth) -> Built<()> {
        match self.storage.last_mut() {
            Some(p) if p.index + p.n == index && p.storage + p.n == storage => p.n += 1,
            _ => {
                let n = 1;
                worth.push(&mut self.storage, Pairs { index, storage, n })?;
            }
        }
        Ok(())
    }
}

/// The items of a list.
#[derive(Debug, Default)]
pub(crate) struct RawList {
    pub(crate) items: Vec<V>,
    /// Runs of chunks with consecutive numbers.
    chunks: Vec<Range<u32>>,
    /// Whether it holds something that is neither a chunk nor ignored.
    other: bool,
}

impl RawList {
    fn push(&mut self, value: V, worth: &mut Worth) -> Built<()> {
        self.other |= !matches!(value, V::Chunk(_) | V::Inert);
        match value {
            V::Chunk(c) if self.items.is_empty() => match self.chunks.last_mut() {
                Some(run) if run.end == c => run.end += 1,
                _ => worth.push(&mut self.chunks, c..c + 1)?,
            },
            v => {
                // A list has either chunks only, or items of any kind.
                for c in std::mem::take(&mut self.chunks).into_iter().flatten() {
                    worth.push(&mut self.items, V::Chunk(c))?;
                }
                worth.push(&mut self.items, v)?;
            }
        }
        Ok(())
    }
}

/// Everything that the pickle of a `.metadata` file contains.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    ints: Ints,
    pub(crate) props: Vec<Props>,
    /// Offsets and sizes of chunks, each a range of `ints`.
    pub(crate) chunks: Vec<RawChunk>,
    pub(crate) tensors: Vec<RawTensor>,
    pub(crate) indices: Vec<RawIndex>,
    storages: Vec<NarrowStorage>,
    /// Lengths of 4 GiB and more.
    lengths: BTreeMap<u32, u64>,
    /// Lists of transform descriptors, or `ODD`.
    transforms: BTreeMap<u32, u32>,
    pub(crate) metas: Vec<RawMeta>,
    pub(crate) roots: Vec<RawRoot>,
    /// All strs, each once.
    pub(crate) texts: Texts,
    pub(crate) tuples: Slots<Vec<V>>,
    pub(crate) lists: Slots<RawList>,
    pub(crate) dicts: Slots<RawDict>,
    /// The budget from which all of it is paid.
    pub(crate) worth: Worth,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawChunk {
    pub(crate) offsets: u32,
    pub(crate) sizes: u32,
    pub(crate) ndim: u8,
    pub(crate) sizes_ndim: u8,
}

impl Columns {
    /// Makes empty columns with this budget.
    pub(crate) fn new(mut worth: Worth) -> Result<Self, Beyond> {
        Ok(Self {
            texts: Texts::new(&mut worth)?,
            worth,
            ..Self::default()
        })
    }

    pub(crate) fn ints(&self, at: u32, n: u32) -> Dims {
        self.ints.dims((at, n))
    }

    /// Takes the items of a dict out.
    pub(crate) fn take_pairs(&mut self, i: u32) -> Vec<(V, V)> {
        std::mem::take(&mut self.dicts.get_mut(i).pairs)
    }

    fn path_of(&mut self, args: V) -> Built<V> {
        let parts = match args {
            V::Tuple(i) => self.tuples.get(i).as_slice(),
            _ => &[],
        };
        self.worth.steps(parts.len())?;
        let parts = parts.iter().map(|part| match part {
            V::Str(s) => self.texts.get(*s).unwrap_or_default(),
            _ => "",
        });
        let lengths = parts.clone().map(|part| part.len().saturating_add(1));
        let long = lengths.fold(0, usize::saturating_add);
        self.worth.take(long.saturating_mul(2).saturating_add(32))?;
        let mut out = String::with_capacity(long);
        for part in parts {
            if !out.is_empty() && !out.ends_with('/') {
                out.push('/');
            }
            out.push_str(part);
        }
        Ok(V::Path(self.texts.add(&out, &mut self.worth)?))
    }

    fn props_state(&mut self, i: u32, state: V) {
        let p = &mut self.props[i as usize];
        let fields = match state {
            V::Tuple(t) => self.tuples.get(t).as_slice(),
            _ => &[],
        };
        let [dtype, _layout, grad, mem, pin, rest @ ..] = fields else {
            p.odd = true;
            return;
        };
        match dtype {
            V::Class(Class::DType(d)) => p.dtype = Some(*d),
            V::OfTorch(name) => p.unknown = Some(*name),
            _ => p.odd = true,
        }
        p.requires_grad = matches!(grad, V::Bool(true));
        p.pin_memory = matches!(pin, V::Bool(true));
        p.mem_format = if let V::MemFormat(m) = mem { *m } else { 0 };
        p.arity = fields.len().min(255) as u8;
        p.strides = match rest.first() {
            Some(V::Ints(at, n) | V::Size(at, n)) => Some((*at, *n)),
            _ => None,
        };
        if let V::Tuple(t) = state {
            self.tuples.release(t, Vec::clear);
        }
    }

    fn set(&mut self, object: V, pairs: &[(V, V)]) -> Built<()> {
        for &(k, v) in pairs {
            let V::Str(name) = k else {
                match object {
                    V::Inert | V::Stranger => continue,
                    _ => return Err(Refusal::damaged("the name of a field is not a str")),
                }
            };
            self.set_field(object, name, v)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn set_field(&mut self, object: V, name: u32, value: V) -> Built<()> {
        use Field::{
            CheckpointId, Chunks, Fqn, Index, Length, LoadId, Modules, Offset, Offsets, Properties,
            RelativePath, SaveId, Size, Sizes, TransformDescriptors,
        };
        // An unknown field is no error. Versions to come may have more fields, but a damaged pickle must not pass for one of
        // these, so its name must be possible.
        let Some(field) = Field::at(name) else {
            return match (object, self.texts.get(name).unwrap_or_default()) {
                (V::Index(_) | V::Storage(_) | V::Chunk(_) | V::Tensor(_), name)
                    if !is_name(name) =>
                {
                    Err(Refusal::damaged(format!(
                        "{name:?} can't be the name of a field"
                    )))
                }
                _ => Ok(()),
            };
        };
        let another_type = |class: &str| {
            let what = format!("field {:?} of {class} is of another type", field.name());
            Err(Refusal::damaged(what))
        };
        // What happens if a known field has a wrong type depends on the class. A chunk, an index or a location can't be used
        // without its fields, so that is damage. A tensor is only marked: it can't be read, but all others can.
        match (object, field, value) {
            (V::Chunk(i), Offsets, V::Size(at, n) | V::Ints(at, n)) => {
                let c = &mut self.chunks[i as usize];
                (c.offsets, c.ndim) = (at, axes(n));
            }
            (V::Chunk(i), Sizes, V::Size(at, n) | V::Ints(at, n)) => {
                let c = &mut self.chunks[i as usize];
                (c.sizes, c.sizes_ndim) = (at, axes(n));
            }
            (V::Chunk(_), Offsets | Sizes, _) => {
                return Err(Refusal::damaged(
                    "offsets and sizes of a chunk must be tuples of ints that are not negative",
                ));
            }
            // Tensors.
            (V::Tensor(i), Properties, V::Props(p)) => self.tensors[i as usize].props = Some(p),
            (V::Tensor(i), Size, V::Size(at, n) | V::Ints(at, n)) => {
                self.tensors[i as usize].size = Some((at, n));
            }
            (V::Tensor(i), Chunks, V::List(l)) => self.tensors[i as usize].chunks = Some(l),
            (V::Tensor(i), Properties | Size | Chunks, _) => {
                self.tensors[i as usize].odd = Some(field.name());
            }
            // Indices. A missing offset is normal for objects.
            (V::Index(i), Fqn, V::Str(_) | V::Odd(_)) => {
                let key = key_in(&mut self.texts, value, &mut self.worth)?;
                self.indices[i as usize].key = key.unwrap_or(NONE);
            }
            (V::Index(i), Index, V::Int(h)) => {
                self.indices[i as usize].hint = u32::try_from(h).unwrap_or(NONE)
            }
            (V::Index(i), Offset, V::Size(at, n) | V::Ints(at, n)) => {
                let index = &mut self.indices[i as usize];
                (index.at, index.ndim, index.has_offset) = (at, axes(n), true);
            }
            (V::Index(_), Offset, V::None) | (V::Index(_), Index, _) => {}
            (V::Index(_), Fqn | Offset, _) => return another_type("MetadataIndex"),
            // Locations. Few have a length of 4 GiB or more, or transforms, so these are kept in maps beside the column.
            (V::Storage(i), RelativePath, V::Str(s)) => self.storages[i as usize].file = s,
            (V::Storage(i), Offset, V::Int(n)) => self.storages[i as usize].offset = natural(n)?,
            (V::Storage(i), Length, V::Int(n)) => {
                let n = natural(n)?;
                let narrow = u32::try_from(n).unwrap_or(NONE);
                if narrow == NONE {
                    self.worth.take(ASIDE)?;
                    self.lengths.insert(i, n);
                }
                self.storages[i as usize].length = narrow;
            }
            (V::Storage(i), TransformDescriptors, V::List(l)) => {
                self.worth.take(ASIDE)?;
                self.transforms.insert(i, l);
            }
            (V::Storage(_), TransformDescriptors, V::None) => {}
            (V::Storage(i), TransformDescriptors, _) => {
                self.worth.take(ASIDE)?;
                self.transforms.insert(i, ODD);
            }
            (V::Storage(_), RelativePath | Offset | Length, _) => {
                return another_type("_StorageInfo");
            }
            // The two objects that exist once. The fields of the root are interpreted later, by the table.
            (V::Meta(i), CheckpointId, V::Str(s) | V::Path(s)) => {
                self.metas[i as usize].checkpoint_id = Some(s);
            }
            (V::Meta(i), SaveId, V::Str(s)) => self.metas[i as usize].save_id = Some(s),
            (V::Meta(i), LoadId, V::Str(s)) => self.metas[i as usize].load_id = Some(s),
            (V::Meta(i), Modules, V::List(l)) => self.metas[i as usize].modules = Some(l),
            (V::Root(i), field, value) => self.roots[i as usize].set(field, value),
            _ => {}
        }
        Ok(())
    }
}

/// The number of a key's spelling. `None` if the key is no str.
pub(crate) fn key_in(texts: &mut Texts, key: V, worth: &mut Worth) -> Result<Option<u32>, Beyond> {
    Ok(match key {
        V::Str(s) => Some(texts.key(s, worth)?),
        V::Odd(s) => Some(s),
        _ => None,
    })
}

/// The longest name that is examined. A file may refer to one long name again and again.
const LONGEST_FIELD: usize = 255;

fn is_name(s: &str) -> bool {
    s.len() <= LONGEST_FIELD && s.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric())
}

/// Whether this is names with dots between them.
fn is_path(s: &str) -> bool {
    s.len() <= LONGEST_FIELD && s.split('.').all(|part| !part.is_empty() && is_name(part))
}

/// The maximal number of axes of a tensor.
pub(crate) const MOST_AXES: u8 = 64;

/// The number of axes. One more than the maximum stands for all larger numbers.
fn axes(n: u32) -> u8 {
    u8::try_from(n).unwrap_or(u8::MAX).min(MOST_AXES + 1)
}

fn natural(n: i64) -> Built<u64> {
    u64::try_from(n).map_err(|_| Refusal::damaged("an offset or a length is negative"))
}

impl<'p> Build<'p> for Columns {
    type Value = V;

    fn share(&mut self, value: &V) -> Built<V> {
        match value {
            V::Tuple(i) => self.tuples.share(*i),
            V::List(i) => self.lists.share(*i),
            V::Dict(i) => self.dicts.share(*i),
            _ => {}
        }
        Ok(*value)
    }
    fn none(&mut self) -> Built<V> {
        Ok(V::None)
    }
    fn bool(&mut self, v: bool) -> Built<V> {
        Ok(V::Bool(v))
    }
    fn int(&mut self, v: i64) -> Built<V> {
        Ok(V::Int(v))
    }
    fn long(&mut self, _: Cow<'p, [u8]>) -> Built<V> {
        // A length of 2^63 or more is no error here. The checks of shapes will report it with the key.
        Ok(V::Inert)
    }
    fn float(&mut self, _: f64) -> Built<V> {
        Ok(V::Inert)
    }
    fn str(&mut self, v: Cow<'p, str>) -> Built<V> {
        Ok(V::Str(self.texts.add(&v, &mut self.worth)?))
    }
    fn odd_str(&mut self, python: &'p [u8]) -> Built<V> {
        // A spelling is at most twice as long.
        self.worth.take(python.len().saturating_mul(2))?;
        let key = spell(python).ok_or_else(|| Refusal::damaged("a text is not UTF-8"))?;
        Ok(V::Odd(self.texts.add(&key, &mut self.worth)?))
    }
    fn bytes(&mut self, _: Cow<'p, [u8]>) -> Built<V> {
        Ok(V::Inert)
    }
    fn bytearray(&mut self, _: &'p [u8]) -> Built<V> {
        Ok(V::Inert)
    }
    fn tuple(&mut self, items: Items<'_, V>) -> Built<V> {
        let all = items.as_slice().iter();
        let natural = |v: &V| match v {
            V::Int(i) => u64::try_from(*i).ok(),
            _ => None,
        };
        if all.clone().all(|v| natural(v).is_some()) {
            let ints = all.map(|v| natural(v).unwrap_or(0));
            let (at, n) = self.ints.add(ints, &mut self.worth)?;
            return Ok(V::Ints(at, n));
        }
        let i = self.tuples.new_slot(&mut self.worth)?;
        let slot = self.tuples.get_mut(i);
        slot.clear();
        self.worth.room(slot, items.len())?;
        slot.extend(items);
        Ok(V::Tuple(i))
    }
    fn list(&mut self) -> Built<V> {
        Ok(V::List(self.lists.new_slot(&mut self.worth)?))
    }
    fn dict(&mut self) -> Built<V> {
        Ok(V::Dict(self.dicts.new_slot(&mut self.worth)?))
    }
    fn set(&mut self) -> Built<V> {
        Ok(V::Inert)
    }
    fn frozenset(&mut self, _: Items<'_, V>) -> Built<V> {
        Ok(V::Inert)
    }
    fn append(&mut self, list: &mut V, items: Items<'_, V>) -> Built<()> {
        if let V::List(i) = list {
            let list = self.lists.get_mut(*i);
            for v in items {
                list.push(v, &mut self.worth)?;
            }
        }
        Ok(())
    }
    fn set_items(&mut self, dict: &mut V, mut pairs: Items<'_, V>) -> Built<()> {
        if let V::Dict(i) = dict {
            let d = self.dicts.get_mut(*i);
            while let (Some(k), Some(v)) = (pairs.next(), pairs.next()) {
                match (k, v) {
                    (V::Index(k), V::Storage(v)) => d.push_storage(k, v, &mut self.worth)?,
                    pair => self.worth.push(&mut d.pairs, pair)?,
                }
            }
        }
        Ok(())
    }
    fn add_items(&mut self, _: &mut V, _: Items<'_, V>) -> Built<()> {
        Ok(())
    }
    fn global(&mut self, module: &str, name: &str) -> Built<V> {
        match (Class::of(module, name), module) {
            (Class::Other, "torch") => Ok(V::OfTorch(self.texts.add(name, &mut self.worth)?)),
            // Not a possible name, so it is no class: a damaged pickle must not pass for one with unknown classes.
            (Class::Other, _) if !is_path(module) || !is_path(name) => Ok(V::Inert),
            (class, _) => Ok(V::Class(class)),
        }
    }
    fn stack_global(&mut self, module: V, name: V) -> Built<V> {
        let (V::Str(module), V::Str(name)) = (module, name) else {
            return Err(Refusal::damaged("the name of a class is not a str"));
        };
        let text = |i| self.texts.get(i).unwrap_or_default();
        match (Class::of(text(module), text(name)), text(module)) {
            (Class::Other, "torch") => Ok(V::OfTorch(name)),
            (Class::Other, module) if !is_path(module) || !is_path(text(name)) => Ok(V::Inert),
            (class, _) => Ok(V::Class(class)),
        }
    }
    fn call(&mut self, callable: V, args: V) -> Built<V> {
        let out = match (&callable, &args) {
            (V::Class(Class::Size), V::Tuple(t)) => match self.tuples.get(*t)[..] {
                [V::Ints(at, n) | V::Size(at, n)] => V::Size(at, n),
                _ => {
                    let what = "the lengths in a torch.Size must be ints that are not negative";
                    return Err(Refusal::damaged(what));
                }
            },
            (V::Class(Class::Size), _) => {
                return Err(Refusal::damaged("a torch.Size has no tuple"));
            }
            (V::Class(Class::GetLayout), _) => V::Layout,
            (V::Class(Class::MemFormat), V::Ints(at, 1)) => {
                V::MemFormat(self.ints.get(*at).unwrap_or(0).min(255) as u8)
            }
            (V::Class(Class::Path), _) => self.path_of(args)?,
            (V::Class(_), _) => return self.new_object(callable, args),
            _ => V::Inert,
        };
        if let V::Tuple(t) = args {
            self.tuples.release(t, Vec::clear);
        }
        Ok(out)
    }
    fn new_object(&mut self, class: V, _args: V) -> Built<V> {
        let V::Class(class) = class else {
            return Ok(V::Inert);
        };
        let worth = &mut self.worth;

        // Each object begins with marks for missing fields. `build` fills in those that the file has.
        Ok(match class {
            Class::Metadata | Class::MCoreMetadata => {
                let root = RawRoot {
                    subclass: class == Class::MCoreMetadata,
                    ..RawRoot::default()
                };
                V::Root(add(&mut self.roots, root, worth)?)
            }
            Class::TensorStorageMetadata => {
                V::Tensor(add(&mut self.tensors, RawTensor::default(), worth)?)
            }
            Class::BytesStorageMetadata => V::BytesItem,
            Class::TensorProperties(old_module) => {
                let props = Props {
                    old_module,
                    ..Props::default()
                };
                V::Props(add(&mut self.props, props, worth)?)
            }
            Class::ChunkStorageMetadata => {
                V::Chunk(add(&mut self.chunks, RawChunk::default(), worth)?)
            }
            Class::MetadataIndex => {
                let index = RawIndex {
                    key: NONE,
                    hint: NONE,
                    at: 0,
                    ndim: 0,
                    has_offset: false,
                };
                V::Index(add(&mut self.indices, index, worth)?)
            }
            Class::StorageInfo => {
                let nowhere = NarrowStorage {
                    file: NONE,
                    offset: u64::MAX,
                    length: NONE,
                };
                V::Storage(add(&mut self.storages, nowhere, worth)?)
            }
            Class::StorageMeta => V::Meta(add(&mut self.metas, RawMeta::default(), worth)?),
            Class::Other => V::Stranger,
            _ => V::Inert,
        })
    }
    fn build(&mut self, object: &mut V, state: V) -> Built<()> {
        if let V::Props(i) = object {
            self.props_state(*i, state);
            return Ok(());
        }
        let state = match state {
            // A pair of the state and the state of slots, as copyreg makes it. Only the first can hold our fields.
            V::Tuple(t) => self.tuples.get(t).first().copied().unwrap_or(V::None),
            s => s,
        };
        let V::Dict(i) = state else { return Ok(()) };
        let mut pairs = self.take_pairs(i);
        if self.dicts.is_shared(i) {
            self.worth.steps(pairs.len())?;
            self.set(*object, &pairs)?;
            self.dicts.get_mut(i).pairs = pairs;
        } else {
            self.set(*object, &pairs)?;
            // Nobody else refers to this dict, so its memory is reused for the state of the next object.
            pairs.clear();
            self.dicts.release(i, |d| {
                d.pairs = pairs;
                d.storage.clear();
            });
        }
        Ok(())
    }
    fn persistent(&mut self, _: V) -> Built<V> {
        Ok(V::Inert)
    }
}

impl Columns {
    /// The contents of a `_StorageInfo`.
    pub(crate) fn storage(&self, i: u32) -> RawStorage {
        let NarrowStorage {
            offset,
            length,
            file,
        } = self.storages[i as usize];
        let length = match length {
            NONE => self.lengths.get(&i).copied().unwrap_or(u64::MAX),
            length => length.into(),
        };
        RawStorage {
            file,
            transforms: self.transforms.get(&i).copied().unwrap_or(NONE),
            offset,
            length,
        }
    }

    fn runs_of(&self, t: &RawTensor) -> &[Range<u32>] {
        t.chunks.map_or(&[], |l| &self.lists.get(l).chunks)
    }

    /// The chunks of a tensor, in stored order.
    pub(crate) fn chunks_of(&self, t: &RawTensor) -> impl Iterator<Item = u32> {
        self.runs_of(t).iter().cloned().flatten()
    }

    /// Whether its list holds anything else than chunks.
    pub(crate) fn has_other_chunks(&self, t: &RawTensor) -> bool {
        t.chunks.is_some_and(|l| self.lists.get(l).other)
    }

    /// How many chunks a tensor has.
    pub(crate) fn chunks_in(&self, t: &RawTensor) -> usize {
        let lengths = self.runs_of(t).iter().map(|run| run.len());
        lengths.fold(0, usize::saturating_add)
    }

    /// Frees the memory of all that is not needed to know where items lie, once the logical table has it. Returns the dict of places.
    pub(crate) fn only_places(&mut self, dict: u32) -> RawDict {
        (self.chunks, self.tensors, self.props) = (Vec::new(), Vec::new(), Vec::new());
        (self.metas, self.roots, self.tuples) = (Vec::new(), Vec::new(), Slots::default());
        self.ints.forget_recent();
        if self.transforms.is_empty() {
            self.lists = Slots::default();
        }
        self.lists.iter_mut().for_each(|l| l.chunks = Vec::new());
        let places = std::mem::take(self.dicts.get_mut(dict));
        self.dicts = Slots::default();
        RawDict {
            pairs: Vec::new(),
            ..places
        }
    }

    /// About how many bytes of memory are left of it then.
    pub(crate) fn takes(&self, places: &RawDict) -> u64 {
        let columns = self.indices.capacity() * size_of::<RawIndex>()
            + self.storages.capacity() * size_of::<NarrowStorage>()
            + (self.lengths.len() + self.transforms.len()) * ASIDE
            + places.storage.capacity() * size_of::<Pairs>();
        let lists = self.lists.iter().map(|l| {
            size_of::<RawList>() + l.items.capacity() * size_of::<V>() + 3 * size_of::<u32>()
        });
        (columns + lists.sum::<usize>() + self.ints.takes() + self.texts.takes()) as u64
    }

    /// Offsets and sizes of a chunk. `None` if their numbers of axes differ.
    pub(crate) fn chunk(&self, c: u32) -> Option<(Dims, Dims)> {
        let c = self.chunks[c as usize];
        let ints = |at| self.ints(at, c.ndim.into());
        (c.ndim == c.sizes_ndim).then(|| (ints(c.offsets), ints(c.sizes)))
    }

    /// The texts of a list of transform descriptors.
    pub(crate) fn descriptors(&self, list: u32) -> impl Iterator<Item = &str> + Clone {
        let (items, odd) = match list {
            ODD => (&[][..], Some(UNTOLD)),
            list => (&self.lists.get(list).items[..], None),
        };
        let texts = items.iter().map(|v| match v {
            V::Str(s) => self.texts.get(*s).unwrap_or_default(),
            _ => UNTOLD,
        });
        texts.chain(odd)
    }
}
