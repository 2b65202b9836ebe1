//! The leaves of a sharded state dict, field by field as Megatron Core has them.

use crate::{BoxError, DType, Dims, ModelError, Path, Result, Tree, Value};
use bytes::Bytes;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::{any::Any, borrow::Cow, fmt, ops::Range, sync::Arc};

mod data;
mod factory;
mod plain;
mod prefix;
mod tensor;

pub use data::{Data, TensorSource};
pub use factory::{BuildFn, MergeFn, ShardedTensorFactory, Swiglu};
pub use plain::ShardPlace;
pub use prefix::{add_prefix_for_sharding, apply_prefix_mapping, replace_prefix_for_sharding};
pub use tensor::{AxisCoordinates, AxisSlice, local_chunk};

/// The state that you save, or the template that you load into.
pub type StateDict = Tree<Leaf>;

/// The state that planners see: every sharded leaf with its path. Factories are expanded; local and common leaves are removed.
pub type FlatStateDict = IndexMap<Path, Sharded>;

/// A leaf of a [`StateDict`].
#[derive(Clone, Debug)]
pub enum Leaf {
    /// A part of a global tensor.
    Tensor(ShardedTensor),
    /// A cell of an array of objects.
    Object(ShardedObject),
    /// A factory, which makes a subtree of sharded leaves, and makes one value of them again after a load.
    Factory(ShardedTensorFactory),
    /// A value that is not saved. A load returns it unchanged.
    Local(LocalNonpersistent),
    /// Any other value. In Megatron's dialect the coordinator saves it as common state. In DCP's dialect it is an item of its
    /// own.
    Value(Value),
}

/// A leaf that goes to the sharded strategy.
#[derive(Clone, Debug)]
pub enum Sharded {
    /// A part of a global tensor.
    Tensor(ShardedTensor),
    /// A cell of an array of objects, or an item of its own.
    Object(ShardedObject),
}

impl Sharded {
    /// Its tag for sharding policies.
    pub fn tag(&self) -> Option<&str> {
        match self {
            Self::Tensor(t) => t.tag.as_deref(),
            Self::Object(o) => o.tag.as_deref(),
        }
    }

    /// Whether a load goes on if it is not stored.
    pub fn is_optional(&self) -> bool {
        match self {
            Self::Tensor(t) => t.optional,
            Self::Object(o) => o.optional,
        }
    }

    /// The same, to be set.
    pub fn optional_mut(&mut self) -> &mut bool {
        match self {
            Self::Tensor(t) => &mut t.optional,
            Self::Object(o) => &mut o.optional,
        }
    }

    /// Its key in the checkpoint.
    pub fn key(&self) -> &str {
        match self {
            Self::Tensor(t) => &t.key,
            Self::Object(o) => &o.key,
        }
    }

    /// The key under which it is stored by itself: that of a tensor, and the [`unique_key`](ShardedObject::unique_key) of an object.
    pub fn unique_key(&self) -> Cow<'_, str> {
        match self {
            Self::Tensor(t) => Cow::Borrowed(&*t.key),
            Self::Object(o) if o.is_item() => Cow::Borrowed(&*o.key),
            Self::Object(o) => Cow::Owned(o.unique_key()),
        }
    }
}

impl From<ShardedTensor> for Sharded {
    fn from(t: ShardedTensor) -> Self {
        Self::Tensor(t)
    }
}

impl From<ShardedObject> for Sharded {
    fn from(o: ShardedObject) -> Self {
        Self::Object(o)
    }
}

macro_rules! leaf_from {
    ($($t:ident => $v:ident,)*) => {$(
        impl From<$t> for Leaf { fn from(v: $t) -> Self { Self::$v(v) } }
        impl From<$t> for Tree<Leaf> { fn from(v: $t) -> Self { Self::Leaf(Leaf::$v(v)) } }
    )*};
}
leaf_from! { ShardedTensor => Tensor, ShardedObject => Object, ShardedTensorFactory => Factory, LocalNonpersistent => Local, }

impl<V: Into<Value>> From<V> for Leaf {
    fn from(v: V) -> Self {
        Self::Value(v.into())
    }
}

/// Tells apart equal copies (replicas) of a piece. The replica whose numbers are all 0 is the main one, and only this one is
/// written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReplicaId(pub Box<[u32]>);

