//! Floor 1 of reshard: what a checkpoint holds, and who writes and reads which part of it.
//!
//! - [`Metadata`]: the logical half of a commit record, as columns: tensors with their chunks, objects;
//! - [`WriteItem`], [`ReadItem`], [`SavePlan`], [`LoadPlan`]: what travels between ranks while they decide;
//! - [`SavePlanner`], [`LoadPlanner`]: the hooks of PyTorch DCP's protocol, and their defaults, which flatten nothing away:
//!   replicas are kept once, every chunk is checked against its siblings, every wanted region against what is stored;
//! - [`flatten`] and [`unflatten`]: state dicts as DCP's dotted keys, and back;
//! - [`cast`]: which element types may become which, and how.
//!
//! The crate is pure: no I/O, no async, no clock. Plans depend on nothing but their input, so all ranks agree on them.
//!
//! # Three planners
//!
//! A planner that changes one thing implements one hook; the rest is done by its [`base`](SavePlanner::base). To stack
//! planners, return the inner one from `base`.
//!
//! ```
//! use reshard_plan::*;
//!
//! /// Every key gets a prefix.
//! #[derive(Debug)]
//! struct RenamePlanner;
//!
//! impl SavePlanner for RenamePlanner {
//!     fn create_local_plan(&self, state: &reshard_model::Flat, cx: &SaveContext<'_>) -> Result<SavePlan> {
//!         let mut plan = self.base().create_local_plan(state, cx)?;
//!         plan.items.iter_mut().for_each(|item| item.key = format!("foo_{}", item.key).into());
//!         Ok(plan)
//!     }
//! }
//! ```

pub mod cast;
mod error;
mod flatten;
mod geometry;
mod global;
mod index;
mod item;
mod load;
mod metadata;
mod near;
mod read;
mod save;

pub use cast::Cast;
pub use error::{At, PlanError, Problem, Problems, Result};
pub use flatten::{Flattened, flatten, unflatten};
pub use item::{
    Fill, LoadPlan, MemoryFormat, PieceId, PlannerData, ReadItem, Recast, SavePlan, Stored, TensorProperties,
    TensorWrite, WriteItem, WriteKind,
};
pub use load::{DefaultLoadPlanner, Destination, LoadContext, LoadPlanner};
pub use metadata::{ChunkId, Entry, Metadata, MetadataBuilder, ObjectId, TensorId, TensorRef};
pub use save::{Dedup, DefaultSavePlanner, Proposals, SaveContext, SavePlanner, WriteData};
