//! Tensors that Megatron Core stores flattened: how their chunks lie in them, and where a flattened leaf is stored.
//!
//! Such a tensor is cut into the cells of a regular grid. Its stored shape has an axis for each axis of the grid, and one more for the
//! elements of a cell in row-major order (Megatron Core's "reformulated" shape). A stored chunk is a range of the last axis.

use crate::{Fault, PlanError, Result, TensorRef};
use reshard_model::{Dims, FlatView, Region, ShardedTensor};

/// So many cells may one read meet in chunks of several cells. Only tools write such chunks that know nothing of flattened tensors.
const MAX_CELLS: u64 = 1 << 16;

/// The same for tiny cells, which have fewer elements than this: what a cell costs must be worth its elements.
const MAX_TINY_CELLS: u64 = 1 << 10;
const TINY: u64 = 16;

/// So many numbers, one for each axis of each box, may all boxes of a plan have beyond [`FREE_NUMBERS`] for each chunk. They take
/// some hundred megabytes. A small description could ask for any number of them.
const MAX_NUMBERS: u64 = 1 << 22;

/// So many numbers may the boxes of a chunk have that count as nothing: as many as a chunk of a few axes has.
const FREE_NUMBERS: u64 = 64;

/// What a plan has read of flattened tensors.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// Cells of the read at hand, in chunks of several cells.
    cells: u64,
    /// Numbers of boxes of the whole plan.
    numbers: u64,
}

impl Taken {
    /// Another read begins.
    pub(crate) fn begin_read(&mut self) {
        self.cells = 0;
    }

    /// Counts what a chunk gives: at most so many boxes.
    fn add(&mut self, boxes: u64, axes: usize) -> Result<(), String> {
        let numbers = boxes.saturating_mul(axes as u64);
        let more = numbers.saturating_sub(FREE_NUMBERS);
        self.numbers = self.numbers.saturating_add(more);
        match self.numbers > MAX_NUMBERS {
            true => Err(format!(
                "so many cells and axes that the boxes of this plan have more than {MAX_NUMBERS} numbers; read fewer tensors or smaller regions at once"
            )),
            false => Ok(()),
        }
    }
}

/// The grid of a tensor that is stored flattened.
#[derive(Debug)]
pub(crate) struct FlatGrid {
    /// Elements per axis of a cell.
    cell: Dims,
    /// Elements of a cell.
    elements: u64,
}

/// Elements that a stored chunk has of a cell.
pub(crate) struct InCell {
    /// The cell, in elements of the original tensor.
    pub(crate) cell: Region,
    /// Which elements of the cell, in row-major order.
    pub(crate) range: std::ops::Range<u64>,
    /// The tensor of which the chunk is a range.
    pub(crate) view: FlatView,
    /// What to add to the first axis to come from the cell to that tensor.
    pub(crate) rows: u64,
}

impl FlatGrid {
    /// The grid of a stored tensor; `None` if it is not stored flattened.
    ///
    /// # Errors
    /// Its stored shape is not that of a grid over its original shape.
    pub(crate) fn of(tensor: TensorRef<'_>) -> Result<Option<Self>, Fault> {
        let Some(original) = tensor.original_shape() else {
            return Ok(None);
        };
        let stored = tensor.shape();
        Self::new(&original, &stored)
            .map(Some)
            .map_err(|why| Fault::Flattened {
                original,
                stored,
                why,
            })
    }

    /// The grid of a tensor of shape `original` that is stored in shape `stored`, or why there is none.
    pub(crate) fn new(original: &[u64], stored: &[u64]) -> Result<Self, String> {
        let Some((&elements, fragments)) = stored
            .split_last()
            .filter(|(_, fragments)| fragments.len() == original.len())
        else {
            return Err("it should have one axis more".into());
        };
        let mut cell = Dims::default();
        for (axis, (&n, &f)) in original.iter().zip(fragments).enumerate() {
            match n.checked_rem(f) {
                Some(0) => cell.push(n / f),
                _ => {
                    return Err(format!(
                        "axis {axis} of {n} can't be cut into {f} fragments"
                    ));
                }
            }
        }
        match cell.volume() {
            Some(n) if n == elements => Ok(Self { cell, elements }),
            _ => Err(format!(
                "a cell of shape {cell} does not have {elements} elements"
            )),
        }
    }

    /// The stored elements in which a region of the original tensor lies, and others of the same cells.
    pub(crate) fn stored(&self, region: &Region) -> Region {
        let (mut offsets, mut lengths) = (Dims::default(), Dims::default());
        for (axis, &n) in self.cell.iter().enumerate() {
            let n = n.max(1);
            let first = region.offsets[axis] / n;
            offsets.push(first);
            lengths.push(region.end(axis).div_ceil(n).saturating_sub(first));
        }
        offsets.push(0);
        lengths.push(self.elements);
        Region { offsets, lengths }
    }

