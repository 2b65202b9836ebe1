//! Rules that rename and rearrange the tensors of a checkpoint, as mappings of regions.
//!
//! - [`MapFile`]: the text of a map, in TOML. It has an ordered list of rules, and parameters;
//! - [`MapFile::named`]: maps between Megatron Core and Hugging Face's transformers;
//! - [`Map`]: the rules when the parameters are known, and the [inverse](Map::inverse) of all of them;
//! - [`Mapping`]: a map applied to the keys, types and shapes of a checkpoint. Each of its [`MappedTensor`]s is made of
//!   [`Piece`]s: which elements of the tensor are which elements of a source;
//! - [`Mapping::read`]: reads any region of a mapped tensor. It reads only what the region needs.
//!
//! The crate is pure. Applying a map reads no tensor, and needs as much memory as there are pieces.
//!
//! ```
//! use reshard_map::{Limits, MapFile, Source};
//! use reshard_model::{DType, Region};
//!
//! let file = MapFile::parse(r#"
//!     [[rule]]
//!     rename = "model.{name*}"
//!     to = "{name}"
//!
//!     [[rule]]
//!     transpose = "head.weight"
//!     axes = [1, 0]
//! "#)?;
//! let map = file.bind(&Default::default())?;
//! let stored = [Source::new("model.head.weight", DType::BFloat16, [3, 5])];
//! let mapped = map.apply(stored, [], Limits::default())?;
//!
//! // Row 2 of the mapped tensor is column 2 of the stored one.
//! let head = mapped.tensor("head.weight").unwrap();
//! let pieces = head.region(&Region::new([2, 0], [1, 3]));
//! assert_eq!(pieces[0].from_box(), Region::new([0, 2], [3, 1]));
//!
//! // The inverse map leads back.
//! let back = map.inverse()?.apply_after(&mapped, Limits::default())?;
//! assert!(back.tensor("model.head.weight").unwrap().is_identity());
//! # Ok::<(), reshard_map::MapError>(())
//! ```

mod additions;
mod apply;
mod budget;
mod error;
mod file;
mod map;
mod mapping;
mod number;
mod pattern;
mod piece;
mod read;
mod rule;
mod shipped;
mod tensor;

pub use additions::{AddedCommon, Additions};
pub use error::{Limits, MapError, Result};
pub use file::{MapFile, Parameter};
pub use map::{Map, Unmapped};
pub use mapping::{Dropped, Mapping, Source};
pub use pattern::Pattern;
pub use piece::{Loop, Move, Piece};
pub use read::Elements;
pub use tensor::MappedTensor;
