//! The messages in an index: the header, and an entry for each tensor and slice.

use crate::dtype::{self, Enum};
use prost::Message;
use reshard_model::{Dims, Region};

/// TensorFlow's own limit.
pub(crate) const MAX_AXES: usize = 254;

/// `BundleHeaderProto`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Header {
    #[prost(int32, tag = "1")]
    pub(crate) shards: i32,
    #[prost(int32, tag = "2")]
    pub(crate) endianness: i32,
    #[prost(message, optional, tag = "3")]
    pub(crate) version: Option<Version>,
}

/// `VersionDef`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Version {
    #[prost(int32, tag = "1")]
    pub(crate) producer: i32,
    #[prost(int32, tag = "2")]
    pub(crate) min_consumer: i32,
    #[prost(int32, repeated, tag = "3")]
    pub(crate) bad_consumers: Vec<i32>,
}

impl Header {
    /// The header of a bundle with this number of data files.
    pub(crate) fn new(shards: i32) -> Self {
        let version = Version {
            producer: 1,
            ..Version::default()
        };
        Self {
            shards,
            endianness: 0,
            version: Some(version),
        }
    }
}

/// `BundleEntryProto`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Entry {
    #[prost(int32, tag = "1")]
    pub(crate) dtype: Enum,
    #[prost(message, optional, tag = "2")]
    pub(crate) shape: Option<Shape>,
    #[prost(int32, tag = "3")]
    pub(crate) shard: i32,
    #[prost(int64, tag = "4")]
    pub(crate) offset: i64,
    #[prost(int64, tag = "5")]
    pub(crate) size: i64,
    /// Masked.
    #[prost(fixed32, tag = "6")]
    pub(crate) crc: u32,
    #[prost(message, repeated, tag = "7")]
    pub(crate) slices: Vec<Slice>,
}

/// `TensorShapeProto`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Shape {
    #[prost(message, repeated, tag = "2")]
    axes: Vec<Axis>,
    #[prost(bool, tag = "3")]
    unknown_rank: bool,
}

/// `TensorShapeProto.Dim`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Axis {
    #[prost(int64, tag = "1")]
    size: i64,
}

/// `TensorSliceProto`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Slice {
    #[prost(message, repeated, tag = "1")]
    pub(crate) extents: Vec<Extent>,
}

/// `TensorSliceProto.Extent`: a slice on one axis. A whole axis has no length.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Extent {
    #[prost(int64, tag = "1")]
    pub(crate) start: i64,
    #[prost(int64, optional, tag = "2")]
    pub(crate) length: Option<i64>,
}

impl Shape {
    pub(crate) fn new(lengths: impl IntoIterator<Item = i64>) -> Self {
        Self {
            axes: lengths.into_iter().map(|size| Axis { size }).collect(),
            unknown_rank: false,
        }
    }
}

impl Entry {
    /// `None` if the bytes are no such message, or a shape or slice has too many axes.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let me = Self::decode(bytes).ok()?;
        let axes = me.shape.iter().map(|shape| shape.axes.len());
        let mut axes = axes.chain(me.slices.iter().map(|slice| slice.extents.len()));
        let fits = axes.all(|n| n <= MAX_AXES);
        fits.then_some(me)
    }

    /// The length of each axis. An entry without a shape is a scalar.
    pub(crate) fn lengths(&self) -> Vec<i64> {
        let axes = self.shape.iter().flat_map(|shape| &shape.axes);
        axes.map(|axis| axis.size).collect()
    }

    /// The shape. The error says what is wrong with it.
    pub(crate) fn dims(&self) -> Result<Dims, String> {
        if self.shape.as_ref().is_some_and(|shape| shape.unknown_rank) {
            return Err("its rank is not known".into());
        }
        let shape = self.lengths();
        let dims = shape.iter().map(|n| u64::try_from(*n).ok());
        let dims: Dims = dims
            .collect::<Option<Vec<u64>>>()
            .ok_or_else(|| format!("its shape {shape:?} has a negative length"))?
            .into();
        match dims.volume() {
            Some(_) => Ok(dims),
            None => Err(format!("its shape {dims} has too many elements")),
        }
    }
}

/// The region of a slice of a tensor. `None` if it does not lie in the tensor.
pub(crate) fn region(slice: &[Extent], shape: &Dims) -> Option<Region> {
    if slice.len() != shape.len() {
        return None;
    }
    let (mut offsets, mut lengths) = (Dims::default(), Dims::default());
    for (Extent { start, length }, n) in slice.iter().zip(shape) {
        let start = u64::try_from(*start).ok()?;
        let length = match length {
            Some(length) => u64::try_from(*length).ok()?,
            None if start == 0 => *n,
            None => return None,
        };
        if start.checked_add(length)? > *n {
            return None;
        }
        offsets.push(start);
        lengths.push(length);
    }
    Some(Region { offsets, lengths })
}

