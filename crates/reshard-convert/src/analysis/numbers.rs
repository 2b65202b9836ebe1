//! Elements as floats in a buffer of the core's cache, and loops over them. Loops have no branches and several accumulators, so that they
//! are done for several elements at once.

use super::Tolerance;
use num_traits::Float;
use reshard::{DType, plan::cast::convert};

/// So many numbers are looked at at a time.
pub(super) const STEP: usize = 8 << 10;

/// Accumulators of a loop.
const LANES: usize = 8;

/// As what elements of a type are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wide {
    F32,
    F64,
}

/// The type of the numbers that elements consist of: a complex number is two of them. `None` if they are no numbers.
pub(super) fn number(dtype: DType) -> Option<DType> {
    Some(match dtype {
        DType::Complex32 => DType::Float16,
        DType::BComplex32 => DType::BFloat16,
        DType::Complex64 => DType::Float32,
        DType::Complex128 => DType::Float64,
        DType::Float4E2M1FnX2 => return None,
        other => other,
    })
}

/// As what numbers of a type are looked at: float32 holds all smaller floats.
pub(super) fn wide(number: DType) -> Wide {
    if number.is_float() && number != DType::Float64 {
        Wide::F32
    } else {
        Wide::F64
    }
}

/// The smallest normal number of a type. Zero if it has no others.
pub(super) fn smallest_normal(number: DType) -> f64 {
    match number {
        DType::Float64 => f64::MIN_POSITIVE,
        DType::Float32 | DType::BFloat16 => f32::MIN_POSITIVE.into(),
        DType::Float16 | DType::Float8E5M2 => 2f64.powi(-14),
        DType::Float8E5M2FnUz => 2f64.powi(-15),
        DType::Float8E4M3Fn => 2f64.powi(-6),
        DType::Float8E4M3FnUz => 2f64.powi(-7),
        _ => 0.0,
    }
}

/// A type of numbers to loop over.
pub(super) trait Real: Float + Into<f64> + Default {
    /// Decodes as many elements as `out` has; `bytes` is memory to use.
    fn decode(from: DType, src: &[u8], out: &mut [Self], bytes: &mut Vec<u8>);
}

impl Real for f32 {
    fn decode(from: DType, src: &[u8], out: &mut [Self], bytes: &mut Vec<u8>) {
        match from {
            DType::Float32 => fill(src, out, Self::from_le_bytes),
            DType::BFloat16 => fill(src, out, |b| {
                Self::from_bits(u32::from(u16::from_le_bytes(b)) << 16)
            }),
            other => {
                bytes.resize(out.len() * 4, 0);
                let done = convert(other, src, DType::Float32, bytes);
                debug_assert!(done.is_ok(), "{done:?}");
                fill(bytes, out, Self::from_le_bytes);
            }
        }
    }
}

impl Real for f64 {
    fn decode(from: DType, src: &[u8], out: &mut [Self], bytes: &mut Vec<u8>) {
        match from {
            DType::Float64 => fill(src, out, Self::from_le_bytes),
            DType::Bool => fill(src, out, |[b]| Self::from(u8::from(b != 0))),
            DType::UInt8 => fill(src, out, |[b]| b.into()),
            DType::Int8 => fill(src, out, |b| i8::from_le_bytes(b).into()),
            DType::UInt16 => fill(src, out, |b| u16::from_le_bytes(b).into()),
            DType::Int16 => fill(src, out, |b| i16::from_le_bytes(b).into()),
            DType::UInt32 => fill(src, out, |b| u32::from_le_bytes(b).into()),
            DType::Int32 => fill(src, out, |b| i32::from_le_bytes(b).into()),
            DType::UInt64 => fill(src, out, |b| u64::from_le_bytes(b) as Self),
            DType::Int64 => fill(src, out, |b| i64::from_le_bytes(b) as Self),
            other => {
                bytes.resize(out.len() * 8, 0);
                let done = convert(other, src, DType::Float64, bytes);
                debug_assert!(done.is_ok(), "{done:?}");
                fill(bytes, out, Self::from_le_bytes);
            }
        }
    }
}

fn fill<const N: usize, R>(src: &[u8], out: &mut [R], f: impl Fn([u8; N]) -> R) {
    let elements = src.as_chunks().0;
    elements.iter().zip(out).for_each(|(e, o)| *o = f(*e));
}

/// Adds up `f` of all numbers.
fn sum<R: Real>(numbers: &[R], f: impl Fn(R) -> f64) -> f64 {
    let (chunks, rest) = numbers.as_chunks::<LANES>();
    let mut lanes = [0f64; LANES];
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += f(*x);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|x| f(*x)).sum::<f64>()
}

