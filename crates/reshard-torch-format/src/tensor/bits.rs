//! What torch leaves undone when it saves: conjugation, negation, the byte order of another machine.

use super::TensorRef;
use crate::{Error, Result, archive::ByteOrder};
use reshard_model::DType;

impl TensorRef {
    /// Changes the stored bytes of whole elements into the bytes of the elements, in place: byte order, negation, conjugation.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the element type can't be negated or conjugated, or the bytes are no whole elements.
    pub fn resolve(&self, bytes: &mut [u8], order: ByteOrder) -> Result<()> {
        let dtype = self.dtype;
        let bad = |what: String| Err(Error::tensor(&self.storage.key, what));
        let word = dtype.word() as usize;
        if !bytes.len().is_multiple_of(dtype.size() as usize) {
            let len = bytes.len();
            return bad(format!(
                "{len} bytes are not a whole number of elements of {dtype}"
            ));
        }
        if order == ByteOrder::Big && word > 1 {
            bytes.chunks_exact_mut(word).for_each(<[u8]>::reverse);
        }
        // The sign of a float is the top bit of its last byte.
        let flip = |part: &mut [u8]| {
            if let Some(top) = part.last_mut() {
                *top ^= 0x80;
            }
        };
        if self.conj && dtype.is_complex() {
            // The imaginary part is the second half of an element.
            bytes.chunks_exact_mut(2 * word).for_each(flip);
        }
        if self.neg {
            use DType::{BFloat16, Float16, Float32, Float64};
            if !dtype.is_complex() && !matches!(dtype, Float16 | BFloat16 | Float32 | Float64) {
                return bad(format!("elements of {dtype} can't be negated"));
            }
            bytes.chunks_exact_mut(word).for_each(flip);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conjugates_and_negatives_are_resolved() {
        let mut t = TensorRef::contiguous(DType::Complex64, &[1]).unwrap();
        let mut bytes = [1f32.to_be_bytes(), 2f32.to_be_bytes()].concat();
        t.conj = true;
        t.resolve(&mut bytes, ByteOrder::Big).unwrap();
        assert_eq!(bytes, [1f32.to_le_bytes(), (-2f32).to_le_bytes()].concat());
        t.conj = false;
        t.neg = true;
        t.resolve(&mut bytes, ByteOrder::Little).unwrap();
        assert_eq!(bytes, [(-1f32).to_le_bytes(), 2f32.to_le_bytes()].concat());
        let mut ints = TensorRef::contiguous(DType::Int32, &[1]).unwrap();
        ints.neg = true;
        assert!(ints.resolve(&mut [0; 4], ByteOrder::Little).is_err());
        assert!(t.resolve(&mut [0; 7], ByteOrder::Little).is_err());
    }
}
