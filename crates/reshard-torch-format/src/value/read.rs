use crate::{
    Budget, Error, Limits, Result, TensorRef,
    archive::ByteOrder,
    memory::{block, blocks_of, list_of},
    pickle::{Call, Graph, How, Id, Node, is_allowed},
    tensor::{StorageRef, Stored, Wrapped, storage_of, tensor_of},
};
use bytes::Bytes;
use reshard_model::{Construct, DType, HostBuffer, Layout, Opaque, Tensor, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
};

/// Makes a tree of values from a graph. A shared node is repeated at each place, within limits.
pub(crate) struct Decoder<'g, 'a, F> {
    graph: &'g Graph<'a>,
    /// The pickle that the graph borrows from, so that byte strings need no copy.
    pickle: &'g Bytes,
    limits: &'g Limits,
    order: ByteOrder,
    /// Where the bytes of a storage come from.
    fetch: F,
    /// The budget that the graph has left.
    budget: Budget,
    /// In addition, so many bytes of elements may be copied: the length of the file.
    copies: u64,
    /// The storages that were fetched so far, so that tensors which shared a storage still do.
    storages: BTreeMap<Box<str>, Arc<dyn HostBuffer>>,
    /// Tensors whose elements had to be copied, for all places that refer to them.
    resolved: BTreeMap<Id, Tensor>,
    /// The large dicts seen so far. A dict that sets a key twice has its remaining pairs.
    unique: BTreeMap<Id, Option<Rc<[Pair]>>>,
    path: Vec<Id>,
    /// What is read at the moment, for errors.
    at: Id,
    nodes: u64,
    bytes: u64,
}

type Pair = (Id, Id);
/// Dicts of up to so many pairs are searched for keys that are set twice each time they are written out.
const SMALL_DICT: usize = 8;

impl<'g, 'a, F: FnMut(&StorageRef, &mut Budget) -> Result<Bytes>> Decoder<'g, 'a, F> {
    /// Of a graph in a file without byte order, of which nothing need be copied.
    pub(crate) fn new(
        graph: &'g Graph<'a>,
        pickle: &'g Bytes,
        limits: &'g Limits,
        fetch: F,
    ) -> Self {
        Self {
            graph,
            pickle,
            limits,
            order: ByteOrder::Little,
            fetch,
            budget: graph.budget().clone(),
            copies: 0,
            storages: BTreeMap::new(),
            resolved: BTreeMap::new(),
            unique: BTreeMap::new(),
            path: Vec::new(),
            at: Id::default(),
            nodes: 0,
            bytes: 0,
        }
    }

    /// Of a file of `len` bytes.
    pub(crate) fn of_file(self, order: ByteOrder, len: u64) -> Self {
        Self {
            order,
            copies: len,
            ..self
        }
    }

    fn beyond(&self, limit: &'static str, max: u64) -> Error {
        self.graph.beyond(self.at, limit, max)
    }

    /// A value that lies in no other.
    pub(crate) fn root(&mut self, id: Id) -> Result<Value> {
        self.path.clear();
        self.value(id)
    }

    pub(crate) fn value(&mut self, id: Id) -> Result<Value> {
        self.at = id;
        self.count_node()?;

        // Everything that is copied is counted first, since a small pickle can name one large node many times.
        let graph = self.graph;
        match graph.node(id) {
            Node::None => Ok(Value::None),
            Node::Bool(v) => Ok(Value::Bool(*v)),
            Node::Int(v) => Ok(Value::Int(*v)),
            Node::Long(le) => {
                self.take(block(le.len()))?;
                Ok(Value::BigInt(le.as_ref().into()))
            }
            Node::Float(v) => Ok(Value::Float(*v)),
            Node::Str(s) => {
                self.count_bytes(s.len())?;
                self.take(block(s.len()))?;
                Ok(Value::Str(s.as_ref().into()))
            }
            // Text with lone surrogates is no Rust str, so it becomes the call that makes it in Python.
            Node::OddStr(raw) => {
                let raw = self.blob(raw)?;
                self.take(2 * block(16))?;
                self.plain_call(
                    "_codecs",
                    "decode",
                    [raw, "utf-8".into(), "surrogatepass".into()],
                )
            }
            Node::Bytes(raw) => self.blob(raw),
            Node::ByteArray(raw) => {
                let raw = self.blob(raw)?;
                self.plain_call("builtins", "bytearray", [raw])
            }
            Node::Persistent(_) => self.storage(id),
            Node::Global(g) => self.opaque(&g.module, &g.name, Construct::Global),
            // Only values that hold others can nest too deep, or hold themselves.
            _ => self.nested(id),
        }
    }

