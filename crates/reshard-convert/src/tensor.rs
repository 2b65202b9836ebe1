//! A tensor that is carried over: one of the source, or one that is made of parts of several.

use crate::{
    CastReport, ConvertError, Result,
    cast::{Casting, Lost, on_cast},
    checked::{Checked, Watched},
    checks::Checks,
};
use reshard::{
    DType, MappedTensorHandle, Region, TensorHandle,
    model::{BoxError, Dims, Layout, Segments, TensorSource},
};
use std::{fmt, sync::Arc};

/// A tensor that is carried over under a key.
#[derive(Clone, Debug)]
pub(crate) struct Carried {
    key: Box<str>,
    from: From,
    /// To which element type it is cast, and what that loses.
    cast: Option<(DType, Arc<Lost>)>,
    /// From which element type a map casts it, and what that loses.
    cast_by_map: Option<(DType, Arc<Lost>)>,
}

#[derive(Clone, Debug)]
enum From {
    /// What is seen of it is watched, if it is checked while it is read.
    Stored(TensorHandle, Option<Arc<Watched>>),
    /// The same of the stored tensors that it is made of.
    Mapped(MappedTensorHandle, Arc<Checks>),
    Made(Arc<Made>),
}

impl Carried {
    fn new(key: &str, from: From) -> Self {
        Self {
            key: key.into(),
            from,
            cast: None,
            cast_by_map: None,
        }
    }

    pub(crate) fn stored(key: &str, tensor: TensorHandle, watched: Option<Arc<Watched>>) -> Self {
        Self::new(key, From::Stored(tensor, watched))
    }

    pub(crate) fn mapped(tensor: MappedTensorHandle, checks: Arc<Checks>) -> Self {
        let key = tensor.key().to_owned();
        let cast_by_map = tensor.cast_from().map(|from| (from, Arc::default()));
        let mut out = Self::new(&key, From::Mapped(tensor, checks));
        out.cast_by_map = cast_by_map;
        out
    }

    pub(crate) fn made(key: &str, made: Made) -> Self {
        Self::new(key, From::Made(Arc::new(made)))
    }

    /// The stored tensors that it is made of, if they are checked while they are read.
    pub(crate) fn watched(&self) -> Vec<Arc<Watched>> {
        match &self.from {
            From::Stored(_, watched) => watched.iter().cloned().collect(),
            From::Mapped(t, checks) => {
                let keys = t.stored_keys().into_iter();
                keys.filter_map(|key| checks.get(key).cloned()).collect()
            }
            From::Made(_) => Vec::new(),
        }
    }

    /// The same with another element type.
    pub(crate) fn with_dtype(self, dtype: DType) -> Self {
        let cast = (dtype != self.stored_dtype()).then(|| (dtype, Arc::default()));
        Self { cast, ..self }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The element type with which it is written.
    pub(crate) fn dtype(&self) -> DType {
        self.cast
            .as_ref()
            .map_or_else(|| self.stored_dtype(), |(to, _)| *to)
    }

    /// What its casts have lost: that of a map, and that of the conversion.
    pub(crate) fn lost(&self) -> impl Iterator<Item = CastReport> {
        let stored = self.stored_dtype();
        let by_map = self.cast_by_map.iter();
        let by_map = by_map.map(move |(from, lost)| (*from, stored, lost));
        let cast = self.cast.iter();
        let cast = cast.map(move |(to, lost)| (stored, *to, lost));
        let elements = self.shape().volume().unwrap_or(u64::MAX);
        by_map
            .chain(cast)
            .map(move |(from, to, lost)| lost.report(&self.key, from, to, elements))
    }

    fn stored_dtype(&self) -> DType {
        match &self.from {
            From::Stored(t, _) => t.dtype(),
            From::Mapped(t, _) => t.dtype(),
            From::Made(m) => m.dtype,
        }
    }

    pub(crate) fn shape(&self) -> &Dims {
        match &self.from {
            From::Stored(t, _) => t.shape(),
            From::Mapped(t, _) => t.shape(),
            From::Made(m) => &m.shape,
        }
    }

    pub(crate) fn nbytes(&self) -> u64 {
        let elements = self.shape().volume().unwrap_or(u64::MAX);
        elements.saturating_mul(self.dtype().size())
    }

    pub(crate) fn source(&self, region: Region) -> Result<Arc<dyn TensorSource>, reshard::Error> {
        let source: Arc<dyn TensorSource> = match &self.from {
            From::Stored(t, watched) => {
                let at = region.offsets.clone();
                checked(t.source(region)?, watched.as_ref(), at)
            }
            From::Mapped(t, checks) => {
                let wrap = |stored: &TensorHandle, source| {
                    let at = Dims::zeros(stored.shape().len());
                    checked(source, checks.get(stored.key()), at)
                };
                let count = self.cast_by_map.as_ref().map(|(_, lost)| on_cast(lost));
                t.source_through(region, wrap, count)?
            }
            From::Made(made) => Arc::new(Narrowed {
                made: Arc::clone(made),
                region,
            }),
        };
        Ok(match &self.cast {
            None => source,
            Some((to, lost)) => Arc::new(Casting {
                to: *to,
                source,
                lost: Arc::clone(lost),
            }),
        })
    }

    /// Checks that all chunks have a location.
    pub(crate) fn has_places(&self) -> Result<()> {
        match &self.from {
            From::Stored(t, _) => has_places(t),
            // Those of the tensors that it is made of are checked where it is made.
            From::Made(_) | From::Mapped(..) => Ok(()),
        }
    }
}

/// A source of a piece of a stored tensor, and what watches the tensor.
fn checked(
    source: Arc<dyn TensorSource>,
    watched: Option<&Arc<Watched>>,
    at: Dims,
) -> Arc<dyn TensorSource> {
    match watched.cloned() {
        None => source,
        Some(watched) => Arc::new(Checked {
            source,
            watched,
            at,
        }),
    }
}

/// Checks that all chunks of a stored tensor have a location.
pub(crate) fn has_places(tensor: &TensorHandle) -> Result<()> {
    let lost = tensor
        .chunks()
        .into_iter()
        .find(|c| c.parts.is_empty() && !c.region.is_empty());
    match lost {
        None => Ok(()),
        Some(chunk) => Err(ConvertError::NoPlace {
            key: tensor.key().into(),
            region: chunk.region,
        }),
    }
}

/// A tensor that is made of boxes, whose elements lie in row-major order in tensors of one axis.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) dtype: DType,
    pub(crate) shape: Dims,
    pub(crate) parts: Vec<Part>,
}

