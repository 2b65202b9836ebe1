//! The data types of a distributed checkpoint.
//!
//! - [`DType`], [`Dims`], [`Region`], [`Layout`]: element types and n-dimensional boxes;
//! - [`Tensor`] over a [`HostBuffer`] that you may own, [`DeviceTensor`] over a [`DeviceBuffer`];
//! - [`LentBuffer`] and [`RegionMut`]: a load fills your buffers in place, from several threads, and returns them;
//! - [`Value`] and [`Tree`]: Python-like data, and one tree type for every phase of a state dict;
//! - [`ShardedTensor`], [`ShardedObject`], [`ShardedTensorFactory`], [`LocalNonpersistent`]: Megatron Core's sharded
//!   state dict, field by field; [`DeviceMesh`] and [`Placement`] declare the same as DTensor does;
//! - [`split`] and [`Skeleton::join`]: they split a state dict into the parts that a checkpoint stores, and join these
//!   parts again, in each [`Dialect`].
//!
//! The crate is pure: it has no I/O, no async and no clock, except that [`MemoryLimit`] reads the limits of the process. Only its module `buffer` has `unsafe` code, and an allocator for tests.
//!
//! ```
//! use reshard_model::{ShardedTensor, StateDict, Tensor};
//!
//! # fn main() -> Result<(), reshard_model::ModelError> {
//! let mut state = StateDict::new();
//! // this rank holds row block 1 of 4 of a tensor of shape (8, 3)
//! let local = Tensor::from_vec(&[2, 3], vec![0f32; 6])?;
//! state.insert("weight", ShardedTensor::from_rank_offsets("layer.weight", local, &[(0, 1, 4)])?);
//! state.insert("step", 1000);
//! # Ok(())
//! # }
//! ```

mod boxes;
mod buffer;
pub mod cast;
mod device;
mod dialect;
mod dims;
mod dtype;
mod element;
mod error;
mod layout;
mod memory_limit;
mod mesh;
mod overlap;
mod region;
mod secrets;
mod sharded;
mod split;
mod tensor;
mod text;
mod tree;
mod value;

pub use boxes::{BoxFault, first_fault};
pub use buffer::{
    Caches, CopyToDevice, HostBuffer, LentBuffer, LentView, RegionMut, StridedCopy, View,
    check_disjoint, copy_rows,
};
pub use cast::Cast;
pub use device::{DeviceBuffer, DeviceTensor};
pub use dialect::{Dialect, ParseDialectError};
pub use dims::Dims;
pub use dtype::{DType, ParseDTypeError, SafetensorsDType};
pub use element::Element;
pub use error::{
    BoxError, ErrorKind, ModelError, Result, SourceError, with_sources, write_with_causes,
};
pub use layout::{FlatView, Layout, Segments};
pub use memory_limit::MemoryLimit;
pub use mesh::{DeviceMesh, Placement, held_at};
pub use overlap::first_overlap;
pub use region::{Region, Rows, Select};
pub use secrets::without_secrets;
pub use sharded::{
    AxisCoordinates, AxisSlice, BuildFn, Data, FlatStateDict, Leaf, LocalNonpersistent, MergeFn,
    ObjectCodec, Payload, ReplicaId, ShardPlace, Sharded, ShardedObject, ShardedTensor,
    ShardedTensorFactory, StateDict, Swiglu, TensorSource, add_prefix_for_sharding,
    apply_prefix_mapping, local_chunk, replace_prefix_for_sharding,
};
pub use split::{
    Flatten, Parts, PathOfKey, PlainTensor, Skeleton, expand_factories, merge_factories, split,
    split_as, split_ref, unflatten,
};
pub use tensor::Tensor;
pub use text::{shortened, some};
pub use tree::{Difference, Path, Step, Tree, ValueTree, diff};
pub use value::{Construct, Opaque, Value};

#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
