//! Variables that lie in parts, and are one tensor everywhere else.

#[macro_use]
mod forward;

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
