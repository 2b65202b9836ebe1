//! PyTorch's TCPStore: a server of small values by key, at which the ranks of a job meet.

mod client;
mod server;
mod wire;

pub(crate) use client::StoreClient;
pub use server::StoreServer;
pub(crate) use server::wake_listener;

#[cfg(feature = "testkit")]
pub(crate) use {
    server::StoreAnswers,
    wire::{Request, value as read_value},
};
