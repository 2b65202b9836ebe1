//! Arithmetic on elements that lie in memory as bytes, aligned or not.

use bytemuck::{Pod, bytes_of, pod_read_unaligned};
use half::{bf16, f16};
use reshard_model::DType;
use std::{
    num::Wrapping,
    ops::{Add, Div, Mul, Sub},
};

/// What is done to elements with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
    Update,
}

/// Changes elements with as many others.
pub(crate) type Kernel = fn(&mut [u8], &[u8]);

/// A type with arithmetic: a float, or an integer that wraps around. Quotients of integers are cut off towards zero.
pub(crate) trait Number:
    Pod + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
}

impl<T> Number for T where
    T: Pod + PartialOrd + Add<Output = T> + Sub<Output = T> + Mul<Output = T> + Div<Output = T>
{
}

/// A floating-point element type, which is computed with as a [`Real`].
pub(crate) trait Float: Pod {
    type Wide: Real;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

/// What is computed with: float32, also for the 16-bit types, or float64.
pub(crate) trait Real: Number {
    const ZERO: Self;
    const ONE: Self;
    fn of(v: f64) -> Self;
    fn sqrt(self) -> Self;
}

macro_rules! reals {
    ($($t:ident)*) => {$(
        impl Real for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            fn of(v: f64) -> Self { v as Self }
            fn sqrt(self) -> Self { $t::sqrt(self) }
        }
        impl Float for $t {
            type Wide = Self;
            fn widen(self) -> Self { self }
            fn narrow(wide: Self) -> Self { wide }
        }
    )*};
}

reals!(f32 f64);

macro_rules! halves {
    ($($t:ident)*) => {$(
        impl Float for $t {
            type Wide = f32;
            fn widen(self) -> f32 { self.to_f32() }
            fn narrow(wide: f32) -> Self { Self::from_f32(wide) }
        }
    )*};
}

halves!(f16 bf16);

/// The elements in `bytes`.
pub(crate) fn elements<T: Pod>(bytes: &[u8]) -> impl Iterator<Item = T> {
    bytes.chunks_exact(size_of::<T>()).map(pod_read_unaligned)
}

/// Changes each element of `to` with the one of `from` at the same place.
fn zip<T: Pod>(to: &mut [u8], from: &[u8], f: impl Fn(T, T) -> T) {
    let size = size_of::<T>();
    for (to, from) in to.chunks_exact_mut(size).zip(from.chunks_exact(size)) {
        let v = f(pod_read_unaligned(to), pod_read_unaligned(from));
        to.copy_from_slice(bytes_of(&v));
    }
}

/// Changes each element of `to`.
pub(crate) fn map<T: Pod>(to: &mut [u8], f: impl Fn(T) -> T) {
    for to in to.chunks_exact_mut(size_of::<T>()) {
        let v = f(pod_read_unaligned(to));
        to.copy_from_slice(bytes_of(&v));
    }
}

fn kernel_of<T: Number>(op: Op) -> Kernel {
    match op {
        // Floats of 16 bits are computed in float32.
        Op::Add => |to, from| zip(to, from, T::add),
        Op::Sub => |to, from| zip(to, from, T::sub),
        Op::Mul => |to, from| zip(to, from, T::mul),
        // Integer divisors of 0 are refused before anything changes.
        Op::Div => |to, from| zip(to, from, T::div),
        // As TensorFlow has it: where either is not a number the old element stays.
        Op::Max => |to, from| zip(to, from, |a: T, b| if a < b { b } else { a }),
        Op::Min => |to, from| zip(to, from, |a: T, b| if b < a { b } else { a }),
        Op::Update => |to, from| to.copy_from_slice(from),
    }
}

/// How elements of this type are changed; `None` when the type has no such arithmetic.
pub(crate) fn kernel(op: Op, dtype: DType) -> Option<Kernel> {
    Some(match dtype {
        DType::UInt8 => kernel_of::<Wrapping<u8>>(op),
        DType::UInt16 => kernel_of::<Wrapping<u16>>(op),
        DType::UInt32 => kernel_of::<Wrapping<u32>>(op),
        DType::UInt64 => kernel_of::<Wrapping<u64>>(op),
        DType::Int8 => kernel_of::<Wrapping<i8>>(op),
        DType::Int16 => kernel_of::<Wrapping<i16>>(op),
        DType::Int32 => kernel_of::<Wrapping<i32>>(op),
        DType::Int64 => kernel_of::<Wrapping<i64>>(op),
        DType::Float16 => kernel_of::<f16>(op),
        DType::BFloat16 => kernel_of::<bf16>(op),
        DType::Float32 => kernel_of::<f32>(op),
        DType::Float64 => kernel_of::<f64>(op),
        _ if op == Op::Update => |to, from| to.copy_from_slice(from),
        _ => return None,
    })
}

