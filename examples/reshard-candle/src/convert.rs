//! Tensors of candle and of reshard, with the same elements.

use crate::BoxError;
use candle_core::{DType, Device, Tensor};
use float8::F8E4M3;
use half::{bf16, f16};

macro_rules! types {
    ($($candle:ident, $reshard:ident: $t:ty;)*) => {
        /// The type in a checkpoint. `None` for candle's types of 4 and 6 bits and its scales, with which it computes nothing.
        pub(crate) fn dtype(candle: DType) -> Option<reshard::DType> {
            Some(match candle {
                $(DType::$candle => reshard::DType::$reshard,)*
                DType::F8E4M3 => reshard::DType::Float8E4M3Fn,
                _ => return None,
            })
        }

        /// The elements in host memory, row-major. They are copied once, from whichever device.
        ///
        /// # Errors
        /// The type has no arithmetic in candle (`f4`, `f6e2m3`, `f6e3m2`, `f8e8m0`), or the device fails.
        pub fn to_reshard(tensor: &Tensor) -> Result<reshard::Tensor, BoxError> {
            let shape = shape_of(tensor);
            let flat = tensor.flatten_all()?;
            Ok(match tensor.dtype() {
                $(DType::$candle => reshard::Tensor::from_vec(&shape, flat.to_vec1::<$t>()?)?,)*
                DType::F8E4M3 => {
                    let bits: Vec<u8> = flat.to_vec1::<F8E4M3>()?.into_iter().map(|x| x.to_bits()).collect();
                    reshard::Tensor::new(reshard::DType::Float8E4M3Fn, &shape, bits)?
                }
                other => return Err(unsupported(other).into()),
            })
        }

        /// The elements as a tensor of candle. They are moved, and not copied, if this is the only handle on them and the device is the CPU.
        ///
        /// # Errors
        /// candle has no such type, the tensor does not fit the memory of this machine, or the device fails.
        pub fn from_reshard(tensor: reshard::Tensor, device: &Device) -> Result<Tensor, BoxError> {
            let shape = tensor.shape().iter().map(|n| usize::try_from(*n)).collect::<Result<Vec<usize>, _>>()?;
            Ok(match tensor.dtype() {
                $(reshard::DType::$reshard => {
                    let elements = match tensor.into_vec::<$t>() {
                        Ok(elements) => elements,
                        Err(shared) => shared.to_vec::<$t>()?,
                    };
                    Tensor::from_vec(elements, shape, device)?
                })*
                reshard::DType::Float8E4M3Fn => {
                    let elements: Vec<F8E4M3> = tensor.to_bytes().iter().map(|bits| F8E4M3::from_bits(*bits)).collect();
                    Tensor::from_vec(elements, shape, device)?
                }
                other => return Err(format!("candle has no elements of type {other}; load them with `.cast(…)` into a type that it has").into()),
            })
        }
    };
}

types! {
    U8, UInt8: u8;
    U32, UInt32: u32;
    I16, Int16: i16;
    I32, Int32: i32;
    I64, Int64: i64;
    BF16, BFloat16: bf16;
    F16, Float16: f16;
    F32, Float32: f32;
    F64, Float64: f64;
}

pub(crate) fn shape_of(tensor: &Tensor) -> Vec<u64> {
    tensor.dims().iter().map(|n| *n as u64).collect()
}

pub(crate) fn unsupported(dtype: DType) -> String {
    let name = dtype.as_str();
    format!(
        "a tensor of candle's type {name} can't be saved: candle computes nothing with {name}; keep it in a file of its own"
    )
}