impl ReplicaId {
    /// Whether this is the main replica, which is written: all numbers are 0, or there are none.
    pub fn is_main(&self) -> bool {
        self.0.iter().all(|r| *r == 0)
    }
}

impl From<u32> for ReplicaId {
    fn from(r: u32) -> Self {
        Self([r].into())
    }
}

impl<const N: usize> From<[u32; N]> for ReplicaId {
    fn from(r: [u32; N]) -> Self {
        Self(r.into())
    }
}

/// A part of a global tensor: "my local tensor is the chunk at `global_offset` of the tensor named `key`".
///
/// All fields of Megatron Core's class of the same name. Shapes and offsets count elements.
#[derive(Clone, Debug)]
pub struct ShardedTensor {
    /// Name of the global tensor in the checkpoint.
    pub key: Box<str>,
    /// The local elements.
    pub data: Data,
    /// Element type.
    pub dtype: DType,
    /// Shape of the local chunk, before flattening and without prepended axes.
    pub local_shape: Dims,
    /// Shape of the whole tensor, prepended axes included.
    pub global_shape: Dims,
    /// First element of the local chunk, prepended axes included.
    pub global_offset: Dims,
    /// Number of chunks per axis of a regular grid, prepended axes included; `None` for an irregular grid.
    pub axis_fragmentations: Option<Dims>,
    /// Which replica this is. Only the main one is written.
    pub replica_id: ReplicaId,
    /// Leading axes of the global shape that the local shape lacks, each of local extent 1.
    pub prepend_axis_num: usize,
    /// On load, the stored global shape may differ. Missing elements become zero, and surplus elements are left out.
    pub allow_shape_mismatch: bool,
    /// On load, it need not be stored. Then it keeps its contents, and the report names its key.
    pub optional: bool,
    /// The data is this range of the flattened local chunk.
    pub flattened_range: Option<Range<u64>>,
    /// A tag for sharding policies. It is not stored, and Megatron Core has no such field.
    pub tag: Option<Arc<str>>,
}

/// The bytes or the value of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Payload {
    /// Nothing: a template to load into.
    #[default]
    None,
    /// Decoded.
    Value(Value),
    /// In its stored form, until somebody decodes it. A conversion carries it over unchanged.
    Encoded {
        /// Name of the codec that can decode it.
        codec: &'static str,
        /// The stored bytes.
        bytes: Bytes,
    },
}

/// Turns objects into bytes and back.
pub trait ObjectCodec: fmt::Debug + Send + Sync {
    /// Its name, as in [`Payload::Encoded`].
    fn name(&self) -> &'static str;
    /// Decodes a value. It must execute nothing.
    ///
    /// # Errors
    /// What is wrong with the bytes, and where.
    fn decode(&self, bytes: &Bytes) -> Result<Value, BoxError>;
    /// Encodes a value.
    ///
    /// # Errors
    /// The value contains something that can't be stored, such as device memory.
    fn encode(&self, value: &Value) -> Result<Bytes, BoxError>;
}

/// One cell of an array of objects, as in Megatron Core. If it is made by [`item`](Self::item), it is an object under a key
/// of its own, as in PyTorch DCP.
#[derive(Clone, Debug)]
pub struct ShardedObject {
    /// Name of the array, or of the item.
    pub key: Box<str>,
    /// The object.
    pub data: Payload,
    /// Shape of the array; no axes for an item of its own.
    pub global_shape: Dims,
    /// Which cell.
    pub global_offset: Dims,
    /// Which replica this is. Only the main one is written.
    pub replica_id: ReplicaId,
    /// On load, it need not be stored. Then it keeps its contents, and the report names its key.
    pub optional: bool,
    /// A tag for sharding policies. It is not stored, and Megatron Core has no such field.
    pub tag: Option<Arc<str>>,
}

