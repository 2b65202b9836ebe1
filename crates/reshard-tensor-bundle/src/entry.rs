//! The messages in an index: the header, and an entry for each tensor and slice.

use crate::{
    dtype::{self, Enum},
    proto::{Field, Fields, Message, NotAMessage},
};
use reshard_model::{Dims, Region};

type Result<T, E = NotAMessage> = std::result::Result<T, E>;

/// TensorFlow's own limit.
pub(crate) const MAX_AXES: usize = 254;

/// `BundleHeaderProto`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) shards: i64,
    pub(crate) endianness: i64,
    pub(crate) producer: i64,
    pub(crate) min_consumer: i64,
    pub(crate) bad_consumers: Vec<i64>,
}

impl Header {
    /// For so many data files.
    pub(crate) fn new(shards: u32) -> Self {
        Self {
            shards: shards.into(),
            producer: 1,
            ..Self::default()
        }
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut out = Self::default();
        for field in Fields::of(bytes) {
            match field? {
                (1, n) => out.shards = int32(n)?,
                (2, n) => out.endianness = int32(n)?,
                (3, version) => out.version(version.bytes()?)?,
                _ => {}
            }
        }
        Ok(out)
    }

    fn version(&mut self, bytes: &[u8]) -> Result<()> {
        for field in Fields::of(bytes) {
            match field? {
                (1, n) => self.producer = int32(n)?,
                (2, n) => self.min_consumer = int32(n)?,
                (3, Field::Bytes(mut packed)) => {
                    while !packed.is_empty() {
                        let n = crate::varint::take(&mut packed).ok_or(NotAMessage)?;
                        self.bad_consumers.push(n as i64);
                    }
                }
                (3, n) => self.bad_consumers.push(int32(n)?),
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (mut out, mut version) = (Message::default(), Message::default());
        out.int(1, self.shards);
        out.int(2, self.endianness);
        version.int(1, self.producer);
        version.int(2, self.min_consumer);
        out.message(3, &version.into_bytes());
        out.into_bytes()
    }
}

fn int32(field: Field<'_>) -> Result<i64> {
    // A negative int32 is stored with the sign extended.
    Ok(i64::from(field.int()? as i32))
}

/// `BundleEntryProto`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) dtype: Enum,
    /// `None` for a tensor of unknown rank.
    pub(crate) shape: Option<Vec<i64>>,
    pub(crate) shard: i64,
    pub(crate) offset: i64,
    pub(crate) size: i64,
    /// Masked.
    pub(crate) crc: u32,
    /// For each slice, the start and length on each axis. A whole axis has no length.
    pub(crate) slices: Vec<Vec<(i64, Option<i64>)>>,
}

impl Entry {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut out = Self {
            shape: Some(Vec::new()),
            ..Self::default()
        };
        for field in Fields::of(bytes) {
            match field? {
                (1, n) => out.dtype = int32(n)?,
                (2, shape) => out.shape = shape_of(shape.bytes()?)?,
                (3, n) => out.shard = int32(n)?,
                (4, n) => out.offset = n.int()?,
                (5, n) => out.size = n.int()?,
                (6, n) => out.crc = n.fixed32()?,
                (7, slice) => out.slices.push(slice_of(slice.bytes()?)?),
                _ => {}
            }
        }
        Ok(out)
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Message::default();
        out.int(1, self.dtype);
        let mut shape = Message::default();
        for n in self.shape.iter().flatten() {
            let mut dim = Message::default();
            dim.int(1, *n);
            shape.message(2, &dim.into_bytes());
        }
        out.message(2, &shape.into_bytes());
        out.int(3, self.shard);
        out.int(4, self.offset);
        out.int(5, self.size);
        out.fixed32(6, self.crc);
        for slice in &self.slices {
            let mut message = Message::default();
            for (start, length) in slice {
                let mut extent = Message::default();
                extent.int(1, *start);
                if let Some(length) = length {
                    extent.always(2, *length);
                }
                message.message(1, &extent.into_bytes());
            }
            out.message(7, &message.into_bytes());
        }
        out.into_bytes()
    }

