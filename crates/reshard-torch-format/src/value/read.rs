use crate::{
    Error, Limits, Result,
    archive::ByteOrder,
    pickle::{Call, Graph, How, Id, Node},
    tensor::{StorageRef, Stored, Wrapped, storage_of, tensor_of},
};
use bytes::Bytes;
use reshard_model::{Construct, DType, HostBuffer, Opaque, Tensor, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Makes a tree of values of a graph; shared nodes are written out, within limits.
pub(crate) struct Decoder<'g, 'a, F> {
    pub(crate) graph: &'g Graph<'a>,
    /// The pickle that the graph borrows from, so that byte strings need no copy.
    pub(crate) pickle: &'g Bytes,
    pub(crate) limits: &'g Limits,
    pub(crate) order: ByteOrder,
    /// Where the bytes of a storage come from.
    pub(crate) fetch: F,
    /// Storages fetched so far: tensors that shared one still do.
    pub(crate) storages: BTreeMap<Box<str>, Arc<dyn HostBuffer>>,
    pub(crate) path: Vec<Id>,
    /// What is being read, for errors.
    pub(crate) at: Id,
    pub(crate) nodes: u64,
    pub(crate) bytes: u64,
}

impl<'g, 'a, F: FnMut(&StorageRef) -> Result<Bytes>> Decoder<'g, 'a, F> {
    pub(crate) fn new(
        graph: &'g Graph<'a>,
        pickle: &'g Bytes,
        limits: &'g Limits,
        order: ByteOrder,
        fetch: F,
    ) -> Self {
        let (storages, path, at) = (BTreeMap::new(), Vec::new(), Id::default());
        Self { graph, pickle, limits, order, fetch, storages, path, at, nodes: 0, bytes: 0 }
    }

    fn offset(&self) -> u64 {
        self.graph.offset(self.at)
    }

    pub(crate) fn value(&mut self, id: Id) -> Result<Value> {
        self.at = id;
        self.count(0)?;
        let graph = self.graph;
        match graph.node(id) {
            Node::None => Ok(Value::None),
            Node::Bool(v) => Ok(Value::Bool(*v)),
            Node::Int(v) => Ok(Value::Int(*v)),
            Node::Long(le) => Ok(Value::BigInt(le.as_ref().into())),
            Node::Float(v) => Ok(Value::Float(*v)),
            Node::Str(s) => {
                self.count(s.len())?;
                Ok(Value::Str(s.as_ref().into()))
            }
            Node::OddStr(raw) => {
                let args = vec![self.blob(raw)?, "utf-8".into(), "surrogatepass".into()];
                Ok(plain_call("_codecs", "decode", args))
            }
            Node::Bytes(raw) => self.blob(raw),
            Node::ByteArray(raw) => Ok(plain_call("builtins", "bytearray", vec![self.blob(raw)?])),
            Node::Persistent(_) => self.storage(id),
            Node::Global(g) => Ok(opaque(&g.module, &g.name, Construct::Global)),
            _ => self.nested(id),
        }
    }

    /// Values that hold others.
    fn nested(&mut self, id: Id) -> Result<Value> {
        if self.path.len() as u64 >= u64::from(self.limits.depth) {
            if self.path.iter().collect::<BTreeSet<_>>().len() < self.path.len() {
                return Err(Error::Unsupported {
                    offset: self.offset(),
                    what: "a value that contains itself".into(),
                });
            }
            return Err(Error::Limit {
                offset: self.offset(),
                limit: "levels of nesting",
                max: self.limits.depth.into(),
            });
        }
        self.path.push(id);
        let graph = self.graph;
        let value = match graph.node(id) {
            Node::Tuple(v) => Value::Tuple(self.values(v)?),
            Node::List(v) => Value::List(self.values(v)?),
            Node::Set(v) => Value::Set(self.values(v)?),
            Node::FrozenSet(v) => {
                let items = Value::List(self.values(v)?);
                plain_call("builtins", "frozenset", vec![items])
            }
            Node::Dict(v) => Value::Dict(self.pairs(v)?),
            Node::Call(call) => self.call(id, call)?,
            _ => Value::None,
        };
        self.path.pop();
        Ok(value)
    }

    fn count(&mut self, bytes: usize) -> Result<()> {
        self.nodes += u64::from(bytes == 0);
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if self.nodes > self.limits.nodes {
            return Err(Error::Limit { offset: self.offset(), limit: "nodes", max: self.limits.nodes });
        }
        if self.bytes > self.limits.bytes {
            return Err(Error::Limit {
                offset: self.offset(),
                limit: "bytes of text",
                max: self.limits.bytes,
            });
        }
        Ok(())
    }

    fn values(&mut self, ids: &[Id]) -> Result<Vec<Value>> {
        ids.iter().map(|&id| self.value(id)).collect()
    }

    fn pairs(&mut self, pairs: &[(Id, Id)]) -> Result<Vec<(Value, Value)>> {
        if self.repeats(pairs) {
            let once = self.last_of_each(pairs);
            return once.into_iter().map(|(k, v)| Ok((self.value(k)?, self.value(v)?))).collect();
        }
        pairs.iter().map(|&(k, v)| Ok((self.value(k)?, self.value(v)?))).collect()
    }

    fn key(&self, id: Id) -> Option<Key<'g>> {
        match self.graph.node(id) {
            Node::Str(s) => Some(Key::Str(s)),
            Node::Int(v) => Some(Key::Int(*v)),
            Node::Bool(v) => Some(Key::Int((*v).into())),
            _ => None,
        }
    }

    fn repeats(&self, pairs: &[(Id, Id)]) -> bool {
        let mut seen = BTreeSet::new();
        pairs.len() > 1 && pairs.iter().filter_map(|&(k, _)| self.key(k)).any(|k| !seen.insert(k))
    }

    /// A key that is set twice keeps its place and takes the last value, as in Python.
    fn last_of_each(&self, pairs: &[(Id, Id)]) -> Vec<(Id, Id)> {
        let mut place: BTreeMap<Key<'_>, usize> = BTreeMap::new();
        let mut out: Vec<(Id, Id)> = Vec::new();
        for &(k, v) in pairs {
            match self.key(k).map(|key| place.entry(key).or_insert(out.len())) {
                Some(at) if *at < out.len() => out[*at].1 = v,
                _ => out.push((k, v)),
            }
        }
        out
    }

    fn blob(&mut self, raw: &[u8]) -> Result<Value> {
        self.count(raw.len())?;
        let range = self.pickle.as_ptr_range();
        let inside = range.contains(&raw.as_ptr()) && raw.as_ptr_range().end <= range.end;
        Ok(Value::Bytes(if inside { self.pickle.slice_ref(raw) } else { Bytes::copy_from_slice(raw) }))
    }

    fn call(&mut self, id: Id, call: &'g Call) -> Result<Value> {
        if let Some(tensor) = tensor_of(self.graph, id, Wrapped::Plain)? {
            let storage = self.fetch_storage(&tensor.storage)?;
            let elements = tensor.layout()?.bytes();
            // A view that repeats its elements can claim any size; it is not to be a bomb.
            if elements > tensor.storage.len && elements > self.limits.unpacked {
                return Err(Error::Limit {
                    offset: self.offset(),
                    limit: "bytes in a tensor",
                    max: self.limits.unpacked,
                });
            }
            return Ok(Value::Tensor(tensor.tensor(storage, self.order)?));
        }
        let args = self.graph.as_seq(call.args).unwrap_or(&[]);
        let bare = call.state.is_none() && call.items.is_empty() && call.pairs.is_empty();
        if let Some(name) = self.graph.as_global(call.callable) {
            if bare
                && (call.how, call.kwargs) == (How::Call, None)
                && let Some(known) = self.known(name, args)?
            {
                return Ok(known);
            }
            let (module, name) = name;
            self.count(module.len() + name.len())?;
            let args = self.values(args)?;
            let construct = match (call.how, call.kwargs) {
                (How::Call, _) => Construct::Reduce(args),
                (How::New, None) => Construct::NewObj(args),
                (How::New, Some(kwargs)) => Construct::NewObjEx(args, self.dict(kwargs)?),
            };
            return self.filled(module, name, construct, call);
        }
        if let Some(new) = self.partial_new(call, args)? {
            return Ok(new);
        }
        // Something was made first, and is called then: Python has a name for that.
        let mut all = vec![self.value(call.callable)?];
        all.extend(self.values(args)?);
        match (call.how, call.kwargs) {
            (How::Call, _) => self.filled("operator", "call", Construct::Reduce(all), call),
            (How::New, None) => self.filled("copyreg", "__newobj__", Construct::Reduce(all), call),
            (How::New, Some(kwargs)) => {
                all.truncate(1);
                all.push(self.value(call.args)?);
                all.push(Value::Dict(self.dict(kwargs)?));
                self.filled("copyreg", "__newobj_ex__", Construct::Reduce(all), call)
            }
        }
    }

    fn dict(&mut self, id: Id) -> Result<Vec<(Value, Value)>> {
        match self.graph.node(id) {
            Node::Dict(pairs) => self.pairs(pairs),
            _ => Ok(Vec::new()),
        }
    }

    fn filled(&mut self, module: &str, name: &str, construct: Construct, call: &'g Call) -> Result<Value> {
        let state = call.state.map(|s| self.value(s)).transpose()?;
        let items = self.values(&call.items)?;
        let pairs = self.pairs(&call.pairs)?;
        Ok(Value::Opaque(Box::new(Opaque {
            module: module.into(),
            name: name.into(),
            construct,
            state,
            items,
            pairs,
        })))
    }

    /// Calls that old protocols spell plain values with.
    fn known(&mut self, name: (&str, &str), args: &[Id]) -> Result<Option<Value>> {
        match (name, args) {
            (("_codecs", "encode"), &[text, codec]) if self.graph.as_str(codec) == Some("latin1") => {
                let Some(text) = self.graph.as_str(text) else { return Ok(None) };
                self.count(text.len())?;
                let bytes: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
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
    fn partial_new(&mut self, call: &'g Call, args: &[Id]) -> Result<Option<Value>> {
        let graph = self.graph;
        let Node::Call(partial) = graph.node(call.callable) else { return Ok(None) };
        let is_partial = graph.as_global(partial.callable) == Some(("functools", "partial"))
            && partial.how == How::Call
            && call.how == How::Call
            && args.is_empty()
            && partial.items.is_empty()
            && partial.pairs.is_empty();
        let Some(&[function, args, kwargs, dict]) =
            partial.state.and_then(|s| graph.as_seq(s)).filter(|_| is_partial)
        else {
            return Ok(None);
        };
        let (Some(function), Some([class, args @ ..])) = (graph.as_global(function), graph.as_seq(args))
        else {
            return Ok(None);
        };
        let Some((module, name)) = graph.as_global(*class) else { return Ok(None) };
        let (Node::Dict(kwargs), Node::None) = (graph.node(kwargs), graph.node(dict)) else {
            return Ok(None);
        };
        if function.0 != module || function.1.strip_suffix(".__new__") != Some(name) {
            return Ok(None);
        }
        let construct = Construct::NewObjEx(self.values(args)?, self.pairs(kwargs)?);
        self.filled(module, name, construct, call).map(Some)
    }

    fn fetch_storage(&mut self, storage: &StorageRef) -> Result<Arc<dyn HostBuffer>> {
        if let Some(known) = self.storages.get(&storage.key) {
            return Ok(Arc::clone(known));
        }
        let buffer: Arc<dyn HostBuffer> = Arc::new((self.fetch)(storage)?);
        self.storages.insert(storage.key.clone(), Arc::clone(&buffer));
        Ok(buffer)
    }

    /// A storage that is no tensor's: it is shown as its class, made of a flat tensor.
    fn storage(&mut self, id: Id) -> Result<Value> {
        let Some(Stored { storage, module, class, view }) = storage_of(self.graph, id)? else {
            return Ok(Value::None);
        };
        if view != 0 || (self.order == ByteOrder::Big && storage.dtype.is_none_or(|d| d.word() > 1)) {
            return Err(Error::Unsupported {
                offset: self.offset(),
                what: "a bare storage that is a view or big-endian".into(),
            });
        }
        let buffer = self.fetch_storage(&storage)?;
        storage.check(buffer.as_bytes().len() as u64)?;
        let dtype = storage.dtype.unwrap_or(DType::UInt8);
        let flat = Tensor::with_layout(dtype, flat_layout(&storage, dtype)?, buffer)?;
        Ok(plain_call(module, class, vec![Value::Tensor(flat)]))
    }
}

fn flat_layout(storage: &StorageRef, dtype: DType) -> Result<reshard_model::Layout> {
    reshard_model::Layout::contiguous(dtype.size(), &[storage.len / dtype.size()])
        .ok_or_else(|| Error::tensor(&storage.key, "it is too large"))
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key<'g> {
    Str(&'g str),
    Int(i64),
}

fn opaque(module: &str, name: &str, construct: Construct) -> Value {
    Value::Opaque(Box::new(Opaque {
        module: module.into(),
        name: name.into(),
        construct,
        state: None,
        items: Vec::new(),
        pairs: Vec::new(),
    }))
}

fn plain_call(module: &str, name: &str, args: Vec<Value>) -> Value {
    opaque(module, name, Construct::Reduce(args))
}
