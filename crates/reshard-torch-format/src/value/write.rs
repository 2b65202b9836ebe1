use crate::{
    Error, Result,
    archive::{ArchiveOptions, write_archive},
    pickle::{Emitter, Op},
    tensor::{StorageRef, TensorRef, element_size},
};
use bytes::Bytes;
use reshard_model::{Construct, DType, Opaque, Tensor, Value};
use std::{collections::BTreeMap, ops::Range};

/// A value as `torch.save` splits it: a pickle, and the storages of its tensors.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Encoded {
    /// The record `data.pkl`.
    pub pickle: Vec<u8>,
    /// The records `data/0`, `data/1`, …. They are not copied if a tensor's elements are row-major.
    pub storages: Vec<Bytes>,
}

impl Encoded {
    /// Writes the archive into memory.
    ///
    /// # Errors
    /// As [`write_archive`].
    pub fn archive(&self, options: &ArchiveOptions) -> Result<Vec<u8>> {
        let storages: Vec<&[u8]> = self.storages.iter().map(|s| s.as_ref()).collect();
        write_archive(&self.pickle, &storages, options)
    }
}

/// Pickles a value with protocol 2 and with CPython's opcodes and memo numbers. So simple values give the same bytes as `torch.save`.
/// If two tensors have the same buffer and one covers the other, they share a storage.
///
/// # Errors
/// [`Error::Encode`] for device memory, for values nested deeper than 500 levels, and for names that a pickle can't contain.
pub fn encode(value: &Value) -> Result<Encoded> {
    let mut encoder = Encoder::new();
    encoder.survey(value)?;
    encoder.value(value)?;
    Ok(Encoded {
        pickle: encoder.e.finish(),
        storages: encoder.storages,
    })
}

const MAX_DEPTH: u32 = 500;
/// CPython writes items in groups of so many.
const BATCH: usize = 1000;

/// A buffer with elements of one type, because torch does not mix types in a storage.
type Group = (usize, DType);

pub(super) struct Encoder {
    pub(super) e: Emitter,
    /// The parts of each buffer that tensors use. No part lies within another.
    hulls: BTreeMap<Group, Hulls>,
    pub(super) storages: Vec<Bytes>,
    /// Number and start of each storage that has a number.
    known: BTreeMap<(Group, u64, u64), usize>,
    depth: u32,
    pub(super) described: Described,
}

/// The storages of the caller's.
#[derive(Default)]
pub(super) struct Described {
    /// The record of each.
    pub(super) records: BTreeMap<usize, usize>,
    /// The tensors in each, with their memo numbers, if one of them is there again.
    pub(super) objects: Option<BTreeMap<usize, Vec<(TensorRef, u32)>>>,
}

impl Described {
    /// The memo number of the last tensor of this description in this storage.
    pub(super) fn known_object(&self, tensor: &TensorRef, storage: usize) -> Option<u32> {
        let mut all = self.objects.as_ref()?.get(&storage)?.iter().rev();
        all.find(|(t, _)| t == tensor).map(|(_, number)| *number)
    }
}

/// What an [`Encoder`] writes: values, their pairs, and trees.
pub(super) trait Encode {
    fn encode(&self, to: &mut Encoder) -> Result<()>;
}

impl Encode for Value {
    fn encode(&self, to: &mut Encoder) -> Result<()> {
        to.value(self)
    }
}

impl<V: Encode> Encode for (Value, V) {
    fn encode(&self, to: &mut Encoder) -> Result<()> {
        to.value(&self.0)?;
        self.1.encode(to)
    }
}