fn square<R: Real>(x: R) -> f64 {
    let x: f64 = x.into();
    x * x
}

/// Counts the numbers of which `is` is true.
pub(super) fn count<R: Real>(numbers: &[R], is: impl Fn(R) -> bool) -> u64 {
    let (chunks, rest) = numbers.as_chunks::<LANES>();
    // No step has more numbers than fit.
    let mut lanes = [0u32; LANES];
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += u32::from(is(*x));
        }
    }
    let lanes: u64 = lanes.iter().map(|n| u64::from(*n)).sum();
    lanes + rest.iter().filter(|x| is(**x)).count() as u64
}

/// The smallest and the largest number. `None` if there is none.
fn extremes<R: Real>(numbers: &[R]) -> Option<(f64, f64)> {
    let less = |a: R, b: R| if b < a { b } else { a };
    let more = |a: R, b: R| if b > a { b } else { a };
    let (highest, lowest) = (R::infinity(), R::neg_infinity());
    let (mut low, mut high) = ([highest; LANES], [lowest; LANES]);
    let (chunks, rest) = numbers.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            low[i] = less(low[i], chunk[i]);
            high[i] = more(high[i], chunk[i]);
        }
    }
    let lows = low.iter().chain(rest).copied();
    let highs = high.iter().chain(rest).copied();
    let range = (lows.fold(highest, less), highs.fold(lowest, more));
    (!numbers.is_empty()).then_some((range.0.into(), range.1.into()))
}

/// What some numbers are like. Extremes and sums are of the finite ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Moments {
    pub(super) numbers: u64,
    pub(super) zeros: u64,
    pub(super) denormals: u64,
    pub(super) nans: u64,
    pub(super) infinite: u64,
    pub(super) range: Option<(f64, f64)>,
    pub(super) sum: f64,
    pub(super) squares: f64,
}

impl Moments {
    /// Adds what follows.
    pub(super) fn merge(&mut self, next: &Self) {
        self.numbers += next.numbers;
        self.zeros += next.zeros;
        self.denormals += next.denormals;
        self.nans += next.nans;
        self.infinite += next.infinite;
        self.extend(next.range);
        self.sum += next.sum;
        self.squares += next.squares;
    }

    /// Adds numbers, of which there are at most [`STEP`]. `tiny` is the smallest normal one. It changes those that are not finite.
    fn add<R: Real>(&mut self, numbers: &mut [R], tiny: R) {
        let zero = R::default();
        let all = numbers.len() as u64;
        let finite = count(numbers, R::is_finite);
        let zeros = count(numbers, |x| x == zero);
        // NaN is not smaller than anything.
        let small = count(numbers, |x| x.abs() < tiny);
        self.numbers += all;
        self.zeros += zeros;
        self.denormals += if tiny > zero { small - zeros } else { 0 };
        if finite < all {
            let nans = numbers.iter().filter(|x| x.is_nan()).count() as u64;
            self.nans += nans;
            self.infinite += all - finite - nans;
            let of_finite = numbers.iter().copied().filter(|x| x.is_finite());
            let of_finite: Vec<R> = of_finite.collect();
            self.extend(extremes(&of_finite));
            // Zeros change no sum.
            let of_odd = numbers.iter_mut().filter(|x| !x.is_finite());
            of_odd.for_each(|x| *x = zero);
        } else {
            self.extend(extremes(numbers));
        }
        self.sum += sum(numbers, Into::into);
        self.squares += sum(numbers, square);
    }

    /// Extends the range to that of more finite numbers.
    fn extend(&mut self, more: Option<(f64, f64)>) {
        let both = self.range.into_iter().chain(more);
        self.range = both.reduce(|(a, b), (c, d)| (a.min(c), b.max(d)));
    }

    /// Of elements of a type, which consist of these numbers.
    pub(super) fn of(number: DType, bytes: &[u8]) -> Self {
        match wide(number) {
            Wide::F32 => Self::of_real::<f32>(number, bytes),
            Wide::F64 => Self::of_real::<f64>(number, bytes),
        }
    }

    fn of_real<R: Real>(number: DType, bytes: &[u8]) -> Self {
        let mut out = Self::default();
        let tiny = num_traits::cast(smallest_normal(number)).unwrap_or_default();
        let size = number.size() as usize;
        let (mut numbers, mut memory) = (vec![R::default(); STEP], Vec::new());
        for step in bytes.chunks(STEP * size) {
            let numbers = &mut numbers[..step.len() / size];
            R::decode(number, step, numbers, &mut memory);
            out.add(numbers, tiny);
        }
        out
    }
}