/// The first element that is an integer 0.
pub(crate) fn first_zero(dtype: DType, bytes: &[u8]) -> Option<usize> {
    let size = dtype.size() as usize;
    if dtype.is_float() {
        return None;
    }
    bytes
        .chunks_exact(size)
        .position(|e| e.iter().all(|&b| b == 0))
}

/// Runs `$body` with `$t` as the floating-point type that `$dtype` is; `None` for others.
macro_rules! with_float {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            DType::Float16 => Some({
                type $t = half::f16;
                $body
            }),
            DType::BFloat16 => Some({
                type $t = half::bf16;
                $body
            }),
            DType::Float32 => Some({
                type $t = f32;
                $body
            }),
            DType::Float64 => Some({
                type $t = f64;
                $body
            }),
            _ => None,
        }
    };
}
pub(crate) use with_float;

impl Op {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Add => "addition",
            Self::Sub => "subtraction",
            Self::Mul => "multiplication",
            Self::Div => "division",
            Self::Max => "the maximum",
            Self::Min => "the minimum",
            Self::Update => "assignment",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply<T: Pod>(op: Op, dtype: DType, a: &[T], b: &[T]) -> Vec<T> {
        let mut to = bytemuck::cast_slice::<T, u8>(a).to_vec();
        kernel(op, dtype).unwrap()(&mut to, bytemuck::cast_slice(b));
        bytemuck::pod_collect_to_vec(&to)
    }

    #[test]
    fn integers_wrap_around_and_quotients_are_cut_off_towards_zero() {
        assert_eq!(apply(Op::Add, DType::UInt8, &[250u8, 1], &[10, 1]), [4, 2]);
        assert_eq!(apply(Op::Sub, DType::UInt8, &[0u8], &[1]), [255]);
        assert_eq!(apply(Op::Mul, DType::Int32, &[i32::MAX], &[2]), [-2]);
        assert_eq!(
            apply(Op::Div, DType::Int64, &[-7i64, 7, i64::MIN], &[2, -2, -1]),
            [-3, -3, i64::MIN]
        );
        assert_eq!(first_zero(DType::Int16, &[1, 0, 0, 1, 0, 0]), Some(2));
        assert_eq!(first_zero(DType::Float32, &[0; 8]), None);
    }

    #[test]
    fn sixteen_bit_floats_are_rounded_once_an_operation() {
        let h = |v: f32| f16::from_f32(v);
        assert_eq!(
            apply(Op::Add, DType::Float16, &[h(2048.0)], &[h(1.0)]),
            [h(2048.0)]
        );
        assert_eq!(
            apply(Op::Div, DType::Float16, &[h(1.0)], &[h(3.0)]),
            [h(1.0 / 3.0)]
        );
        let b = bf16::from_f32;
        assert_eq!(
            apply(Op::Mul, DType::BFloat16, &[b(3.0)], &[b(1.0 / 3.0)]),
            [b(3.0 * b(1.0 / 3.0).to_f32())]
        );
    }

    #[test]
    fn the_old_element_stays_where_a_maximum_is_not_defined() {
        let nan = f32::NAN;
        let old = [1.0, nan, 2.0, 2.0];
        let max = apply(Op::Max, DType::Float32, &old, &[nan, 1.0, 3.0, 1.0]);
        let min = apply(Op::Min, DType::Float32, &old, &[nan, 1.0, 3.0, 1.0]);
        assert_eq!(
            (max[0], max[1].is_nan(), max[2], max[3]),
            (1.0, true, 3.0, 2.0)
        );
        assert_eq!(
            (min[0], min[1].is_nan(), min[2], min[3]),
            (1.0, true, 2.0, 1.0)
        );
    }

    #[test]
    fn types_without_arithmetic_can_only_be_moved() {
        for &dtype in DType::ALL {
            let numeric = kernel(Op::Add, dtype).is_some();
            let fractional = dtype.is_float() && dtype.size() > 1;
            let integral = dtype.name().contains("int");
            assert_eq!(numeric, fractional || integral, "{dtype}");
            assert!(kernel(Op::Update, dtype).is_some());
        }
    }
}