/// A box of a made tensor.
pub(crate) struct Part {
    pub(crate) region: Region,
    /// Where its elements lie: a tensor of one axis.
    pub(crate) from: Arc<dyn TensorSource>,
    /// Its first element there.
    pub(crate) start: u64,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {}", self.region, self.start)
    }
}

/// A read takes at most so many bytes of memory for elements that nobody wants.
const MOST_BETWEEN: u64 = 1 << 20;

/// Reads of this size cost little more than smaller ones.
const BLOCK_PER_PART: u64 = 64 << 10;

/// Larger blocks would take memory for nothing.
const MAX_BLOCK: u64 = 4 << 20;

impl Made {
    /// Reads the elements of `wanted`, which lies in the part, to where they belong in `out`, which holds `whole`.
    fn read(
        &self,
        part: &Part,
        wanted: &Region,
        whole: &Region,
        out: &mut [u8],
    ) -> Result<(), BoxError> {
        let item = self.dtype.size();
        let layout = |of: &Region| {
            let layout = Layout::contiguous(item, &of.lengths)?;
            Some(layout.narrow(&wanted.within(of)))
        };
        let (Some(stored), Some(to)) = (layout(&part.region), layout(whole)) else {
            return Err("a box is too large".into());
        };

        // What lies between the wanted elements is read and dropped. If that is much, the box is read in two halves.
        let hull = stored.hull();
        let span = (hull.end - hull.start) / item;
        let needless = span.saturating_sub(wanted.volume().unwrap_or(u64::MAX));
        if needless.saturating_mul(item) > MOST_BETWEEN
            && let Some(axis) = wanted.lengths.iter().position(|n| *n > 1)
        {
            let half = wanted.lengths[axis] / 2;
            let (mut low, mut high) = (wanted.clone(), wanted.clone());
            low.lengths[axis] = half;
            high.lengths[axis] -= half;
            high.offsets[axis] += half;
            self.read(part, &low, whole, out)?;
            return self.read(part, &high, whole, out);
        }

        let start = part.start.checked_add(stored.start());
        let start = start.ok_or("an offset is too large")?;
        let mut got = vec![0; usize::try_from(hull.end - hull.start)?];
        part.from.read(&Region::new([start], [span]), &mut got)?;
        for (from, to, len) in Segments::row_major(&stored, &to) {
            let from = usize::try_from(from - hull.start)?;
            let (to, len) = (usize::try_from(to)?, usize::try_from(len)?);
            let source = got.get(from..).and_then(|b| b.get(..len));
            let target = out.get_mut(to..).and_then(|b| b.get_mut(..len));
            match (source, target) {
                (Some(source), Some(target)) => target.copy_from_slice(source),
                _ => return Err("a box lies outside of what was read".into()),
            }
        }
        Ok(())
    }
}

/// A region of a made tensor.
struct Narrowed {
    made: Arc<Made>,
    region: Region,
}

impl TensorSource for Narrowed {
    fn dtype(&self) -> DType {
        self.made.dtype
    }

    fn shape(&self) -> Dims {
        self.region.lengths.clone()
    }