/// How many bytes so many elements take. `None` for types whose elements have no common length.
pub(crate) fn bytes_of(dtype: Enum, elements: u64) -> Option<u64> {
    elements.checked_mul(dtype::Kind::of(dtype)?.item()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slice_of(extents: &[(i64, Option<i64>)]) -> Slice {
        let extents = extents.iter();
        Slice {
            extents: extents
                .map(|&(start, length)| Extent { start, length })
                .collect(),
        }
    }

    #[test]
    fn headers_and_entries_are_those_of_the_reference() {
        assert_eq!(Header::new(1).encode_to_vec(), [8, 1, 0x1a, 2, 8, 1]);
        let slice = Entry {
            dtype: 1,
            shape: Some(Shape::new([5, 4])),
            size: 80,
            crc: 0x191c_91dd,
            ..Entry::default()
        };
        let bytes = b"\x08\x01\x12\x08\x12\x02\x08\x05\x12\x02\x08\x04\x28\x50\x35\xdd\x91\x1c\x19";
        assert_eq!(slice.encode_to_vec(), bytes);
        let full = Entry {
            dtype: 1,
            shape: Some(Shape::new([13, 4])),
            slices: vec![
                slice_of(&[(0, Some(5)), (0, Some(4))]),
                slice_of(&[(0, None)]),
            ],
            ..Entry::default()
        };
        let bytes = full.encode_to_vec();
        assert!(bytes.ends_with(b"\x3a\x08\x0a\x02\x10\x05\x0a\x02\x10\x04\x3a\x02\x0a\0"));
        assert_eq!(Entry::parse(&bytes), Some(full));
        // A scalar has a shape without axes.
        assert!(
            Entry {
                shape: Some(Shape::new([])),
                ..Entry::default()
            }
            .encode_to_vec()
            .starts_with(&[0x12, 0])
        );
    }

    #[test]
    fn an_entry_with_too_many_axes_is_none() {
        let of = |shape, slice| {
            let entry = Entry {
                shape: Some(Shape::new(vec![1; shape])),
                slices: vec![slice_of(&vec![(0, None); slice])],
                ..Entry::default()
            };
            Entry::parse(&entry.encode_to_vec()).is_some()
        };
        assert_eq!([of(254, 254), of(255, 0), of(0, 255)], [true, false, false]);
    }

    #[test]
    fn a_slice_lies_in_its_tensor_or_is_none() {
        let shape = Dims::from([4, 3]);
        let of = |slice: &[(i64, Option<i64>)]| region(&slice_of(slice).extents, &shape);
        assert_eq!(
            of(&[(1, Some(2)), (0, None)]),
            Some(Region::new([1, 0], [2, 3]))
        );
        assert_eq!(
            of(&[(0, Some(0)), (3, Some(0))]),
            Some(Region::new([0, 3], [0, 0]))
        );
        for bad in [
            &[(0, None)][..],
            &[(3, Some(2)), (0, None)],
            &[(1, None), (0, None)],
            &[(-1, Some(1)), (0, None)],
            &[(0, Some(-1)), (0, None)],
            &[(i64::MAX, Some(i64::MAX)), (0, None)],
        ] {
            assert_eq!(of(bad), None);
        }
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn entries_are_read_as_they_were_written(
            dtype in 0i32..40, shape in prop::collection::vec(any::<i64>(), 0..4), shard in 0i32..9, offset: i64, size: i64, crc: u32,
            slices in prop::collection::vec(prop::collection::vec(any::<(i64, Option<i64>)>(), 0..3), 0..3),
        ) {
            let (shape, slices) = (Some(Shape::new(shape)), slices.iter().map(|slice| slice_of(slice)).collect());
            let entry = Entry { dtype, shape, shard, offset, size, crc, slices };
            prop_assert_eq!(Entry::parse(&entry.encode_to_vec()), Some(entry));
        }

        #[test]
        fn no_bytes_make_the_parsers_panic(bytes: Vec<u8>) {
            drop(Header::decode(&*bytes));
            if let Some(entry) = Entry::parse(&bytes) {
                drop(entry.dims());
                entry.slices.iter().for_each(|slice| drop(region(&slice.extents, &Dims::from([3]))));
            }
        }
    }
}
