//! The names that most programs need: `use reshard::prelude::*;`.
//!
//! ```
//! use reshard::prelude::*;
//!
//! # let dir = tempfile::tempdir()?;
//! # let url = dir.path().join("step-1").display().to_string();
//! let mut state = StateDict::new();
//! state.insert("w", ShardedTensor::full("w", Tensor::from_vec(&[2], vec![1f32, 2.])?));
//! blocking::save(&state, &url)?;
//! assert_eq!(blocking::Checkpoint::open(&url)?.tensor("w")?.dtype(), DType::Float32);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use crate::{
    Cast, Checkpoint, DType, Data, Dialect, Durability, ErrorKind, LoadError, LocalGroup,
    OpenOptions, ProcessGroup, Rank, Region, ShardedObject, ShardedTensor, ShardingPolicy,
    SingleProcess, StateDict, Tensor, TensorHandle, Value, ValueTree, blocking, load, save,
};