    /// Each block is read from all parts that it touches, so it should be larger if there are many.
    fn block(&self) -> Option<u64> {
        let parts = &self.made.parts;
        let theirs = parts
            .iter()
            .filter_map(|p| p.from.block())
            .max()
            .unwrap_or(0);
        let ours = BLOCK_PER_PART.saturating_mul(parts.len() as u64);
        Some(theirs.max(ours).min(MAX_BLOCK))
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let whole = region.shifted(&self.region.offsets);
        for part in &self.made.parts {
            if let Some(wanted) = part.region.intersect(&whole) {
                self.made.read(part, &wanted, &whole, out)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use reshard::Tensor;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Each element is its own number.
    struct Numbers {
        largest: AtomicU64,
    }

    impl TensorSource for Numbers {
        fn dtype(&self) -> DType {
            DType::Int64
        }

        fn shape(&self) -> Dims {
            [u64::MAX].into()
        }

        fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
            self.largest.fetch_max(out.len() as u64, Ordering::Relaxed);
            let numbers = region.offsets[0]..region.end(0);
            let bytes: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
            out.copy_from_slice(&bytes);
            Ok(())
        }
    }

    fn read(made: Made, region: Region) -> Vec<u64> {
        let carried = Carried::made("k", made);
        let source = carried.source(Region::whole(carried.shape())).unwrap();
        let mut out = vec![0; region.volume().unwrap() as usize * 8];
        source.read(&region, &mut out).unwrap();
        out.chunks(8)
            .map(|b| u64::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    fn numbers() -> Arc<Numbers> {
        Arc::new(Numbers {
            largest: AtomicU64::new(0),
        })
    }

    #[test]
    fn each_box_comes_from_its_place_in_row_major_order() {
        let part = |region, start| Part {
            region,
            from: numbers(),
            start,
        };
        let made = || Made {
            dtype: DType::Int64,
            shape: [2, 4].into(),
            parts: vec![
                part(Region::new([0, 0], [2, 1]), 100),
                part(Region::new([0, 1], [2, 3]), 200),
            ],
        };
        assert_eq!(
            read(made(), Region::whole(&[2, 4])),
            [100, 200, 201, 202, 101, 203, 204, 205]
        );
        assert_eq!(read(made(), Region::new([1, 0], [1, 3])), [101, 203, 204]);
        assert_eq!(
            read(made(), Region::new([0, 2], [2, 2])),
            [201, 202, 204, 205]
        );
    }

    #[test]
    fn far_elements_are_read_without_what_lies_between() {
        let from = numbers();
        let wide = 1 << 20;
        let made = Made {
            dtype: DType::Int64,
            shape: [8, wide].into(),
            parts: vec![Part {
                region: Region::whole(&[8, wide]),
                from: Arc::clone(&from) as Arc<dyn TensorSource>,
                start: 3,
            }],
        };
        let got = read(made, Region::new([0, 5], [8, 1]));
        let want: Vec<u64> = (0..8).map(|row| 3 + 5 + row * wide).collect();
        assert_eq!(got, want);
        assert!(from.largest.load(Ordering::Relaxed) <= MOST_BETWEEN + 8);
    }

    /// A tensor whose elements are their row-major indices, and a region of it: for each axis its extent, where it is cut, and two
    /// numbers that choose a range.
    fn axes() -> impl Strategy<Value = Vec<(u64, u64, u64, u64)>> {
        prop::collection::vec((1u64..7, 0u64..7, 0u64..7, 0u64..7), 1..5)
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn any_region_of_a_tensor_in_boxes_has_its_own_elements(axes in axes(), before in 0u64..5) {
            let shape: Dims = axes.iter().map(|a| a.0).collect();
            let strides = Region::whole(&shape).strides();
            let index = |at: &Region| -> u64 { at.offsets.iter().zip(&strides).map(|(o, s)| o * s).sum() };
            let indices = |of: &Region| -> Vec<u64> { of.clone().blocks(1).map(|b| index(&b)).collect() };

            // Each axis is cut in two, so that there are up to 16 boxes.
            let mut boxes = vec![Region::whole(&shape)];
            for (axis, (extent, cut, ..)) in axes.iter().enumerate() {
                let cut = cut % (extent + 1);
                let halves = |b: Region| {
                    let (mut low, mut high) = (b.clone(), b);
                    low.lengths[axis] = cut;
                    (high.offsets[axis], high.lengths[axis]) = (cut, extent - cut);
                    [low, high]
                };
                boxes = boxes.into_iter().flat_map(halves).filter(|b| !b.is_empty()).collect();
            }
            let part = |region: Region| {
                let mut elements = vec![u64::MAX; before as usize];
                elements.extend(indices(&region));
                let elements = Tensor::from_vec(&[elements.len() as u64], elements).unwrap();
                Part { region, from: Arc::new(elements), start: before }
            };
            let made = Made {
                dtype: DType::Int64,
                shape: shape.clone(),
                parts: boxes.into_iter().map(part).collect(),
            };

            let mut region = Region::whole(&shape);
            for (axis, (extent, _, a, b)) in axes.iter().enumerate() {
                let (a, b) = (a % extent, b % extent);
                (region.offsets[axis], region.lengths[axis]) = (a.min(b), a.abs_diff(b) + 1);
            }
            prop_assert_eq!(read(made, region.clone()), indices(&region));
        }
    }
}
