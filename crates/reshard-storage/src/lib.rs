//! Bytes in places: the files of a checkpoint, written and committed in one atomic step, read in ranges.
//!
//! - [`Store`]: a place that holds files by [`Name`]: a directory, one file, or files with a common prefix ([`PlaceKind`]); ranged
//!   reads, and [`RecordRead`], which lands wanted elements of stored records straight in the regions of a load; [`StoreExt`] has
//!   what follows from what every store does, [`Recovery`] is for places that a crash can leave half replaced;
//! - [`Transaction`]: a version of that place that nobody can see yet; [`Transaction::commit`] is the one atomic step;
//! - [`LocalStore`]: local directories, with positional vectored I/O on threads of their own, so that any executor will do;
//! - [`Stores`]: which store a URL means, by its scheme; [`OpenStore`], to hand in clients, credentials and runtimes;
//! - [`CountingStore`]: what is read and written through it.
//!
//! The crate knows names, ranges, durability and commit; it knows no tensors, plans or formats.

mod body;
mod counting;
mod error;
mod ext;
#[cfg(feature = "testkit")]
pub mod failpoint;
#[cfg(not(feature = "testkit"))]
mod failpoint;
mod local;
mod name;
mod part;
mod pool;
mod record_read;
mod recovery;
mod run;
mod store;
mod stores;
#[cfg(feature = "testkit")]
pub mod testkit;
#[cfg(feature = "testkit")]
pub mod trail;
#[cfg(not(feature = "testkit"))]
mod trail;
mod wait;

pub use body::{Durability, Entry, Extent, FileBody, Length, Progress, Source, Written, WrittenExtent};
pub use counting::{CountingStore, Counts};
pub use error::{Result, StorageError};
pub use ext::StoreExt;
pub use local::LocalStore;
pub use name::Name;
pub use part::{PartStore, PlaceKind};
pub use record_read::{Checksum, Part, ReadStats, RecordRead};
pub use recovery::{Leftover, Recovery};
pub use run::run_blocking;
pub use store::{Depth, Head, Hints, IfExists, Link, Listing, Store, Transaction};
pub use stores::{OpenStore, StoreScheme, Stores};
pub use wait::wait;

/// What a crate needs to announce its [`StoreScheme`].
pub use inventory;
