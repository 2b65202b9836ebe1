//! Rows of a table that are copied one behind the other.

/// Where copied rows are when the copy ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caches {
    /// In the processor's caches as far as they fit: for few rows, and for memory that lies in the caches already, such as new
    /// memory.
    Through,
    /// In memory: for much more than the caches hold. The processor doesn't read what it overwrites.
    Past,
}

/// Copies rows of a known length, `row(i)` to `to[i]`, until there is none; gives how many were copied.
///
/// The rows may lie anywhere. On x86-64 it takes registers of 512 bits where the processor has them, and heeds `caches`. Elsewhere, if
/// `to` isn't aligned to 64 bytes, it is a plain copy.
///
/// `row` is called once for each index of `to`, in their order, but for at most 17 more than are copied.
///
/// ```
/// use reshard_model::{Caches, copy_rows};
/// let table = [[1u8; 64], [2; 64], [3; 64]];
/// let mut to = [[0; 64]; 3];
/// let copied = copy_rows(&mut to, Caches::Through, |i| table.get([2, 0, 9][i]));
/// assert_eq!((copied, to[0][0], to[1][63]), (2, 3, 1));
/// ```
pub fn copy_rows<'a, const WIDTH: usize>(
    to: &mut [[u8; WIDTH]],
    caches: Caches,
    row: impl FnMut(usize) -> Option<&'a [u8; WIDTH]>,
) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if let Some(lines) = x86::Lines::of(to) {
        return lines.copy(caches, row);
    }
    let _ = caches;
    in_order(to, row, |to, row| *to = *row)
}

