//! Floor 0 of reshard: what a distributed checkpoint is made of, and nothing that moves.
//!
//! - [`DType`], [`Dims`], [`Region`], [`Layout`]: element types and n-dimensional boxes;
//! - [`Tensor`] over a [`HostBuffer`] that the caller may own, [`DeviceTensor`] over a [`DeviceBuffer`];
//! - [`LentBuffer`] and [`RegionMut`]: how a load fills a caller's buffers in place, from several threads, and gives them back;
//! - [`Value`] and [`Tree`]: plain Python-like data, and one tree shape for every stage of a state dict;
//! - [`ShardedTensor`], [`ShardedObject`], [`ShardedTensorFactory`], [`LocalNonpersistent`]: Megatron Core's sharded
//!   state dict, field by field; [`DeviceMesh`] and [`Placement`]: DTensor's way to say the same;
//! - [`split`] and [`Skeleton::join`]: a state dict taken apart into what a checkpoint holds, and put together again, in both
//!   [`Dialect`]s.
//!
//! The crate is pure: no I/O, no async, no clock. Its one module with `unsafe` is `buffer`.
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
mod device;
mod dialect;
mod dims;
mod dtype;
mod element;
mod error;
mod layout;
mod mesh;
mod region;
mod sharded;
mod split;
mod tensor;
mod tree;
mod value;

pub use boxes::{BoxFault, first_fault, first_overlap};
pub use buffer::{HostBuffer, LentBuffer, LentView, RegionMut, StridedCopy};
pub use device::{DeviceBuffer, DeviceTensor};
pub use dialect::{Dialect, ParseDialectError};
pub use dims::Dims;
pub use dtype::{DType, ParseDTypeError};
pub use element::Element;
pub use error::{BoxError, ErrorKind, ModelError, Result, SourceError};
pub use layout::{Layout, Segments};
pub use mesh::{DeviceMesh, Placement};
pub use region::{Region, Rows, Select};
pub use sharded::{
    AxisCoordinates, AxisSlice, BuildFn, Data, FlatStateDict, Leaf, LocalNonpersistent, MergeFn, ObjectCodec,
    Payload, ReplicaId, Sharded, ShardedObject, ShardedTensor, ShardedTensorFactory, StateDict, Swiglu,
    TensorSource, add_prefix_for_sharding, apply_prefix_mapping, local_chunk, replace_prefix_for_sharding,
};
pub use split::{
    Flatten, Parts, PathOfKey, PlainTensor, Skeleton, expand_factories, merge_factories, split, split_as,
    unflatten,
};
pub use tensor::Tensor;
pub use tree::{Difference, Path, Step, Tree, ValueTree, diff};
pub use value::{Construct, Opaque, Value};

#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
