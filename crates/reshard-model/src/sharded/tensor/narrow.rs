use super::super::{Data, ShardedTensor};
use crate::{ModelError, Region, Result};
use std::ops::Range;

impl ShardedTensor {
    /// The tensor that arises when every rank narrows its local chunk in this way, as `torch.narrow`: `axis` counts local axes,
    /// `start` and `length` are elements of it. Global shape and offset shrink with the chunk. The data is a view.
    ///
    /// Gives one tensor; of a flattened range none where the range does not reach what is left.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when the part does not lie in the chunk, when the grid is irregular, when global shape or offset
    /// don't shrink to whole numbers, or when a flattened range is narrowed along another axis than the first.
    ///
    /// ```
    /// use reshard_model::{ShardedTensor, Tensor};
    /// # fn main() -> Result<(), reshard_model::ModelError> {
    /// let local = Tensor::from_vec(&[3, 4], (0..12).collect::<Vec<i32>>())?;
    /// let t = ShardedTensor::from_rank_offsets("w", local, &[(0, 1, 2)])?;
    /// let row = t.narrow(0, 2, 1)?.remove(0);
    /// assert_eq!((row.local_shape, row.global_shape, row.global_offset), ([1, 4].into(), [2, 4].into(), [1, 0].into()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn narrow(&self, axis: usize, start: u64, length: u64) -> Result<Vec<Self>> {
        let fail = |what: String| Err(ModelError::invalid(&self.key, what));
        self.validate()?;
        let Some(&extent) = self.local_shape.get(axis) else {
            return fail(format!(
                "can't narrow axis {axis} of local_shape {}",
                self.local_shape
            ));
        };
        if start.checked_add(length).is_none_or(|end| end > extent) {
            return fail(format!(
                "can't narrow axis {axis} of extent {extent} to {length} elements from {start} on"
            ));
        }
        if self.axis_fragmentations.is_none() {
            return fail("only regular grids of local tensors can be narrowed".into());
        }
        if axis != 0 && self.flattened_range.is_some() {
            return fail(format!(
                "a flattened range can be narrowed along its first axis only, not along {axis}"
            ));
        }
        let global_axis = axis + self.prepend_axis_num;
        let shrink = |n: u64| {
            let whole = u128::from(n) * u128::from(length);
            match whole.checked_rem(u128::from(extent)) {
                // Nothing is cut off an axis that has nothing.
                None => Ok(n),
                Some(0) => Ok((whole / u128::from(extent)) as u64),
                Some(_) => Err(ModelError::invalid(
                    &self.key,
                    format!(
                        "axis {global_axis}: {n} is not divisible when {extent} shrinks to {length}"
                    ),
                )),
            }
        };
        let mut out = self.without_data();
        out.global_shape[global_axis] = shrink(self.global_shape[global_axis])?;
        out.global_offset[global_axis] = shrink(self.global_offset[global_axis])?;
        out.local_shape[axis] = length;
        let Some(range) = &self.flattened_range else {
            let mut region = Region::whole(&self.local_shape);
            (region.offsets[axis], region.lengths[axis]) = (start, length);
            out.data = self.data.narrow(&region);
            return Ok(vec![out.validated()?]);
        };
        let row = self.local_shape[1..].iter().product::<u64>();
        let (lo, hi) = (start * row, (start + length) * row);
        // As Megatron has it: an empty range between the ends stays, one that touches an end is gone.
        if range.end <= lo || range.start >= hi {
            return Ok(Vec::new());
        }
        out.keep_flat(&self.data, range, lo..hi);
        Ok(vec![out.validated()?])
    }

    /// Of `data`, the elements `range` of a flattened chunk, it becomes what lies in `part` of that chunk, counted from its start.
    /// The two must meet or touch.
    pub(crate) fn keep_flat(&mut self, data: &Data, range: &Range<u64>, part: Range<u64>) {
        let cut = range.start.max(part.start)..range.end.min(part.end);
        self.data = data.narrow(&Region::new(
            [cut.start - range.start],
            [cut.end - cut.start],
        ));
        self.flattened_range = Some(cut.start - part.start..cut.end - part.start);
    }
}
