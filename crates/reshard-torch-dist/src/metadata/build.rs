//! Columns out of the pickle of a `.metadata` file: no object of it is ever made, and a million chunks stay small.

use super::names::Class;
use indexmap::IndexSet;
use reshard_model::{DType, Dims};
use reshard_torch_format::pickle::{Build, Built, Items, Refusal};
use std::{
    borrow::{Borrow, Cow},
    collections::BTreeMap,
    hash::{Hash, Hasher},
    rc::Rc,
};

/// A handle on something built.
#[derive(Clone, Debug)]
pub(crate) enum V<'a> {
    None,
    Bool(bool),
    Int(i64),
    Str(Text<'a>),
    /// A tuple of ints that are not negative, or an empty one: a range of `ints`.
    Ints(u32, u32),
    /// The same as a torch.Size.
    Size(u32, u32),
    Tuple(u32),
    List(u32),
    Dict(u32),
    Class(Class),
    /// A name in the module `torch` that is none of those: an index into `texts`.
    OfTorch(u32),
    /// Result of `_get_layout`.
    Layout,
    /// Result of `MEM_FORMAT_ENCODING`.
    MemFormat(u8),
    Path(Text<'a>),
    Props(u32),
    Chunk(u32),
    Tensor(u32),
    BytesItem,
    Index(u32),
    Storage(u32),
    Meta(u32),
    Root(u32),
    /// Anything else: not looked into.
    Inert,
}

/// A str of the pickle.
#[derive(Clone, Debug)]
pub(crate) enum Text<'a> {
    Borrowed(&'a str),
    Owned(Rc<str>),
}

impl Text<'_> {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Borrowed(s) => s,
            Self::Owned(s) => s,
        }
    }
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Text<'_> {}

impl Hash for Text<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Borrow<str> for Text<'_> {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

/// `TensorProperties`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Props {
    pub(crate) old_module: bool,
    pub(crate) dtype: Option<DType>,
    /// The name of a dtype that reshard doesn't know, an index into `texts`.
    pub(crate) unknown: Option<u32>,
    /// The state is not of a form that reshard knows.
    pub(crate) odd: bool,
    pub(crate) requires_grad: bool,
    pub(crate) mem_format: u8,
    pub(crate) pin_memory: bool,
    /// Elements of the state tuple: 5, or 6 with strides.
    pub(crate) arity: u8,
    pub(crate) strides: Option<Vec<u64>>,
}

/// `TensorStorageMetadata`.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawTensor {
    pub(crate) props: Option<u32>,
    pub(crate) size: Option<(u32, u32)>,
    /// The list of its chunks.
    pub(crate) chunks: Option<u32>,
    /// A field that is of another type than in any version that reshard knows.
    pub(crate) odd: Option<&'static str>,
}

/// No such number.
pub(crate) const NONE: u32 = u32::MAX;

/// `MetadataIndex`, in 16 bytes: there is one for every stored item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawIndex {
    /// Index into `texts`.
    pub(crate) key: u32,
    /// Position in the list of chunks, a hint.
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

/// `_StorageInfo`, in 24 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawStorage {
    /// Index into `texts`; none when the object had no path.
    pub(crate) file: u32,
    /// List of transform descriptors.
    pub(crate) transforms: u32,
    /// As the length, 2^64 - 1 when the object had none.
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// `StorageMeta`.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawMeta {
    pub(crate) checkpoint_id: Option<String>,
    pub(crate) save_id: Option<String>,
}

/// `Metadata`, by handles.
#[derive(Clone, Debug)]
pub(crate) struct RawRoot<'a> {
    pub(crate) subclass: bool,
    pub(crate) fields: Vec<(Text<'a>, V<'a>)>,
}

/// Numbers of shapes and offsets: 4 bytes each, and those that need more aside.
#[derive(Debug, Default)]
struct Ints {
    narrow: Vec<u32>,
    wide: BTreeMap<u32, u64>,
}

impl Ints {
    fn push(&mut self, v: u64) {
        match u32::try_from(v) {
            Ok(v) if v != u32::MAX => self.narrow.push(v),
            _ => {
                self.wide.insert(self.narrow.len() as u32, v);
                self.narrow.push(u32::MAX);
            }
        }
    }

