//! Casts on the way, and what they lose.

use reshard::{
    DType, OnCast, Region,
    model::{BoxError, Dims, TensorSource},
    plan::cast::convert,
};
use serde::Serialize;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Whether elements are floating-point numbers that mean something alone: no scales, no packed floats.
pub(crate) fn is_number(dtype: DType) -> bool {
    dtype.is_float() && !matches!(dtype, DType::Float8E8M0Fnu | DType::Float4E2M1FnX2)
}

/// Whether elements of one type are cast if another is wanted.
pub(crate) fn is_cast(from: DType, to: DType) -> bool {
    from != to && is_number(from) && is_number(to)
}

/// What a cast of one tensor has lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CastReport {
    /// Key of the tensor.
    pub key: String,
    /// Its element type in the source.
    pub from: DType,
    /// Its element type in the target.
    pub to: DType,
    /// The number of elements.
    pub elements: u64,
    /// How many elements were too large for the type. They have become infinite, or NaN in a type without infinity, or the largest number in
    /// float8_e4m3fn. An infinity is too large for a type that has none.
    pub overflowed: u64,
    /// How many elements other than zero have become zero.
    pub underflowed: u64,
    /// How many elements have another value than before; those that overflowed and underflowed are among them.
    pub inexact: u64,
}

/// How many elements of one tensor overflowed, underflowed, and are inexact, from all threads.
#[derive(Debug, Default)]
pub(crate) struct Lost([AtomicU64; 3]);

impl Lost {
    fn add(&self, counts: [u64; 3]) {
        for (all, n) in self.0.iter().zip(counts) {
            all.fetch_add(n, Ordering::Relaxed);
        }
    }

    pub(crate) fn report(&self, key: &str, from: DType, to: DType, elements: u64) -> CastReport {
        let counts = self.0.each_ref().map(|n| n.load(Ordering::Relaxed));
        let [overflowed, underflowed, inexact] = counts;
        CastReport {
            key: key.into(),
            from,
            to,
            elements,
            overflowed,
            underflowed,
            inexact,
        }
    }
}

/// A source whose elements are cast while they are read.
pub(crate) struct Casting {
    pub(crate) to: DType,
    pub(crate) source: Arc<dyn TensorSource>,
    pub(crate) lost: Arc<Lost>,
}

/// So many elements are cast at a time, so that they stay in a core's cache.
const STEP: usize = 16 << 10;

impl TensorSource for Casting {
    fn dtype(&self) -> DType {
        self.to
    }

    fn shape(&self) -> Dims {
        self.source.shape()
    }

    fn block(&self) -> Option<u64> {
        self.source.block()
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let from = self.source.dtype();
        let (a, b) = (from.size() as usize, self.to.size() as usize);
        let mut stored = vec![0; out.len() / b * a];
        self.source.read(region, &mut stored)?;
        let mut compared = Compared::default();
        for (stored, cast) in stored.chunks(STEP * a).zip(out.chunks_mut(STEP * b)) {
            convert(from, stored, self.to, cast)?;
            compared.add(from, stored, self.to, cast)?;
        }
        self.lost.add(compared.counts);
        Ok(())
    }
}

/// Counts what the casts of a map lose.
pub(crate) fn on_cast(lost: &Arc<Lost>) -> OnCast {
    let lost = Arc::clone(lost);
    Arc::new(move |(from, stored), (to, cast)| {
        let (a, b) = (from.size() as usize, to.size() as usize);
        let mut compared = Compared::default();
        for (stored, cast) in stored.chunks(STEP * a).zip(cast.chunks(STEP * b)) {
            compared.add(from, stored, to, cast)?;
        }
        lost.add(compared.counts);
        Ok(())
    })
}

/// Counts what is lost, in memory that is used again.
#[derive(Default)]
struct Compared {
    before: Vec<u8>,
    after: Vec<u8>,
    counts: [u64; 3],
}

