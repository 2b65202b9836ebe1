//! Tensors as `torch.save` describes them: a tensor is a view of a storage, and each storage has its own record.

mod bits;
mod parse;
mod part;
mod storage;

pub use part::{Mesh, PartRef, Spread, SpreadFile, SpreadGroup, SpreadPath, SpreadTable};
pub use storage::{Location, StorageRef};

pub(crate) use parse::{Wrapped, tensor_of};
pub(crate) use part::{Meshes, is_part, part_of};
pub(crate) use storage::{Stored, element_size, storage_of};

use crate::{
    Error, Limits, Result,
    archive::ByteOrder,
    pickle::{Emitter, Graph, Id, Node, Op, run},
};
use bytes::Bytes;
use reshard_model::{DType, Dims, HostBuffer, Layout, Tensor};
use std::sync::Arc;

/// The description of a tensor in an archive: its storage, and where its elements lie in it. With it you can read any part of the tensor
/// without the rest.
///
/// ```
/// use reshard_model::DType;
/// use reshard_torch_format::TensorRef;
/// # fn main() -> Result<(), reshard_torch_format::Error> {
/// let t = TensorRef::contiguous(DType::Float32, &[2, 3])?;
/// let pickle = t.pickle()?;                                   // `data.pkl`, byte for byte as torch writes it
/// assert_eq!(TensorRef::parse(&pickle, &Default::default())?, t);
/// assert_eq!((t.storage.record(), t.storage.len), ("data/0".to_string(), 24));
/// assert!(t.layout()?.is_contiguous());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorRef {
    /// Element type.
    pub dtype: DType,
    /// The storage it is a view of.
    pub storage: StorageRef,
    /// First element, in elements from the storage's start.
    pub offset: u64,
    /// Elements per axis.
    pub shape: Dims,
    /// The distance of neighbours along each axis, in elements.
    pub strides: Dims,
    /// Whether it requires gradients.
    pub requires_grad: bool,
    /// The elements are the complex conjugates of what is stored.
    pub conj: bool,
    /// The elements are the negatives of what is stored.
    pub neg: bool,
    /// Whether it is a `torch.nn.Parameter`.
    pub is_parameter: bool,
    /// What else Python knows of it, in words: another class, or attributes. [`TensorRef::emit`] does not write it.
    pub python_state: Option<&'static str>,
}

impl TensorRef {
    /// A row-major tensor that has storage `0` to itself.
    ///
    /// # Errors
    /// [`Error::Tensor`] if its size does not fit 63 bits.
    pub fn contiguous(dtype: DType, shape: &[u64]) -> Result<Self> {
        let too_large = || {
            Error::tensor(
                "0",
                format!("shape {} of {dtype} is too large", Dims::from(shape)),
            )
        };
        let layout = Layout::contiguous(dtype.size(), shape).ok_or_else(too_large)?;
        Ok(Self {
            dtype,
            storage: StorageRef::new("0", Some(dtype), layout.bytes()),
            offset: 0,
            shape: layout.shape().clone(),
            strides: layout.strides().clone(),
            requires_grad: false,
            conj: false,
            neg: false,
            is_parameter: false,
            python_state: None,
        })
    }

    /// Reads the `data.pkl` of an archive that holds one tensor, as torch 0.4 and later write it. For a parameter, or a subclass that adds
    /// nothing to the elements, it returns the tensor inside.
    ///
    /// # Errors
    /// [`Error::Pickle`] and similar errors for a damaged pickle; [`Error::Tensor`] for a description that contradicts itself;
    /// [`Error::Unsupported`] if it is no tensor.
    pub fn parse(pickle: &[u8], limits: &Limits) -> Result<Self> {
        let mut graph = Graph::default();
        let (root, _) = run(pickle, &mut graph, limits)?;
        tensor_of(&graph, root, Wrapped::Any)?
            .ok_or_else(|| Error::unsupported(0, no_dense_tensor(&graph, root)))
    }

    /// The `data.pkl` of an archive that holds only this tensor.
    ///
    /// # Errors
    /// [`Error::Encode`] for names that a pickle can't contain.
    pub fn pickle(&self) -> Result<Vec<u8>> {
        let mut e = Emitter::new(2);
        self.emit(&mut e)?;
        Ok(e.finish())
    }

    /// Writes the tensor into a larger pickle.
    ///
    /// # Errors
    /// As [`pickle`](Self::pickle).
    pub fn emit(&self, e: &mut Emitter) -> Result<()> {
        self.emit_object(e).map(drop)
    }

    /// The same. Returns the memo number of the object.
    pub(crate) fn emit_object(&self, e: &mut Emitter) -> Result<u32> {
        if !self.is_parameter {
            return self.emit_tensor(e, self.requires_grad);
        }
        e.global("torch._utils", "_rebuild_parameter")?;
        self.emit_tensor(e, false)?;
        e.bool(self.requires_grad);
        emit_no_hooks(e)?;
        e.memoized_tuple(3);
        e.op(Op::Reduce);
        Ok(e.memoize())
    }

