//! For transports that move messages between pairs of ranks, such as TCP and MPI: all the rest of a group.
//!
//! A [`Mesh`] holds the links of a rank and the state of its groups. It does no I/O. Messages go into the queue of a link,
//! which the transport empties; what arrives goes to [`Mesh::arrived`]. Work that may block is a [`Task`]. [`MeshGroup`] makes
//! collectives, sub-groups and aborts of that, with a bound for what a rank may send before others have used it. A
//! transport's group type implements [`OverMesh`], and is a [`ProcessGroup`](crate::ProcessGroup) by that.
//!
//! # Links
//! A link is idle until this rank or the other one needs it. Then it gets a queue:
//! - The mesh hands out [`Task::Dial`]. If the transport reaches the other rank, it calls [`Mesh::reached`], else
//!   [`Mesh::unreachable`].
//! - The other rank comes first. The transport calls [`Mesh::called_by`].
//!
//! The transport sends all messages of the queue in their order, until the queue is closed. It delivers the messages of each
//! rank in the order in which that rank sent them. [`Kind::Bye`] is a rank's last message: the transport calls
//! [`Mesh::gone`] for it, with [`Message::goodbye`]. A link is in use until [`Mesh::end_sending`] and [`Mesh::end_hearing`],
//! for [`Mesh::shut`], which the transport calls when the last group of the rank is dropped.

mod collective;
mod group;
mod limit;
mod links;
mod message;
mod method;
mod room;
mod state;
mod tree;

pub use group::{MeshGroup, Node, OverMesh};
pub use limit::Limit;
pub use links::{Admission, Mesh};
pub use message::{Call, Kind, Message};
pub use state::Task;
