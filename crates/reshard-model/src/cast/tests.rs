use super::{float8::Kind, *};
use half::{bf16, f16};
use proptest::prelude::*;

const FLOAT8: [DType; 4] = [
    DType::Float8E4M3Fn,
    DType::Float8E4M3FnUz,
    DType::Float8E5M2,
    DType::Float8E5M2FnUz,
];

fn known() -> impl Iterator<Item = DType> {
    DType::ALL
        .iter()
        .copied()
        .filter(|d| *d != DType::Float4E2M1FnX2)
}

fn cast(from: DType, src: &[u8], to: DType) -> Vec<u8> {
    let mut dst = vec![0xaa; src.len() / from.size() as usize * to.size() as usize];
    convert(from, src, to, &mut dst).unwrap();
    dst
}

/// All values of types of up to 16 bits; corners of the others.
fn samples(d: DType) -> Vec<u8> {
    let wide = |words: &[f64]| {
        words
            .iter()
            .flat_map(|w| cast(DType::Float64, &w.to_le_bytes(), d))
            .collect()
    };
    match d.size() {
        1 if d == DType::Bool => vec![0, 1],
        1 => (0..=255).collect(),
        2 => (0..=u16::MAX).flat_map(u16::to_le_bytes).collect(),
        _ if d.is_complex() => {
            let x = samples(part(d).unwrap());
            let n = d.size() as usize / 2;
            // Each number beside the one before it, so that imaginary parts are numbers too.
            x.chunks_exact(n)
                .zip(x.chunks_exact(n).skip(1))
                .flat_map(|(a, b)| [a, b].concat())
                .collect()
        }
        n if d.is_float() => {
            let numbers = [
                0.0,
                -0.0,
                1.0,
                -1.5,
                1e-45,
                3e38,
                1.0 + f64::EPSILON,
                5e-324,
                f64::MAX,
                f64::INFINITY,
                f64::NAN,
            ];
            let mut out: Vec<u8> = wide(&numbers);
            out.extend(wide(&[-f64::INFINITY, 16_777_217.0, 65_505.0]));
            assert_eq!(out.len() % n as usize, 0);
            out
        }
        n => {
            let ones = |bits: u32| ((1u128 << bits) - 1).to_le_bytes()[..n as usize].to_vec();
            (0..=8 * n as u32)
                .flat_map(ones)
                .chain(vec![0x80; n as usize])
                .collect()
        }
    }
}

/// Equal, but any NaN is as good as another.
fn same(d: DType, a: &[u8], b: &[u8]) -> bool {
    if let Some(x) = part(d) {
        let n = x.size() as usize;
        return a
            .chunks_exact(n)
            .zip(b.chunks_exact(n))
            .all(|(a, b)| same(x, a, b));
    }
    a == b
        || d.is_float() && {
            let nan = |e: &[u8]| {
                f64::from_le_bytes(cast(d, e, DType::Float64).try_into().unwrap()).is_nan()
            };
            nan(a) && nan(b)
        }
}

fn ints(d: DType, bytes: &[u8]) -> Option<Vec<i128>> {
    let mut out = vec![0; bytes.len() / d.size() as usize];
    i128::decode(d, bytes, &mut out).then_some(out)
}

#[test]
fn lossless_casts_are_those_that_come_back_the_same() {
    for from in known() {
        let n = from.size() as usize;
        let src = samples(from);
        for to in known() {
            let there = cast(from, &src, to);
            let back = cast(to, &there, from);
            // Between ints, what wraps around comes back; so compare numbers.
            let kept = match (ints(from, &src), ints(to, &there)) {
                (Some(a), Some(b)) => a == b,
                _ => src
                    .chunks_exact(n)
                    .zip(back.chunks_exact(n))
                    .all(|(a, b)| same(from, a, b)),
            };
            assert_eq!(Cast::Lossless.allows(from, to), kept, "{from} to {to}");
        }
    }
}

#[test]
fn policies_contain_each_other() {
    for a in DType::ALL.iter().copied() {
        for b in DType::ALL.iter().copied() {
            let allowed =
                [Cast::Never, Cast::Lossless, Cast::Float, Cast::Any].map(|c| c.allows(a, b));
            assert!(allowed.is_sorted(), "{a} to {b}: {allowed:?}");
            assert_eq!(allowed[0], a == b);
        }
    }
    assert!(!Cast::Any.allows(DType::Float4E2M1FnX2, DType::Float32));
    assert!(convert(DType::Float4E2M1FnX2, &[0], DType::Bool, &mut [0]).is_err());
}