impl Compared {
    fn add(&mut self, from: DType, stored: &[u8], to: DType, cast: &[u8]) -> Result<(), BoxError> {
        let wide = match [from, to]
            .iter()
            .all(|t| t.is_float() && *t != DType::Float64)
        {
            true => DType::Float32,
            false => DType::Float64,
        };
        let n = cast.len() / to.size() as usize * wide.size() as usize;
        self.before.resize(n, 0);
        self.after.resize(n, 0);
        convert(from, stored, wide, &mut self.before)?;
        convert(to, cast, wide, &mut self.after)?;
        let pairs = (&*self.before, &*self.after);
        let pairs = match wide {
            DType::Float64 => count(pairs, range(to), f64::from_le_bytes),
            _ => count(pairs, range(to), |b| f32::from_le_bytes(b).into()),
        };
        for (all, n) in self.counts.iter_mut().zip(pairs) {
            *all += n;
        }
        Ok(())
    }
}

/// The smallest and the largest number that a cast keeps, of types that have neither infinity nor NaN for others.
fn range(to: DType) -> [f64; 2] {
    match to {
        // Half a step above 448.
        DType::Float8E4M3Fn => [-464.0, 464.0],
        DType::Int8 => [i8::MIN.into(), i8::MAX.into()],
        DType::Int16 => [i16::MIN.into(), i16::MAX.into()],
        DType::Int32 => [i32::MIN.into(), i32::MAX.into()],
        DType::UInt8 => [0.0, u8::MAX.into()],
        DType::UInt16 => [0.0, u16::MAX.into()],
        DType::UInt32 => [0.0, u32::MAX.into()],
        // Numbers of 64 bits that are too large become other ones, too, and count as inexact.
        _ => [f64::NEG_INFINITY, f64::INFINITY],
    }
}

/// How many overflowed, underflowed, and are inexact. Without branches, so that it is done for several elements at once.
fn count<const N: usize>(
    (before, after): (&[u8], &[u8]),
    [least, most]: [f64; 2],
    float: impl Fn([u8; N]) -> f64,
) -> [u64; 3] {
    let pairs = before.as_chunks().0.iter().zip(after.as_chunks().0);
    let mut counts = [0u64; 3];
    for (before, after) in pairs {
        let (before, after) = (float(*before), float(*after));
        let is_too_large = !after.is_finite() | (before < least) | (before > most);
        let lost_infinity = before.is_infinite() & !after.is_infinite();
        counts[0] += u64::from((before.is_finite() & is_too_large) | lost_infinity);
        counts[1] += u64::from((before != 0.0) & (after == 0.0));
        counts[2] += u64::from((before != after) & !(before.is_nan() & after.is_nan()));
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard::Tensor;

    fn lost(floats: &[f32], to: DType) -> (Vec<u8>, [u64; 3]) {
        let casting = Casting {
            to,
            source: Arc::new(Tensor::from_vec(&[floats.len() as u64], floats.to_vec()).unwrap()),
            lost: Arc::default(),
        };
        let mut out = vec![0; floats.len() * to.size() as usize];
        let whole = Region::new([0], [floats.len() as u64]);
        casting.read(&whole, &mut out).unwrap();
        let r = casting
            .lost
            .report("k", DType::Float32, to, floats.len() as u64);
        (out, [r.overflowed, r.underflowed, r.inexact])
    }

    #[test]
    fn what_a_cast_loses_is_counted() {
        let floats = [
            1.0,
            1.0 + f32::EPSILON,
            1e30,
            -1e-30,
            f32::NAN,
            f32::INFINITY,
            -0.0,
        ];
        // bfloat16 has the range of float32; 1e30 and -1e-30 are rounded.
        let (out, counts) = lost(&floats, DType::BFloat16);
        assert_eq!(counts, [0, 0, 3]);
        assert_eq!(&out[..4], [0x80, 0x3f, 0x80, 0x3f]);
        assert_eq!(lost(&floats, DType::Float16).1, [1, 1, 3]);
        // It has no infinity: too much is the largest number, and so is infinity.
        assert_eq!(lost(&floats, DType::Float8E4M3Fn).1, [2, 1, 4]);
        assert_eq!(lost(&floats, DType::Float64).1, [0, 0, 0]);
    }

    #[test]
    fn numbers_are_cast_and_scales_and_packed_floats_are_not() {
        use DType as D;
        for (from, is) in [
            (D::Float32, true),
            (D::Float8E5M2, true),
            (D::BFloat16, false),
            (D::Int64, false),
            (D::Bool, false),
            (D::Complex64, false),
            (D::Float8E8M0Fnu, false),
            (D::Float4E2M1FnX2, false),
        ] {
            assert_eq!(is_cast(from, D::BFloat16), is, "{from}");
        }
    }
}
