//! What a map has used of its limits.

use crate::{
    Limits, MapError, MappedTensor, Pattern, Piece, Result, error::Fault, pattern::Captures,
};
use reshard_model::{Dims, shortened};

/// The longest name that a map takes or makes, in bytes.
const MAX_NAME: usize = 1 << 16;

/// What it counts as to give something a key, or to take it out, in steps. Its bytes count beside.
const MOVE: u64 = 256;
/// What a capture counts as.
const CAPTURE: u64 = 200;

/// A rule that is being applied: what errors name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) rule: usize,
    pub(crate) verb: &'static str,
    /// Whether what the rule matches counts as mapped.
    pub(crate) maps: bool,
    pub(crate) limits: Limits,
}

impl Now {
    pub(crate) fn error(self, key: &str, shape: Option<Dims>, what: impl Into<String>) -> MapError {
        MapError::Apply {
            rule: self.rule,
            verb: self.verb,
            key: key.into(),
            shape,
            what: what.into(),
        }
    }

    pub(crate) fn fault(self, key: &str, shape: Option<Dims>, fault: Fault) -> MapError {
        match fault {
            Fault::Wrong(what) => self.error(key, shape, what),
            Fault::Pieces => self.limit("pieces of tensors", self.limits.pieces as u64, "pieces"),
        }
    }

    pub(crate) fn names(self) -> MapError {
        self.limit("names", self.limits.names as u64, "names")
    }

    fn limit(self, what: &str, limit: u64, option: &'static str) -> MapError {
        MapError::Limit {
            what: format!("{what} after rule {} ({})", self.rule, self.verb),
            limit,
            option,
        }
    }

    /// The name that a pattern makes of captures.
    pub(crate) fn fill(self, pattern: &Pattern, captures: &Captures, key: &str) -> Result<String> {
        self.name_len(key, pattern.filled_len(captures))?;
        let name = pattern.fill(captures).filter(|name| !name.is_empty());
        name.ok_or_else(|| self.error(key, None, format!("`{pattern}` makes no name of it")))
    }

    /// Fails if a name of so many bytes is too long.
    pub(crate) fn name_len(self, key: &str, len: usize) -> Result<()> {
        if len <= MAX_NAME {
            return Ok(());
        }
        let what = format!(
            "its new name would have {len} bytes, and at most {MAX_NAME} are allowed; make shorter names"
        );
        Err(self.error(&shortened(key), None, what))
    }
}

/// Fails if a name of the checkpoint is too long.
pub(crate) fn check_name(key: &str) -> Result<()> {
    if key.len() <= MAX_NAME {
        return Ok(());
    }
    let what = format!(
        "its name has {} bytes, and a map takes names of {MAX_NAME} at most; read the checkpoint without a map",
        key.len()
    );
    Err(MapError::of_item(&shortened(key), None, what))
}

/// What the names and pieces that are there take, and the steps that were made.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    names: usize,
    name_bytes: u64,
    pieces: usize,
    steps: u64,
}

impl Budget {
    /// Counts what has a key, without looking at limits.
    pub(crate) fn count(&mut self, key: &str, tensor: Option<&MappedTensor>) {
        self.names += 1;
        self.name_bytes += key.len() as u64;
        self.pieces += weight(tensor);
    }

    /// Counts what gets a key.
    pub(crate) fn add(&mut self, now: Now, key: &str, tensor: Option<&MappedTensor>) -> Result<()> {
        self.step(now, MOVE + key.len() as u64)?;
        self.count(key, tensor);
        self.check(now)
    }

    /// Gives back what had a key.
    pub(crate) fn remove(&mut self, key: &str, tensor: Option<&MappedTensor>) {
        self.names = self.names.saturating_sub(1);
        self.name_bytes = self.name_bytes.saturating_sub(key.len() as u64);
        self.pieces = self.pieces.saturating_sub(weight(tensor));
    }

    /// Gives back all.
    pub(crate) fn clear(&mut self) {
        *self = Self {
            steps: self.steps,
            ..Self::default()
        };
    }

    pub(crate) fn check(&self, now: Now) -> Result<()> {
        let limits = now.limits;
        if self.names > limits.names {
            return Err(now.names());
        }
        if self.name_bytes > limits.name_bytes {
            return Err(now.limit("bytes of names", limits.name_bytes, "name_bytes"));
        }
        if self.pieces > limits.pieces {
            return Err(now.fault("", None, Fault::Pieces));
        }
        Ok(())
    }

    /// Counts steps.
    pub(crate) fn step(&mut self, now: Now, steps: u64) -> Result<()> {
        self.steps = self.steps.saturating_add(steps);
        match self.steps > now.limits.steps {
            true => Err(now.limit("steps", now.limits.steps, "steps")),
            false => Ok(()),
        }
    }

    /// Counts the steps that taking out a key costs, with what a pattern has captured of it.
    pub(crate) fn taking(&mut self, now: Now, key: &str, captures: &Captures) -> Result<()> {
        let captures = CAPTURE.saturating_mul(captures.len() as u64);
        self.step(now, captures.saturating_add(MOVE + key.len() as u64))
    }

    /// How many pieces of a tensor with so many axes may still be made.
    pub(crate) fn room(&self, now: Now, axes: usize) -> usize {
        now.limits.pieces.saturating_sub(self.pieces) / weight_of(7 * axes)
    }
}

/// How many pieces those of a tensor count as.
fn weight(tensor: Option<&MappedTensor>) -> usize {
    let numbers = |p: &Piece| p.to.len() + p.from.len() + 5 * p.loops.len() + p.casts.len();
    let pieces = tensor.into_iter().flat_map(|t| &t.pieces);
    pieces.map(|p| weight_of(numbers(p))).sum()
}

/// What a piece of so many numbers counts as.
fn weight_of(numbers: usize) -> usize {
    1 + numbers / 32
}
