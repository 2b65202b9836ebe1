use crate::{PolicyError, Result};
use reshard_model::Region;

/// A part of a piece. It can't rename, recast or reshape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Position of the piece in the list that the policy was given.
    pub piece: u32,
    /// The part, in coordinates of the whole tensor; for an object, without axes.
    pub region: Region,
}

/// Takes a policy's answer. A builder and not a list of lists, so that the limit on slices holds while the policy runs, and
/// an empty shard can't be made.
#[derive(Debug)]
pub struct Shards {
    shards: Vec<Vec<Cut>>,
    slices: usize,
    limit: usize,
}

impl Shards {
    /// Takes at most `limit` slices.
    pub fn with_limit(limit: usize) -> Self {
        Self { shards: Vec::new(), slices: 0, limit }
    }

    /// What follows goes into a new shard. Nothing happens while the current one is empty.
    pub fn start(&mut self) {
        if self.shards.last().is_none_or(|s| !s.is_empty()) {
            self.shards.push(Vec::new());
        }
    }

    /// Puts a part of a piece into the current shard.
    ///
    /// # Errors
    /// [`PolicyError::TooMany`].
    pub fn push(&mut self, piece: usize, region: Region) -> Result<()> {
        if self.slices == self.limit {
            return Err(PolicyError::TooMany { limit: self.limit });
        }
        let piece = u32::try_from(piece).map_err(|_| PolicyError::TooMany { limit: self.limit })?;
        self.slices += 1;
        if self.shards.is_empty() {
            self.start();
        }
        if let Some(shard) = self.shards.last_mut() {
            shard.push(Cut { piece, region });
        }
        Ok(())
    }

    /// The shards, none of them empty.
    pub fn into_inner(mut self) -> Vec<Vec<Cut>> {
        if self.shards.last().is_some_and(Vec::is_empty) {
            self.shards.pop();
        }
        self.shards
    }
}
