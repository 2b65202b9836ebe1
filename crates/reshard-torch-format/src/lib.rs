//! Reads and writes files of `torch.save` and `pickle` in Rust. It never executes anything: an unknown class is data, which is shown,
//! kept and written back.
//!
//! - [`load`] and [`save`] convert a whole file to a [`Value`](reshard_model::Value) and back. [`TorchSave`] does the same as a codec of
//!   stored objects.
//! - [`archive`] has the zip archives. Their layout is computed before the first byte is written. They can be read in ranges.
//! - [`Outline`] tells what a file holds, path by path, without its elements. [`encode_tree`] writes the pickle of a file whose elements come
//!   later.
//! - [`TensorRef`] is the description of one tensor in an archive. With it you can read parts of the tensor.
//! - [`pickle`] has the instructions, an interpreter that builds what its [`Build`](pickle::Build) makes, and a writer.
//!
//! The crate does no I/O. All input may be hostile: lengths are checked before memory is allocated, nesting and expansion are
//! [limited](Limits), and every error names the byte.
//!
//! ```
//! use reshard_model::{Tensor, Value};
//! use reshard_torch_format::{load, save};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let weight = Value::Tensor(Tensor::from_vec(&[2], vec![0.5f32, 1.5])?);
//! # let file = save(&Value::Dict(vec![("embed.weight".into(), weight), ("step".into(), 3.into())]))?;
//! // let file = std::fs::read("model.pt")?;
//! let Value::Dict(state) = load(file.into())? else { return Err("model.pt holds no dict".into()) };
//! let (embed, rest): (Vec<_>, Vec<_>) =
//!     state.into_iter().partition(|(key, _)| key.as_str().is_some_and(|key| key.starts_with("embed.")));
//! assert_eq!((embed.len(), rest.len()), (1, 1));
//! let file = save(&Value::Dict(embed))?; // std::fs::write("embed.pt", file)?, and `torch.load` reads it
//! # Ok(())
//! # }
//! ```
//!
//! For the same tensors and simple values, the written bytes equal those of torch, even in `.data/serialization_id`.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice))]

mod entry;
mod error;
mod legacy;
mod limits;
mod memory;
mod outline;
mod tensor;
mod value;

pub mod archive;
pub mod pickle;

pub use entry::{LoadOptions, TorchSave, load, load_with, save, save_with};
pub use error::{Error, Result};
pub use legacy::{LegacyHead, LegacyStorage};
pub use limits::{Budget, Limits};
pub use outline::{
    Contents, Found, FoundDict, FoundModule, FoundSubclass, KeyType, Leaf, Modules, ObjectAt,
    Outline, ScriptClasses, Subclass,
};
pub use tensor::{
    Location, Mesh, PartRef, Spread, SpreadFile, SpreadGroup, SpreadPath, SpreadTable, StorageRef,
    TensorRef,
};
pub use value::{Encoded, EncodedTree, Part, PartDict, PartTree, Stored, encode, encode_tree};
