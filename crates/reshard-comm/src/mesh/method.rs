//! The names of collectives on the wire.

use super::message::Call;
use std::fmt;

/// A method of `ProcessGroup`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Method {
    AllToAll = 1,
    AllGather,
    Barrier,
    Gather,
    Scatter,
    Broadcast,
    Split,
}

const NAMES: [(Method, &str); 7] = [
    (Method::AllToAll, "all_to_all"),
    (Method::AllGather, "all_gather"),
    (Method::Barrier, "barrier"),
    (Method::Gather, "gather"),
    (Method::Scatter, "scatter"),
    (Method::Broadcast, "broadcast"),
    (Method::Split, "split"),
];

/// Prints a call: `call 3, gather with root 0`.
pub(super) struct Described(pub(super) Call);

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call {
            number,
            method,
            root,
        } = self.0;
        let known = NAMES.into_iter().find(|(known, _)| *known as u8 == method);
        let (known, name) = known.unzip();
        let name = name.unwrap_or("an unknown method");
        write!(f, "call {number}, {name}")?;
        match known {
            Some(Method::Gather | Method::Scatter | Method::Broadcast) => {
                write!(f, " with root {root}")
            }
            _ => Ok(()),
        }
    }
}
