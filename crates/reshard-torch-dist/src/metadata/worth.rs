//! What a file may ask for: memory and work, by its length.

use reshard_torch_format::{Budget, Limits, pickle::Refusal};

/// A limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beyond {
    pub(crate) limit: &'static str,
    pub(crate) max: u64,
}

pub(crate) const MEMORY: &str = "bytes of memory";
pub(crate) const STEPS: &str = "steps over what it names again and again";

impl From<Beyond> for Refusal {
    fn from(b: Beyond) -> Self {
        Self::limit(b.limit, b.max)
    }
}

/// More of something than 32 bits can number.
pub(crate) fn number(n: usize) -> Result<u32, Beyond> {
    let beyond = Beyond {
        limit: "values of one kind",
        max: u32::MAX.into(),
    };
    u32::try_from(n)
        .ok()
        .filter(|n| *n != u32::MAX)
        .ok_or(beyond)
}

/// The result of what draws from the budget.
pub(crate) type Within<T> = Result<T, Beyond>;

/// The room for `n` more beside `len` where there is `capacity`: what is kept is moved seldom.
fn wanted(len: usize, capacity: usize, n: usize) -> usize {
    len.saturating_add(n).max(capacity.saturating_mul(2)).max(4)
}

/// What is left of it. Whatever is built draws from it before it is built, and each time it is copied.
#[derive(Debug)]
pub(crate) struct Worth {
    memory: Budget,
    steps: Budget,
}

impl Default for Worth {
    fn default() -> Self {
        Self {
            memory: Budget::new(0),
            steps: Budget::new(0),
        }
    }
}

impl Worth {
    /// Of files of so many bytes together.
    pub(crate) fn of(limits: &Limits, input: u64) -> Self {
        let memory = limits.budget(input);
        // What is done once for each thing in the file needs less than a step a byte; the rest is for what is named twice.
        let steps = Budget::new((memory.max() / 16).max(input.saturating_mul(4)));
        Self { memory, steps }
    }

    /// Draws bytes of memory.
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize) -> Within<()> {
        let max = self.memory.max();
        self.memory
            .take(bytes as u64)
            .map_err(|_| Beyond { limit: MEMORY, max })
    }

    /// The bytes that are left.
    pub(crate) fn left(&self) -> u64 {
        self.memory.left()
    }

    /// Returns bytes of memory that were drawn for something that no longer exists.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.memory.give_back(bytes);
    }

    /// Draws steps of work, where what the file names often is gone through each time.
    #[inline]
    pub(crate) fn steps(&mut self, n: usize) -> Within<()> {
        // More memory brings more steps, so that one option raises both.
        let max = self.memory.max();
        self.steps
            .take(n as u64)
            .map_err(|_| Beyond { limit: STEPS, max })
    }

    /// Makes room for `n` more.
    #[inline]
    pub(crate) fn room<T>(&mut self, v: &mut Vec<T>, n: usize) -> Within<()> {
        if n <= v.capacity() - v.len() {
            Ok(())
        } else {
            self.grow(v, n)
        }
    }

    #[cold]
    fn grow<T>(&mut self, v: &mut Vec<T>, n: usize) -> Within<()> {
        let want = wanted(v.len(), v.capacity(), n);
        self.take((want - v.capacity()).saturating_mul(size_of::<T>()))?;
        v.try_reserve_exact(want - v.len()).map_err(|_| self.none())
    }

    /// There is no memory for that.
    #[cold]
    pub(crate) fn none(&self) -> Beyond {
        Beyond {
            limit: MEMORY,
            max: self.memory.max(),
        }
    }

    /// Appends a text to others.
    pub(crate) fn push_str(&mut self, to: &mut String, text: &str) -> Within<()> {
        if text.len() > to.capacity() - to.len() {
            let want = wanted(to.len(), to.capacity(), text.len());
            self.take(want - to.capacity())?;
            to.try_reserve_exact(want - to.len())
                .map_err(|_| self.none())?;
        }
        to.push_str(text);
        Ok(())
    }

    #[inline]
    pub(crate) fn push<T>(&mut self, v: &mut Vec<T>, item: T) -> Within<()> {
        self.room(v, 1)?;
        v.push(item);
        Ok(())
    }

    /// `n` times the same.
    pub(crate) fn filled<T: Copy>(&mut self, n: usize, item: T) -> Within<Vec<T>> {
        let mut out = Vec::new();
        self.room(&mut out, n)?;
        out.resize(n, item);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_drawn_by_what_is_really_reserved() {
        let limits = Limits {
            memory: Some(1000),
            ..Limits::default()
        };
        let mut w = Worth::of(&limits, 0);
        let mut v: Vec<u64> = Vec::new();
        while w.push(&mut v, 7).is_ok() {}
        assert_eq!((v.len(), v.capacity()), (64, 64));
        assert_eq!(
            w.filled(62, 1u64),
            Err(Beyond {
                limit: MEMORY,
                max: 1000
            })
        );
        assert_eq!(w.filled(61, 1u64).unwrap().len(), 61);
    }
}
