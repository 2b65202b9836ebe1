//! Casts of element types: which are allowed, and how they are done.

use crate::{DType, ModelError, Result, Tensor};
use serde::{Deserialize, Serialize};

mod fit;
mod float8;
mod range;
mod wide;

pub use fit::check_fit;
use wide::{BLOCK, Wide};

/// Which casts are allowed if a load asks for another element type than the stored one.
///
/// ```
/// use reshard_model::{Cast, DType};
/// assert!(Cast::Lossless.allows(DType::BFloat16, DType::Float32));
/// assert!(!Cast::Lossless.allows(DType::Float32, DType::BFloat16));
/// assert!(Cast::Float.allows(DType::Float32, DType::BFloat16));
/// assert!(!Cast::Float.allows(DType::Int64, DType::Float32));
/// assert!(Cast::Any.allows(DType::Int64, DType::Float32));
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Cast {
    /// No cast. Another type is an error.
    #[default]
    Never,
    /// Casts that keep every value of the stored type, including NaN, infinities and negative zero: bfloat16 to float32, int8 to
    /// int64.
    Lossless,
    /// These, and all casts between real floating-point types: float32 to bfloat16.
    Float,
    /// All casts that PyTorch can do: float32 to int64, complex64 to float32. This is DCP's and Megatron Core's default.
    Any,
}

impl Cast {
    /// Whether elements of type `from` may be cast to `to`.
    pub fn allows(self, from: DType, to: DType) -> bool {
        let packed = |d| d == DType::Float4E2M1FnX2;
        if from == to {
            return true;
        }
        // A byte of float4 is two elements; PyTorch converts it to nothing else either.
        if packed(from) || packed(to) {
            return false;
        }
        match self {
            Self::Never => false,
            Self::Lossless => range::holds(to, from),
            Self::Float => (from.is_float() && to.is_float()) || range::holds(to, from),
            Self::Any => true,
        }
    }
}

/// Converts elements. Both sides are little-endian and in row-major order. The results are those of PyTorch's `copy_`:
///
/// - Floats are rounded to nearest even. Floats of less than 32 bits go through float32.
/// - Ints wrap around, as in PyTorch and NumPy. [`check_fit`] finds what would.
/// - A float loses its fraction when it becomes an int. If it is too large it becomes the nearest int, and NaN becomes 0. (PyTorch leaves
///   these cases to the processor, except for uint8, where int64 is in between.)
/// - Everything except zero becomes true.
/// - Complex numbers lose their imaginary part.
///
/// # Errors
/// [`ModelError::Invalid`] if `src` and `dst` differ in the number of elements. [`ModelError::Unsupported`] for float4, and for types that
/// this version doesn't know.
///
/// ```
/// use reshard_model::{DType, cast::convert};
/// let mut out = [0; 4];
/// convert(DType::Float32, &1.5f32.to_le_bytes(), DType::Int32, &mut out).unwrap();
/// assert_eq!(i32::from_le_bytes(out), 1);
/// ```
pub fn convert(from: DType, src: &[u8], to: DType, dst: &mut [u8]) -> Result<()> {
    let (a, b) = (from.size() as usize, to.size() as usize);
    if !src.len().is_multiple_of(a)
        || !dst.len().is_multiple_of(b)
        || src.len() / a != dst.len() / b
    {
        let what = format!(
            "{} bytes of {from} can't become {} bytes of {to}",
            src.len(),
            dst.len()
        );
        return Err(ModelError::invalid("", what));
    }

    // Equal types come first, since types that can't be converted can still be copied.
    if from == to {
        dst.copy_from_slice(src);
        return Ok(());
    }
    if !Cast::Any.allows(from, to) {
        let what = format!("{from} can't be converted to {to}; declare the tensor as {from}");
        return Err(ModelError::Unsupported {
            key: String::new(),
            what,
        });
    }

    // A complex number is two reals, so every case comes down to a conversion of reals.
    match (part(from), part(to)) {
        (Some(x), Some(y)) => convert(x, src, y, dst),
        (Some(x), None) => {
            let half = x.size() as usize;
            let mut reals = Vec::with_capacity(BLOCK * half);
            for (src, dst) in src.chunks(BLOCK * a).zip(dst.chunks_mut(BLOCK * b)) {
                reals.clear();
                src.chunks_exact(a).for_each(|z| {
                    // Only a bool sees the imaginary part.
                    let zero = wide::is_zero(x, &z[..half]);
                    let part = if to == DType::Bool && zero {
                        &z[half..]
                    } else {
                        &z[..half]
                    };
                    reals.extend_from_slice(part);
                });
                convert(x, &reals, to, dst)?;
            }
            Ok(())
        }
        (None, Some(y)) => {
            // The imaginary parts stay zero.
            let half = y.size() as usize;
            let mut reals = vec![0; BLOCK * half];
            for (src, dst) in src.chunks(BLOCK * a).zip(dst.chunks_mut(BLOCK * b)) {
                let reals = &mut reals[..dst.len() / 2];
                convert(from, src, y, reals)?;
                dst.fill(0);
                dst.chunks_exact_mut(b)
                    .zip(reals.chunks_exact(half))
                    .for_each(|(z, x)| z[..half].copy_from_slice(x));
            }
            Ok(())
        }
        (None, None) => real(from, src, to, dst),
    }
}

