use super::*;
use proptest::prelude::*;

fn bytes<T: Copy, const N: usize>(numbers: &[T], f: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    numbers.iter().flat_map(|x| f(*x)).collect()
}

/// One after the other, as it would be written down.
fn slowly(numbers: &[f32]) -> Moments {
    let mut m = Moments::default();
    for x in numbers {
        m.numbers += 1;
        if x.is_nan() {
            m.nans += 1;
        } else if x.is_infinite() {
            m.infinite += 1;
        } else {
            let wide = f64::from(*x);
            m.zeros += u64::from(*x == 0.0);
            m.denormals += u64::from(x.is_subnormal());
            let (min, max) = m.range.unwrap_or((wide, wide));
            m.range = Some((min.min(wide), max.max(wide)));
            m.sum += wide;
            m.squares += wide * wide;
        }
    }
    m
}

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()) || a == b
}

/// Any bits: NaN, infinities and denormals are common among them.
fn floats() -> impl Strategy<Value = Vec<f32>> {
    let any = prop_oneof![
        any::<u32>().prop_map(f32::from_bits),
        (-3i8..3).prop_map(f32::from),
        (0u32..9).prop_map(f32::from_bits),
    ];
    prop::collection::vec(any, 0..70)
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn loops_with_lanes_find_what_a_plain_loop_finds(numbers in floats(), repeat in 1usize..200) {
        let numbers: Vec<f32> = numbers.iter().copied().cycle().take(numbers.len() * repeat).collect();
        let (fast, slow) = (Moments::of(DType::Float32, &bytes(&numbers, f32::to_le_bytes)), slowly(&numbers));
        let counts = |m: &Moments| (m.numbers, m.zeros, m.denormals, m.nans, m.infinite);
        prop_assert_eq!(counts(&fast), counts(&slow));
        prop_assert_eq!(fast.range, slow.range);
        prop_assert!(is_near(fast.squares, slow.squares), "{} {}", fast.squares, slow.squares);
        // Terms of both signs may cancel out.
        let size: f64 = numbers.iter().filter(|x| x.is_finite()).map(|x| f64::from(x.abs())).sum();
        prop_assert!((fast.sum - slow.sum).abs() <= 1e-9 * size, "{} {}", fast.sum, slow.sum);
    }

    #[test]
    fn pairs_are_compared_as_in_a_plain_loop(a in floats(), b in floats(), absolute in 0f64..2.0, relative in 0f64..0.5) {
        let n = a.len().min(b.len());
        let (a, b) = (&a[..n], &b[..n]);
        let tolerance = Tolerance { absolute, relative, any_dtype: false };
        let (pairs, first) = Pairs::of(
            (DType::Float32, &bytes(a, f32::to_le_bytes)),
            (DType::Float32, &bytes(b, f32::to_le_bytes)),
            tolerance,
        );
        let differs = |(a, b): (&f32, &f32)| tolerance.differ(f64::from(*a), f64::from(*b));
        let same_bits = a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
        let differ = a.iter().zip(b).filter(|p| differs(*p)).count() as u64;
        prop_assert_eq!(pairs.differ, if same_bits { 0 } else { differ });
        prop_assert_eq!(first, a.iter().zip(b).position(differs));
        let both = a.iter().zip(b).filter(|(a, b)| a.is_finite() && b.is_finite());
        let most = both.map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs()).fold(0.0, f64::max);
        prop_assert_eq!(pairs.most, most);
    }

    #[test]
    fn a_tensor_in_parts_has_the_moments_of_the_whole(numbers in floats(), cut in 0usize..70) {
        let all = bytes(&numbers, f32::to_le_bytes);
        let (head, tail) = all.split_at(cut.min(numbers.len()) * 4);
        let mut parts = Moments::of(DType::Float32, head);
        parts.merge(&Moments::of(DType::Float32, tail));
        let whole = Moments::of(DType::Float32, &all);
        prop_assert_eq!((parts.numbers, parts.range), (whole.numbers, whole.range));
        prop_assert!(is_near(parts.squares, whole.squares));
    }
}

#[test]
fn denormals_are_those_of_the_stored_type() {
    // 2^-15 is normal as a float32, and not as a float16, where it has the bits 0x0200.
    let half = Moments::of(DType::Float16, &0x0200u16.to_le_bytes());
    assert_eq!((half.denormals, half.range.unwrap().1), (1, 2f64.powi(-15)));
    let single = Moments::of(DType::Float32, &2f32.powi(-15).to_le_bytes());
    assert_eq!(single.denormals, 0);
    // The smallest e4m3fn, 2^-9.
    let eight = Moments::of(DType::Float8E4M3Fn, &[1]);
    assert_eq!(
        (eight.denormals, eight.range.unwrap().1),
        (1, 2f64.powi(-9))
    );
    let whole = Moments::of(DType::Int16, &[1, 0]);
    assert_eq!((whole.denormals, whole.range.unwrap().1), (0, 1.0));
}