impl Encoder {
    pub(super) fn new() -> Self {
        Self {
            e: Emitter::new(2),
            hulls: BTreeMap::new(),
            storages: Vec::new(),
            known: BTreeMap::new(),
            depth: 0,
            described: Described::default(),
        }
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    pub(super) fn enter(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Error::encode(format!(
                "a value nested more than {MAX_DEPTH} deep"
            )));
        }
        Ok(())
    }

    /// Finds which tensors share memory.
    pub(super) fn survey(&mut self, value: &Value) -> Result<()> {
        self.enter()?;

        // Tensors are met wherever `value` writes them later, so that every shared storage is known before the first is
        // written.
        match value {
            Value::Tensor(t) if shareable(t) => {
                self.hulls
                    .entry((t.buffer_id(), t.dtype()))
                    .or_default()
                    .add(t.layout().hull());
            }
            Value::List(v) | Value::Tuple(v) | Value::Set(v) => self.survey_all(v)?,
            Value::Dict(d) => self.survey_all(d.iter().flat_map(|(k, v)| [k, v]))?,
            Value::Opaque(o) => {
                let (args, kwargs) = match &o.construct {
                    Construct::Reduce(args) | Construct::NewObj(args) => (&args[..], &[][..]),
                    Construct::NewObjEx(args, kwargs) => (&args[..], &kwargs[..]),
                    _ => (&[][..], &[][..]),
                };
                self.survey_all(args.iter().chain(kwargs.iter().map(|(_, v)| v)))?;
                self.survey_all(o.items.iter().chain(&o.state))?;
                self.survey_all(o.pairs.iter().flat_map(|(k, v)| [k, v]))?;
            }
            _ => {}
        }

        // An error ends the whole encoding, so the depth is set back only after a success.
        self.leave();
        Ok(())
    }

    fn survey_all<'v>(&mut self, values: impl IntoIterator<Item = &'v Value>) -> Result<()> {
        values.into_iter().try_for_each(|value| self.survey(value))
    }

    pub(super) fn value(&mut self, value: &Value) -> Result<()> {
        self.enter()?;
        match value {
            Value::None => self.e.none(),
            Value::Bool(v) => self.e.bool(*v),
            Value::Int(v) => self.e.int(*v),
            Value::BigInt(le) => self.e.long(le),
            Value::Float(v) => self.e.float(*v),
            Value::Str(v) => self.e.str(v),
            Value::Bytes(v) => self.e.bytes(v)?,
            Value::List(v) => self.list(v)?,
            Value::Tuple(v) => self.tuple(v)?,
            Value::Set(v) => {
                self.e.global("builtins", "set")?;
                self.list(v)?;
                self.e.memoized_tuple(1);
                self.e.op(Op::Reduce);
                self.e.memoize();
            }
            Value::Dict(v) => self.dict(v)?,
            Value::Tensor(t) => self.tensor(t)?,
            Value::Opaque(o) => self.opaque(o)?,
            other => {
                let what = format!("a {} in device or local memory", other.type_name());
                return Err(Error::encode(what));
            }
        }
        self.leave();
        Ok(())
    }

    /// Adds items to the container on the stack, all at once.
    fn group<T: Encode>(&mut self, items: &[T], end: Op<'_>) -> Result<()> {
        self.e.op(Op::Mark);
        items.iter().try_for_each(|item| item.encode(self))?;
        self.e.op(end);
        Ok(())
    }

    /// Adds items to the container on the stack. A single one needs no mark.
    fn items<T: Encode>(&mut self, items: &[T], one: Op<'_>, many: Op<'_>) -> Result<()> {
        let [only] = items else {
            return self.group(items, many);
        };
        only.encode(self)?;
        self.e.op(one);
        Ok(())
    }

    pub(super) fn list<T: Encode>(&mut self, items: &[T]) -> Result<()> {
        self.e.op(Op::EmptyList);
        self.e.memoize();
        if let [_] = items {
            return self.items(items, Op::Append, Op::Appends);
        }
        let mut batches = items.chunks(BATCH);
        batches.try_for_each(|batch| self.group(batch, Op::Appends))
    }

    pub(super) fn tuple<V: Encode>(&mut self, items: &[V]) -> Result<()> {
        self.e.begin_tuple(items.len());
        items.iter().try_for_each(|v| v.encode(self))?;
        self.e.memoized_tuple(items.len());
        Ok(())
    }

    pub(super) fn dict<V: Encode>(&mut self, pairs: &[(Value, V)]) -> Result<()> {
        self.e.op(Op::EmptyDict);
        self.e.memoize();
        if let [_] = pairs {
            return self.items(pairs, Op::SetItem, Op::SetItems);
        }
        let mut batches = pairs.chunks(BATCH);
        batches.try_for_each(|batch| self.group(batch, Op::SetItems))?;
        // CPython looks for more after each full group, and writes an empty one when there is none.
        if !pairs.is_empty() && pairs.len().is_multiple_of(BATCH) {
            self.group::<Value>(&[], Op::SetItems)?;
        }
        Ok(())
    }

    /// Sets items of the object of a class on the stack.
    pub(super) fn set_items<V: Encode>(&mut self, pairs: &[(Value, V)]) -> Result<()> {
        let mut batches = pairs.chunks(BATCH);
        batches.try_for_each(|batch| self.items(batch, Op::SetItem, Op::SetItems))
    }

    fn opaque(&mut self, o: &Opaque) -> Result<()> {
        if self.bare_storage(o)? {
            return Ok(());
        }
        if o.construct == Construct::Global {
            return self.only_global(o);
        }
        self.made(o)?;
        let mut batches = o.items.chunks(BATCH);
        batches.try_for_each(|batch| self.items(batch, Op::Append, Op::Appends))?;
        self.set_items(&o.pairs)?;
        self.state(o)
    }

    /// CPython writes the state last, so equal objects give equal bytes.
    pub(super) fn state(&mut self, o: &Opaque) -> Result<()> {
        if let Some(state) = &o.state {
            self.value(state)?;
            self.e.op(Op::Build);
        }
        Ok(())
    }

    /// The object of a class, without items and state.
    pub(super) fn made(&mut self, o: &Opaque) -> Result<()> {
        match &o.construct {
            Construct::Reduce(args) => {
                let args = match (&*o.module, &*o.name, &args[..]) {
                    // Reading shows a call of something that was made first as `operator.call`. It becomes that call again.
                    ("operator", "call", [callable @ Value::Opaque(c), args @ ..])
                        if c.construct != Construct::Global =>
                    {
                        self.value(callable)?;
                        args
                    }
                    _ => {
                        self.e.global(&o.module, &o.name)?;
                        args
                    }
                };
                self.tuple(args)?;
                self.e.op(Op::Reduce);
            }
            Construct::NewObj(args) => {
                self.e.global(&o.module, &o.name)?;
                self.tuple(args)?;
                self.e.op(Op::NewObj);
            }
            Construct::NewObjEx(args, kwargs) => self.partial_new(o, args, kwargs)?,
            _ => return Err(Error::encode(format!("an object of {}", o.class()))),
        }

        // CPython numbers the object before its contents, since these may refer to it.
        self.e.memoize();
        Ok(())
    }

    fn only_global(&mut self, o: &Opaque) -> Result<()> {
        if o.state.is_some() || !o.items.is_empty() || !o.pairs.is_empty() {
            let what = format!("the class {} itself, with contents", o.class());
            return Err(Error::encode(what));
        }
        self.e.global(&o.module, &o.name)
    }

    /// Protocol 2 has no instruction for keyword arguments; CPython calls a `functools.partial`.
    fn partial_new(&mut self, o: &Opaque, args: &[Value], kwargs: &[(Value, Value)]) -> Result<()> {
        let new = format!("{}.__new__", o.name);
        self.e.global("functools", "partial")?;
        self.e.global(&o.module, &new)?;
        self.e.memoized_tuple(1);
        self.e.op(Op::Reduce);
        self.e.memoize();
        self.e.begin_tuple(4);
        self.e.global(&o.module, &new)?;
        self.e.begin_tuple(args.len() + 1);
        self.e.global(&o.module, &o.name)?;
        args.iter().try_for_each(|v| self.value(v))?;
        self.e.memoized_tuple(args.len() + 1);
        self.dict(kwargs)?;
        self.e.none();
        self.e.memoized_tuple(4);
        self.e.op(Op::Build);
        self.e.tuple(0);
        self.e.op(Op::Reduce);
        Ok(())
    }

    fn tensor(&mut self, t: &Tensor) -> Result<()> {
        let (storage, offset) = self.place(t)?;
        let mut view = TensorRef::contiguous(t.dtype(), t.shape())?;
        view.storage = storage;
        view.offset = offset;
        view.emit(&mut self.e)
    }

    /// The storage of a tensor, and where in it the tensor starts.
    fn place(&mut self, t: &Tensor) -> Result<(StorageRef, u64)> {
        let item = t.dtype().size();
        let group = (t.buffer_id(), t.dtype());
        let hull = t.layout().hull();
        let around = self.hulls.get(&group).filter(|_| shareable(t));
        let stored =
            |number: usize, len| StorageRef::new(&number.to_string(), Some(t.dtype()), len);
        let Some(whole) = around.and_then(|all| all.around(&hull)) else {
            let number = self.add(t.to_bytes());
            return Ok((stored(number, t.nbytes()), 0));
        };
        let key = (group, whole.start, whole.end);
        let number = match self.known.get(&key) {
            Some(&number) => number,
            None => {
                // The tensor that covers the whole may come later; its bytes are put in place then.
                let number = self.add(Bytes::new());
                self.known.insert(key, number);
                number
            }
        };
        if hull == whole
            && let Some(bytes) = self.storages.get_mut(number)
        {
            *bytes = t.to_bytes();
        }
        let storage = stored(number, whole.end - whole.start);
        Ok((storage, (hull.start - whole.start) / item))
    }

    pub(super) fn add(&mut self, bytes: Bytes) -> usize {
        self.storages.push(bytes);
        self.storages.len() - 1
    }

    /// A storage without a tensor, as reading shows it.
    fn bare_storage(&mut self, o: &Opaque) -> Result<bool> {
        let (Construct::Reduce(args), true) = (
            &o.construct,
            matches!(&*o.module, "torch" | "torch.storage"),
        ) else {
            return Ok(false);
        };
        let ([Value::Tensor(t)], Some(size)) = (&args[..], element_size(&o.name)) else {
            return Ok(false);
        };
        let (mut storage, offset) = self.place(t)?;
        if offset != 0 || storage.len != t.nbytes() {
            let own = self.add(t.to_bytes());
            storage = StorageRef::new(&own.to_string(), None, t.nbytes());
        }
        storage.emit_as(&mut self.e, &o.module, &o.name, size)?;
        Ok(true)
    }
}

/// Whether the bytes of its hull are its elements.
fn shareable(t: &Tensor) -> bool {
    t.layout().is_contiguous() && t.nbytes() > 0
}

/// Ranges of which none lies in another, by their start: their ends have the same order.
#[derive(Default)]
struct Hulls(BTreeMap<u64, u64>);

impl Hulls {
    /// A range that covers this one.
    fn around(&self, part: &Range<u64>) -> Option<Range<u64>> {
        // Ends grow with starts, so if any range covers it, the last that starts early enough does.
        let (start, end) = self.0.range(..=part.start).next_back()?;
        (part.end <= *end).then_some(*start..*end)
    }

    /// Adds a range, unless it lies in one that is there, and takes away those that lie in it.
    fn add(&mut self, new: Range<u64>) {
        if self.around(&new).is_none() {
            while let Some((&start, end)) = self.0.range(new.start..).next()
                && *end <= new.end
            {
                self.0.remove(&start);
            }
            self.0.insert(new.start, new.end);
        }
    }
}