    /// The shape. The error says what is wrong with it.
    pub(crate) fn dims(&self) -> Result<Dims, String> {
        let shape = self.shape.as_ref().ok_or("its rank is not known")?;
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

fn shape_of(bytes: &[u8]) -> Result<Option<Vec<i64>>> {
    let (mut dims, mut unknown) = (Vec::new(), false);
    for field in Fields::of(bytes) {
        match field? {
            (2, dim) => {
                let mut size = 0;
                for field in Fields::of(dim.bytes()?) {
                    if let (1, n) = field? {
                        size = n.int()?;
                    }
                }
                if dims.len() == MAX_AXES {
                    return Err(NotAMessage);
                }
                dims.push(size);
            }
            (3, n) => unknown = n.int()? != 0,
            _ => {}
        }
    }
    Ok((!unknown).then_some(dims))
}

fn slice_of(bytes: &[u8]) -> Result<Vec<(i64, Option<i64>)>> {
    let mut out = Vec::new();
    for field in Fields::of(bytes) {
        if let (1, extent) = field? {
            let (mut start, mut length) = (0, None);
            for field in Fields::of(extent.bytes()?) {
                match field? {
                    (1, n) => start = n.int()?,
                    (2, n) => length = Some(n.int()?),
                    _ => {}
                }
            }
            if out.len() == MAX_AXES {
                return Err(NotAMessage);
            }
            out.push((start, length));
        }
    }
    Ok(out)
}

/// The region of a slice of a tensor. `None` if it does not lie in the tensor.
pub(crate) fn region(slice: &[(i64, Option<i64>)], shape: &Dims) -> Option<Region> {
    if slice.len() != shape.len() {
        return None;
    }
    let (mut offsets, mut lengths) = (Dims::default(), Dims::default());
    for ((start, length), n) in slice.iter().zip(shape) {
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

    #[test]
    fn headers_and_entries_are_those_of_the_reference() {
        assert_eq!(Header::new(1).to_bytes(), [8, 1, 0x1a, 2, 8, 1]);
        let slice = Entry {
            dtype: 1,
            shape: Some(vec![5, 4]),
            size: 80,
            crc: 0x191c_91dd,
            ..Entry::default()
        };
        let bytes = b"\x08\x01\x12\x08\x12\x02\x08\x05\x12\x02\x08\x04\x28\x50\x35\xdd\x91\x1c\x19";
        assert_eq!(slice.to_bytes(), bytes);
        let full = Entry {
            dtype: 1,
            shape: Some(vec![13, 4]),
            slices: vec![vec![(0, Some(5)), (0, Some(4))], vec![(0, None)]],
            ..Entry::default()
        };
        let bytes = full.to_bytes();
        assert!(bytes.ends_with(b"\x3a\x08\x0a\x02\x10\x05\x0a\x02\x10\x04\x3a\x02\x0a\0"));
        assert_eq!(Entry::parse(&bytes), Ok(full));
        // A scalar has a shape without axes.
        assert!(
            Entry {
                shape: Some(vec![]),
                ..Entry::default()
            }
            .to_bytes()
            .starts_with(&[0x12, 0])
        );
    }

    #[test]
    fn a_slice_lies_in_its_tensor_or_is_none() {
        let shape = Dims::from([4, 3]);
        let of = |slice: &[(i64, Option<i64>)]| region(slice, &shape);
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
            dtype in 0i64..40, shape in prop::collection::vec(any::<i64>(), 0..4), shard in 0i64..9, offset: i64, size: i64, crc: u32,
            slices in prop::collection::vec(prop::collection::vec(any::<(i64, Option<i64>)>(), 0..3), 0..3),
        ) {
            let entry = Entry { dtype, shape: Some(shape), shard, offset, size, crc, slices };
            prop_assert_eq!(Entry::parse(&entry.to_bytes()), Ok(entry));
        }

        #[test]
        fn no_bytes_make_the_parsers_panic(bytes: Vec<u8>) {
            drop(Header::parse(&bytes));
            if let Ok(entry) = Entry::parse(&bytes) {
                drop(entry.dims());
                entry.slices.iter().for_each(|slice| drop(region(slice, &Dims::from([3]))));
            }
        }
    }
}
