use serde::{Deserialize, Serialize, Serializer};
use smallvec::SmallVec;
use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    ops::{Deref, DerefMut},
    sync::Arc,
};

/// One number per axis: a shape, an offset, a stride. Up to four axes lie inline; more are shared between clones, until one
/// of them is changed. A checkpoint has millions, and other crates call these methods, so the shortest are inlined.
#[derive(Clone, Deserialize)]
#[serde(from = "SmallVec<[u64; INLINE]>")]
pub struct Dims(Axes);

const INLINE: usize = 4;

#[derive(Clone)]
enum Axes {
    Few(u8, [u64; INLINE]),
    /// A checkpoint may have very many tensors of very many axes, and each shape is kept in many places.
    Many(Arc<Vec<u64>>),
}

impl Dims {
    /// `n` axes of `value`.
    pub fn splat(value: u64, n: usize) -> Self {
        if n > INLINE {
            return Self(Axes::Many(Arc::new(vec![value; n])));
        }
        let mut few = [0; INLINE];
        few[..n].fill(value);
        Self(Axes::Few(n as u8, few))
    }

    /// `n` zeros.
    pub fn zeros(n: usize) -> Self {
        Self::splat(0, n)
    }

    /// Appends an axis.
    #[inline]
    pub fn push(&mut self, value: u64) {
        match &mut self.0 {
            Axes::Few(n, few) => match few.get_mut(usize::from(*n)) {
                Some(axis) => {
                    *axis = value;
                    *n += 1;
                }
                None => {
                    let many = few.iter().copied().chain([value]).collect();
                    self.0 = Axes::Many(Arc::new(many));
                }
            },
            Axes::Many(many) => Arc::make_mut(many).push(value),
        }
    }

    /// The index of the element with this number, counted in row-major order in a tensor of this shape.
    pub fn index_of(&self, mut number: u64) -> Self {
        let mut index = Self::zeros(self.len());
        for (at, &extent) in index.iter_mut().zip(self).rev() {
            let extent = extent.max(1);
            (*at, number) = (number % extent, number / extent);
        }
        index
    }

    /// Product of the extents; `None` when it does not fit 64 bits.
    pub fn volume(&self) -> Option<u64> {
        // A zero anywhere makes the product zero, whatever the other extents are.
        if self.contains(&0) {
            Some(0)
        } else {
            self.iter().try_fold(1u64, |v, &d| v.checked_mul(d))
        }
    }
}

impl Default for Dims {
    #[inline]
    fn default() -> Self {
        Self(Axes::Few(0, [0; INLINE]))
    }
}

impl Deref for Dims {
    type Target = [u64];
    #[inline]
    fn deref(&self) -> &[u64] {
        match &self.0 {
            Axes::Few(n, few) => &few[..usize::from(*n)],
            Axes::Many(many) => many,
        }
    }
}

impl DerefMut for Dims {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u64] {
        match &mut self.0 {
            Axes::Few(n, few) => &mut few[..usize::from(*n)],
            Axes::Many(many) => Arc::make_mut(many).as_mut_slice(),
        }
    }
}

impl PartialEq for Dims {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Dims {}

impl PartialOrd for Dims {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Dims {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for Dims {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl Serialize for Dims {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

impl From<SmallVec<[u64; INLINE]>> for Dims {
    fn from(v: SmallVec<[u64; INLINE]>) -> Self {
        if v.spilled() {
            v.into_vec().into()
        } else {
            v.as_slice().into()
        }
    }
}

impl From<&[u64]> for Dims {
    fn from(v: &[u64]) -> Self {
        if v.len() > INLINE {
            return Self(Axes::Many(Arc::new(v.into())));
        }
        let mut few = Self::zeros(v.len());
        few.copy_from_slice(v);
        few
    }
}

impl<const N: usize> From<[u64; N]> for Dims {
    fn from(v: [u64; N]) -> Self {
        v.as_slice().into()
    }
}

impl From<Vec<u64>> for Dims {
    fn from(v: Vec<u64>) -> Self {
        if v.len() > INLINE {
            Self(Axes::Many(Arc::new(v)))
        } else {
            v.as_slice().into()
        }
    }
}

impl FromIterator<u64> for Dims {
    fn from_iter<I: IntoIterator<Item = u64>>(iter: I) -> Self {
        let mut axes = iter.into_iter();
        let (mut n, mut few) = (0, [0; INLINE]);
        for (slot, axis) in few.iter_mut().zip(axes.by_ref()) {
            *slot = axis;
            n += 1;
        }
        match axes.next() {
            None => Self(Axes::Few(n, few)),
            Some(next) => {
                let few = few.into_iter().take(n.into());
                let many = few.chain([next]).chain(axes).collect();
                Self(Axes::Many(Arc::new(many)))
            }
        }
    }
}

impl<'a> IntoIterator for &'a Dims {
    type Item = &'a u64;
    type IntoIter = std::slice::Iter<'a, u64>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
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
        f.debug_list().entries(self.iter()).finish()
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

    /// What a vector would say of the same numbers.
    fn are(dims: &Dims, numbers: &[u64]) {
        assert_eq!(**dims, *numbers);
        assert_eq!(*dims, Dims::from(numbers));
        assert_eq!(*dims, Dims::from(numbers.to_vec()));
        assert_eq!(*dims, numbers.iter().copied().collect::<Dims>());
        let json = serde_json::to_string(dims).unwrap();
        assert_eq!(json, serde_json::to_string(numbers).unwrap());
        assert_eq!(serde_json::from_str::<Dims>(&json).unwrap(), *dims);
    }

    #[test]
    fn any_number_of_axes_is_pushed_compared_and_stored() {
        let (mut dims, mut numbers) = (Dims::default(), vec![]);
        for n in 0..10 {
            are(&dims, &numbers);
            assert_eq!(Dims::splat(7, n), Dims::from(vec![7; n]));
            dims.push(n as u64);
            let before = dims.clone();
            numbers.push(n as u64);
            assert_eq!(dims.cmp(&before), Ordering::Equal);
            assert!(dims > Dims::from(&numbers[..n]));
        }
    }

    #[test]
    fn a_change_of_one_clone_changes_no_other() {
        for n in [3, 4, 5, 9] {
            let dims = Dims::splat(1, n);
            let (mut pushed, mut set) = (dims.clone(), dims.clone());
            pushed.push(2);
            set[0] = 2;
            assert_eq!(dims, Dims::splat(1, n));
            assert_eq!((pushed.len(), pushed[n], set[0]), (n + 1, 2, 2));
        }
    }

    #[test]
    fn clones_of_many_axes_share_their_memory() {
        let dims = Dims::splat(1, 255);
        assert_eq!(dims.as_ptr(), dims.clone().as_ptr());
    }
}
