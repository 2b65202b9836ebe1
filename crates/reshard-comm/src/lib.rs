//! Communication between ranks.
//!
//! [`ProcessGroup`] is the transport: it moves bytes between the ranks of a job, and knows only its own errors. The
//! training job owns it, and reshard borrows it. [`Comm`] is reshard's protocol over it. In each step a rank does its
//! part, hands in the outcome, and learns the same result as all other ranks. If one rank fails, panics, drops its
//! future or stops answering, all ranks get an error with the step, the ranks and the causes. No rank hangs.
//!
//! [`LocalGroup`] is a group of threads or tasks of one process. [`SingleProcess`] is a group of one.
//!
//! ```
//! use futures::{executor::block_on, future::join_all};
//! use reshard_comm::{Cause, Comm, CommError, LocalGroup, Rank};
//! use reshard_model::ErrorKind;
//!
//! let groups = LocalGroup::new(3);
//! let outcomes = block_on(join_all(groups.iter().map(|group| async move {
//!     let comm = Comm::new(group);
//!     // The coordinator sees all parts and decides; its decision goes back to all.
//!     let sum: u32 = comm.all_reduce("plan", Ok(comm.rank().0), |parts| Ok(parts.iter().sum())).await?;
//!     assert_eq!(sum, 3);
//!     // Rank 1 fails; all ranks learn it, and the group stays usable.
//!     let wrote = if comm.rank() == Rank(1) { Err(Cause::new(ErrorKind::Unavailable, "disk full")) } else { Ok(()) };
//!     comm.agree("write", wrote).await
//! })));
//! for outcome in outcomes {
//!     let Err(error @ CommError::Ranks { .. }) = outcome else { panic!("{outcome:?}") };
//!     assert_eq!(error.to_string(), "step `write` failed on 1 rank: rank 1: disk full");
//!     assert_eq!(error.kind(), ErrorKind::Unavailable);
//! }
//! ```

#[cfg(doctest)]
mod book;
mod cause;
mod comm;
mod error;
mod group;
mod local;
#[cfg(feature = "mesh")]
pub mod mesh;
mod rank;
mod step;
#[cfg(feature = "testkit")]
pub mod testkit;
mod timer;
mod wire;

pub use cause::Cause;
pub use comm::{Comm, DEFAULT_DEADLINE, DEFAULT_QUIET};
pub use error::{CommError, Result};
pub use group::{ProcessGroup, SingleProcess};
pub use local::LocalGroup;
pub use rank::Rank;
pub use step::{Guard, WAITING_EVENTS};
pub use timer::Timer;