/// The sums over pairs of numbers by which two tensors are compared. Pairs that are not finite are not in them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Pairs {
    /// How many differ.
    pub(super) differ: u64,
    /// In how many of those one number is not finite.
    pub(super) not_finite: u64,
    /// The largest difference of finite numbers.
    pub(super) most: f64,
    pub(super) of_differences: f64,
    pub(super) of_first: f64,
    pub(super) of_second: f64,
    pub(super) of_products: f64,
}

impl Tolerance {
    /// Whether two numbers count as different, if both are finite.
    fn exceeded(self, a: f64, b: f64) -> bool {
        (a - b).abs() > self.absolute + self.relative * b.abs()
    }

    /// The same for any numbers: NaN is like NaN, and an infinity is like itself.
    fn differ(self, a: f64, b: f64) -> bool {
        if a.is_finite() && b.is_finite() {
            self.exceeded(a, b)
        } else {
            !(a == b || (a.is_nan() && b.is_nan()))
        }
    }
}

impl Pairs {
    pub(super) fn merge(&mut self, next: &Self) {
        self.differ += next.differ;
        self.not_finite += next.not_finite;
        self.most = self.most.max(next.most);
        self.of_differences += next.of_differences;
        self.of_first += next.of_first;
        self.of_second += next.of_second;
        self.of_products += next.of_products;
    }

    /// Adds numbers that are the same in both.
    fn add_same<R: Real>(&mut self, numbers: &[R]) {
        let squares = sum(numbers, |x| if x.is_finite() { square(x) } else { 0.0 });
        self.of_first += squares;
        self.of_second += squares;
        self.of_products += squares;
    }

    /// Adds pairs. Returns the first that differs.
    fn add<R: Real>(&mut self, a: &mut [R], b: &mut [R], tolerance: Tolerance) -> Option<usize> {
        let finite = |numbers: &[R]| count(numbers, R::is_finite) == numbers.len() as u64;
        let differs = |(a, b): (&R, &R)| tolerance.differ((*a).into(), (*b).into());
        let mut first = None;
        if !finite(a) || !finite(b) {
            let of_odd = a
                .iter()
                .zip(b.iter())
                .filter(|(a, b)| !a.is_finite() || !b.is_finite());
            let odd = of_odd.filter(|(a, b)| differs((*a, *b))).count() as u64;
            self.differ += odd;
            self.not_finite += odd;
            first = a.iter().zip(b.iter()).position(differs);
            for (a, b) in a.iter_mut().zip(b.iter_mut()) {
                if !a.is_finite() || !b.is_finite() {
                    (*a, *b) = (R::default(), R::default());
                }
            }
        }
        let (a, b) = (&*a, &*b);
        let differ = self.add_finite(a, b, tolerance);
        if differ > 0 && first.is_none() {
            first = a.iter().zip(b).position(differs);
        }
        self.differ += differ;
        first
    }

