//! Variables whose parts lie on several tasks. In programs and checkpoints each variable is one tensor.
//!
//! - [`ShardedVariable`] has parts along the first axis, such as an embedding table. [`PartitionedVariable`] has parts
//!   along any axes. [`Mirrored`] has a copy on every task. [`Variable`] is what they share. [`VariableScope`] makes
//!   many of them.
//! - [`embedding_lookup`], [`embedding_lookup_sparse`], [`safe_embedding_lookup_sparse`] and [`lookup_gradients`], with
//!   [`LookupOptions`], take any [`Table`].
//! - [`embedding_lookup_over`] and [`lookup_gradients_over`] do the same over a group of ranks, for parts of other ranks.
//! - [`Permutation`]: an order of rows that spreads the load, or the order of "mod" lookups.
//!
//! Names and results are TensorFlow's, without its bugs. `docs/embeddings.md` is the guide, and lists the differences.
//! In a checkpoint a variable is one tensor under its name. [`Variable::save_into`] and
//! [`ShardedVariable::template_into`] put it into state dicts for the facade `reshard`. This crate does not depend on
//! that facade.
//!
//! ```
//! use reshard_embedding::{LookupOptions, ShardedVariable, embedding_lookup};
//! use reshard_model::Tensor;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let part = |rows: Vec<f32>| Tensor::from_vec(&[rows.len() as u64 / 2, 2], rows);
//! let table = ShardedVariable::from_parts("emb", [part(vec![0., 0., 1., 1.])?, part(vec![2., 2.])?])?;
//! let rows = embedding_lookup(&table, &[2, 0], &LookupOptions::new())?;
//! assert_eq!(rows.to_vec::<f32>().unwrap(), [2., 2., 0., 0.]);
//! # Ok(())
//! # }
//! ```

#[macro_use]
mod forward;

#[cfg(doctest)]
mod book;
mod error;
mod ids;
mod lookup;
mod memory;
mod mirrored;
mod number;
mod partitioned;
mod permutation;
mod rows;
mod scope;
mod sharded;
mod table;
mod variable;

pub use error::{EmbeddingError, Result};
pub use ids::Ids;
pub use lookup::{
    Combiner, Gradient, IndexedSlices, LookupOptions, SparseIds, Strategy, embedding_lookup,
    embedding_lookup_into, embedding_lookup_over, embedding_lookup_sparse, lookup_gradients,
    lookup_gradients_over, safe_embedding_lookup_sparse,
};
pub use mirrored::Mirrored;
pub use partitioned::PartitionedVariable;
pub use permutation::{Loads, Permutation};
pub use scope::{AnyVariable, Choice, Placement, VariableScope, slices_of};
pub use sharded::ShardedVariable;
pub use table::Table;
pub use variable::{Cut, Index, Part, PlacementHint, Tasks, Variable};
