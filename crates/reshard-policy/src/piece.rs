use crate::{PolicyError, Result};
use reshard_model::{DType, Dims, Region};

mod runs;
mod slice;

pub(crate) use runs::runs;
pub use slice::Slice;

/// The content of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// Elements of one size.
    Tensor(DType),
    /// Strings: the byte length of each element of the piece, row-major.
    Strings(&'a [u64]),
    /// An object, which can't be cut. Its shape and region have no axes.
    Object,
}

/// An item of the global plan, before a policy cuts it: the part of one key that one task writes. A policy refers to it by its
/// position in the list.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Key in the checkpoint.
    pub key: &'a str,
    /// Its path in the state dict, joined by dots. It is the key if there is no other name.
    pub name: &'a str,
    /// Its content.
    pub content: Content<'a>,
    /// Shape of the whole tensor.
    pub global_shape: &'a [u64],
    /// The part of the tensor that this piece is.
    pub region: &'a Region,
    /// The rank that writes it.
    pub task: u32,
    /// The device that holds its data: `cpu`, or the device's own name.
    pub device: &'a str,
    /// The path of its parent in the state dict, joined by dots. Empty at the top.
    pub owner: &'a str,
    /// The tag that the caller gave it.
    pub tag: Option<&'a str>,
    /// The bytes of the payload. An object's are those of its encoding.
    pub bytes: u64,
    /// Whether the format stores it only as a whole. Objects always are.
    pub whole: bool,
    /// What its files have in addition to the payload.
    pub overhead: Overhead,
}

/// Upper bounds of the bytes that a file has in addition to the payload of its pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    /// For each slice of the piece: an entry in a header, the records of an archive, padding.
    pub slice: u64,
    /// For the file itself, whatever it holds.
    pub file: u64,
}

impl<'a> Piece<'a> {
    /// The bytes of a part of it.
    ///
    /// # Errors
    /// A part that does not lie in it.
    pub fn bytes_of(&self, part: &Region) -> Result<u64> {
        self.contain(part)?;
        Ok(self.inner_bytes(part))
    }

    /// A part of it, which you can use as a piece.
    ///
    /// # Errors
    /// A part that does not lie in it.
    pub fn slice(&self, part: Region) -> Result<Slice<'a>> {
        let bytes = self.bytes_of(&part)?;
        Ok(Slice::new(*self, part, bytes))
    }

    /// Of a part that lies in it.
    pub(crate) fn inner_bytes(&self, part: &Region) -> u64 {
        match self.content {
            _ if part == self.region => self.bytes,
            Content::Tensor(dtype) => part
                .volume()
                .unwrap_or(u64::MAX)
                .saturating_mul(dtype.size()),
            Content::Strings(lengths) => runs(self.region, part)
                .flat_map(|run| lengths.get(run).unwrap_or_default())
                .fold(0u64, |sum, &n| sum.saturating_add(n)),
            Content::Object => self.bytes,
        }
    }

    fn contain(&self, part: &Region) -> Result<()> {
        let axes = self.region.ndim();
        if part.ndim() == axes && part.offsets.len() == axes && self.region.contains(part) {
            return Ok(());
        }
        Err(PolicyError::invalid(format!(
            "{}: {part} does not lie in the piece {}",
            self.key, self.region
        )))
    }

    /// Whether a policy must not cut it.
    pub fn is_whole(&self) -> bool {
        self.whole || self.content == Content::Object
    }

    /// Whether its fields go with each other.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |what: String| {
            Err(PolicyError::invalid(format!(
                "{} {}: {what}",
                self.key, self.region
            )))
        };
        let shape = Dims::from(self.global_shape);
        if !self.region.fits(self.global_shape) {
            return wrong(format!("the piece does not lie in shape {shape}"));
        }
        let Some(volume) = self.region.volume() else {
            return wrong("the piece has more than 2^64 elements".into());
        };

        // The bytes must be those of the content, because policies and their checks rely on either one.
        match self.content {
            Content::Tensor(dtype) if volume.checked_mul(dtype.size()) != Some(self.bytes) => {
                wrong(format!(
                    "{volume} elements of {dtype} are not {} bytes",
                    self.bytes
                ))
            }
            Content::Strings(lengths) if lengths.len() as u64 != volume => {
                wrong(format!("{} lengths for {volume} strings", lengths.len()))
            }
            Content::Strings(lengths)
                if lengths.iter().try_fold(0u64, |sum, &n| sum.checked_add(n))
                    != Some(self.bytes) =>
            {
                wrong(format!(
                    "the lengths of the strings do not add up to {} bytes",
                    self.bytes
                ))
            }
            Content::Object if self.region.ndim() > 0 => {
                wrong(format!("an object with shape {shape}"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_strings_keeps_the_lengths_of_its_own_strings() {
        let (region, lengths) = (Region::new([1, 0], [2, 3]), [1, 2, 3, 4, 5, 6]);
        let piece = Piece {
            key: "s",
            name: "s",
            content: Content::Strings(&lengths),
            global_shape: &[3, 3],
            region: &region,
            task: 7,
            device: "cpu",
            owner: "",
            tag: Some("t"),
            bytes: 21,
            whole: false,
            overhead: Overhead::default(),
        };
        piece.check().unwrap();
        let slice = piece.slice(Region::new([1, 1], [2, 2])).unwrap();
        let part = slice.piece();
        assert_eq!(
            (part.content, part.bytes),
            (Content::Strings(&[2, 3, 5, 6]), 16)
        );
        assert_eq!(
            (part.task, part.tag, part.global_shape),
            (7, Some("t"), &[3, 3][..])
        );
        part.check().unwrap();
        assert_eq!(piece.bytes_of(&Region::new([2, 0], [1, 1])).unwrap(), 4);
        for outside in [
            Region::new([0, 0], [1, 1]),
            Region::new([1], [1]),
            Region::new([1, 0], [2]),
        ] {
            assert!(piece.slice(outside).is_err());
        }
        assert!(Piece { bytes: 20, ..piece }.check().is_err());
        assert!(
            Piece {
                content: Content::Strings(&lengths[1..]),
                ..piece
            }
            .check()
            .is_err()
        );
        assert!(
            Piece {
                content: Content::Object,
                ..piece
            }
            .check()
            .is_err()
        );
        assert!(
            Piece {
                content: Content::Tensor(DType::Int64),
                ..piece
            }
            .check()
            .is_err()
        );
        assert!(
            Piece {
                global_shape: &[2, 3],
                ..piece
            }
            .check()
            .is_err()
        );
    }
}
