//! A strategy and a scheme of stores of a third party: the model for crates that add a format or a place to reshard, as
//! `docs/strategies.md` describes them.
//!
//! The format, `("example", 1)`: each rank writes `rank-{rank}.bin`, its items one behind the other (row-major little-endian
//! elements, or encoded objects); `example.index.json` says what lies where with which CRC-32, and is the format record.
//! The store, `example://NAME`, keeps files in the memory of the process.
//!
//! A program links all of it by one line, and then chooses it by configuration alone:
//!
//! ```
//! use reshard_example as _;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let strategy: reshard::strategy::SaveShardedStrategy = serde_json::from_str(r#"{ "format": "example" }"#)?;
//! let mut state = reshard::StateDict::new();
//! let weight = reshard::Tensor::from_vec(&[2], vec![1f32, 2.])?;
//! state.insert("weight", reshard::ShardedTensor::full("weight", weight));
//! reshard::blocking::run(reshard::save(&state, "example://first-page").strategy(strategy))?;
//!
//! // A load finds the strategy by what the checkpoint says.
//! let tensors = reshard::blocking::load_plain_tensors("example://first-page")?;
//! assert_eq!(tensors["weight"].to_vec::<f32>().unwrap(), [1., 2.]);
//! # Ok(())
//! # }
//! ```

mod format;
mod store;

pub use format::{ExampleConfig, ExampleLoadConfig, ExampleWriter};

/// The guide, so that its code is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/strategies.md")]
struct Guide;

/// A program with this crate in it.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/cli.md")]
struct WithProgram;

/// Name of the format, of its configuration's tag, and of the store's scheme.
pub const NAME: &str = "example";
