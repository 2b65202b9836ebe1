//! Floor 1 of reshard: what a checkpoint holds, and who writes and reads which part of it.
//!
//! - [`Metadata`]: the logical half of a commit record, as columns: tensors with their chunks, objects;
//! - [`WriteItem`], [`ReadItem`], [`SavePlan`], [`LoadPlan`]: what travels between ranks while they decide;
//! - [`Selection`]: what is wanted of a stored chunk, mapped onto where that lies;
//! - [`SavePlanner`], [`LoadPlanner`]: the hooks of PyTorch DCP's protocol, and their defaults: replicas are written once,
//!   every chunk is checked against its siblings, every wanted region against what is stored;
//! - [`Exchange`]: what a rank of a load reads for others, and gets from others;
//! - [`cast`]: which element types may become which, and how.
//!
//! The crate is pure: no I/O, no async, no clock. Plans depend on nothing but their input, so all ranks agree on them.
//!
//! A planner that changes one thing implements one hook; the rest is done by its [`base`](SavePlanner::base). To stack
//! planners, return the inner one from `base`. [`SavePlanner`] and [`LoadPlanner`] have examples;
//! `docs/planners.md` says which hook of PyTorch is which of ours.

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
mod read;
mod save;
mod selection;

pub use cast::Cast;
pub use error::{At, DuplicatePieces, PlanError, Problem, Problems, Result};
pub use exchange::{Demand, Exchange, ExchangeGroup, Receive, Serve, Wanted, exchange_groups, share_reads};
pub use item::{
    Fill, LoadPlan, MemoryFormat, PieceId, PlannerData, ReadItem, Recast, SavePlan, Stored, TensorProperties,
    TensorWrite, WriteItem, WriteKind,
};
pub use load::{DefaultLoadPlanner, Destination, LoadContext, LoadPlanner};
pub use metadata::{ChunkId, Entry, Metadata, MetadataBuilder, ObjectId, TensorId, TensorRef};
pub use save::{Dedup, DefaultSavePlanner, Offer, SaveContext, SavePlanner, WriteData};
pub use selection::{FlatView, Selection};
