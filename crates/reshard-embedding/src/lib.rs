//! Variables that lie in parts on several tasks, and are one tensor everywhere else.
//!
//! - [`ShardedVariable`]: parts along the first axis, an embedding table; [`PartitionedVariable`]: along any axes; [`Mirrored`]: a
//!   copy on every task. What they share is [`Variable`]. [`VariableScope`] makes many of them.
//! - [`embedding_lookup`], [`embedding_lookup_sparse`], [`safe_embedding_lookup_sparse`] and [`lookup_gradients`], with
//!   [`LookupOptions`].
//! - [`Permutation`]: rows in an order that spreads the load, or in that of "mod" lookups.
//!
//! Names and results are those of TensorFlow, without its mistakes; `docs/embeddings.md` is the guide, and says where they differ. In
//! a checkpoint a variable is one tensor under its name: [`Variable::save_into`] and [`ShardedVariable::template_into`] put it into
//! state dicts of the facade `reshard`, which this crate does not need.
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
mod variable;

pub use error::{EmbeddingError, Result};
pub use ids::Ids;
pub use lookup::{
    Combiner, IndexedSlices, LookupOptions, SparseIds, Strategy, embedding_lookup, embedding_lookup_into,
    embedding_lookup_sparse, lookup_gradients, safe_embedding_lookup_sparse,
};
pub use mirrored::Mirrored;
pub use partitioned::PartitionedVariable;
pub use permutation::{Loads, Permutation};
pub use scope::{AnyVariable, Choice, Placement, VariableScope, slices_of};
pub use sharded::ShardedVariable;
pub use variable::{Cut, Index, Part, Tasks, Variable};
