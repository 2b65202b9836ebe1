//! Filters: what numcodecs does to numbers before they are compressed.
//!
//! The arithmetic is NumPy's, so that what comes out is what numcodecs gives, to the bit.

use super::{
    super::meta::{Numbers, Recoded},
    blosc::shuffle,
    too_many, zeros,
};
use bytes::Bytes;
use half::f16;
use reshard_model::DType;
use reshard_strategy::Refused;

/// The bytes of all elements, in order.
pub(super) fn unshuffle(element: usize, stored: Bytes) -> Result<Bytes, Refused> {
    if element <= 1 {
        return Ok(stored);
    }
    whole(&stored, element)?;
    let mut out = zeros(stored.len())?;
    shuffle::bytes(element, &stored, &mut out);
    Ok(out.into())
}

/// The numbers of which differences are stored.
pub(super) fn sum_up(numbers: Recoded, stored: &[u8], most: u64) -> Result<Bytes, Refused> {
    let Recoded { decoded, encoded } = numbers;
    let (mut ints, mut floats) = (0u64, 0f64);
    recode(numbers, stored, most, |bytes, out| {
        if decoded.dtype.is_float() {
            floats = decoded.rounded(floats + encoded.float(bytes));
            decoded.put_float(floats, out);
        } else {
            // NumPy's integers wrap around, too.
            ints = ints.wrapping_add(encoded.int(bytes));
            decoded.put_int(ints, out);
        }
        Ok(())
    })
}

/// The numbers that were shifted, scaled and rounded.
pub(super) fn unscale(
    offset: f64,
    scale: f64,
    numbers: Recoded,
    stored: &[u8],
    most: u64,
) -> Result<Bytes, Refused> {
    let Recoded { decoded, encoded } = numbers;
    // NumPy divides floats in their own type, and integers as float64. For a sum or a quotient of numbers that were rounded before, to round
    // the one of float64 once more gives the same as the narrow type.
    let near = |number: f64| match encoded.dtype.is_float() {
        true => encoded.rounded(number),
        false => number,
    };
    let (scale, offset) = (near(scale), near(offset));
    recode(numbers, stored, most, |bytes, out| {
        let number = near(near(encoded.float(bytes) / scale) + offset);
        if decoded.dtype.is_float() {
            decoded.put_float(number, out);
            return Ok(());
        }
        let int = number.trunc() as i128;
        decoded.put_int(int as u64, out);
        let back = i128::from(decoded.int(out) as i64);
        let unsigned = i128::from(decoded.int(out));
        let fits = number.is_finite() && int == if decoded.is_signed() { back } else { unsigned };
        match fits {
            true => Ok(()),
            false => Err(Refused::damaged(format!(
                "the number {number} is no {}",
                decoded.dtype
            ))),
        }
    })
}

/// Bools of which eight are in a byte.
pub(super) fn unpack_bits(stored: &[u8], most: u64) -> Result<Bytes, Refused> {
    let wrong = |what| Refused::damaged(what);
    let (unused, packed) = stored
        .split_first()
        .ok_or_else(|| wrong("it has no bytes".to_owned()))?;
    let count = (8 * packed.len()).checked_sub((*unused).into());
    let count = count.filter(|_| *unused < 8).ok_or_else(|| {
        let bytes = packed.len();
        wrong(format!("{unused} bits of {bytes} bytes are unused"))
    })?;
    if count as u64 > most {
        return Err(too_many(most));
    }
    let mut out = zeros(count)?;
    for (n, out) in out.iter_mut().enumerate() {
        *out = packed[n / 8] >> (7 - n % 8) & 1;
    }
    Ok(out.into())
}

/// Integers of 8 bits. Only the lower `bits` of each byte count.
pub(super) fn widen(bits: u32, stored: Bytes) -> Bytes {
    let beyond = 8 - bits;
    let mut out = Vec::from(stored);
    for byte in &mut out {
        *byte = ((*byte << beyond) as i8 >> beyond) as u8;
    }
    out.into()
}

/// Decodes each number by `each`, which gets its stored bytes and where the decoded ones belong.
fn recode(
    numbers: Recoded,
    stored: &[u8],
    most: u64,
    mut each: impl FnMut(&[u8], &mut [u8]) -> Result<(), Refused>,
) -> Result<Bytes, Refused> {
    let (from, to) = (numbers.encoded.bytes(), numbers.decoded.bytes());
    let count = whole(stored, from)?;
    // At most 8 times the stored bytes.
    let bytes = count * to;
    if bytes as u64 > most {
        return Err(too_many(most));
    }
    let mut out = zeros(bytes)?;
    let pairs = stored.chunks_exact(from).zip(out.chunks_exact_mut(to));
    for (stored, out) in pairs {
        each(stored, out)?;
    }
    Ok(out.into())
}

/// How many elements there are.
fn whole(stored: &[u8], element: usize) -> Result<usize, Refused> {
    let bytes = stored.len();
    match bytes.is_multiple_of(element) {
        true => Ok(bytes / element),
        false => Err(Refused::damaged(format!(
            "{bytes} bytes are not whole elements of {element} bytes"
        ))),
    }
}

impl Recoded {
    /// The bytes that a writer makes of `size` bytes.
    pub(super) fn encoded_bytes(self, size: u64) -> u64 {
        let count = size / self.decoded.dtype.size();
        count.saturating_mul(self.encoded.dtype.size())
    }
}

impl Numbers {
    fn bytes(self) -> usize {
        self.dtype.size() as usize
    }

    fn is_signed(self) -> bool {
        use DType::{Int8, Int16, Int32, Int64};
        matches!(self.dtype, Int8 | Int16 | Int32 | Int64)
    }

    /// The bits of a stored number, in the lowest of 64.
    fn bits(self, bytes: &[u8]) -> u64 {
        let mut word = [0; 8];
        let word_of = &mut word[..bytes.len()];
        word_of.copy_from_slice(bytes);
        if self.big_endian {
            word_of.reverse();
        }
        u64::from_le_bytes(word)
    }

    /// A stored integer. A negative one is that of 64 bits in two's complement.
    fn int(self, bytes: &[u8]) -> u64 {
        let (bits, beyond) = (self.bits(bytes), 64 - 8 * bytes.len() as u32);
        match self.is_signed() {
            true => ((bits << beyond) as i64 >> beyond) as u64,
            false => bits,
        }
    }

    /// A stored number as a float64.
    fn float(self, bytes: &[u8]) -> f64 {
        let bits = self.bits(bytes);
        match self.dtype {
            DType::Float16 => f16::from_bits(bits as u16).to_f64(),
            DType::Float32 => f32::from_bits(bits as u32).into(),
            DType::Float64 => f64::from_bits(bits),
            _ if self.is_signed() => self.int(bytes) as i64 as f64,
            _ => bits as f64,
        }
    }

    /// The nearest number of this float type.
    fn rounded(self, number: f64) -> f64 {
        match self.dtype {
            DType::Float16 => f16::from_f64(number).to_f64(),
            DType::Float32 => (number as f32).into(),
            _ => number,
        }
    }

    fn put_float(self, number: f64, out: &mut [u8]) {
        let bits = match self.dtype {
            DType::Float16 => f16::from_f64(number).to_bits().into(),
            DType::Float32 => (number as f32).to_bits().into(),
            _ => number.to_bits(),
        };
        self.put_int(bits, out);
    }

    fn put_int(self, bits: u64, out: &mut [u8]) {
        out.copy_from_slice(&bits.to_le_bytes()[..out.len()]);
        if self.big_endian {
            out.reverse();
        }
    }
}
