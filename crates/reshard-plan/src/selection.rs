//! What is wanted of a stored chunk, and where it lies. This module has the only mapping between the two.

use crate::{ChunkId, Metadata, PlanError, ReadItem, Result, Stored};
use reshard_model::{DType, FlatView, Layout, Region, first_overlap};
use serde::{Deserialize, Serialize};

/// What is wanted of a stored chunk.
///
/// A format says how a chunk lies in its record. [`layout`](Self::layout) says where the wanted elements lie in this record. No other code
/// narrows a stored layout, so only this module knows what a chunk can be.
///
/// ```
/// use reshard_model::{DType, FlatView, Layout, Region};
/// use reshard_plan::{ChunkId, Selection};
///
/// # fn main() -> Result<(), reshard_plan::PlanError> {
/// // A chunk of 3 x 4 elements is stored row-major from element 0 of its record. Its right half is wanted.
/// let stored = Layout::contiguous(4, &[3, 4]).unwrap();
/// let right = Selection::new(ChunkId(7), DType::Float32, Region::new([0, 2], [3, 2]));
/// assert_eq!(right.layout(&stored)?.start(), 2);
///
/// // The elements 3..9 of a tensor of that shape are stored, as one row. The tensor's second row is wanted.
/// let stored = Layout::contiguous(4, &[6]).unwrap();
/// let row = Selection::new(ChunkId(8), DType::Float32, Region::new([1, 0], [1, 4]));
/// let row = row.flat(FlatView { shape: [3, 4].into(), start: 3 });
/// assert_eq!(row.layout(&stored)?.hull(), 4..20);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Selection {
    /// The chunk.
    pub chunk: ChunkId,
    /// Element type, as stored.
    pub dtype: DType,
    /// The wanted region, relative to the start of the chunk. In a [flat view](Self::flat) it is relative to the start of the tensor of
    /// which the chunk is a range.
    pub region: Region,
    /// The tensor of which the chunk is a range, if the region does not have the chunk's own axes.
    pub flat: Option<FlatView>,
}

impl Selection {
    /// A box of a chunk, relative to its start.
    pub fn new(chunk: ChunkId, dtype: DType, region: Region) -> Self {
        Self {
            chunk,
            dtype,
            region,
            flat: None,
        }
    }

    /// A box of the tensor of which the chunk is a range.
    #[must_use]
    pub fn flat(self, view: FlatView) -> Self {
        Self {
            flat: Some(view),
            ..self
        }
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.region.volume().unwrap_or(u64::MAX)
    }

    /// Their size in bytes, as they are stored.
    pub fn bytes(&self) -> u64 {
        self.elements().saturating_mul(self.dtype.size())
    }

    /// Where the wanted elements lie in a record in which the chunk has the layout `stored`. The result has the axes of the region.
    ///
    /// # Errors
    /// [`PlanError::Invalid`] if the region does not lie in the chunk, or the size of an element is not that of its type.
    pub fn layout(&self, stored: &Layout) -> Result<Layout> {
        let fail = |what: String| Err(PlanError::invalid(&format!("chunk {}", self.chunk.0), what));
        if stored.item() != self.dtype.size() {
            let size = stored.item();
            return fail(format!(
                "elements of {size} bytes are stored, but {} was asked for",
                self.dtype
            ));
        }
        let Some(flat) = &self.flat else {
            if self.region.fits(stored.shape()) {
                return Ok(stored.narrow(&self.region));
            }
            return fail(format!(
                "region {} does not lie in shape {}",
                self.region,
                stored.shape()
            ));
        };
        let found = flat.narrow(stored, &self.region);
        found.map_or_else(|| fail(outside(&self.region, flat, stored.elements())), Ok)
    }

    /// Whether selections of one chunk, which has `elements` elements, cover each of its elements exactly once. All selections must lie in
    /// the chunk. `false` if their flat views differ.
    pub fn cover_once(all: &[&Self], elements: u64) -> bool {
        let Some(first) = all.first() else {
            return elements == 0;
        };
        let range = |i: usize, axis: usize| all[i].region.offsets[axis]..all[i].region.end(axis);
        let alike = |s: &&Self| s.flat == first.flat && s.region.ndim() == first.region.ndim();
        all.iter()
            .map(|s| s.elements())
            .fold(0, u64::saturating_add)
            == elements
            && all.iter().all(alike)
            && first_overlap(all.len(), first.region.ndim(), range).is_none()
    }
}

fn outside(region: &Region, flat: &FlatView, elements: u64) -> String {
    let (shape, start, end) = (&flat.shape, flat.start, flat.start.saturating_add(elements));
    format!("region {region} of shape {shape} does not lie in the stored elements {start}..{end}")
}

