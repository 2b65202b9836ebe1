//! Groups of the ranks of an MPI job.
//!
//! [`MpiGroup`] is a [`ProcessGroup`](reshard_comm::ProcessGroup) for programs that `mpirun` or `srun` starts:
//!
//! ```no_run
//! use reshard_comm::{Comm, CommError};
//! use reshard_comm_mpi::MpiGroup;
//!
//! let group = MpiGroup::init()?;
//! let sum = futures::executor::block_on(
//!     Comm::new(&group).all_reduce("sum", Ok(1_u32), |parts| Ok(parts.iter().sum::<u32>())),
//! )?;
//! assert_eq!(sum, Comm::new(&group).size());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A job that has MPI hands over its communicator. The group works on a duplicate of it:
//!
//! ```no_run
//! use mpi::Threading;
//! use reshard_comm_mpi::MpiGroup;
//!
//! let (universe, _) = mpi::initialize_with_threading(Threading::Multiple).ok_or("MPI is initialized")?;
//! let group = MpiGroup::from_communicator(&universe.world())?;
//! // ... saves and loads ...
//! drop(group); // before the universe
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Threads
//!
//! One thread for each group makes all calls of MPI. It asks MPI again and again whether something has come, and never waits
//! inside it, so deadlines, aborts and dropped futures take effect at any time. When nothing is to do, it asks every 10
//! milliseconds. [`MpiGroup::init`] initializes MPI on that thread, for which `MPI_THREAD_FUNNELED` is enough. A job that
//! has initialized MPI itself needs `MPI_THREAD_MULTIPLE`, because its own threads call MPI, too. The group checks that.
//!
//! # Messages
//!
//! MPI counts in 32 bits. A message of more than 1 GiB goes in parts. A rank may send 16 messages or 64 MiB to another one
//! before that one has used them, or one message of any length. The receiver takes memory for a message when it is announced.
//!
//! # Building
//!
//! The crate needs an MPI library with its headers, and libclang; on Debian `libopenmpi-dev openmpi-bin libclang-dev`. The
//! variable `MPICC` names another compiler wrapper, for example `mpicc.mpich`. The crate is a workspace of its own, so
//! nothing else of reshard needs MPI.

mod book;
mod builder;
mod error;
mod group;
mod peer;
mod raw;
mod wire;
mod worker;

pub use builder::Builder;
pub use error::{MpiError, Result};
pub use group::MpiGroup;
