//! State dicts as Python describes them: nested dicts and lists whose leaves are pieces of tensors and values.

use crate::{
    error::{Raise as _, about, own},
    memory::{Memories, Strided, dtype},
    value::from_python,
};
use pyo3::{prelude::*, pybacked::PyBackedBytes};
use reshard::{
    DType, Data, Region, ShardedTensor, StateDict, Value,
    model::{BoxError, Dims, Leaf, ObjectCodec as _, Path, ReplicaId, Step, TensorSource, Tree},
};
use reshard_torch_format::TorchSave;
use std::sync::Arc;

/// A part of a state dict. A dict of Python has one of these sets of keys.
#[derive(FromPyObject)]
pub(crate) enum Node {
    /// A part of a global tensor in host memory. Without `memory` it lies elsewhere, and `copy` copies a region of it to an address.
    Piece {
        #[pyo3(item)]
        key: String,
        #[pyo3(item)]
        global_shape: Vec<u64>,
        #[pyo3(item)]
        offsets: Vec<u64>,
        #[pyo3(item)]
        lengths: Vec<u64>,
        #[pyo3(item)]
        dtype: String,
        #[pyo3(item)]
        replica: Vec<u32>,
        #[pyo3(item)]
        memory: Option<Strided>,
        #[pyo3(item)]
        copy: Option<Py<PyAny>>,
    },
    /// A tensor that is not sharded, in host memory.
    Unsharded {
        #[pyo3(item)]
        plain: Strided,
    },
    /// A value of Python's own types.
    Value {
        #[pyo3(item)]
        value: Py<PyAny>,
    },
    /// Any other value, as `torch.save` writes it.
    Pickle {
        #[pyo3(item)]
        pickle: PyBackedBytes,
    },
    Dict {
        #[pyo3(item)]
        dict: Vec<(Key, Node)>,
    },
    List {
        #[pyo3(item)]
        list: Vec<Node>,
    },
}

/// A key of a dict.
#[derive(FromPyObject)]
pub(crate) enum Key {
    Index(u64),
    Name(String),
}

impl From<Key> for Step {
    fn from(key: Key) -> Self {
        match key {
            Key::Index(index) => Self::Index(index),
            Key::Name(name) => Self::Key(name.into()),
        }
    }
}

/// A state dict, and where its values lie.
pub(crate) struct State {
    pub(crate) state: StateDict,
    pub(crate) values: Vec<Path>,
}

/// Makes a state dict of what Python describes.
pub(crate) fn state(py: Python<'_>, node: Node) -> PyResult<State> {
    let mut builder = Builder {
        py,
        memories: Memories::default(),
        values: Vec::new(),
    };
    let state = builder.tree(node, &mut Vec::new())?;
    Ok(State {
        state,
        values: builder.values,
    })
}

struct Builder<'py> {
    py: Python<'py>,
    memories: Memories,
    values: Vec<Path>,
}

impl Builder<'_> {
    fn tree(&mut self, node: Node, path: &mut Vec<Step>) -> PyResult<StateDict> {
        match node {
            Node::Dict { dict } => {
                let mut tree = Vec::with_capacity(dict.len());
                for (key, node) in dict {
                    let step = Step::from(key);
                    tree.push((step.clone(), self.below(step, node, path)?));
                }
                Ok(Tree::Dict(tree.into_iter().collect()))
            }
            Node::List { list } => {
                let all = (0u64..).zip(list);
                let all = all.map(|(n, node)| self.below(n.into(), node, path));
                Ok(Tree::List(all.collect::<PyResult<_>>()?))
            }
            Node::Unsharded { plain } => {
                let name = Path(path.clone()).to_string();
                let tensor = self.memories.tensor(self.py, &name, plain)?;
                Ok(Tree::Leaf(Leaf::Value(Value::Tensor(tensor))))
            }
            Node::Value { value } => {
                let value = from_python(value.bind(self.py))?;
                Ok(self.value(value, path))
            }
            Node::Pickle { pickle } => {
                let value = TorchSave::default().decode(&bytes::Bytes::from_owner(pickle));
                let name = Path(path.clone()).to_string();
                let value = value.map_err(|e| {
                    about(self.py, "UnsupportedError", &name, &format!("{name}: {e}"))
                })?;
                Ok(self.value(value, path))
            }
            piece @ Node::Piece { .. } => self.piece(piece),
        }
    }

    fn below(&mut self, step: Step, node: Node, path: &mut Vec<Step>) -> PyResult<StateDict> {
        path.push(step);
        let tree = self.tree(node, path);
        path.pop();
        tree
    }

    fn value(&mut self, value: Value, path: &[Step]) -> StateDict {
        self.values.push(path.into());
        Tree::Leaf(Leaf::Value(value))
    }

    fn piece(&mut self, node: Node) -> PyResult<StateDict> {
        let Node::Piece {
            key,
            global_shape,
            offsets,
            lengths,
            dtype: name,
            replica,
            memory,
            copy,
        } = node
        else {
            return Err(own(self.py, "Error", "a piece was expected"));
        };
        let dtype = dtype(self.py, &key, &name)?;
        let shape: Dims = lengths.clone().into();
        let region = Region::new(offsets, lengths);
        let leaf = ShardedTensor::region_of(&key, dtype, &global_shape, region);
        let leaf = leaf.with_replica_id(ReplicaId(replica.into()));
        let data = match (memory, copy) {
            (Some(memory), _) => Data::Host(self.memories.tensor(self.py, &key, memory)?),
            (None, Some(copy)) => Data::Lazy(Arc::new(Elsewhere { dtype, shape, copy })),
            (None, None) => Data::None,
        };
        let leaf = leaf.with_data(data).validated().raised(self.py)?;
        Ok(Tree::Leaf(Leaf::Tensor(leaf)))
    }
}

/// Elements of a tensor that Python copies to host memory while they are written.
struct Elsewhere {
    dtype: DType,
    shape: Dims,
    /// Called with offsets, lengths, an address and a number of bytes.
    copy: Py<PyAny>,
}

/// A copy from a device costs about as much as this many bytes of it.
const BLOCK: u64 = 16 << 20;

impl TensorSource for Elsewhere {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> Dims {
        self.shape.clone()
    }

    fn block(&self) -> Option<u64> {
        Some(BLOCK)
    }

    fn ahead(&self) -> u64 {
        2 * BLOCK
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let (offsets, lengths) = (region.offsets.to_vec(), region.lengths.to_vec());
        // The memory is ours until the call returns.
        let at = (out.as_mut_ptr() as usize, out.len());
        let copied = Python::attach(|py| {
            self.copy
                .call1(py, (offsets, lengths, at.0, at.1))
                .map(drop)
        });
        copied.map_err(|e| BoxError::from(e.to_string()))
    }
}
