//! Saves that go on while the caller changes its state: staged, written on a thread of their own, and committed by that
//! thread ([`AsyncSaver`]) or by the training loop ([`AsyncCallsQueue`]).

mod call;
mod ending;
mod handle;
mod queue;
mod request;
mod saver;
mod verdict;
mod worker;

pub use handle::SaveHandle;
pub use queue::{AsyncCallsQueue, Finalized};
pub use request::{AsyncRequest, FrozenRequest};
pub use saver::AsyncSaver;