    fn get(&self, at: u32) -> Option<u64> {
        match *self.narrow.get(at as usize)? {
            u32::MAX => self.wide.get(&at).copied(),
            v => Some(v.into()),
        }
    }
}

/// A container that is filled after it was made, and given up when it was consumed and nobody else names it.
#[derive(Debug, Default)]
struct Slots<T> {
    all: Vec<T>,
    shared: Vec<bool>,
    free: Vec<u32>,
}

impl<T: Default> Slots<T> {
    fn new_slot(&mut self) -> Built<u32> {
        if let Some(i) = self.free.pop() {
            return Ok(i);
        }
        let i = id(self.all.len())?;
        self.all.push(T::default());
        self.shared.push(false);
        Ok(i)
    }

    fn share(&mut self, i: u32) {
        self.shared[i as usize] = true;
    }

    fn get(&self, i: u32) -> &T {
        &self.all[i as usize]
    }

    fn get_mut(&mut self, i: u32) -> &mut T {
        &mut self.all[i as usize]
    }

    /// `clear` empties it but may keep its memory.
    fn release(&mut self, i: u32, clear: impl FnOnce(&mut T)) {
        if !self.shared[i as usize] {
            clear(&mut self.all[i as usize]);
            self.free.push(i);
        }
    }
}

fn id(n: usize) -> Built<u32> {
    u32::try_from(n).map_err(|_| Refusal::limit("values of one kind", u32::MAX.into()))
}

/// Items of a dict; the two shapes that come by the million are columns.
#[derive(Debug, Default)]
pub(crate) struct RawDict<'a> {
    pub(crate) pairs: Vec<(V<'a>, V<'a>)>,
    pub(crate) storage: Vec<(u32, u32)>,
}

#[derive(Debug, Default)]
pub(crate) struct RawList<'a> {
    pub(crate) items: Vec<V<'a>>,
    pub(crate) chunks: Vec<u32>,
}

/// Everything that the pickle of a `.metadata` file said.
#[derive(Debug, Default)]
pub(crate) struct Columns<'a> {
    ints: Ints,
    pub(crate) props: Vec<Props>,
    /// Offsets and sizes, each a range of `ints`; the number of axes is that of the offsets.
    pub(crate) chunks: Vec<RawChunk>,
    pub(crate) tensors: Vec<RawTensor>,
    pub(crate) indices: Vec<RawIndex>,
    pub(crate) storages: Vec<RawStorage>,
    pub(crate) metas: Vec<RawMeta>,
    pub(crate) roots: Vec<RawRoot<'a>>,
    /// Keys and relative paths of stored items, each once.
    texts: IndexSet<Text<'a>>,
    tuples: Slots<Vec<V<'a>>>,
    lists: Slots<RawList<'a>>,
    dicts: Slots<RawDict<'a>>,
    /// Classes that are not of PyTorch's metadata, for messages and notes.
    pub(crate) strangers: std::collections::BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawChunk {
    pub(crate) offsets: u32,
    pub(crate) sizes: u32,
    pub(crate) ndim: u8,
    pub(crate) sizes_ndim: u8,
}

impl<'a> Columns<'a> {
    pub(crate) fn ints(&self, at: u32, n: u32) -> Dims {
        (at..at.saturating_add(n)).filter_map(|i| self.ints.get(i)).collect()
    }