impl Tensor {
    /// A copy with another element type, as PyTorch's `to`; [`convert`] says how elements are rounded. With the same type nothing is copied.
    ///
    /// # Errors
    /// As [`convert`]: a float4, or no memory.
    ///
    /// ```
    /// use reshard_model::{DType, Tensor};
    /// let t = Tensor::from_vec(&[2], vec![1.5f32, -2.5])?;
    /// assert_eq!(t.cast(DType::Int64)?.to_vec::<i64>()?, [1, -2]);
    /// # Ok::<(), reshard_model::ModelError>(())
    /// ```
    pub fn cast(&self, to: DType) -> Result<Self> {
        if self.dtype() == to {
            return Ok(self.clone());
        }
        let mut out = Self::zeros("", to, self.shape())?;
        let mut bytes = out.new_bytes("")?;
        for block in self.blocks(AT_ONCE * self.dtype().size()) {
            let elements = block.len() / self.dtype().size() as usize;
            let (now, rest) = bytes.split_at_mut(elements * to.size() as usize);
            convert(self.dtype(), &block, to, now)?;
            bytes = rest;
        }
        Ok(out)
    }
}

/// So many elements are cast at a time, which bounds the memory for tensors that are not contiguous.
const AT_ONCE: u64 = 1 << 18;

/// The type of both parts of a complex type.
fn part(d: DType) -> Option<DType> {
    match d {
        DType::Complex32 => Some(DType::Float16),
        DType::BComplex32 => Some(DType::BFloat16),
        DType::Complex64 => Some(DType::Float32),
        DType::Complex128 => Some(DType::Float64),
        _ => None,
    }
}

/// By way of the narrowest type that holds whatever comes.
fn real(from: DType, src: &[u8], to: DType, dst: &mut [u8]) -> Result<()> {
    let small = |d: DType| d.is_float() && d != DType::Float64;
    if !from.is_float() {
        through::<i128>(from, src, to, dst)
    } else if small(from) && small(to) {
        through::<f32>(from, src, to, dst)
    } else {
        through::<f64>(from, src, to, dst)
    }
}

fn through<W: Wide>(from: DType, src: &[u8], to: DType, dst: &mut [u8]) -> Result<()> {
    let (a, b) = (from.size() as usize, to.size() as usize);
    let mut block = [W::ZERO; BLOCK];
    for (src, dst) in src.chunks(BLOCK * a).zip(dst.chunks_mut(BLOCK * b)) {
        let block = &mut block[..src.len() / a];
        let known = W::decode(from, src, block) && W::encode(block, to, dst);
        if !known {
            let what = format!("this version can't convert {from} to {to}");
            return Err(ModelError::Unsupported {
                key: String::new(),
                what,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
