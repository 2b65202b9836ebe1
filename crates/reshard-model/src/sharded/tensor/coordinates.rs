//! Values that follow from the fields of a [`ShardedTensor`].

use super::super::ShardedTensor;
use crate::{Dims, ModelError, Result};
use std::ops::Range;

/// One axis of [`ShardedTensor::global_slice`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AxisSlice {
    /// A prepended axis: this index.
    Index(u64),
    /// An axis of the local tensor: these indices.
    Range(Range<u64>),
}

/// One axis of [`ShardedTensor::global_coordinates`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AxisCoordinates {
    /// A prepended axis: every element has this coordinate.
    All(u64),
    /// The coordinate of each element.
    Each(Vec<u64>),
}

impl ShardedTensor {
    /// The local chunk as indices of the global tensor, per axis.
    pub fn global_slice(&self) -> Vec<AxisSlice> {
        let prepended = self.prepend_axis_num;
        let (lead, rest) = self
            .global_offset
            .split_at(prepended.min(self.global_offset.len()));
        let ranges = rest
            .iter()
            .zip(&self.local_shape)
            .map(|(&o, &n)| AxisSlice::Range(o..o.saturating_add(n)));
        lead.iter()
            .map(|&o| AxisSlice::Index(o))
            .chain(ranges)
            .collect()
    }

    /// Which chunk of the grid it is, in chunks, per axis. Along an axis of local extent 0 it is chunk 0.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when the grid is irregular, or the offset is not a whole number of chunks.
    pub fn local_chunk_offset_in_global(&self) -> Result<Dims> {
        if self.axis_fragmentations.is_none() {
            return Err(ModelError::invalid(
                &self.key,
                "an irregular grid has no chunk coordinates",
            ));
        }
        self.validate()?;
        Ok(self
            .global_offset
            .iter()
            .zip(&self.local_extents())
            .map(|(o, n)| o.checked_div(*n).unwrap_or(0))
            .collect())
    }

    /// The largest chunks that a stored tensor may have, so that no two fragments write into one chunk.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when the grid is irregular, or an axis can't be divided into its fragments (unless
    /// [`allow_shape_mismatch`](Self::allow_shape_mismatch)).
    pub fn max_allowed_chunks(&self) -> Result<Dims> {
        let Some(fragmentations) = &self.axis_fragmentations else {
            return Err(ModelError::invalid(
                &self.key,
                "an irregular grid has no chunk size",
            ));
        };
        let chunk = |(&extent, &of): (&u64, &u64)| match extent.checked_rem(of) {
            Some(rest) if rest == 0 || self.allow_shape_mismatch => Ok(extent / of),
            _ => {
                let what =
                    format!("axis shape ({extent}) not divisible by axis fragmentation ({of})");
                Err(ModelError::invalid(&self.key, what))
            }
        };
        self.global_shape
            .iter()
            .zip(fragmentations)
            .map(chunk)
            .collect()
    }

    /// Where the elements of the flattened range lie in the local chunk: for each local axis the coordinate of each element.
    /// Takes 8 bytes per element and axis.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when there is no flattened range, or it does not lie in the chunk.
    pub fn local_coordinates(&self) -> Result<Vec<Vec<u64>>> {
        let Some(range) = &self.flattened_range else {
            let what = "local_coordinates is undefined for a tensor without flattened_range";
            return Err(ModelError::invalid(&self.key, what));
        };
        self.validate()?;
        let mut out = Vec::with_capacity(self.local_shape.len());
        for (axis, &extent) in self.local_shape.iter().enumerate() {
            let stride = self.local_shape[axis + 1..].iter().product::<u64>();
            // Of a chunk without elements the range is empty, so nothing is divided.
            out.push(range.clone().map(|i| i / stride % extent).collect());
        }
        Ok(out)
    }

    /// As [`local_coordinates`](Self::local_coordinates), in the global tensor.
    ///
    /// # Errors
    /// As [`local_coordinates`](Self::local_coordinates).
    pub fn global_coordinates(&self) -> Result<Vec<AxisCoordinates>> {
        let local = self.local_coordinates()?;
        let (lead, rest) = self.global_offset.split_at(self.prepend_axis_num);
        let each = local.into_iter().zip(rest).map(|(mut c, offset)| {
            c.iter_mut().for_each(|c| *c += offset);
            AxisCoordinates::Each(c)
        });
        Ok(lead
            .iter()
            .map(|&o| AxisCoordinates::All(o))
            .chain(each)
            .collect())
    }
}