    pub(crate) fn dict(&self, i: u32) -> &RawDict<'a> {
        self.dicts.get(i)
    }

    pub(crate) fn list(&self, i: u32) -> &RawList<'a> {
        self.lists.get(i)
    }

    pub(crate) fn tuple_items(&self, i: u32) -> &[V<'a>] {
        self.tuples.get(i)
    }

    /// Elements of a tuple of any kind as handles.
    pub(crate) fn elements(&self, v: &V<'a>) -> Option<Cow<'_, [V<'a>]>> {
        match v {
            V::Tuple(i) => Some(Cow::Borrowed(self.tuple_items(*i))),
            V::Ints(at, n) | V::Size(at, n) => Some(Cow::Owned(
                self.ints(*at, *n).iter().map(|&i| V::Int(i64::try_from(i).unwrap_or(i64::MAX))).collect(),
            )),
            _ => None,
        }
    }

    fn take_state(&mut self, state: &V<'a>) -> Option<Vec<(V<'a>, V<'a>)>> {
        let V::Dict(i) = state else { return None };
        if self.dicts.shared[*i as usize] {
            return Some(self.dicts.get(*i).pairs.clone());
        }
        Some(std::mem::take(&mut self.dicts.get_mut(*i).pairs))
    }

    /// Gives the emptied state dict back for the next object.
    fn give_back(&mut self, state: &V<'a>, mut pairs: Vec<(V<'a>, V<'a>)>) {
        if let V::Dict(i) = state {
            self.dicts.release(*i, |d| {
                pairs.clear();
                d.pairs = pairs;
                d.storage.clear();
            });
        }
    }

    fn path_of(&mut self, args: &V<'a>) -> V<'a> {
        let parts: Vec<String> = self
            .elements(args)
            .map(|e| {
                e.iter()
                    .map(|p| if let V::Str(s) = p { s.as_str().to_string() } else { String::new() })
                    .collect()
            })
            .unwrap_or_default();
        let mut out = String::new();
        for p in parts {
            if !out.is_empty() && !out.ends_with('/') {
                out.push('/');
            }
            out.push_str(&p);
        }
        V::Path(Text::Owned(out.into()))
    }

    fn props_state(&mut self, i: u32, state: &V<'a>) -> Built<()> {
        let fields = self.elements(state).map(Cow::into_owned).unwrap_or_default();
        let [dtype, _layout, grad, mem, pin, rest @ ..] = fields.as_slice() else {
            self.props[i as usize].odd = true;
            return Ok(());
        };
        let strides = match rest.first() {
            Some(V::Ints(at, n) | V::Size(at, n)) => Some(self.ints(*at, *n).to_vec()),
            _ => None,
        };
        let p = &mut self.props[i as usize];
        match dtype {
            V::Class(Class::DType(d)) => p.dtype = Some(*d),
            V::OfTorch(name) => p.unknown = Some(*name),
            _ => p.odd = true,
        }
        p.requires_grad = matches!(grad, V::Bool(true));
        p.pin_memory = matches!(pin, V::Bool(true));
        p.mem_format = if let V::MemFormat(m) = mem { *m } else { 0 };
        p.arity = fields.len().min(255) as u8;
        p.strides = strides;
        if let V::Tuple(t) = state {
            self.tuples.release(*t, Vec::clear);
        }
        Ok(())
    }

    fn set(&mut self, object: &mut V<'a>, pairs: &[(V<'a>, V<'a>)]) -> Built<()> {
        for (k, v) in pairs {
            let V::Str(name) = k else {
                match object {
                    V::Inert => continue,
                    _ => return Err(Refusal::damaged("a field's name is no str")),
                }
            };
            match (&mut *object, name.as_str(), v) {
                (V::Chunk(i), "offsets", V::Size(at, n) | V::Ints(at, n)) => {
                    let c = &mut self.chunks[*i as usize];
                    (c.offsets, c.ndim) = (*at, axes(*n)?);
                }
                (V::Chunk(i), "sizes", V::Size(at, n) | V::Ints(at, n)) => {
                    let c = &mut self.chunks[*i as usize];
                    (c.sizes, c.sizes_ndim) = (*at, axes(*n)?);
                }
                (V::Chunk(_), "offsets" | "sizes", _) => {
                    return Err(Refusal::damaged(
                        "offsets and sizes of a chunk must be tuples of ints that are not negative",
                    ));
                }
                (V::Tensor(i), "properties", V::Props(p)) => self.tensors[*i as usize].props = Some(*p),
                (V::Tensor(i), "size", V::Size(at, n) | V::Ints(at, n)) => {
                    axes(*n)?;
                    self.tensors[*i as usize].size = Some((*at, *n));
                }
                (V::Tensor(i), "chunks", V::List(l)) => self.tensors[*i as usize].chunks = Some(*l),
                (V::Tensor(i), field, _) if let Some(odd) = field_of_tensor(field) => {
                    self.tensors[*i as usize].odd = Some(odd);
                }
                (V::Index(i), "fqn", V::Str(s)) => self.indices[*i as usize].key = self.text(s)?,
                (V::Index(i), "index", V::Int(h)) => {
                    self.indices[*i as usize].hint = u32::try_from(*h).unwrap_or(NONE)
                }
                (V::Index(i), "offset", V::Size(at, n) | V::Ints(at, n)) => {
                    let index = &mut self.indices[*i as usize];
                    (index.at, index.ndim, index.has_offset) = (*at, axes(*n)?, true);
                }
                (V::Index(_), "offset", V::None) | (V::Index(_), "index", _) => {}
                (V::Index(_), "fqn" | "offset", _) => {
                    return Err(Refusal::damaged(format!(
                        "field {:?} of MetadataIndex is of another type",
                        name.as_str()
                    )));
                }
                (V::Storage(i), "relative_path", V::Str(s)) => {
                    self.storages[*i as usize].file = self.text(s)?;
                }
                (V::Storage(i), "offset", V::Int(n)) => self.storages[*i as usize].offset = natural(*n)?,
                (V::Storage(i), "length", V::Int(n)) => self.storages[*i as usize].length = natural(*n)?,
                (V::Storage(i), "transform_descriptors", V::List(l)) => {
                    self.storages[*i as usize].transforms = *l;
                }
                (V::Storage(_), "relative_path" | "offset" | "length", _) => {
                    return Err(Refusal::damaged(format!(
                        "field {:?} of _StorageInfo is of another type",
                        name.as_str()
                    )));
                }
                (V::Meta(i), "checkpoint_id", V::Str(s) | V::Path(s)) => {
                    self.metas[*i as usize].checkpoint_id = Some(s.as_str().into());
                }
                (V::Meta(i), "save_id", V::Str(s)) => {
                    self.metas[*i as usize].save_id = Some(s.as_str().into())
                }
                (V::Root(i), _, _) => self.roots[*i as usize].fields.push((name.clone(), v.clone())),
                // Versions to come may have more fields; a damaged pickle shall not look as if it were of one.
                (V::Index(_) | V::Storage(_) | V::Chunk(_) | V::Tensor(_), name, _) if !is_name(name) => {
                    return Err(Refusal::damaged(format!("{name:?} can't be the name of a field")));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn text(&mut self, text: &Text<'a>) -> Built<u32> {
        match self.texts.get_index_of(text.as_str()) {
            Some(i) => id(i),
            None => id(self.texts.insert_full(text.clone()).0),
        }
    }

    /// A key or path of a stored item.
    pub(crate) fn text_at(&self, i: u32) -> Option<&str> {
        self.texts.get_index(i as usize).map(Text::as_str)
    }
}

fn field_of_tensor(name: &str) -> Option<&'static str> {
    ["properties", "size", "chunks"].into_iter().find(|f| *f == name)
}

fn is_name(s: &str) -> bool {
    s.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric())
}

fn axes(n: u32) -> Built<u8> {
    u8::try_from(n).ok().filter(|n| *n <= 64).ok_or_else(|| Refusal::limit("axes of a tensor", 64))
}

fn natural(n: i64) -> Built<u64> {
    u64::try_from(n).map_err(|_| Refusal::damaged("a negative offset or length"))
}

impl<'a> Build<'a> for Columns<'a> {
    type Value = V<'a>;

    fn share(&mut self, value: &V<'a>) -> Built<V<'a>> {
        match value {
            V::Tuple(i) => self.tuples.share(*i),
            V::List(i) => self.lists.share(*i),
            V::Dict(i) => self.dicts.share(*i),
            _ => {}
        }
        Ok(value.clone())
    }
    fn none(&mut self) -> Built<V<'a>> {
        Ok(V::None)
    }
    fn bool(&mut self, v: bool) -> Built<V<'a>> {
        Ok(V::Bool(v))
    }
    fn int(&mut self, v: i64) -> Built<V<'a>> {
        Ok(V::Int(v))
    }
    fn long(&mut self, le: Cow<'a, [u8]>) -> Built<V<'a>> {
        // An extent of 2^63 and more is no error here: the checks of shapes name the key.
        drop(le);
        Ok(V::Inert)
    }
    fn float(&mut self, _: f64) -> Built<V<'a>> {
        Ok(V::Inert)
    }
    fn str(&mut self, v: Cow<'a, str>) -> Built<V<'a>> {
        Ok(V::Str(match v {
            Cow::Borrowed(s) => Text::Borrowed(s),
            Cow::Owned(s) => Text::Owned(s.into()),
        }))
    }
    fn bytes(&mut self, _: Cow<'a, [u8]>) -> Built<V<'a>> {
        Ok(V::Inert)
    }
    fn bytearray(&mut self, _: &'a [u8]) -> Built<V<'a>> {
        Ok(V::Inert)
    }
    fn tuple(&mut self, items: Items<'_, V<'a>>) -> Built<V<'a>> {
        let natural = |v: &V<'a>| matches!(v, V::Int(i) if *i >= 0);
        if items.as_slice().iter().all(natural) {
            let (at, n) = (id(self.ints.narrow.len())?, id(items.len())?);
            for v in items {
                if let V::Int(i) = v {
                    self.ints.push(u64::try_from(i).unwrap_or(0));
                }
            }
            return Ok(V::Ints(at, n));
        }
        let i = self.tuples.new_slot()?;
        let slot = self.tuples.get_mut(i);
        slot.clear();
        slot.extend(items);
        Ok(V::Tuple(i))
    }
    fn list(&mut self) -> Built<V<'a>> {
        Ok(V::List(self.lists.new_slot()?))
    }
    fn dict(&mut self) -> Built<V<'a>> {
        Ok(V::Dict(self.dicts.new_slot()?))
    }
    fn set(&mut self) -> Built<V<'a>> {
        Ok(V::Inert)
    }
    fn frozenset(&mut self, items: Items<'_, V<'a>>) -> Built<V<'a>> {
        drop(items);
        Ok(V::Inert)
    }
    fn append(&mut self, list: &mut V<'a>, items: Items<'_, V<'a>>) -> Built<()> {
        if let V::List(i) = list {
            let l = self.lists.get_mut(*i);
            for v in items {
                match v {
                    V::Chunk(c) if l.items.is_empty() => l.chunks.push(c),
                    v => {
                        // A list is of chunks only, or general.
                        l.items.extend(l.chunks.drain(..).map(V::Chunk));
                        l.items.push(v);
                    }
                }
            }
        }
        Ok(())
    }
    fn set_items(&mut self, dict: &mut V<'a>, mut pairs: Items<'_, V<'a>>) -> Built<()> {
        if let V::Dict(i) = dict {
            let d = self.dicts.get_mut(*i);
            while let (Some(k), Some(v)) = (pairs.next(), pairs.next()) {
                match (k, v) {
                    (V::Index(k), V::Storage(v)) => d.storage.push((k, v)),
                    pair => d.pairs.push(pair),
                }
            }
        }
        Ok(())
    }
    fn add_items(&mut self, _: &mut V<'a>, items: Items<'_, V<'a>>) -> Built<()> {
        drop(items);
        Ok(())
    }
    fn global(&mut self, module: &str, name: &str) -> Built<V<'a>> {
        let class = Class::of(module, name);
        if class != Class::Other {
            return Ok(V::Class(class));
        }
        self.strangers.insert(format!("{module}.{name}"));
        match module {
            "torch" => Ok(V::OfTorch(self.text(&Text::Owned(name.into()))?)),
            _ => Ok(V::Class(class)),
        }
    }
    fn stack_global(&mut self, module: V<'a>, name: V<'a>) -> Built<V<'a>> {
        match (module, name) {
            (V::Str(m), V::Str(n)) => self.global(m.as_str(), n.as_str()),
            _ => Err(Refusal::damaged("a class is not named by strs")),
        }
    }
    fn call(&mut self, callable: V<'a>, args: V<'a>) -> Built<V<'a>> {
        let out = match (&callable, &args) {
            (V::Class(Class::Size), V::Tuple(t)) => match self.tuple_items(*t) {
                [V::Ints(at, n) | V::Size(at, n)] => V::Size(*at, *n),
                _ => {
                    return Err(Refusal::damaged(
                        "a torch.Size of something else than ints that are not negative",
                    ));
                }
            },
            (V::Class(Class::Size), _) => return Err(Refusal::damaged("a torch.Size without a tuple")),
            (V::Class(Class::GetLayout), _) => V::Layout,
            (V::Class(Class::MemFormat), V::Ints(at, 1)) => {
                V::MemFormat(self.ints.get(*at).unwrap_or(0).min(255) as u8)
            }
            (V::Class(Class::Path), _) => self.path_of(&args),
            (V::Class(_), _) => return self.new_object(callable, args),
            _ => V::Inert,
        };
        if let V::Tuple(t) = args {
            self.tuples.release(t, Vec::clear);
        }
        Ok(out)
    }
    fn new_object(&mut self, class: V<'a>, _args: V<'a>) -> Built<V<'a>> {
        let V::Class(class) = class else { return Ok(V::Inert) };
        Ok(match class {
            Class::Metadata | Class::MCoreMetadata => {
                self.roots.push(RawRoot { subclass: class == Class::MCoreMetadata, fields: Vec::new() });
                V::Root(id(self.roots.len() - 1)?)
            }
            Class::TensorStorageMetadata => {
                self.tensors.push(RawTensor::default());
                V::Tensor(id(self.tensors.len() - 1)?)
            }
            Class::BytesStorageMetadata => V::BytesItem,
            Class::TensorProperties(old_module) => {
                self.props.push(Props { old_module, ..Props::default() });
                V::Props(id(self.props.len() - 1)?)
            }
            Class::ChunkStorageMetadata => {
                self.chunks.push(RawChunk::default());
                V::Chunk(id(self.chunks.len() - 1)?)
            }
            Class::MetadataIndex => {
                self.indices.push(RawIndex { key: NONE, hint: NONE, at: 0, ndim: 0, has_offset: false });
                V::Index(id(self.indices.len() - 1)?)
            }
            Class::StorageInfo => {
                self.storages.push(RawStorage {
                    file: NONE,
                    transforms: NONE,
                    offset: u64::MAX,
                    length: u64::MAX,
                });
                V::Storage(id(self.storages.len() - 1)?)
            }
            Class::StorageMeta => {
                self.metas.push(RawMeta::default());
                V::Meta(id(self.metas.len() - 1)?)
            }
            _ => V::Inert,
        })
    }
    fn build(&mut self, object: &mut V<'a>, state: V<'a>) -> Built<()> {
        if let V::Props(i) = object {
            return self.props_state(*i, &state);
        }
        let state = match state {
            // A state and slots' state, as copyreg makes them: only the first can hold our fields.
            V::Tuple(t) => self.tuple_items(t).first().cloned().unwrap_or(V::None),
            s => s,
        };
        if let Some(pairs) = self.take_state(&state) {
            self.set(object, &pairs)?;
            self.give_back(&state, pairs);
        }
        Ok(())
    }
    fn persistent(&mut self, _: V<'a>) -> Built<V<'a>> {
        Ok(V::Inert)
    }
    fn discard(&mut self, value: V<'a>) {
        drop(value);
    }
}

impl Columns<'_> {
    /// The chunks of a tensor, in stored order.
    pub(crate) fn chunks_of(&self, t: &RawTensor) -> &[u32] {
        t.chunks.map_or(&[], |l| &self.list(l).chunks)
    }

    /// Offsets and sizes of a chunk; `None` when their numbers of axes differ.
    pub(crate) fn chunk(&self, c: u32) -> Option<(Dims, Dims)> {
        let c = self.chunks[c as usize];
        (c.ndim == c.sizes_ndim)
            .then(|| (self.ints(c.offsets, c.ndim.into()), self.ints(c.sizes, c.sizes_ndim.into())))
    }

    /// The texts of a list of transform descriptors.
    pub(crate) fn descriptors(&self, list: u32) -> Vec<String> {
        let text = |v: &V<'_>| if let V::Str(s) = v { s.as_str().to_string() } else { "?".into() };
        self.list(list).items.iter().map(text).collect()
    }
}
