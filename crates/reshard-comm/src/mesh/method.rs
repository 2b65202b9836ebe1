//! The names of collectives on the wire.

use super::message::Call;
use std::fmt;

/// A method of `ProcessGroup`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    AllToAll,
    AllGather,
    Barrier,
    Gather,
    Scatter,
    Broadcast,
    Split,
}

impl Method {
    const ALL: [Self; 7] = [
        Self::AllToAll,
        Self::AllGather,
        Self::Barrier,
        Self::Gather,
        Self::Scatter,
        Self::Broadcast,
        Self::Split,
    ];

    /// Its number in a frame.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::AllToAll => 1,
            Self::AllGather => 2,
            Self::Barrier => 3,
            Self::Gather => 4,
            Self::Scatter => 5,
            Self::Broadcast => 6,
            Self::Split => 7,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::AllToAll => "all_to_all",
            Self::AllGather => "all_gather",
            Self::Barrier => "barrier",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Broadcast => "broadcast",
            Self::Split => "split",
        }
    }
}

/// Prints a call: `call 3, gather with root 0`.
pub(super) struct Described(pub(super) Call);

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call {
            number,
            method,
            root,
        } = self.0;
        let known = Method::ALL.into_iter().find(|m| m.code() == method);
        let name = known.map_or("an unknown method", Method::name);
        write!(f, "call {number}, {name}")?;
        match known {
            Some(Method::Gather | Method::Scatter | Method::Broadcast) => {
                write!(f, " with root {root}")
            }
            _ => Ok(()),
        }
    }
}
