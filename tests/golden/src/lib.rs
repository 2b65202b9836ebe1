//! Checkpoints that other programs wrote, read bit for bit, whole and damaged.
//!
//! A fixture is a folder with a checkpoint (`ckpt`) and what the program that wrote it says of it (`expected.json`). Those in
//! `tests/fixtures` are read by default; `RESHARD_FIXTURES` names another folder of the same layout: `dcp/NAME`,
//! `dcp/VERSION/NAME`, `megatron/NAME` and `tf/goldens/NAME.json`. What a test looks for and does not find there is an error.
//!
//! - [`fixtures`] finds them, [`Expected`] is what they say;
//! - [`compare`] holds a checkpoint that reshard opened against that;
//! - [`python`] compares values with Python's `repr`, and with the lossless form that Megatron's fixtures have;
//! - [`Scratch`] makes copies to damage;
//! - [`cases`] are those of TensorFlow's goldens;
//! - [`serve`] puts them behind a web server.

mod compare;
mod expected;
mod fixtures;
mod hash;
pub mod python;
mod safetensors;
mod scratch;
mod tensorflow;
mod web;

pub use compare::{Depth, chain, compare, compare_facts, compare_tensor};
pub use expected::{Chunk, Expected, Object, Place, Says, TensorFacts};
pub use fixtures::{Family, Fixture, fixtures};
pub use hash::sha256;
pub use reshard_model::testkit::{fixtures as root, ours};
pub use safetensors::{OfSafetensors, of_safetensors};
pub use scratch::Scratch;
pub use tensorflow::cases;
pub use web::{Requests, serve, serve_and_tell};