impl ReadItem {
    /// The selection of this item. `None` for an object.
    ///
    /// # Errors
    /// [`PlanError::Invalid`] with the key, if a planner asks for something that `metadata` does not have, or for another shape than that of
    /// the destination.
    pub fn selection(&self, metadata: &Metadata) -> Result<Option<Selection>> {
        let Stored::Chunk(id) = self.stored else {
            return Ok(None);
        };
        let (key, region) = (&self.piece.key, &self.stored_region);
        let Some((tensor, chunk)) = metadata.chunk(id) else {
            return Err(PlanError::invalid(
                key,
                format!("there is no chunk {}, which is to be read", id.0),
            ));
        };
        if region.lengths != self.dest_region.lengths {
            let (have, want) = (&region.lengths, &self.dest_region.lengths);
            let what = format!("a region of shape {have} can't fill one of shape {want}");
            return Err(PlanError::invalid(key, what));
        }
        let out = Selection {
            flat: self.flat.as_deref().cloned(),
            ..Selection::new(id, tensor.dtype(), region.clone())
        };
        // How the chunk lies does not matter for whether it has the region.
        let shape = &chunk.lengths;
        let inside = match &out.flat {
            None => region.fits(shape),
            Some(flat) => {
                let dense = Layout::contiguous(tensor.dtype().size(), shape);
                dense.is_some_and(|dense| flat.narrow(&dense, region).is_some())
            }
        };
        if inside {
            return Ok(Some(out));
        }
        let what = match &out.flat {
            None => format!("region {region} does not lie in its chunk {chunk}"),
            Some(flat) => outside(region, flat, shape.volume().unwrap_or(u64::MAX)),
        };
        Err(PlanError::invalid(key, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use reshard_model::{Dims, Segments};

    /// Each element's place, in row-major order.
    fn places(l: &Layout) -> Vec<u64> {
        let dense = Layout::contiguous(l.item(), l.shape()).unwrap();
        let item = l.item();
        Segments::row_major(l, &dense)
            .flat_map(|(s, _, n)| (0..n / item).map(move |k| s / item + k))
            .collect()
    }

    fn select(region: Region) -> Selection {
        Selection::new(ChunkId(0), DType::Int16, region)
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        /// A box of a flattened range is found where the elements of the range that it has lie, or refused when one is not there.
        #[test]
        fn a_box_of_a_flattened_range_is_its_elements(
            axes in prop::collection::vec((1u64..5, 0u64..3, 0u64..5), 0..4),
            from in 0u64..64, n in 0u64..64, lead in 0usize..3, step in 1u64..4, pad in 0u64..5,
        ) {
            let shape: Dims = axes.iter().map(|a| a.0).collect();
            let region = Region::new(
                axes.iter().map(|a| a.1.min(a.0)).collect::<Dims>(),
                axes.iter().map(|a| a.2.min(a.0 - a.1.min(a.0))).collect::<Dims>(),
            );
            let volume = shape.volume().unwrap();
            let from = from % (volume + 1);
            let range = from..from + n % (volume - from + 1);
            // The chunk is the range, behind prepended axes; in its record its elements lie `step` apart.
            let mut chunk = Dims::splat(1, lead);
            chunk.push(range.end - range.start);
            let mut strides = Dims::splat(99, lead);
            strides.push(step);
            let stored = Layout::new(2, pad, chunk, strides).unwrap();
            let wanted = places(&Layout::contiguous(2, &shape).unwrap().narrow(&region));
            let found = select(region).flat(FlatView { shape, start: range.start }).layout(&stored);
            if wanted.iter().all(|e| range.contains(e)) {
                let want: Vec<u64> = wanted.iter().map(|e| pad + (e - range.start) * step).collect();
                prop_assert_eq!(places(&found.unwrap()), want);
            } else {
                prop_assert!(found.is_err());
            }
        }

        /// Boxes that a range is made of are each in it, and are all of it once.
        #[test]
        fn the_boxes_of_a_range_are_its_chunk(
            shape in prop::collection::vec(1u64..5, 0..4), from in 0u64..70, n in 1u64..70,
        ) {
            let whole = Region::whole(&shape);
            let volume = whole.volume().unwrap();
            let range = from % volume..(from % volume + n).min(volume);
            let view = FlatView { shape: shape.as_slice().into(), start: range.start };
            let stored = Layout::contiguous(2, &[1, range.end - range.start]).unwrap();
            let boxes: Vec<Selection> = whole.boxes(range.clone()).map(|b| select(b).flat(view.clone())).collect();
            let found: Vec<u64> = boxes.iter().flat_map(|b| places(&b.layout(&stored).unwrap())).collect();
            prop_assert_eq!(found, (0..range.end - range.start).collect::<Vec<_>>());
            let all: Vec<&Selection> = boxes.iter().collect();
            prop_assert!(Selection::cover_once(&all, stored.elements()));
            prop_assert!(!Selection::cover_once(&all[1..], stored.elements()));
        }
    }

    #[test]
    fn what_is_not_in_the_chunk_is_refused() {
        let stored = Layout::contiguous(2, &[2, 3]).unwrap();
        assert_eq!(
            select(Region::new([1, 0], [1, 3]))
                .layout(&stored)
                .unwrap()
                .hull(),
            6..12
        );
        let error = |s: Selection, l: &Layout| s.layout(l).unwrap_err().to_string();
        let e = error(select(Region::new([1, 0], [2, 3])), &stored);
        assert_eq!(e, "chunk 0: region [1:3, 0:3] does not lie in shape [2, 3]");
        assert!(error(select(Region::new([0], [1])), &stored).contains("does not lie in"));
        let wide = Layout::contiguous(4, &[2, 3]).unwrap();
        let e = error(select(Region::whole(&[2, 3])), &wide);
        assert_eq!(
            e,
            "chunk 0: elements of 4 bytes are stored, but int16 was asked for"
        );
        let flat = FlatView {
            shape: [4, 3].into(),
            start: 2,
        };
        let e = error(select(Region::new([0, 1], [1, 2])).flat(flat), &stored);
        assert_eq!(
            e,
            "chunk 0: region [0:1, 1:3] of shape [4, 3] does not lie in the stored elements 2..8"
        );
        // Rows with gaps between them are not one range.
        let gaps = Layout::new(2, 0, [2, 3].into(), [9, 1].into()).unwrap();
        let flat = FlatView {
            shape: [6].into(),
            start: 0,
        };
        assert!(
            select(Region::new([0], [1]))
                .flat(flat)
                .layout(&gaps)
                .is_err()
        );
    }

    #[test]
    fn all_of_a_chunk_once_is_neither_less_nor_more() {
        let s = |from, n| select(Region::new([from, 0], [n, 2]));
        let (a, b, over) = (s(0, 1), s(1, 2), s(0, 2));
        assert!(Selection::cover_once(&[&a, &b], 6));
        assert!(!Selection::cover_once(&[&a], 6));
        assert!(
            !Selection::cover_once(&[&over, &a], 6),
            "a row twice, one not at all"
        );
        let flat = s(1, 2).flat(FlatView {
            shape: [3, 2].into(),
            start: 0,
        });
        assert!(
            !Selection::cover_once(&[&a, &flat], 6),
            "regions of different views can't be compared"
        );
        assert!(Selection::cover_once(&[], 0) && !Selection::cover_once(&[], 1));
    }

    #[test]
    fn an_item_that_can_not_be_read_names_its_key() {
        let mut builder = Metadata::builder();
        let w = builder
            .add_tensor("w", DType::Int16, &[4, 3], Default::default())
            .unwrap();
        let chunk = builder.add_chunk(w, &Region::new([2, 0], [2, 3])).unwrap();
        let metadata = builder.finish(None).unwrap();
        let item = |id, dest: [u64; 2], region: Region| ReadItem {
            dest: 0,
            dest_region: Region::whole(&dest),
            piece: crate::PieceId {
                key: "w".into(),
                offset: Some([2, 0].into()),
            },
            stored: Stored::Chunk(id),
            stored_region: region,
            flat: None,
        };
        let row = item(chunk, [1, 3], Region::new([1, 0], [1, 3]));
        assert_eq!(
            row.selection(&metadata).unwrap(),
            Some(select(Region::new([1, 0], [1, 3])))
        );
        let error = |i: ReadItem| i.selection(&metadata).unwrap_err().to_string();
        let outside = item(chunk, [1, 3], Region::new([2, 0], [1, 3]));
        assert_eq!(
            error(outside),
            "w: region [2:3, 0:3] does not lie in its chunk [2:4, 0:3]"
        );
        let shape = item(chunk, [3, 1], Region::new([1, 0], [1, 3]));
        assert_eq!(
            error(shape),
            "w: a region of shape [1, 3] can't fill one of shape [3, 1]"
        );
        let unknown = item(ChunkId(9), [1, 3], Region::new([1, 0], [1, 3]));
        assert_eq!(
            error(unknown),
            "w: there is no chunk 9, which is to be read"
        );
        let flat = |start| {
            let view = FlatView {
                shape: [3, 3].into(),
                start,
            };
            ReadItem {
                flat: Some(Box::new(view)),
                ..item(chunk, [1, 3], Region::new([1, 0], [1, 3]))
            }
        };
        assert!(
            flat(0)
                .selection(&metadata)
                .unwrap()
                .unwrap()
                .flat
                .is_some()
        );
        assert_eq!(
            error(flat(4)),
            "w: region [1:2, 0:3] of shape [3, 3] does not lie in the stored elements 4..10"
        );
        let object = ReadItem {
            stored: Stored::Object(crate::ObjectId(0)),
            ..row
        };
        assert_eq!(object.selection(&metadata).unwrap(), None);
    }
}
