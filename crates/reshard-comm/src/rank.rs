use serde::{Deserialize, Serialize};
use std::fmt;

/// The number of a process within its group, from 0.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index into a `Vec` with one element per rank.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// Ranks in a message: `rank 3`, `ranks 0, 2, 5`. A long list is shortened.
    pub fn list(ranks: &[Self]) -> impl fmt::Display + '_ {
        Ranks(ranks)
    }

    /// The rank at this index of a `Vec` with one element per rank.
    pub(crate) fn at(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl From<u32> for Rank {
    fn from(rank: u32) -> Self {
        Self(rank)
    }
}

/// Prints ranks: `rank 3`, `ranks 0, 2, 5`. A long list is shortened.
pub(crate) struct Ranks<'a>(pub(crate) &'a [Rank]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 16;
        f.write_str(if self.0.len() == 1 { "rank " } else { "ranks " })?;
        for (i, rank) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{rank}", if i == 0 { "" } else { ", " })?;
        }
        match self.0.len().checked_sub(SHOWN) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, " and {more} more"),
        }
    }
}