    /// Adds pairs of finite numbers. Returns how many differ.
    fn add_finite<R: Real>(&mut self, a: &[R], b: &[R], tolerance: Tolerance) -> u64 {
        let (mut differences, mut firsts) = ([0f64; LANES], [0f64; LANES]);
        let (mut seconds, mut products) = ([0f64; LANES], [0f64; LANES]);
        let (mut most, mut differ) = ([0f64; LANES], [0u64; LANES]);
        let mut one = |i: usize, a: R, b: R| {
            let (a, b): (f64, f64) = (a.into(), b.into());
            let d = (a - b).abs();
            differences[i] += d * d;
            firsts[i] += a * a;
            seconds[i] += b * b;
            products[i] += a * b;
            most[i] = if d > most[i] { d } else { most[i] };
            differ[i] += u64::from(tolerance.exceeded(a, b));
        };
        let ((chunks_a, rest_a), (chunks_b, rest_b)) =
            (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        for (a, b) in chunks_a.iter().zip(chunks_b) {
            for i in 0..LANES {
                one(i, a[i], b[i]);
            }
        }
        for (a, b) in rest_a.iter().zip(rest_b) {
            one(0, *a, *b);
        }
        self.most = most.iter().fold(self.most, |a, b| a.max(*b));
        self.of_differences += differences.iter().sum::<f64>();
        self.of_first += firsts.iter().sum::<f64>();
        self.of_second += seconds.iter().sum::<f64>();
        self.of_products += products.iter().sum::<f64>();
        differ.iter().sum()
    }

    /// Of the elements of two tensors, as numbers of these types. Returns also the first number that differs.
    pub(super) fn of(
        a: (DType, &[u8]),
        b: (DType, &[u8]),
        tolerance: Tolerance,
    ) -> (Self, Option<usize>) {
        let long = |d: DType| matches!(d, DType::Int64 | DType::UInt64);
        match wide(a.0).max(wide(b.0)) {
            _ if long(a.0) || long(b.0) => Self::of_long(a, b, tolerance),
            Wide::F32 => Self::of_real::<f32>(a, b, tolerance),
            Wide::F64 => Self::of_real::<f64>(a, b, tolerance),
        }
    }

    fn of_real<R: Real>(
        (type_a, a): (DType, &[u8]),
        (type_b, b): (DType, &[u8]),
        tolerance: Tolerance,
    ) -> (Self, Option<usize>) {
        let (mut out, mut memory) = (Self::default(), Vec::new());
        let first = by_steps((type_a, a), (type_b, b), |(a, left), (b, right)| {
            R::decode(type_a, a, left, &mut memory);
            if type_a == type_b && a == b {
                out.add_same(left);
                return None;
            }
            R::decode(type_b, b, right, &mut memory);
            out.add(left, right, tolerance)
        });
        (out, first)
    }

    /// Of integers that floats don't hold, and of numbers beside them.
    fn of_long(
        (type_a, a): (DType, &[u8]),
        (type_b, b): (DType, &[u8]),
        tolerance: Tolerance,
    ) -> (Self, Option<usize>) {
        let (mut out, mut memory) = (Self::default(), Vec::new());
        let first = by_steps((type_a, a), (type_b, b), |(a, left), (b, right)| {
            f64::decode(type_a, a, left, &mut memory);
            f64::decode(type_b, b, right, &mut memory);
            let [size_a, size_b] = [type_a, type_b].map(|of| of.size() as usize);
            let elements = a.chunks_exact(size_a).zip(b.chunks_exact(size_b));
            let mut first = None;
            for (i, ((a, b), (x, y))) in elements.zip(left.iter().zip(&*right)).enumerate() {
                let whole = whole(type_a, a, *x).zip(whole(type_b, b, *y));
                if out.add_long(whole, (*x, *y), tolerance) {
                    first = first.or(Some(i));
                }
            }
            first
        });
        (out, first)
    }

    /// Adds a pair, as integers if both are some, and as the nearest floats. Returns whether they differ.
    fn add_long(
        &mut self,
        whole: Option<(i128, i128)>,
        (a, b): (f64, f64),
        tolerance: Tolerance,
    ) -> bool {
        let (d, differ) = match whole {
            Some((x, y)) => {
                let d = (x - y).unsigned_abs() as f64;
                (d, d > tolerance.absolute + tolerance.relative * b.abs())
            }
            None => ((a - b).abs(), tolerance.differ(a, b)),
        };
        self.differ += u64::from(differ);
        if a.is_finite() && b.is_finite() {
            self.most = self.most.max(d);
            self.of_differences += d * d;
            self.of_first += a * a;
            self.of_second += b * b;
            self.of_products += a * b;
        } else {
            self.not_finite += u64::from(differ);
        }
        differ
    }
}

/// Gives `f` the bytes of the elements of two tensors, some at a time, and memory for their numbers. `f` returns the first of them that
/// differs, and this the first of all.
fn by_steps<R: Real>(
    (type_a, a): (DType, &[u8]),
    (type_b, b): (DType, &[u8]),
    mut f: impl FnMut((&[u8], &mut [R]), (&[u8], &mut [R])) -> Option<usize>,
) -> Option<usize> {
    let (mut left, mut right) = (vec![R::default(); STEP], vec![R::default(); STEP]);
    let (size_a, size_b) = (type_a.size() as usize, type_b.size() as usize);
    let steps = a.chunks(STEP * size_a).zip(b.chunks(STEP * size_b));
    let mut first = None;
    for (n, (a, b)) in steps.enumerate() {
        let len = (a.len() / size_a).min(b.len() / size_b);
        let here = f((a, &mut left[..len]), (b, &mut right[..len]));
        first = first.or(here.map(|i| n * STEP + i));
    }
    first
}

/// An element as an integer, if it is one of less than 2^126. `float` is the nearest float.
fn whole(dtype: DType, bytes: &[u8], float: f64) -> Option<i128> {
    let eight = || bytes.first_chunk().copied();
    match dtype {
        DType::UInt64 => eight().map(|bytes| u64::from_le_bytes(bytes).into()),
        DType::Int64 => eight().map(|bytes| i64::from_le_bytes(bytes).into()),
        _ => (float.fract() == 0.0 && float.abs() < 2f64.powi(126)).then_some(float as i128),
    }
}

#[cfg(test)]
mod tests;