    /// Values that hold others.
    fn nested(&mut self, id: Id) -> Result<Value> {
        if self.path.len() as u64 >= u64::from(self.limits.depth) {
            if self.path.iter().collect::<BTreeSet<_>>().len() < self.path.len() {
                return Err(self
                    .graph
                    .unsupported(self.at, "a value that contains itself"));
            }
            return Err(self.beyond("levels of nesting", self.limits.depth.into()));
        }
        self.path.push(id);
        let graph = self.graph;
        let value = match graph.node(id) {
            Node::Tuple(v) => Value::Tuple(self.values(v)?),
            Node::List(v) => Value::List(self.values(v)?),
            Node::Set(v) => Value::Set(self.values(v)?),
            Node::FrozenSet(v) => {
                let items = Value::List(self.values(v)?);
                self.plain_call("builtins", "frozenset", [items])?
            }
            Node::Dict(v) => Value::Dict(self.pairs(id, v)?),
            Node::Call(call) => self.call(id, call)?,
            _ => Value::None,
        };
        self.path.pop();
        Ok(value)
    }

    fn count_node(&mut self) -> Result<()> {
        self.nodes += 1;
        if self.nodes > self.limits.nodes {
            return Err(self.beyond("nodes", self.limits.nodes));
        }
        Ok(())
    }

    fn count_bytes(&mut self, bytes: usize) -> Result<()> {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if self.bytes > self.limits.bytes {
            return Err(self.beyond("bytes of text", self.limits.bytes));
        }
        Ok(())
    }

    /// Draws from the budget.
    #[inline]
    fn take(&mut self, bytes: u64) -> Result<()> {
        self.graph.draw(self.at, bytes, &mut self.budget)
    }

    /// A list for so many items.
    #[inline]
    fn list_of<T>(&mut self, items: usize) -> Result<Vec<T>> {
        list_of(items, &mut self.budget).map_err(|r| r.at(self.graph.offset(self.at) as usize))
    }

    fn values(&mut self, ids: &[Id]) -> Result<Vec<Value>> {
        let mut out = self.list_of(ids.len())?;
        for &id in ids {
            out.push(self.value(id)?);
        }
        Ok(out)
    }

    /// The pairs of a dict, or of an object like one; `id` is what has them.
    fn pairs(&mut self, id: Id, pairs: &'g [Pair]) -> Result<Vec<(Value, Value)>> {
        let once = self.once(id, pairs)?;
        let pairs = once.as_deref().unwrap_or(pairs);
        let mut out = self.list_of(pairs.len())?;
        for &(k, v) in pairs {
            out.push((self.value(k)?, self.value(v)?));
        }
        Ok(out)
    }

