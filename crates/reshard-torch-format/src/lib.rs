//! What `torch.save` and `pickle` write, read and written in Rust. Nothing is ever executed: a class that reshard does not
//! know is data, which is shown, kept and written back.
//!
//! - [`load`] and [`save`]: a whole file to a [`Value`](reshard_model::Value) and back; [`TorchSave`] is the same as the
//!   codec of stored objects;
//! - [`archive`]: the zip archives, with their layout computed before the first byte is written, and read in ranges;
//! - [`TensorRef`]: the description of one tensor in an archive, so that parts of it can be read;
//! - [`pickle`]: instructions, a machine that builds whatever its [`Build`](pickle::Build) makes, and a writer.
//!
//! The crate does no I/O. All input may be hostile: lengths are checked before memory is taken, nesting and expansion are
//! [limited](Limits), and every error says at which byte.
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
//! The bytes written equal those of torch for the same tensors and simple values, down to `.data/serialization_id`.

mod entry;
mod error;
mod legacy;
mod limits;
mod memory;
mod tensor;
mod value;

pub mod archive;
pub mod pickle;

pub use entry::{LoadOptions, TorchSave, load, load_archive, load_with, save, save_with};
pub use error::{Error, Result};
pub use limits::{Budget, Limits};
pub use tensor::{Location, StorageRef, TensorRef};
pub use value::{Encoded, encode};