impl ShardedObject {
    /// A cell of an array of objects.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when shape and offset differ in length, have no axis, or the cell lies outside.
    pub fn new(
        key: &str,
        data: impl Into<Value>,
        global_shape: &[u64],
        global_offset: &[u64],
        replica_id: impl Into<ReplicaId>,
    ) -> Result<Self> {
        let out = Self {
            data: Payload::Value(data.into()),
            replica_id: replica_id.into(),
            ..Self::cell(key, global_shape.into(), global_offset.into())
        };
        out.validate()?;
        if global_shape.is_empty() {
            return Err(ModelError::invalid(
                key,
                "an array of objects needs an axis; use shape [1] and offset [0]",
            ));
        }
        Ok(out)
    }

    /// An object under a key of its own, as PyTorch DCP stores them.
    pub fn item(key: &str, data: Payload) -> Self {
        Self {
            key: key.into(),
            data,
            global_shape: Dims::default(),
            global_offset: Dims::default(),
            replica_id: ReplicaId::default(),
            optional: false,
            tag: None,
        }
    }

    /// A cell of an array of objects, without data. It is not checked.
    pub fn cell(key: &str, global_shape: Dims, global_offset: Dims) -> Self {
        Self {
            global_shape,
            global_offset,
            ..Self::item(key, Payload::None)
        }
    }

    /// With a tag for sharding policies.
    pub fn with_tag(mut self, tag: &str) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// The same object, but a load goes on if it is not stored.
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Whether it is an item of its own, not a cell of an array.
    pub fn is_item(&self) -> bool {
        self.global_shape.is_empty()
    }

    /// Checks what Megatron Core checks, and that the cell lies in the array.
    ///
    /// # Errors
    /// [`ModelError::Invalid`].
    pub fn validate(&self) -> Result<()> {
        let (shape, offset) = (&self.global_shape, &self.global_offset);
        if shape.len() != offset.len() {
            let what = format!(
                "global offset dimensions should be equal to global shape dimensions ({offset}, {shape})"
            );
            return Err(ModelError::invalid(&self.key, what));
        }
        if shape.iter().zip(offset).any(|(n, o)| o >= n) {
            return Err(ModelError::invalid(
                &self.key,
                format!("cell {offset} lies outside an array of shape {shape}"),
            ));
        }
        Ok(())
    }

    /// Its name in the checkpoint: `key/shard_0.1_2.2` for cell (0, 1) of a (2, 2) array, the key itself for an item.
    pub fn unique_key(&self) -> String {
        if self.is_item() {
            return self.key.to_string();
        }
        let join = |d: &Dims| d.iter().map(u64::to_string).collect::<Vec<_>>().join(".");
        format!(
            "{}/shard_{}_{}",
            self.key,
            join(&self.global_offset),
            join(&self.global_shape)
        )
    }

    /// The cell that a unique key names, without data. Very old names lack the last extent of the shape. Then it becomes
    /// `offset + 1`, the smallest extent that contains the cell.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when the name is not of this form.
    pub fn empty_from_unique_key(unique_key: &str) -> Result<Self> {
        let fail = || {
            let what = "not the name of an object: expected KEY/shard_OFFSET_SHAPE, such as rng_state/shard_0.1_1.2";
            ModelError::invalid(unique_key, what)
        };
        let (key, cell) = unique_key
            .split_once('/')
            .filter(|(_, c)| !c.contains('/'))
            .ok_or_else(fail)?;
        let mut parts = cell.split('_');
        let (Some("shard"), Some(offset), Some(shape), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(fail());
        };
        let ints = |s: &str| {
            s.split('.')
                .map(|p| p.parse().ok())
                .collect::<Option<Dims>>()
        };
        let offset = ints(offset).ok_or_else(fail)?;
        let mut shape = if shape.is_empty() {
            Dims::default()
        } else {
            ints(shape).ok_or_else(fail)?
        };
        if shape.len() + 1 == offset.len() {
            shape.push(offset.last().map_or(1, |o| o.saturating_add(1)));
        }
        let out = Self::cell(key, shape, offset);
        out.validate().map_err(|_| fail())?;
        Ok(out)
    }
}

/// Any value. It is not saved, and a load returns it unchanged.
#[derive(Clone)]
pub struct LocalNonpersistent(pub Arc<dyn Any + Send + Sync>);

impl LocalNonpersistent {
    /// Wraps a value.
    pub fn new(value: impl Any + Send + Sync) -> Self {
        Self(Arc::new(value))
    }
}

impl fmt::Debug for LocalNonpersistent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalNonpersistent")
    }
}