    fn key(&self, id: Id) -> Option<Key<'g>> {
        match self.graph.node(id) {
            Node::Str(s) => Some(Key::Str(s)),
            Node::Int(v) => Some(Key::Int(*v)),
            Node::Bool(v) => Some(Key::Int((*v).into())),
            _ => None,
        }
    }

    /// What remains of pairs that set a key twice; `None` if they don't. A large dict is searched once, however often it is
    /// written out.
    fn once(&mut self, id: Id, pairs: &[Pair]) -> Result<Option<Rc<[Pair]>>> {
        if pairs.len() < 2 {
            return Ok(None);
        }
        if pairs.len() <= SMALL_DICT {
            return self.last_of_each(pairs);
        }
        if let Some(known) = self.unique.get(&id) {
            return Ok(known.clone());
        }
        let search = (pairs.len() * size_of::<(Key<'_>, usize, Pair)>() * 2) as u64;
        self.take(search)?;
        let once = self.last_of_each(pairs)?;
        self.budget.give_back(search);
        let kept = once
            .as_ref()
            .map_or(0, |once| blocks_of::<Pair>(once.len() + 2));
        self.take(kept + block(2 * size_of::<(Id, Option<Rc<[Pair]>>)>()))?;
        self.unique.insert(id, once.clone());
        Ok(once)
    }

    /// A key that is set twice keeps its place and takes the last value, as in Python.
    fn last_of_each(&mut self, pairs: &[Pair]) -> Result<Option<Rc<[Pair]>>> {
        let mut place: BTreeMap<Key<'_>, usize> = BTreeMap::new();
        // Nothing is moved until a key comes again.
        let mut out: Option<Vec<Pair>> = None;
        for (i, &(k, v)) in pairs.iter().enumerate() {
            let here = out.as_ref().map_or(i, Vec::len);
            let at = match self.key(k) {
                Some(key) => *place.entry(key).or_insert(here),
                None => here,
            };
            if at == here {
                if let Some(out) = &mut out {
                    out.push((k, v));
                }
                continue;
            }
            // Comparing took as long as writing it out.
            if let Node::Str(s) = self.graph.node(k) {
                self.count_bytes(s.len())?;
            }
            let out = out.get_or_insert_with(|| pairs.iter().take(i).copied().collect());
            if let Some(pair) = out.get_mut(at) {
                pair.1 = v;
            }
        }
        Ok(out.map(Rc::from))
    }

    fn blob(&mut self, raw: &[u8]) -> Result<Value> {
        self.count_bytes(raw.len())?;
        let range = self.pickle.as_ptr_range();
        if range.contains(&raw.as_ptr()) && raw.as_ptr_range().end <= range.end {
            return Ok(Value::Bytes(self.pickle.slice_ref(raw)));
        }
        self.take(block(raw.len()) + block(size_of::<Bytes>()))?;
        Ok(Value::Bytes(Bytes::copy_from_slice(raw)))
    }

    /// The tensor, over the bytes of its storage if that can be.
    fn tensor(&mut self, id: Id, tensor: &TensorRef) -> Result<Value> {
        let axes = tensor.shape.len();
        if axes > 4 {
            self.take(2 * blocks_of::<u64>(axes))?;
        }
        if let Some(known) = self.resolved.get(&id) {
            return Ok(Value::Tensor(known.clone()));
        }
        let storage = self.fetch_storage(&tensor.storage)?;
        let elements = tensor.layout()?.bytes();
        // A view that repeats its elements can claim any size; it is not to be a bomb.
        if elements > tensor.storage.len && elements > self.limits.unpacked {
            return Err(self.beyond("bytes in a tensor", self.limits.unpacked));
        }
        if !tensor.is_lazy(self.order) {
            return Ok(Value::Tensor(tensor.tensor(storage, self.order)?));
        }
        let free = elements.min(self.copies);
        self.copies -= free;
        self.take(elements - free + block(2 * size_of::<(Id, Tensor)>()))?;
        let copy = tensor.tensor(storage, self.order)?;
        self.resolved.insert(id, copy.clone());
        Ok(Value::Tensor(copy))
    }

    fn call(&mut self, id: Id, call: &'g Call) -> Result<Value> {
        if let Some(tensor) = tensor_of(self.graph, id, Wrapped::Plain)? {
            return self.tensor(id, &tensor);
        }
        let args = self.graph.as_seq(call.args).unwrap_or(&[]);
        let bare = call.state.is_none() && call.items.is_empty() && call.pairs.is_empty();
        if let Some(name) = self.graph.as_global(call.callable) {
            if bare
                && (call.how, call.kwargs) == (How::Call, None)
                && is_allowed(name.0, name.1)
                && let Some(known) = self.known(name, args)?
            {
                return Ok(known);
            }
            let (module, name) = name;
            self.count_bytes(module.len() + name.len())?;
            let args = self.values(args)?;
            let construct = match (call.how, call.kwargs) {
                (How::Call, _) => Construct::Reduce(args),
                (How::New, None) => Construct::NewObj(args),
                (How::New, Some(kwargs)) => Construct::NewObjEx(args, self.dict(kwargs)?),
            };
            return self.filled(module, name, construct, id, call);
        }
        if let Some(new) = self.partial_new(id, call, args)? {
            return Ok(new);
        }
        // Something was made first, and is called then: Python has a name for that.
        let mut all = self.list_of(1 + args.len().max(2))?;
        all.push(self.value(call.callable)?);
        let name = match (call.how, call.kwargs) {
            (How::New, Some(kwargs)) => {
                all.push(self.value(call.args)?);
                all.push(Value::Dict(self.dict(kwargs)?));
                ("copyreg", "__newobj_ex__")
            }
            (how, _) => {
                for &arg in args {
                    all.push(self.value(arg)?);
                }
                if how == How::Call {
                    ("operator", "call")
                } else {
                    ("copyreg", "__newobj__")
                }
            }
        };
        self.filled(name.0, name.1, Construct::Reduce(all), id, call)
    }

    fn dict(&mut self, id: Id) -> Result<Vec<(Value, Value)>> {
        match self.graph.node(id) {
            Node::Dict(pairs) => self.pairs(id, pairs),
            _ => Ok(Vec::new()),
        }
    }

    fn filled(
        &mut self,
        module: &str,
        name: &str,
        construct: Construct,
        id: Id,
        call: &'g Call,
    ) -> Result<Value> {
        let mut made = self.bare(module, name, construct)?;
        made.state = call.state.map(|s| self.value(s)).transpose()?;
        made.items = self.values(&call.items)?;
        made.pairs = self.pairs(id, &call.pairs)?;
        Ok(Value::Opaque(made))
    }

    fn bare(&mut self, module: &str, name: &str, construct: Construct) -> Result<Box<Opaque>> {
        self.take(blocks_of::<Opaque>(1) + block(module.len()) + block(name.len()))?;
        Ok(Box::new(made(module, name, construct)))
    }

    fn opaque(&mut self, module: &str, name: &str, construct: Construct) -> Result<Value> {
        self.bare(module, name, construct).map(Value::Opaque)
    }

    fn plain_call<const N: usize>(
        &mut self,
        module: &str,
        name: &str,
        args: [Value; N],
    ) -> Result<Value> {
        self.take(blocks_of::<Value>(N))?;
        self.opaque(module, name, Construct::Reduce(args.into()))
    }

    /// Calls that old protocols spell plain values with.
    fn known(&mut self, name: (&str, &str), args: &[Id]) -> Result<Option<Value>> {
        match (name, args) {
            (("_codecs", "encode"), &[text, codec])
                if self.graph.as_str(codec) == Some("latin1") =>
            {
                let Some(text) = self.graph.as_str(text) else {
                    return Ok(None);
                };
                self.count_bytes(text.len())?;
                self.take(block(text.len()) + block(size_of::<Bytes>()))?;
                let bytes: Option<Vec<u8>> = text
                    .chars()
                    .map(|c| u8::try_from(u32::from(c)).ok())
                    .collect();
                Ok(bytes.map(|b| Value::Bytes(b.into())))
            }
            (("builtins", "bytes"), &[]) => Ok(Some(Value::Bytes(Bytes::new()))),
            (("builtins", "set"), &[items]) => match self.graph.node(items) {
                Node::List(items) => Ok(Some(Value::Set(self.values(items)?))),
                _ => Ok(None),
            },
            (("builtins", "set"), &[]) => Ok(Some(Value::Set(Vec::new()))),
            _ => Ok(None),
        }
    }

    /// `functools.partial(C.__new__, C, *args, **kwargs)()`: how protocol 2 makes an object with keyword arguments.
    fn partial_new(&mut self, id: Id, call: &'g Call, args: &[Id]) -> Result<Option<Value>> {
        let graph = self.graph;
        let Node::Call(partial) = graph.node(call.callable) else {
            return Ok(None);
        };
        let is_partial = graph.as_allowed(partial.callable) == Some(("functools", "partial"))
            && partial.how == How::Call
            && call.how == How::Call
            && args.is_empty()
            && partial.items.is_empty()
            && partial.pairs.is_empty();
        let Some(&[function, args, kwargs, dict]) = partial
            .state
            .and_then(|s| graph.as_seq(s))
            .filter(|_| is_partial)
        else {
            return Ok(None);
        };
        let (Some(function), Some([class, args @ ..])) =
            (graph.as_global(function), graph.as_seq(args))
        else {
            return Ok(None);
        };
        let Some((module, name)) = graph.as_global(*class) else {
            return Ok(None);
        };
        let (Node::Dict(_), Node::None) = (graph.node(kwargs), graph.node(dict)) else {
            return Ok(None);
        };
        if function.0 != module || function.1.strip_suffix(".__new__") != Some(name) {
            return Ok(None);
        }
        let construct = Construct::NewObjEx(self.values(args)?, self.dict(kwargs)?);
        self.filled(module, name, construct, id, call).map(Some)
    }

    fn fetch_storage(&mut self, storage: &StorageRef) -> Result<Arc<dyn HostBuffer>> {
        if let Some(known) = self.storages.get(&storage.key) {
            return Ok(Arc::clone(known));
        }
        // The key, the place in the map, and two counters beside the handle.
        let handle = size_of::<Bytes>() + 2 * size_of::<usize>();
        self.take(
            block(storage.key.len())
                + block(handle)
                + block(2 * size_of::<(Box<str>, Arc<dyn HostBuffer>)>()),
        )?;
        let buffer: Arc<dyn HostBuffer> = Arc::new((self.fetch)(storage, &mut self.budget)?);
        self.storages
            .insert(storage.key.clone(), Arc::clone(&buffer));
        Ok(buffer)
    }

    /// A storage that is no tensor's: it is shown as its class, made of a flat tensor.
    fn storage(&mut self, id: Id) -> Result<Value> {
        let Some(Stored {
            storage,
            module,
            class,
            view,
        }) = storage_of(self.graph, id)?
        else {
            return Ok(Value::None);
        };
        if view != 0 || (self.order == ByteOrder::Big && storage.dtype.is_none_or(|d| d.word() > 1))
        {
            let what = "a bare storage that is a view or big-endian";
            return Err(self.graph.unsupported(self.at, what));
        }
        let buffer = self.fetch_storage(&storage)?;
        storage.check(buffer.as_bytes().len() as u64)?;
        let dtype = storage.dtype.unwrap_or(DType::UInt8);
        let layout = Layout::contiguous(dtype.size(), &[storage.len / dtype.size()])
            .ok_or_else(|| Error::tensor(&storage.key, "it is too large"))?;
        let flat = Tensor::with_layout(dtype, layout, buffer)?;
        self.plain_call(module, class, [Value::Tensor(flat)])
    }
}

/// An object without items and state.
pub(crate) fn made(module: &str, name: &str, construct: Construct) -> Opaque {
    Opaque {
        module: module.into(),
        name: name.into(),
        construct,
        state: None,
        items: Vec::new(),
        pairs: Vec::new(),
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key<'g> {
    Str(&'g str),
    Int(i64),
}
