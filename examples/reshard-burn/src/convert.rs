//! Data of burn's tensors and tensors of reshard, with the same elements.

use crate::BoxError;
use burn::tensor::{DType, TensorData};
use half::{bf16, f16};

macro_rules! types {
    ($($burn:ident, $reshard:ident: $t:ty;)*) => {
        /// The type in a checkpoint. `None` for quantised elements, and for `Flex32`, which has no bytes of its own.
        pub(crate) fn dtype(burn: DType) -> Option<reshard::DType> {
            Some(match burn {
                $(DType::$burn => reshard::DType::$reshard,)*
                _ => return None,
            })
        }

        /// The elements in host memory, row-major. They are moved if the backend gave a vector away, and copied otherwise.
        ///
        /// # Errors
        /// The elements are quantised or of type `Flex32`, or the data contradict themselves.
        pub fn to_reshard(data: TensorData) -> Result<reshard::Tensor, BoxError> {
            let shape: Vec<u64> = data.shape.iter().map(|n| *n as u64).collect();
            Ok(match data.dtype {
                $(DType::$burn => {
                    let elements = data.into_vec::<$t>().map_err(|e| format!("data of burn: {e:?}"))?;
                    reshard::Tensor::from_vec(&shape, elements)?
                })*
                other => return Err(unsupported(other).into()),
            })
        }

        /// The elements as data of burn. They are moved, and not copied, if this is the only handle on them.
        ///
        /// # Errors
        /// burn has no such type, or the tensor does not fit the memory of this machine.
        pub fn from_reshard(tensor: reshard::Tensor) -> Result<TensorData, BoxError> {
            let shape = tensor.shape().iter().map(|n| usize::try_from(*n)).collect::<Result<Vec<usize>, _>>()?;
            Ok(match tensor.dtype() {
                $(reshard::DType::$reshard => match tensor.into_vec::<$t>() {
                    Ok(elements) => TensorData::new(elements, shape),
                    Err(shared) => TensorData::new(shared.to_vec::<$t>()?, shape),
                },)*
                other => return Err(format!("burn has no elements of type {other}; load them with `.cast(…)` into a type that it has").into()),
            })
        }
    };
}

types! {
    F64, Float64: f64;
    F32, Float32: f32;
    F16, Float16: f16;
    BF16, BFloat16: bf16;
    I64, Int64: i64;
    I32, Int32: i32;
    I16, Int16: i16;
    I8, Int8: i8;
    U64, UInt64: u64;
    U32, UInt32: u32;
    U16, UInt16: u16;
    U8, UInt8: u8;
    Bool, Bool: bool;
}

pub(crate) fn unsupported(dtype: DType) -> String {
    format!(
        "a tensor of burn's type {dtype:?} can't be saved; dequantise or convert it, and keep its scales in a parameter of their own"
    )
}
