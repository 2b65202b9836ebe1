//! Elements in brackets, as NumPy prints them: all of a small region, and the first and last ones along each axis of a large one.

use crate::error::Result;
use reshard::{Region, model::Dims};

pub(super) mod number;

/// A region of more elements is summed up.
const ALL: u64 = 1000;
/// So many elements are shown at each end of an axis.
const EDGE: u64 = 3;
/// At most so many elements are shown of a region that is summed up.
const MOST: usize = 4096;
/// In so many parts, each of which is read by itself.
const PARTS: usize = 256;

/// Which elements are shown.
pub(super) struct Grid {
    /// For each axis: the ranges of indices.
    axes: Vec<Vec<(u64, u64)>>,
}

impl Grid {
    /// `None` if even the ends of all axes are too many elements.
    pub(super) fn of(region: &Region) -> Option<Self> {
        // Brackets are written around nothing, too.
        let brackets = region.lengths.iter().map(|n| (*n).max(1));
        let brackets = brackets.fold(1, u64::saturating_mul);
        let is_small = brackets <= ALL;
        let edges: &[u64] = if is_small { &[u64::MAX] } else { &[EDGE, 1] };
        let grid = |edge: &u64| Self {
            axes: (region.offsets.iter().zip(&region.lengths))
                .map(|(from, n)| ends(*from, *n, *edge))
                .collect(),
        };
        edges.iter().map(grid).find(|grid| {
            is_small || grid.elements().is_some_and(|n| n <= MOST) && grid.parts() <= PARTS
        })
    }

    fn elements(&self) -> Option<usize> {
        let of = |axis: &Vec<(u64, u64)>| axis.iter().map(|(_, n)| *n as usize).sum::<usize>();
        let brackets = self.axes.iter().map(|axis| of(axis).max(1));
        brackets.into_iter().try_fold(1, usize::checked_mul)
    }

    /// The number of reads.
    fn parts(&self) -> usize {
        let of = |axis: &Vec<(u64, u64)>| axis.len();
        self.axes.iter().map(of).fold(1, usize::saturating_mul)
    }

    /// Reads the elements by `read`, which gets regions and returns texts in row-major order.
    pub(super) fn text(
        &self,
        mut read: impl FnMut(Region) -> Result<Vec<String>>,
    ) -> Result<String> {
        let mut cells = Vec::new();
        self.read(&mut Vec::new(), &mut cells, &mut read)?;
        let width = cells.iter().map(|(_, text)| text.len()).max().unwrap_or(0);
        // The parts of a row were read one after the other, and belong side by side.
        cells.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut out = String::new();
        self.write(
            0,
            &mut cells.iter().map(|(_, text)| &**text),
            width,
            &mut out,
        );
        Ok(out)
    }

    /// Reads each part that is shown. Cells are keyed by their indices.
    fn read(
        &self,
        chosen: &mut Vec<(u64, u64)>,
        cells: &mut Vec<(Dims, String)>,
        read: &mut impl FnMut(Region) -> Result<Vec<String>>,
    ) -> Result<()> {
        let Some(axis) = self.axes.get(chosen.len()) else {
            let offsets: Dims = chosen.iter().map(|(from, _)| *from).collect();
            let lengths: Dims = chosen.iter().map(|(_, n)| *n).collect();
            if lengths.contains(&0) {
                return Ok(());
            }
            let region = Region::new(offsets, lengths);
            let places = region.clone().blocks(1).map(|one| one.offsets);
            cells.extend(places.zip(read(region)?));
            return Ok(());
        };
        for part in axis {
            chosen.push(*part);
            self.read(chosen, cells, read)?;
            chosen.pop();
        }
        Ok(())
    }

    fn write<'t>(
        &self,
        axis: usize,
        cells: &mut impl Iterator<Item = &'t str>,
        width: usize,
        out: &mut String,
    ) {
        let Some(parts) = self.axes.get(axis) else {
            let cell = cells.next().unwrap_or_default();
            out.extend([&*" ".repeat(width.saturating_sub(cell.len())), cell]);
            return;
        };
        let is_last = axis + 1 == self.axes.len();
        let between = match is_last {
            true => " ".to_owned(),
            false => format!("\n{}", " ".repeat(axis + 1)),
        };
        out.push('[');
        let mut first = true;
        for (number, (_, n)) in parts.iter().enumerate() {
            if number > 0 {
                out.extend([&*between, "..."]);
            }
            for _ in 0..*n {
                if !first {
                    out.push_str(&between);
                }
                first = false;
                self.write(axis + 1, cells, width, out);
            }
        }
        out.push(']');
    }
}

/// The ranges of an axis of which elements are shown.
fn ends(from: u64, n: u64, edge: u64) -> Vec<(u64, u64)> {
    match edge.checked_mul(2) {
        Some(shown) if n > shown => vec![(from, edge), (from + n - edge, edge)],
        _ => vec![(from, n)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each element is the number of its place in a tensor of this shape.
    fn text(shape: &[u64], region: &Region) -> String {
        let read = |part: Region| {
            let mut texts = Vec::new();
            for one in part.blocks(1) {
                let at = one.offsets.iter().zip(shape);
                texts.push(at.fold(0, |sum, (at, n)| sum * n + at).to_string());
            }
            Ok(texts)
        };
        Grid::of(region).unwrap().text(read).unwrap()
    }

    #[test]
    fn a_small_region_is_shown_whole() {
        let shape = [2, 3];
        assert_eq!(text(&shape, &Region::whole(&shape)), "[[0 1 2]\n [3 4 5]]");
        assert_eq!(text(&shape, &Region::new([1, 1], [1, 2])), "[[4 5]]");
        assert_eq!(text(&[], &Region::whole(&[])), "0");
        assert_eq!(text(&[0], &Region::whole(&[0])), "[]");
        assert_eq!(text(&[2, 0], &Region::whole(&[2, 0])), "[[]\n []]");
    }

    #[test]
    fn of_a_large_one_the_ends_are_shown() {
        let shape = [1000, 7];
        let shown = text(&shape, &Region::whole(&shape));
        let want = "\
[[   0    1    2 ...    4    5    6]
 [   7    8    9 ...   11   12   13]
 [  14   15   16 ...   18   19   20]
 ...
 [6979 6980 6981 ... 6983 6984 6985]
 [6986 6987 6988 ... 6990 6991 6992]
 [6993 6994 6995 ... 6997 6998 6999]]";
        assert_eq!(shown, want);
        // Of many axes only the first and the last element is shown.
        let shape = [9; 7];
        let shown = text(&shape, &Region::whole(&shape));
        assert_eq!(
            shown
                .split_whitespace()
                .filter(|w| w.contains(char::is_numeric))
                .count(),
            128
        );
        assert!(Grid::of(&Region::whole(&[9; 20])).is_none());
        assert!(Grid::of(&Region::whole(&[3; 12])).is_none());
        // Elements that don't exist have brackets.
        let shape = [1 << 40, 0];
        assert_eq!(text(&shape, &Region::whole(&shape)).len(), 29);
        assert!(Grid::of(&Region::whole(&[[3; 40].as_slice(), &[0]].concat())).is_none());
    }
}
