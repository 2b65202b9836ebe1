//! Blocks of elements as a type that holds them all.

use super::float8::{Kind, decode_e8m0, encode_e8m0};
use crate::DType;
use half::{bf16, f16, slice::HalfFloatSliceExt};

/// How many elements are converted at a time, on the stack.
pub(super) const BLOCK: usize = 512;

/// A type by way of which others are converted. Both functions say whether they know the element type.
pub(super) trait Wide: Copy {
    const ZERO: Self;
    fn decode(from: DType, src: &[u8], block: &mut [Self]) -> bool;
    fn encode(block: &[Self], to: DType, dst: &mut [u8]) -> bool;
}

fn read<const N: usize, W>(src: &[u8], block: &mut [W], f: impl Fn([u8; N]) -> W) -> bool {
    src.as_chunks()
        .0
        .iter()
        .zip(block)
        .for_each(|(s, w)| *w = f(*s));
    true
}

fn write<const N: usize, W: Copy>(block: &[W], dst: &mut [u8], f: impl Fn(W) -> [u8; N]) -> bool {
    dst.as_chunks_mut()
        .0
        .iter_mut()
        .zip(block)
        .for_each(|(d, w)| *d = f(*w));
    true
}

/// Whether a float is zero.
pub(super) fn is_zero(d: DType, element: &[u8]) -> bool {
    let mut value = [1.0f64];
    f64::decode(d, element, &mut value) && value[0] == 0.0
}

impl Wide for f32 {
    const ZERO: Self = 0.0;

    fn decode(from: DType, src: &[u8], block: &mut [Self]) -> bool {
        match from {
            DType::Float32 => read(src, block, Self::from_le_bytes),
            DType::BFloat16 => read(src, block, |b| {
                Self::from_bits(u32::from(u16::from_le_bytes(b)) << 16)
            }),
            DType::Float16 => {
                let mut half = [f16::ZERO; BLOCK];
                let half = &mut half[..block.len()];
                read(src, half, f16::from_le_bytes);
                half.convert_to_f32_slice(block);
                true
            }
            DType::Float8E8M0Fnu => read(src, block, |[b]| decode_e8m0(b)),
            _ => Kind::of(from).is_some_and(|k| {
                let table: [Self; 256] = std::array::from_fn(|b| k.decode(b as u8));
                read(src, block, |[b]| table[usize::from(b)])
            }),
        }
    }

    fn encode(block: &[Self], to: DType, dst: &mut [u8]) -> bool {
        match to {
            DType::Float32 => write(block, dst, Self::to_le_bytes),
            DType::BFloat16 => write(block, dst, |v| bf16::from_f32(v).to_le_bytes()),
            DType::Float16 => {
                let mut half = [f16::ZERO; BLOCK];
                let half = &mut half[..block.len()];
                half.convert_from_f32_slice(block);
                write(half, dst, f16::to_le_bytes)
            }
            DType::Float8E8M0Fnu => write(block, dst, |v| [encode_e8m0(v)]),
            _ => Kind::of(to).is_some_and(|k| write(block, dst, |v| [k.encode(v)])),
        }
    }
}

/// Both wide types become other types in the same way.
macro_rules! encode {
    () => {
        fn encode(block: &[Self], to: DType, dst: &mut [u8]) -> bool {
            match to {
                DType::Float64 => write(block, dst, |v| (v as f64).to_le_bytes()),
                DType::Bool => write(block, dst, |v| [u8::from(v != Self::ZERO)]),
                // PyTorch goes by way of int64 here, so that -1 is 255 everywhere.
                DType::UInt8 => write(block, dst, |v| [v as i64 as u8]),
                DType::UInt16 => write(block, dst, |v| (v as u16).to_le_bytes()),
                DType::UInt32 => write(block, dst, |v| (v as u32).to_le_bytes()),
                DType::UInt64 => write(block, dst, |v| (v as u64).to_le_bytes()),
                DType::Int8 => write(block, dst, |v| (v as i8).to_le_bytes()),
                DType::Int16 => write(block, dst, |v| (v as i16).to_le_bytes()),
                DType::Int32 => write(block, dst, |v| (v as i32).to_le_bytes()),
                DType::Int64 => write(block, dst, |v| (v as i64).to_le_bytes()),
                small => narrow(block, small, dst, |v| v as f32),
            }
        }
    };
}

impl Wide for f64 {
    const ZERO: Self = 0.0;

    fn decode(from: DType, src: &[u8], block: &mut [Self]) -> bool {
        if from == DType::Float64 {
            return read(src, block, Self::from_le_bytes);
        }
        let mut small = [0f32; BLOCK];
        let small = &mut small[..block.len()];
        let known = f32::decode(from, src, small);
        block
            .iter_mut()
            .zip(small)
            .for_each(|(w, s)| *w = (*s).into());
        known
    }

    encode!();
}

impl Wide for i128 {
    const ZERO: Self = 0;

    fn decode(from: DType, src: &[u8], block: &mut [Self]) -> bool {
        match from {
            DType::Bool => read(src, block, |[b]| (b != 0).into()),
            DType::UInt8 => read(src, block, |[b]| b.into()),
            DType::UInt16 => read(src, block, |b| u16::from_le_bytes(b).into()),
            DType::UInt32 => read(src, block, |b| u32::from_le_bytes(b).into()),
            DType::UInt64 => read(src, block, |b| u64::from_le_bytes(b).into()),
            DType::Int8 => read(src, block, |b| i8::from_le_bytes(b).into()),
            DType::Int16 => read(src, block, |b| i16::from_le_bytes(b).into()),
            DType::Int32 => read(src, block, |b| i32::from_le_bytes(b).into()),
            DType::Int64 => read(src, block, |b| i64::from_le_bytes(b).into()),
            _ => false,
        }
    }

    encode!();
}

/// By way of float32, as PyTorch does.
fn narrow<W: Copy>(block: &[W], to: DType, dst: &mut [u8], f: impl Fn(W) -> f32) -> bool {
    let mut small = [0f32; BLOCK];
    let small = &mut small[..block.len()];
    small.iter_mut().zip(block).for_each(|(s, w)| *s = f(*w));
    f32::encode(small, to, dst)
}