#[test]
fn large_integers_are_compared_exactly() {
    let (a, b) = (i64::MAX.to_le_bytes(), (i64::MAX - 1).to_le_bytes());
    let of = |a, b| Pairs::of((DType::Int64, a), (DType::Int64, b), Tolerance::default());
    let (pairs, first) = of(&a, &b);
    assert_eq!((pairs.differ, pairs.most, first), (1, 1.0, Some(0)));
    assert_eq!(of(&a, &a).0.differ, 0);

    // 2^53 + 1 is no float64, and 2^63 - 1 is none that is near.
    let long = bytes(&[(1i64 << 53) + 1, i64::MAX, 3, 3, 7], i64::to_le_bytes);
    let floats = [2f64.powi(53), 2f64.powi(63), 3.0, 3.5, f64::INFINITY];
    let floats = bytes(&floats, f64::to_le_bytes);
    let (long, floats) = ((DType::Int64, &*long), (DType::Float64, &*floats));
    for (a, b) in [(long, floats), (floats, long)] {
        let (pairs, first) = Pairs::of(a, b, Tolerance::default());
        assert_eq!((pairs.differ, pairs.most, first), (4, 1.0, Some(0)));
    }
    let unsigned = (DType::UInt64, &u64::MAX.to_le_bytes()[..]);
    let signed = (DType::Int64, &(-1i64).to_le_bytes()[..]);
    let (pairs, _) = Pairs::of(unsigned, signed, Tolerance::default());
    assert_eq!((pairs.differ, pairs.most), (1, 2f64.powi(64)));
}

#[test]
fn numbers_of_different_types_are_compared_by_value() {
    let floats = bytes(&[1.5f32, 2.25, -0.0], f32::to_le_bytes);
    let halves: Vec<u8> = [0x3fc0u16, 0x4010, 0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let (pairs, first) = Pairs::of(
        (DType::Float32, &floats),
        (DType::BFloat16, &halves),
        Tolerance::default(),
    );
    assert_eq!((pairs.differ, first), (0, None));
    let ints = bytes(&[1i32, 2, 0], i32::to_le_bytes);
    let (pairs, first) = Pairs::of(
        (DType::Float32, &floats),
        (DType::Int32, &ints),
        Tolerance::default(),
    );
    assert_eq!((pairs.differ, pairs.most, first), (2, 0.5, Some(0)));
}

/// Ones and zeros in as many elements of a type, the last of which is another one if wanted.
fn ones_and_zeros(dtype: DType, len: usize, other: bool) -> Vec<u8> {
    let mut numbers: Vec<u8> = (0..len).map(|i| u8::from(i % 3 == 1)).collect();
    if let (Some(last), true) = (numbers.last_mut(), other) {
        *last = 1 - *last;
    }
    let mut out = vec![0; len * dtype.size() as usize];
    convert(DType::UInt8, &numbers, dtype, &mut out).unwrap();
    out
}

/// In blocks that are full and not: a step may have fewer elements than the step before it.
#[test]
fn each_type_is_compared_with_each_other_by_value() {
    let all = DType::ALL.iter().filter(|d| number(**d) == Some(**d));
    // It has no zero.
    let all: Vec<DType> = all
        .copied()
        .filter(|d| *d != DType::Float8E8M0Fnu)
        .collect();
    assert!(all.len() > 15);
    for (&a, &b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
        for len in [1, 5, STEP, STEP + 3] {
            let left = ones_and_zeros(a, len, false);
            for other in [false, true] {
                let right = ones_and_zeros(b, len, other);
                let (pairs, first) = Pairs::of((a, &left), (b, &right), Tolerance::default());
                let want = other.then_some(len - 1);
                let found = (pairs.differ, pairs.not_finite, first);
                assert_eq!(found, (u64::from(other), 0, want), "{a} and {b}, {len}");
            }
        }
    }
}

#[test]
fn differences_that_are_not_finite_are_counted() {
    let of = |numbers: &[f32]| bytes(numbers, f32::to_le_bytes);
    let (a, b) = (of(&[1.0, 2.0, f32::NAN]), of(&[f32::NAN, 2.0, f32::NAN]));
    let long = bytes(&[1i64, 2, 3], i64::to_le_bytes);
    let none = Tolerance::default();
    let (pairs, first) = Pairs::of((DType::Float32, &a), (DType::Float32, &b), none);
    assert_eq!((pairs.differ, pairs.not_finite, first), (1, 1, Some(0)));
    let (pairs, first) = Pairs::of((DType::Int64, &long), (DType::Float32, &b), none);
    assert_eq!((pairs.differ, pairs.not_finite, first), (2, 2, Some(0)));
}
