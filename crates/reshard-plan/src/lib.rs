//! Floor 1 of reshard: what a checkpoint holds, and which rank writes and reads which part of it.
//!
//! - [`Metadata`]: the logical half of a commit record, as columns: tensors with their chunks, and objects.
//! - [`WriteItem`], [`ReadItem`], [`SavePlan`], [`LoadPlan`]: what ranks send to each other while they plan.
//! - [`Selection`]: what is wanted of a stored chunk, and the mapping to where it lies.
//! - [`SavePlanner`], [`LoadPlanner`]: the hooks of PyTorch DCP's protocol, and their defaults. By default replicas are written once, every
//!   chunk is checked against the other chunks of its tensor, and every wanted region against what is stored.
//! - [`Exchange`], [`SaveExchange`]: what a rank reads or has for others, and gets from others.
//! - [`cast`]: which casts of element types are allowed, and how they are done.
//!
//! The crate is pure: it has no I/O, no async and no clock. Plans depend only on their input, so all ranks agree on them.
//!
//! To change one thing, implement one hook; [`base`](SavePlanner::base) does the rest. To stack planners, return the inner planner from
//! `base`. [`SavePlanner`] and [`LoadPlanner`] have examples. `docs/planners.md` compares the hooks with PyTorch's.

#[cfg(doctest)]
mod book;
pub mod cast;
mod error;
mod exchange;
mod geometry;
mod global;
mod index;
mod item;
mod load;
mod metadata;
mod near;
mod paths;
mod read;
mod save;
mod selection;

pub use cast::Cast;
pub use error::{At, DuplicatePieces, PlanError, Problem, Problems, Result};
pub use exchange::{
    Demand, Exchange, ExchangeGroup, Give, Held, Offered, Receive, SaveExchange, Serve, Wanted,
    exchange_groups, place_item, save_exchange_groups, share_reads, share_writes, take_items,
};
pub use item::{
    Fill, LoadPlan, MemoryFormat, PieceId, PlannerData, ReadItem, Recast, SavePlan, Stored,
    TensorProperties, TensorWrite, WriteItem, WriteKind,
};
pub use load::{DefaultLoadPlanner, Destination, LoadContext, LoadPlanner};
pub use metadata::{ChunkId, Entry, Metadata, MetadataBuilder, ObjectId, TensorId, TensorRef};
pub use paths::paths_of_plan;
pub use save::{Dedup, DefaultSavePlanner, Offer, SaveContext, SavePlanner, WriteData};
pub use selection::{FlatView, Selection};
