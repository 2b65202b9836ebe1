//! The files of a checkpoint: written, committed in one atomic step, and read in ranges.
//!
//! - [`Store`]: a place that holds files by [`Name`]. A place is a directory, one file, or files with a common prefix
//!   ([`PlaceKind`]). A store reads ranges. With [`RecordRead`] it puts wanted elements of stored records straight into
//!   the regions of a load. [`StoreExt`] has functions that work with every store. [`Recovery`] is for places that a
//!   crash can leave half replaced.
//! - [`Transaction`]: a new version of a place that nobody can see yet. [`Transaction::commit`] is the one atomic step.
//! - [`LocalStore`] (feature `local`, on by default): local directories, with positional vectored I/O on its own threads, so any executor works.
//! - [`Stores`]: finds the store for a URL by its scheme. [`OpenStore`] passes in clients, credentials and runtimes.
//! - [`CountingStore`]: counts what is read and written through it. [`ThrottledStore`]: limits how many bytes move in a second.
//! - [`read_through`]: a cache on a local disk for places that are far away.
//!
//! The crate knows names, ranges, durability and commit; it knows no tensors, plans or formats.

#[cfg(feature = "testkit")]
pub mod action_log;
#[cfg(all(feature = "local", not(feature = "testkit")))]
mod action_log;
mod attempt;
mod bandwidth;
mod body;
mod cached;
mod counting;
mod dry_run;
mod error;
mod ext;
#[cfg(feature = "testkit")]
pub mod failpoint;
#[cfg(all(feature = "local", not(feature = "testkit")))]
mod failpoint;
mod forward;
#[cfg(feature = "local")]
mod local;
mod mark;
mod name;
mod part;
#[cfg_attr(
    not(feature = "local"),
    expect(dead_code, reason = "only local places use all of it")
)]
mod pool;
#[cfg_attr(
    not(feature = "local"),
    expect(dead_code, reason = "only local places use all of it")
)]
mod record_read;
mod recovery;
mod run;
mod store;
mod stores;
mod tags;
#[cfg(feature = "testkit")]
pub mod testkit;
mod throttled;
mod traffic;
mod wait;

pub use attempt::{is_attempt, left_place, removed_place};
pub use bandwidth::{Bandwidth, Clock};
pub use body::{
    Durability, Entry, Extent, ExtentReader, FileBody, Length, Progress, Source, Written,
    WrittenExtent,
};
#[doc(hidden)]
pub use bytes::Bytes as __Bytes; // for `forward!`
#[doc(hidden)]
pub type __Answer<'a, T> = std::pin::Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>; // also for `forward!`
pub use cached::{CachedStore, DiskCache, read_through};
pub use counting::{CountingStore, Counts};
pub use dry_run::DryTransaction;
pub use error::{Result, ServiceFault, StorageError, shown_path};
pub use ext::StoreExt;
#[cfg(feature = "local")]
pub use local::LocalStore;
pub use name::Name;
pub use part::{PartStore, PartWriter, PlaceKind, PrefixLister};
pub use pool::{work_here, works_here};
pub use record_read::{
    Checksum, Part, RecordRead,
    reads::{ReadPieces, TakePiece, joined_reads, read_pieces_into},
};
pub use recovery::{Leftover, Recovery, Removal, UnfinishedUpload, remove_by_record};
pub use reshard_model::without_secrets;
pub use run::run_blocking;
pub use store::{Depth, Head, Hints, IfExists, Link, Listing, Store, Transaction};
pub use stores::{OpenStore, StoreScheme, Stores};
pub use tags::{Among, KnownTags, Tagged, Tags};
pub use throttled::ThrottledStore;
pub use traffic::Traffic;
pub use wait::wait;

/// What a crate needs to announce its [`StoreScheme`].
pub use inventory;
