//! What a checkpoint holds, and which rank writes and reads which part of it.
//!
//! - [`Metadata`]: the logical half of a format record, as columns: tensors with their chunks, and objects.
//! - [`WriteItem`], [`ReadItem`], [`SavePlan`], [`LoadPlan`]: what ranks send to each other while they plan.
//! - [`Selection`]: what is wanted of a stored chunk, and the mapping to where it lies.
//! - [`SavePlanner`], [`LoadPlanner`]: the hooks of PyTorch DCP's protocol, and their defaults. By default replicas are written once, every
//!   chunk is checked against the other chunks of its tensor, and every wanted region against what is stored.
//! - [`Exchange`], [`SaveExchange`]: what a rank reads or has for others, and gets from others.
//! - [`cast`]: which casts of element types are allowed, and how they are done.
//!
//! The crate is pure: it has no I/O, no async and no clock. Plans depend only on their input, so all ranks agree on them.
//!
//! # A whole plan
//!
//! Two ranks save rows, three ranks load columns. The caller makes the calls in this order, and moves plans between ranks and bytes between
//! files (here: within one program). `reshard-strategy` does so for real ranks and files.
//!
//! ```
//! use reshard_model::{DType, Data, FlatStateDict, Path, Region, Sharded, ShardedTensor, Tensor};
//! use reshard_plan::*;
//!
//! fn leaf(tensor: ShardedTensor) -> FlatStateDict {
//!     [(Path(vec!["w".into()]), Sharded::Tensor(tensor))].into()
//! }
//!
//! # fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
//! // Each rank has one row of a tensor of shape [2, 3].
//! let row = |rank: u64| Tensor::from_vec(&[1, 3], (0..3).map(|i| (3 * rank + i) as f32).collect());
//! let states = [0, 1].map(|rank| leaf(ShardedTensor::from_rank_offsets("w", row(rank).unwrap(), &[(0, rank, 2)]).unwrap()));
//!
//! // A save: a local plan on each rank, the global plan on one of them, and its part back to each rank.
//! let planner = DefaultSavePlanner::DEFAULT;
//! let (mut offers, mut states) = (Vec::new(), states);
//! for (rank, state) in (0..).zip(&mut states) {
//!     let cx = SaveContext::new(rank, rank == 0);
//!     planner.set_up(state, &cx)?;
//!     offers.push(planner.create_local_plan(state, &cx)?);
//! }
//! let (plans, metadata) = planner.create_global_plan(offers)?;
//! let mut files = Vec::new(); // what is stored: pieces with their elements
//! for (plan, state) in plans.into_iter().zip(&states) {
//!     for item in &planner.finish_plan(plan)?.items {
//!         let data = planner.transform_object(item, planner.lookup_object(item, state)?)?;
//!         let WriteData::Tensor(Data::Host(elements)) = data else { panic!("a tensor in memory") };
//!         files.push((item.id(), elements));
//!     }
//! }
//! assert_eq!((metadata.tensor_count(), metadata.chunk_count()), (1, 2));
//!
//! // A load: the same steps. `metadata` is all that the ranks know of the save.
//! let planner = DefaultLoadPlanner::DEFAULT;
//! let mut wishes = Vec::new();
//! for rank in 0..3 {
//!     let cx = LoadContext::new(&metadata, rank, rank == 0);
//!     let column = Region::new([0, rank.into()], [2, 1]);
//!     let mut template = leaf(ShardedTensor::region_of("w", DType::Float32, &[2, 3], column));
//!     planner.set_up(&mut template, &cx)?;
//!     wishes.push(planner.create_local_plan(&template, &cx)?);
//! }
//! let plans = planner.create_global_plan(wishes, &LoadContext::new(&metadata, 0, true))?;
//! for (rank, plan) in plans.into_iter().enumerate() {
//!     let mut column = Vec::new();
//!     for item in &planner.finish_plan(plan)?.items {
//!         let (_, chunk) = files.iter().find(|(id, _)| *id == item.piece).ok_or("not stored")?;
//!         // Its place in the column is `item.dest_region`; the items come in this order.
//!         column.extend(chunk.narrow(&item.stored_region).to_vec::<f32>()?);
//!     }
//!     assert_eq!(column, [rank as f32, 3.0 + rank as f32]);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Planners
//!
//! To change one thing, implement one hook; [`base`](SavePlanner::base) does the rest. To stack planners, return the inner planner from
//! `base`. [`SavePlanner`] and [`LoadPlanner`] have examples. `docs/planners.md` compares the hooks with PyTorch's.

mod annotation;
mod error;
mod exchange;
mod flat;
mod geometry;
mod global;
mod index;
mod integrity;
mod item;
mod load;
mod metadata;
mod near;
mod paths;
mod quantized;
mod read;
mod save;
mod selection;
mod shapes;
mod strict;

pub use annotation::{AnnotationId, AnnotationKind, Annotations};
pub use error::{At, DuplicatePieces, Fault, PlanError, Problem, Problems, Result};
pub use exchange::{
    Demand, Exchange, ExchangeAlgo, ExchangeGroup, Give, Held, Offered, Receive, SaveExchange,
    Serve, Wanted, exchange_groups, place_item, save_exchange_groups, share_reads, share_writes,
    take_items,
};
pub use integrity::{Declaration, Declared, validate_sharding_integrity};
pub use item::{
    Fill, LoadPlan, MemoryFormat, PieceId, PlannerData, ReadItem, Recast, SavePlan, Stored,
    TensorProperties, TensorWrite, WriteItem, WriteKind,
};
pub use load::{DefaultLoadPlanner, Destination, LoadContext, LoadPlanner};
pub use metadata::{ChunkId, Entry, Metadata, MetadataBuilder, ObjectId, TensorId, TensorRef};
pub use near::similar;
pub use paths::paths_of_plan;
pub use quantized::scale_of;
pub use save::{Dedup, DefaultSavePlanner, Offer, SaveContext, SavePlanner, WriteData};
pub use selection::Selection;
pub use strict::{Elsewhere, StrictHandling, UnknownStrictness};

pub use reshard_model::{Cast, cast};