/// The processor looks ahead by itself, as far as it can.
#[inline(always)]
fn in_order<'a, const WIDTH: usize>(
    to: &mut [[u8; WIDTH]],
    mut row: impl FnMut(usize) -> Option<&'a [u8; WIDTH]>,
    mut put: impl FnMut(&mut [u8; WIDTH], &'a [u8; WIDTH]),
) -> usize {
    for (i, to) in to.iter_mut().enumerate() {
        match row(i) {
            Some(row) => put(to, row),
            None => return i,
        }
    }
    to.len()
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use super::{Caches, in_order};
    use std::arch::x86_64::{
        __m128i, __m512i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128,
        _mm512_loadu_si512, _mm512_storeu_si512, _mm512_stream_si512,
    };

    /// Bytes that a cache takes and gives up together.
    const LINE: usize = 64;
    /// So many rows are asked for from memory before the first of them is needed.
    const AHEAD: usize = 16;
    /// Of longer rows the processor fetches the rest by itself.
    const FETCHED: usize = 4 * LINE;
    /// Rows of so many bytes are copied several at a time, a part of each in turn: the processor fetches each of them ahead.
    const LONG: usize = 4 << 10;
    /// How many.
    const TOGETHER: usize = 4;

    /// Rows of whole lines, at the beginning of a line.
    pub(super) struct Lines<'t, const WIDTH: usize>(&'t mut [[u8; WIDTH]]);

    /// Whoever sees that a row is there sees its bytes: what was written past the caches has arrived. Also when `row` panics.
    struct Arrived;

    impl Drop for Arrived {
        fn drop(&mut self) {
            // SAFETY: every x86-64 has the instruction.
            unsafe { _mm_sfence() }
        }
    }

    impl<'t, const WIDTH: usize> Lines<'t, WIDTH> {
        pub(super) fn of(to: &'t mut [[u8; WIDTH]]) -> Option<Self> {
            let whole = WIDTH > 0 && WIDTH.is_multiple_of(LINE);
            (whole && to.as_ptr().addr().is_multiple_of(LINE)).then_some(Self(to))
        }

        pub(super) fn copy<'a>(
            self,
            caches: Caches,
            row: impl FnMut(usize) -> Option<&'a [u8; WIDTH]>,
        ) -> usize {
            let is_wide = is_x86_feature_detected!("avx512f");
            match caches {
                // SAFETY: the processor has the instructions.
                Caches::Through if is_wide => unsafe { self.through_by_512(row) },
                Caches::Through => in_order(self.0, row, |to, row| *to = *row),
                // SAFETY: the processor has the instructions.
                Caches::Past if is_wide => unsafe { self.past_by_512(row) },
                Caches::Past => self.past_by_128(row),
            }
        }

        #[target_feature(enable = "avx512f")]
        pub(super) fn through_by_512<'a>(
            self,
            row: impl FnMut(usize) -> Option<&'a [u8; WIDTH]>,
        ) -> usize {
            in_order(self.0, row, |to, row| {
                for (to, row) in to.as_chunks_mut().0.iter_mut().zip(row.as_chunks().0) {
                    let (to, row): (&mut [u8; LINE], &[u8; LINE]) = (to, row);
                    // SAFETY: both are of a line's length, and these instructions want no alignment.
                    unsafe {
                        let line = _mm512_loadu_si512(row.as_ptr().cast::<__m512i>());
                        _mm512_storeu_si512(to.as_mut_ptr().cast(), line);
                    }
                }
            })
        }

        #[target_feature(enable = "avx512f")]
        pub(super) fn past_by_512<'a>(
            self,
            row: impl FnMut(usize) -> Option<&'a [u8; WIDTH]>,
        ) -> usize {
            let _arrived = Arrived;
            ahead(self.0, row, |to, row| {
                for (to, row) in to.as_chunks_mut().0.iter_mut().zip(row.as_chunks().0) {
                    let (to, row): (&mut [u8; LINE], &[u8; LINE]) = (to, row);
                    // SAFETY: both are of a line's length. `to` is aligned, as `Lines::of` looks: the first row is, and all are
                    // whole lines.
                    unsafe {
                        let line = _mm512_loadu_si512(row.as_ptr().cast::<__m512i>());
                        _mm512_stream_si512(to.as_mut_ptr().cast(), line);
                    }
                }
            })
        }

        pub(super) fn past_by_128<'a>(
            self,
            row: impl FnMut(usize) -> Option<&'a [u8; WIDTH]>,
        ) -> usize {
            const PART: usize = size_of::<__m128i>();
            let _arrived = Arrived;
            ahead(self.0, row, |to, row| {
                for (to, row) in to.as_chunks_mut().0.iter_mut().zip(row.as_chunks().0) {
                    let (to, row): (&mut [u8; PART], &[u8; PART]) = (to, row);
                    // SAFETY: both are of a register's length. `to` is aligned, as in `past_by_512`. Every x86-64 has the
                    // instructions.
                    unsafe {
                        let part = _mm_loadu_si128(row.as_ptr().cast());
                        _mm_stream_si128(to.as_mut_ptr().cast(), part);
                    }
                }
            })
        }
    }

    /// As [`in_order`], so that what is needed is on its way from memory before. `put` copies rows, or whole lines of them.
    #[inline(always)]
    fn ahead<'a, const WIDTH: usize>(
        to: &mut [[u8; WIDTH]],
        row: impl FnMut(usize) -> Option<&'a [u8; WIDTH]>,
        put: impl FnMut(&mut [u8], &'a [u8]),
    ) -> usize {
        if WIDTH >= LONG {
            in_turn(to, row, put)
        } else {
            fetched(to, row, put)
        }
    }

    /// With a part of each of several rows in turn.
    #[inline(always)]
    fn in_turn<'a, const WIDTH: usize>(
        to: &mut [[u8; WIDTH]],
        mut row: impl FnMut(usize) -> Option<&'a [u8; WIDTH]>,
        mut put: impl FnMut(&mut [u8], &'a [u8]),
    ) -> usize {
        let mut copied = 0;
        for to in to.chunks_mut(TOGETHER) {
            let mut rows = [None; TOGETHER];
            let mut count = 0;
            for next in rows.iter_mut().take(to.len()) {
                *next = row(copied + count);
                if next.is_none() {
                    break;
                }
                count += 1;
            }
            for at in (0..WIDTH).step_by(FETCHED) {
                let part = at..WIDTH.min(at + FETCHED);
                for (to, row) in to.iter_mut().zip(rows.iter().flatten()) {
                    put(&mut to[part.clone()], &row[part.clone()]);
                }
            }
            copied += count;
            if count < to.len() {
                break;
            }
        }
        copied
    }

    /// With rows asked for from memory [`AHEAD`] of need.
    #[inline(always)]
    fn fetched<'a, const WIDTH: usize>(
        to: &mut [[u8; WIDTH]],
        mut row: impl FnMut(usize) -> Option<&'a [u8; WIDTH]>,
        mut put: impl FnMut(&mut [u8], &'a [u8]),
    ) -> usize {
        let count = to.len();
        let mut ask = |i: usize| {
            let row = if i < count { row(i)? } else { return None };
            for at in (0..WIDTH.min(FETCHED)).step_by(LINE) {
                // SAFETY: the address lies in the row; a hint reads nothing that a program sees.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(row.as_ptr().add(at).cast()) };
            }
            Some(row)
        };
        let mut ahead = [None; AHEAD];
        for (i, next) in ahead.iter_mut().enumerate() {
            *next = ask(i);
        }
        in_order(
            to,
            |i| std::mem::replace(&mut ahead[i % AHEAD], ask(i + AHEAD)),
            |to, row| put(to, row),
        )
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[repr(align(64))]
        struct Aligned<const WIDTH: usize>([[u8; WIDTH]; 41]);

        #[test]
        fn registers_of_all_widths_copy_the_same() {
            check_rows::<192>();
            check_rows::<LONG>();
            check_rows::<{ LONG + LINE }>();
        }

        fn check_rows<const WIDTH: usize>() {
            let rows: Vec<[u8; WIDTH]> = (0..41u8)
                .map(|r| std::array::from_fn(|i| r ^ i as u8))
                .collect();
            for until in [0, 1, 15, 16, 17, 40, 41] {
                let row = |i: usize| (i < until).then(|| &rows[40 - i]);
                let fresh = || Box::new(Aligned([[7; WIDTH]; 41]));
                let check = |copied: usize, to: &Aligned<WIDTH>| {
                    assert_eq!(copied, until);
                    for (i, to) in to.0.iter().enumerate() {
                        assert_eq!(*to, row(i).copied().unwrap_or([7; WIDTH]));
                    }
                };
                let mut to = fresh();
                check(Lines::of(&mut to.0).unwrap().past_by_128(row), &to);
                for caches in [Caches::Past, Caches::Through] {
                    let mut to = fresh();
                    check(Lines::of(&mut to.0).unwrap().copy(caches, row), &to);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn law<const WIDTH: usize>(
        order: &[usize],
        skip: usize,
        caches: Caches,
    ) -> Result<(), TestCaseError> {
        let table: Vec<[u8; WIDTH]> = (0..40usize)
            .map(|r| std::array::from_fn(|i| (r * 7 + i) as u8))
            .collect();
        let mut memory = vec![255; (order.len() + 3) * WIDTH + 128];
        let from = memory.as_ptr().align_offset(64) + skip;
        let to = memory[from..].as_chunks_mut::<WIDTH>().0;
        let copied = copy_rows(to, caches, |i| table.get(*order.get(i)?));
        let expected = order.iter().take_while(|&&row| row < table.len()).count();
        prop_assert_eq!(copied, expected);
        for (i, to) in to.iter().enumerate() {
            let right = order[..expected]
                .get(i)
                .map_or([255; WIDTH], |&row| table[row]);
            prop_assert_eq!(*to, right);
        }
        let end = from + expected * WIDTH;
        prop_assert!(
            memory[..from]
                .iter()
                .chain(&memory[end..])
                .all(|&b| b == 255)
        );
        // Rows beyond `to` are never asked for, and those of it once, in their order.
        let to = memory[from..].as_chunks_mut::<WIDTH>().0;
        let count = expected.min(to.len() / 2);
        let mut asked = Vec::new();
        let copied = copy_rows(&mut to[..count], caches, |i| {
            asked.push(i);
            table.get(*order.get(i)?)
        });
        prop_assert_eq!((copied, asked), (count, (0..count).collect()));
        Ok(())
    }

    proptest! {
        #![proptest_config(crate::testkit::law(256))]
        /// Up to the first id without a row, aligned or not, and nothing beside them.
        #[test]
        fn rows_arrive_at_their_places(
            order in proptest::collection::vec(0usize..42, 0..60),
            skip in prop_oneof![Just(0usize), 0..64usize],
            caches in prop_oneof![Just(Caches::Past), Just(Caches::Through)],
        ) {
            law::<64>(&order, skip, caches)?;
            law::<256>(&order, skip, caches)?;
            law::<320>(&order, skip, caches)?;
            law::<24>(&order, skip, caches)?;
            law::<4160>(&order, skip, caches)?;
        }
    }
}
