use crate::{PolicyError, Result};
use reshard_model::Region;

/// A part of a piece. It can't rename, cast or reshape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Position of the piece in the list that the policy was given.
    pub piece: u32,
    /// The part, in coordinates of the whole tensor. For an object it has no axes.
    pub region: Region,
}

/// Collects a policy's answer. It is a builder, not a list of lists, so the limit on slices holds while the policy runs, and
/// nobody can make an empty shard.
#[derive(Debug)]
pub struct Shards {
    shards: Vec<Vec<Cut>>,
    slices: usize,
    limit: usize,
    refused: bool,
}

impl Shards {
    /// Takes at most `limit` slices.
    pub fn with_limit(limit: usize) -> Self {
        Self {
            shards: Vec::new(),
            slices: 0,
            limit,
            refused: false,
        }
    }

    /// Starts a new shard. If the current shard is empty, this does nothing.
    pub fn start(&mut self) {
        if let Some(last) = self.shards.last_mut() {
            if last.is_empty() {
                return;
            }
            last.shrink_to_fit();
        }
        // Most shards have one slice, so a shard starts small and grows.
        self.shards.push(Vec::with_capacity(1));
    }

    /// Puts a part of a piece into the current shard.
    ///
    /// # Errors
    /// [`PolicyError::TooMany`].
    pub fn push(&mut self, piece: usize, region: Region) -> Result<()> {
        let piece = u32::try_from(piece)
            .ok()
            .filter(|_| self.slices < self.limit);
        let Some(piece) = piece else {
            self.refused = true;
            return Err(PolicyError::TooMany { limit: self.limit });
        };
        self.slices += 1;
        if self.shards.is_empty() {
            self.start();
        }
        if let Some(shard) = self.shards.last_mut() {
            shard.push(Cut { piece, region });
        }
        Ok(())
    }

    /// Makes empty `Shards` for the answer of another policy that this policy calls. They may take as many slices as are
    /// left here.
    pub fn for_another(&self) -> Self {
        Self {
            shards: Vec::new(),
            ..*self
        }
    }

    /// The shards, none of them empty.
    ///
    /// # Errors
    /// [`PolicyError::TooMany`] if a slice was refused, even if the policy ignored that error.
    pub fn finish(mut self) -> Result<Vec<Vec<Cut>>> {
        if self.refused {
            return Err(PolicyError::TooMany { limit: self.limit });
        }
        self.shards.pop_if(|last| last.is_empty());
        Ok(self.shards)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_shard_cannot_be_made() {
        let mut out = Shards::with_limit(9);
        for _ in 0..2 {
            out.start();
            out.start();
            out.push(0, Region::default()).unwrap();
        }
        out.start();
        assert_eq!(
            out.finish()
                .unwrap()
                .iter()
                .map(Vec::len)
                .collect::<Vec<_>>(),
            [1, 1]
        );
        assert!(Shards::with_limit(9).finish().unwrap().is_empty());
    }

    #[test]
    fn the_limit_holds_while_the_policy_runs() {
        let mut out = Shards::with_limit(2);
        out.push(0, Region::default()).unwrap();
        let mut another = out.for_another();
        another.push(0, Region::default()).unwrap();
        assert!(another.push(0, Region::default()).is_err());
        out.push(1, Region::default()).unwrap();
        assert!(out.push(2, Region::default()).is_err() && out.finish().is_err());
    }
}
