/// Numbers of 32 bits while all of them fit, else of 64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Narrow(Vec<u32>),
    Wide(Vec<u64>),
}

impl Default for Column {
    fn default() -> Self {
        Self::Narrow(Vec::new())
    }
}

impl Column {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Narrow(v) => v.len(),
            Self::Wide(v) => v.len(),
        }
    }

    pub(super) fn get(&self, at: usize) -> u64 {
        match self {
            Self::Narrow(v) => v[at].into(),
            Self::Wide(v) => v[at],
        }
    }

    /// `n` numbers from `at` on.
    pub(super) fn range<C: FromIterator<u64>>(&self, at: usize, n: usize) -> C {
        (at..at + n).map(|i| self.get(i)).collect()
    }

    pub(super) fn extend(&mut self, numbers: &[u64]) {
        if let Self::Narrow(v) = self {
            let before = v.len();
            v.extend(numbers.iter().map_while(|&n| u32::try_from(n).ok()));
            if v.len() - before == numbers.len() {
                return;
            }
            v.truncate(before);
            *self = Self::Wide(v.iter().map(|&n| n.into()).collect());
        }
        if let Self::Wide(v) = self {
            v.extend_from_slice(numbers);
        }
    }

    /// An empty column of the same width.
    pub(super) fn like(&self) -> Self {
        match self {
            Self::Narrow(v) => Self::Narrow(Vec::with_capacity(v.len())),
            Self::Wide(v) => Self::Wide(Vec::with_capacity(v.len())),
        }
    }

    /// Appends a part of a column of the same width, or a narrower one.
    pub(super) fn extend_from(&mut self, from: &Self, at: usize, len: usize) {
        match (self, from) {
            (Self::Narrow(to), Self::Narrow(from)) => to.extend_from_slice(&from[at..at + len]),
            (Self::Wide(to), Self::Wide(from)) => to.extend_from_slice(&from[at..at + len]),
            (to, from) => (at..at + len).for_each(|i| to.extend(&[from.get(i)])),
        }
    }

    pub(super) fn shrink(&mut self) {
        match self {
            Self::Narrow(v) => v.shrink_to_fit(),
            Self::Wide(v) => v.shrink_to_fit(),
        }
    }
}
