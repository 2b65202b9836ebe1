//! Which part has a row.

/// Where the parts of a table begin, with a way to find the part of a row in one step, whatever their sizes are.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// First row and number of rows of each part.
    parts: Vec<(u64, u64)>,
    /// For each run of `1 << shift` rows the part that has the first of them.
    hints: Vec<u32>,
    shift: u32,
}

impl Rows {
    /// Parts of so many rows, in order. The sum must fit 64 bits, and there are fewer than 2^32 parts.
    pub(crate) fn new(lengths: impl IntoIterator<Item = u64>) -> Self {
        let (mut parts, mut total) = (Vec::new(), 0u64);
        for n in lengths {
            parts.push((total, n));
            total = total.saturating_add(n);
        }
        let mut shift = 0;
        // Some for each part, and so many for few parts that hardly any has rows of two.
        let most = 4 * parts.len() as u64 + 1024;
        while total.checked_shr(shift).unwrap_or(0) > most {
            shift += 1;
        }
        let runs = total.checked_shr(shift).unwrap_or(0);
        let mut part = 0;
        let hints = (0..=runs)
            .map(|run| {
                while part + 1 < parts.len() && parts[part + 1].0 <= run << shift {
                    part += 1;
                }
                part as u32
            })
            .collect();
        Self {
            parts,
            hints,
            shift,
        }
    }

    /// Number of rows.
    pub(crate) fn total(&self) -> u64 {
        self.parts
            .last()
            .map_or(0, |(start, len)| start.saturating_add(*len))
    }

    /// Number of parts.
    pub(crate) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Rows of a part.
    pub(crate) fn len(&self, part: usize) -> u64 {
        self.parts[part].1
    }

    /// Where a part begins.
    pub(crate) fn start(&self, part: usize) -> u64 {
        self.parts[part].0
    }

    /// A part that does not begin after a row, and mostly has it. `None` if no part has it.
    #[inline]
    pub(crate) fn hint(&self, row: u64) -> Option<usize> {
        let part = self.hints.get(usize::try_from(row >> self.shift).ok()?)?;
        Some(*part as usize)
    }

    /// The part that has a row, and which of its rows it is.
    #[inline]
    pub(crate) fn locate(&self, row: u64) -> Option<(usize, u64)> {
        // Lookups wait for memory, so each instruction here is one less that the processor can look ahead.
        let part = self.hint(row)?;
        let (start, len) = *self.parts.get(part)?;
        match row.checked_sub(start) {
            Some(i) if i < len => Some((part, i)),
            _ => self.search(row),
        }
    }

    /// A run has rows of several parts.
    #[cold]
    fn search(&self, row: u64) -> Option<(usize, u64)> {
        if row >= self.total() {
            return None;
        }
        // Parts without rows begin where the next one does.
        let part = self
            .parts
            .partition_point(|&(start, _)| start <= row)
            .checked_sub(1)?;
        Some((part, row - self.start(part)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn a_row_is_found_in_the_part_that_has_it(
            lengths in prop::collection::vec(prop_oneof![Just(0u64), 0u64..4, 0u64..200], 0..60),
        ) {
            let rows = Rows::new(lengths.iter().copied());
            let mut row = 0;
            for (part, &n) in lengths.iter().enumerate() {
                prop_assert_eq!((rows.start(part), rows.len(part)), (row, n));
                for i in 0..n {
                    prop_assert_eq!(rows.locate(row), Some((part, i)));
                    row += 1;
                }
            }
            prop_assert_eq!((rows.total(), rows.parts()), (row, lengths.len()));
            for beyond in [row, row + 1, u64::MAX] {
                prop_assert_eq!(rows.locate(beyond), None);
            }
        }

        #[test]
        fn huge_tables_need_no_huge_memory(lengths in prop::collection::vec(0u64..=1 << 62, 1..4), row: u64) {
            let total: u64 = lengths.iter().sum();
            let rows = Rows::new(lengths.iter().copied());
            let found = rows.locate(row);
            prop_assert_eq!(found.is_some(), row < total);
            if let Some((part, i)) = found {
                prop_assert!(i < rows.len(part) && rows.start(part) + i == row);
            }
        }
    }
}