    /// What a stored chunk has of each cell that a region of the original tensor meets.
    ///
    /// # Errors
    /// [`PlanError::Unsupported`] if the chunk has parts of several cells, or so many cells that nobody has written them.
    pub(crate) fn cells(
        &self,
        key: &str,
        chunk: &Region,
        wanted: &Region,
        taken: &mut Taken,
    ) -> Result<Vec<InCell>> {
        let unsupported = |what: String| {
            let what = format!("the stored chunk {chunk} of a flattened tensor has {what}");
            PlanError::unsupported(key, what)
        };
        let axes = self.cell.len();
        let cut = |r: &Region| Region::new(&r.offsets[..axes], &r.lengths[..axes]);
        let range = chunk.offsets[axes]..chunk.end(axes);
        let all = cut(chunk);
        let Some(met) = all.intersect(&cut(&self.stored(wanted))) else {
            return Ok(Vec::new());
        };
        // One cell is what Megatron Core writes. Whole cells, one after the other, are a tensor that is stacked along its first axis.
        let one = all.lengths.iter().all(|n| *n == 1);
        if !one && range != (0..self.elements) {
            return Err(unsupported("parts of several cells".into()));
        }
        let count = met.volume().unwrap_or(u64::MAX);
        if !one {
            taken.cells = taken.cells.saturating_add(count);
            let most = match self.elements < TINY {
                true => MAX_TINY_CELLS,
                false => MAX_CELLS,
            };
            if taken.cells > most {
                return Err(unsupported(format!(
                    "{count} of its cells in the region {wanted}, and a read may meet {most}; read smaller regions"
                )));
            }
        }
        // A range of a row-major cell is so many boxes at most; a whole cell is one.
        let boxes = match range == (0..self.elements) {
            true => 1,
            false => 2 * axes as u64 + 1,
        };
        taken
            .add(count.saturating_mul(boxes), axes)
            .map_err(unsupported)?;
        let mut shape = self.cell.clone();
        if let (false, Some(rows)) = (one, shape.first_mut()) {
            let stacked = all.volume().and_then(|n| n.checked_mul(*rows));
            let Some(stacked) = stacked else {
                return Err(unsupported("too many cells".into()));
            };
            *rows = stacked;
        }
        let strides = all.strides();
        let cells = met.boxes(0..count).flat_map(|b| {
            let n = b.volume().unwrap_or(0);
            (0..n).flat_map(move |i| b.boxes(i..i + 1).collect::<Vec<_>>())
        });
        Ok(cells
            .map(|at| {
                let number: u64 = (0..axes)
                    .map(|a| (at.offsets[a] - all.offsets[a]) * strides[a])
                    .sum();
                let start = at.offsets.iter().zip(&self.cell).map(|(c, n)| c * n);
                InCell {
                    cell: Region::new(start.collect::<Dims>(), self.cell.clone()),
                    range: range.clone(),
                    view: FlatView {
                        shape: shape.clone(),
                        start: if one { range.start } else { 0 },
                    },
                    rows: number * self.cell.first().copied().unwrap_or(0),
                }
            })
            .collect())
    }
}

/// How a leaf is stored: the shape of its tensor, and the leaf's part of it.
pub(crate) struct AsStored {
    pub(crate) shape: Dims,
    pub(crate) region: Region,
    /// The shape of the tensor, if it is stored flattened.
    pub(crate) original: Option<Dims>,
}

/// How a leaf is stored.
///
/// # Errors
/// [`PlanError::Unsupported`] for a flattened leaf of an irregular grid, or of one that does not make up the global shape.
pub(crate) fn as_stored(t: &ShardedTensor) -> Result<AsStored> {
    let region = t.region();
    let Some(range) = &t.flattened_range else {
        return Ok(AsStored {
            shape: t.global_shape.clone(),
            region,
            original: None,
        });
    };
    let unsupported = |what: String| PlanError::unsupported(&t.key, what);
    let Some(fragments) = &t.axis_fragmentations else {
        let what = "a flattened range of an irregular grid can't be stored; declare the leaf with a regular one, or save it unflattened";
        return Err(unsupported(what.into()));
    };
    let (mut shape, mut offsets) = (Dims::default(), Dims::default());
    for (axis, &f) in fragments.iter().enumerate() {
        let (local, global) = (region.lengths[axis], t.global_shape[axis]);
        if f.checked_mul(local) != Some(global) {
            let what = format!(
                "a flattened range is stored by cells, but {f} fragments of {local} don't make up the {global} elements of axis {axis}"
            );
            return Err(unsupported(what));
        }
        shape.push(f);
        offsets.push(region.offsets[axis].checked_div(local).unwrap_or(0));
    }
    shape.push(region.volume().unwrap_or(u64::MAX));
    offsets.push(range.start);
    let mut lengths = Dims::splat(1, fragments.len());
    lengths.push(range.end - range.start);
    Ok(AsStored {
        shape,
        region: Region { offsets, lengths },
        original: Some(t.global_shape.clone()),
    })
}
