mod safetensors;

pub use safetensors::SafetensorsDType;

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident $text:literal $size:literal,)*) => {
        /// Element types: all of PyTorch DCP's and of safetensors', named as PyTorch names them without the `torch.` prefix.
        ///
        /// ```
        /// use reshard_model::DType;
        /// assert_eq!("bfloat16".parse(), Ok(DType::BFloat16));
        /// assert_eq!(DType::Float8E4M3Fn.to_string(), "float8_e4m3fn");
        /// assert_eq!(DType::Complex64.size(), 8); // bytes
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum DType { $($(#[$doc])* #[serde(rename = $text)] $name,)* }

        impl DType {
            /// Every element type.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Bytes per element.
            pub const fn size(self) -> u64 {
                match self { $(Self::$name => $size,)* }
            }

            /// PyTorch's name without the `torch.` prefix.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

dtypes! {
    /// One byte, 0 or 1.
    Bool "bool" 1,
    /// Unsigned, 8 bits.
    UInt8 "uint8" 1,
    /// Unsigned, 16 bits.
    UInt16 "uint16" 2,
    /// Unsigned, 32 bits.
    UInt32 "uint32" 4,
    /// Unsigned, 64 bits.
    UInt64 "uint64" 8,
    /// Signed, 8 bits.
    Int8 "int8" 1,
    /// Signed, 16 bits.
    Int16 "int16" 2,
    /// Signed, 32 bits.
    Int32 "int32" 4,
    /// Signed, 64 bits.
    Int64 "int64" 8,
    /// IEEE half.
    Float16 "float16" 2,
    /// Upper half of a float32.
    BFloat16 "bfloat16" 2,
    /// IEEE single.
    Float32 "float32" 4,
    /// IEEE double.
    Float64 "float64" 8,
    /// Two float16.
    Complex32 "complex32" 4,
    /// Two bfloat16.
    BComplex32 "bcomplex32" 4,
    /// Two float32.
    Complex64 "complex64" 8,
    /// Two float64.
    Complex128 "complex128" 16,
    /// 4 exponent bits, 3 mantissa bits, finite only.
    Float8E4M3Fn "float8_e4m3fn" 1,
    /// As e4m3fn, no negative zero.
    Float8E4M3FnUz "float8_e4m3fnuz" 1,
    /// 5 exponent bits, 2 mantissa bits.
    Float8E5M2 "float8_e5m2" 1,
    /// As e5m2, finite only, no negative zero.
    Float8E5M2FnUz "float8_e5m2fnuz" 1,
    /// 8 exponent bits: scales.
    Float8E8M0Fnu "float8_e8m0fnu" 1,
    /// Two 4-bit floats in a byte.
    Float4E2M1FnX2 "float4_e2m1fn_x2" 1,
}

impl DType {
    /// Bytes of the parts that byte order applies to: a complex number is two of them.
    pub const fn word(self) -> u64 {
        match self {
            Self::Complex32 | Self::BComplex32 | Self::Complex64 | Self::Complex128 => {
                self.size() / 2
            }
            _ => self.size(),
        }
    }

    /// Whether elements are complex numbers.
    pub const fn is_complex(self) -> bool {
        matches!(
            self,
            Self::Complex32 | Self::BComplex32 | Self::Complex64 | Self::Complex128
        )
    }

    /// Whether elements are real floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Self::Float16 | Self::BFloat16 | Self::Float32 | Self::Float64
        ) || matches!(
            self,
            Self::Float8E4M3Fn | Self::Float8E4M3FnUz | Self::Float8E5M2 | Self::Float8E5M2FnUz
        ) || matches!(self, Self::Float8E8M0Fnu | Self::Float4E2M1FnX2)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no element type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an element type; use PyTorch's names, such as float32, bfloat16, int64, float8_e4m3fn"
)]
pub struct ParseDTypeError(String);

impl FromStr for DType {
    type Err = ParseDTypeError;
    fn from_str(s: &str) -> Result<Self, ParseDTypeError> {
        let s = s.strip_prefix("torch.").unwrap_or(s);
        Self::ALL
            .iter()
            .copied()
            .find(|d| d.name() == s)
            .ok_or_else(|| ParseDTypeError(s.into()))
    }
}