#[test]
fn values_become_what_pytorch_makes_of_them() {
    let f = |x: f32| x.to_le_bytes().to_vec();
    let i = |x: i64| x.to_le_bytes().to_vec();
    use DType as D;
    let table: Vec<(D, Vec<u8>, D, Vec<u8>)> = vec![
        (D::Float32, f(-1.75), D::Int64, i(-1)),
        (D::Float32, f(f32::NAN), D::Int64, i(0)),
        (
            D::Float32,
            f(3e9),
            D::Int32,
            i32::MAX.to_le_bytes().to_vec(),
        ),
        (D::Float32, f(-0.0), D::Bool, vec![0]),
        (D::Float32, f(f32::NAN), D::Bool, vec![1]),
        (D::Float32, f(0.5), D::Bool, vec![1]),
        (D::Int64, i(-1), D::UInt8, vec![255]),
        (D::Int64, i(257), D::Int8, vec![1]),
        (
            D::UInt64,
            i(-1),
            D::Float64,
            18_446_744_073_709_551_615f64.to_le_bytes().to_vec(),
        ),
        // 2^24 + 1 is no float32; the way from int64 to float16 leads through float32
        (D::Int64, i(16_777_217), D::Float32, f(16_777_216.0)),
        (
            D::Int64,
            i(65_519),
            D::Float16,
            f16::MAX.to_le_bytes().to_vec(),
        ),
        (
            D::Int64,
            i(65_520),
            D::Float16,
            f16::INFINITY.to_le_bytes().to_vec(),
        ),
        (D::Bool, vec![7], D::Int8, vec![1]),
        (
            D::Float32,
            f(1.0 + 1.0 / 256.0),
            D::BFloat16,
            bf16::from_f32(1.0).to_le_bytes().to_vec(),
        ),
        (
            D::Float32,
            f(1.0 + 3.0 / 256.0),
            D::BFloat16,
            bf16::from_f32(1.015625).to_le_bytes().to_vec(),
        ),
        (
            D::Float64,
            1e300f64.to_le_bytes().to_vec(),
            D::Float32,
            f(f32::INFINITY),
        ),
        (D::Float32, f(2.0), D::Complex64, [f(2.0), f(0.0)].concat()),
        (D::Complex64, [f(2.5), f(9.0)].concat(), D::Float32, f(2.5)),
        (D::Complex64, [f(0.0), f(9.0)].concat(), D::Bool, vec![1]),
        (D::Complex64, [f(0.0), f(-0.0)].concat(), D::Bool, vec![0]),
        (
            D::Complex64,
            [f(2.5), f(9.0)].concat(),
            D::Complex128,
            [2.5f64.to_le_bytes(), 9f64.to_le_bytes()].concat(),
        ),
        (D::Float32, f(448.0), D::Float8E4M3Fn, vec![0x7e]),
        (D::Float32, f(464.0), D::Float8E4M3Fn, vec![0x7e]),
        (D::Float32, f(465.0), D::Float8E4M3Fn, vec![0x7e]),
        (
            D::Float32,
            f(f32::NEG_INFINITY),
            D::Float8E4M3Fn,
            vec![0xfe],
        ),
        (D::Float32, f(f32::NAN), D::Float8E4M3Fn, vec![0x7f]),
        (D::Float32, f(-1.0), D::UInt8, vec![255]),
        (D::Float32, f(-1.0), D::UInt16, vec![0, 0]),
        (D::Float32, f(61_440.0), D::Float8E5M2, vec![0x7c]),
        (D::Float32, f(61_439.0), D::Float8E5M2, vec![0x7b]),
        (D::Float32, f(-1e9), D::Float8E5M2, vec![0xfc]),
        (D::Float32, f(-0.0), D::Float8E4M3FnUz, vec![0]),
        (D::Float32, f(247.0), D::Float8E4M3FnUz, vec![0x7f]),
        (D::Float32, f(248.0), D::Float8E4M3FnUz, vec![0x80]),
        (D::Float32, f(1.0), D::Float8E8M0Fnu, vec![127]),
        (D::Float32, f(-1.5), D::Float8E8M0Fnu, vec![128]),
        (D::Float32, f(0.0), D::Float8E8M0Fnu, vec![0]),
        (D::Float8E8M0Fnu, vec![255], D::Bool, vec![1]),
    ];
    for (from, src, to, want) in table {
        assert_eq!(cast(from, &src, to), want, "{from} {src:?} to {to}");
    }
}

#[test]
fn lengths_that_differ_are_refused() {
    let e = convert(DType::Float32, &[0; 8], DType::Int8, &mut [0; 3]).unwrap_err();
    assert!(
        e.to_string()
            .contains("8 bytes of float32 can't become 3 bytes of int8"),
        "{e}"
    );
    assert!(convert(DType::Float32, &[0; 6], DType::Int8, &mut [0; 1]).is_err());
}

/// The float8 with the least distance; of two, the even one.
fn nearest(k: Kind, value: f32) -> u8 {
    (0..=255u8)
        .filter(|b| {
            k.decode(*b).is_finite()
                && (k.decode(*b) == 0.0 || (k.decode(*b) < 0.0) == (value < 0.0))
        })
        .min_by(|a, b| {
            let far = |b: &u8| (f64::from(k.decode(*b)) - f64::from(value)).abs();
            far(a).total_cmp(&far(b)).then((a & 1).cmp(&(b & 1)))
        })
        .unwrap()
}

proptest! {
    #![proptest_config(crate::testkit::law(256))]
    #[test]
    fn float8_is_the_nearest_even_one(bits in any::<u32>(), exponent in 100u32..145) {
        // mostly numbers that a float8 can hold
        let value = f32::from_bits(bits & 0x807f_ffff | exponent << 23);
        for d in FLOAT8 {
            let k = Kind::of(d).unwrap();
            let largest = (0..128u8).map(|b| k.decode(b)).filter(|v| v.is_finite()).fold(0.0, f32::max);
            if value.abs() <= largest {
                prop_assert_eq!(k.decode(k.encode(value)), k.decode(nearest(k, value)), "{} as {}", value, d);
            }
        }
    }

    #[test]
    fn blocks_of_any_length_are_as_one_by_one(n in 0usize..1300, from in prop::sample::select(known().collect::<Vec<_>>()), to in prop::sample::select(known().collect::<Vec<_>>())) {
        let size = from.size() as usize;
        let src: Vec<u8> = (0..n * size).map(|i| (i as u8).wrapping_mul(37) ^ (i >> 8) as u8).collect();
        let single: Vec<u8> = src.chunks_exact(size).flat_map(|e| cast(from, e, to)).collect();
        prop_assert_eq!(cast(from, &src, to), single);
    }
}
