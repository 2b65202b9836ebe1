use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::{
    fmt,
    ops::{Deref, DerefMut},
};

/// One number per axis: a shape, an offset, a stride. Up to four axes lie inline.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Dims(SmallVec<[u64; 4]>);

impl Dims {
    /// `n` axes of `value`.
    pub fn splat(value: u64, n: usize) -> Self {
        Self(SmallVec::from_elem(value, n))
    }

    /// `n` zeros.
    pub fn zeros(n: usize) -> Self {
        Self::splat(0, n)
    }

    /// Appends an axis.
    pub fn push(&mut self, value: u64) {
        self.0.push(value);
    }

    /// Product of the extents; `None` when it does not fit 64 bits.
    pub fn volume(&self) -> Option<u64> {
        // A zero anywhere makes the product zero, whatever the other extents are.
        if self.0.contains(&0) {
            Some(0)
        } else {
            self.0.iter().try_fold(1u64, |v, &d| v.checked_mul(d))
        }
    }
}

impl Deref for Dims {
    type Target = [u64];
    fn deref(&self) -> &[u64] {
        &self.0
    }
}

impl DerefMut for Dims {
    fn deref_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }
}

impl From<&[u64]> for Dims {
    fn from(v: &[u64]) -> Self {
        Self(SmallVec::from_slice(v))
    }
}

impl<const N: usize> From<[u64; N]> for Dims {
    fn from(v: [u64; N]) -> Self {
        v.as_slice().into()
    }
}

impl From<Vec<u64>> for Dims {
    fn from(v: Vec<u64>) -> Self {
        Self(SmallVec::from_vec(v))
    }
}

impl FromIterator<u64> for Dims {
    fn from_iter<I: IntoIterator<Item = u64>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl<'a> IntoIterator for &'a Dims {
    type Item = &'a u64;
    type IntoIter = std::slice::Iter<'a, u64>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl fmt::Debug for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// As Python writes a list: `[2, 3]`.
impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_as_python_shows_them() {
        let dims = Dims::from([2, 3]);
        assert_eq!(
            (format!("{dims}"), format!("{dims:?}")),
            ("[2, 3]".into(), "[2, 3]".into())
        );
    }
}