    fn emit_tensor(&self, e: &mut Emitter, requires_grad: bool) -> Result<u32> {
        let legacy = storage::legacy_name(self.dtype);
        let function = match legacy {
            Some(_) => "_rebuild_tensor_v2",
            None => "_rebuild_tensor_v3",
        };
        e.global("torch._utils", function)?;
        e.op(Op::Mark);
        let dtype = legacy.map(|_| self.dtype);
        StorageRef {
            dtype,
            ..self.storage.clone()
        }
        .emit(e)?;
        e.uint(self.offset);
        for dims in [&self.shape, &self.strides] {
            e.ints(dims);
            if !dims.is_empty() {
                e.memoize();
            }
        }
        e.bool(requires_grad);
        emit_no_hooks(e)?;
        if legacy.is_none() {
            e.global("torch", self.dtype.name())?;
        }
        self.emit_bits(e);
        e.op(Op::Tuple);
        e.memoize();
        e.op(Op::Reduce);
        Ok(e.memoize())
    }

    fn emit_bits(&self, e: &mut Emitter) {
        let bits = [("conj", self.conj), ("neg", self.neg)];
        let set = bits.iter().filter(|(_, is_set)| *is_set);
        let end = match set.clone().count() {
            0 => return,
            1 => Op::SetItem,
            _ => Op::SetItems,
        };
        e.op(Op::EmptyDict);
        e.memoize();
        if end == Op::SetItems {
            e.op(Op::Mark);
        }
        for (bit, _) in set {
            e.str(bit);
            e.bool(true);
        }
        e.op(end);
    }

    /// Where the elements lie in the storage's record.
    ///
    /// # Errors
    /// [`Error::Tensor`] if they would lie outside the record.
    pub fn layout(&self) -> Result<Layout> {
        let bad = || {
            let what = format!(
                "offset {}, shape {} and strides {} of {} do not lie in a storage of {} bytes",
                self.offset, self.shape, self.strides, self.dtype, self.storage.len
            );
            Error::tensor(&self.storage.key, what)
        };
        let layout = Layout::new(
            self.dtype.size(),
            self.offset,
            self.shape.clone(),
            self.strides.clone(),
        );
        layout
            .filter(|l| l.elements() == 0 || l.hull().end <= self.storage.len)
            .ok_or_else(bad)
    }

    /// Whether the stored bytes must be changed to get the elements: they are conjugated, negated, or have another byte order.
    pub fn is_lazy(&self, order: ByteOrder) -> bool {
        self.conj || self.neg || (order == ByteOrder::Big && self.dtype.word() > 1)
    }

    /// Makes the tensor over the bytes of its storage. It copies nothing unless the tensor [is lazy](Self::is_lazy).
    ///
    /// # Errors
    /// [`Error::Tensor`] if it does not fit the storage.
    ///
    /// ```
    /// # use reshard_model::DType;
    /// # use reshard_torch_format::{TensorRef, archive::ByteOrder};
    /// # fn main() -> Result<(), reshard_torch_format::Error> {
    /// let storage = bytes::Bytes::from_static(&[1, 2, 3, 4]);
    /// let t = TensorRef::contiguous(DType::Int16, &[2])?.tensor(std::sync::Arc::new(storage), ByteOrder::Big)?;
    /// assert_eq!(t.to_vec::<i16>().unwrap(), [0x0102, 0x0304]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn tensor(&self, storage: Arc<dyn HostBuffer>, order: ByteOrder) -> Result<Tensor> {
        self.storage.check(storage.as_bytes().len() as u64)?;
        let tensor = Tensor::with_layout(self.dtype, self.layout()?, storage)?;
        if !self.is_lazy(order) {
            return Ok(tensor);
        }
        let bytes = tensor.nbytes();
        let mut elements: Vec<u8> = Vec::new();
        let room = usize::try_from(bytes)
            .ok()
            .and_then(|n| elements.try_reserve_exact(n).ok());
        room.ok_or_else(|| {
            let what = format!("holding the {bytes} bytes of a tensor whose elements must be changed, for which there is no memory,");
            Error::unsupported(0, what)
        })?;
        tensor
            .blocks(1 << 20)
            .for_each(|block| elements.extend_from_slice(&block));
        self.resolve(&mut elements, order)?;
        Ok(Tensor::new(self.dtype, &self.shape, Bytes::from(elements))?)
    }
}

/// The hooks of a tensor that has none.
fn emit_no_hooks(e: &mut Emitter) -> Result<()> {
    e.global("collections", "OrderedDict")?;
    e.tuple(0);
    e.op(Op::Reduce);
    e.memoize();
    Ok(())
}

/// A pickle that holds something else than a dense tensor, in words. A tensor subclass is named, because its inner tensors may be dense.
fn no_dense_tensor(graph: &Graph<'_>, root: Id) -> String {
    let class = match graph.node(root) {
        Node::Call(call)
            if graph
                .as_allowed(call.callable)
                .is_some_and(|(_, name)| name == "_rebuild_from_type_v2") =>
        {
            graph
                .as_seq(call.args)
                .and_then(|args| graph.as_global(*args.get(1)?))
        }
        _ => None,
    };
    match class {
        Some((module, name)) if module == "torchao" || module.starts_with("torchao.") => format!(
            "torchao's {name} ({module}.{name}), which PyTorch DCP stores as one pickled object; load it with torchao and save it with torch.save"
        ),
        Some((module, name)) => {
            format!("a pickle that holds a tensor subclass {module}.{name}, and no dense tensor")
        }
        None => "a pickle that holds no dense tensor".into(),
    }
}
