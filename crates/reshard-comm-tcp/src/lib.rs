//! Groups of ranks in processes of their own, joined by TCP.
//!
//! [`TcpGroup`] is a [`ProcessGroup`](reshard_comm::ProcessGroup) for jobs that `torchrun`, `srun` or a loop in a shell
//! starts. It needs no MPI, no NCCL and no Python:
//!
//! ```no_run
//! use reshard_comm::{Comm, CommError};
//! use reshard_comm_tcp::TcpGroup;
//!
//! let group = TcpGroup::from_env()?; // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//! let sum = futures::executor::block_on(
//!     Comm::new(&group).all_reduce("sum", Ok(1_u32), |parts| Ok(parts.iter().sum::<u32>())),
//! )?;
//! assert_eq!(sum, Comm::new(&group).size());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How ranks meet
//!
//! All ranks go to a store that speaks the protocol of PyTorch's TCPStore, at `MASTER_ADDR:MASTER_PORT`. It is the store
//! of the running job, for example the one that torchrun serves, or rank 0 serves one ([`Serve`], [`StoreServer`]). The
//! keys of a group begin with `reshard/`, so they are in nobody's way. Each rank writes where it listens. From then on
//! ranks talk to each other directly.
//!
//! # Who gets in
//!
//! Rank 0 makes a random token of 32 bytes. The ranks exchange it through the store, and remove it when all have it.
//! Each connection begins with a handshake in which both sides prove by HMAC-SHA256 over fresh nonces that they know the
//! token. No byte of a message is read before. So strangers on the network can't join, and can't use what they recorded.
//! At most 64 unproven connections are open at a time, each for at most 5 seconds.
//!
//! Jobs that are given the same store by accident are kept apart by their ids ([`Builder::job_id`]). Two running processes with the same rank
//! make both groups fail: each rank leaves a token in the store, with which another process can *knock* at its port. A knock lets nobody in.
//!
//! TCPStore itself asks nobody who they are, and nothing is encrypted. Whoever can reach the store while the ranks meet,
//! or read the traffic of the job, must be trusted.
//!
//! # Example
//!
//! Two ranks on two threads, with a store of their own:
//!
//! ```
//! use futures::executor::block_on;
//! use reshard_comm::ProcessGroup;
//! use reshard_comm_tcp::{Serve, StoreServer, TcpGroup};
//!
//! let store = StoreServer::bind("127.0.0.1:0".parse()?)?;
//! let port = store.address().port();
//! let ranks = [0, 1].map(|rank| {
//!     std::thread::spawn(move || {
//!         let group =
//!             TcpGroup::builder().rank(rank, 2).master("127.0.0.1", port).serve(Serve::Nobody).connect().unwrap();
//!         block_on(group.all_gather(vec![rank as u8].into())).unwrap().concat()
//!     })
//! });
//! for rank in ranks {
//!     assert_eq!(rank.join().unwrap(), [0, 1]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod builder;
mod claims;
mod clock;
mod connection;
mod env;
mod error;
mod files;
mod frame;
mod gate;
mod group;
mod handshake;
mod listen;
mod meet;
mod store;
mod tasks;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use builder::{Builder, Serve};
pub use error::{Result, TcpError};
pub use group::TcpGroup;
pub use store::StoreServer;
