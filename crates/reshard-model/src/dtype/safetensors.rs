//! The names of element types in safetensors.

use super::DType;

/// An element type of safetensors: its name and its size in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SafetensorsDType {
    /// As headers have it.
    pub name: &'static str,
    /// Bits of an element.
    bits: u64,
    /// `None` if the model has no such type.
    dtype: Option<DType>,
}

const fn known(name: &'static str, dtype: DType) -> SafetensorsDType {
    SafetensorsDType {
        name,
        bits: dtype.size() * 8,
        dtype: Some(dtype),
    }
}

const fn unknown(name: &'static str, bits: u64) -> SafetensorsDType {
    SafetensorsDType {
        name,
        bits,
        dtype: None,
    }
}

const ALL: [SafetensorsDType; 22] = [
    known("BOOL", DType::Bool),
    known("U8", DType::UInt8),
    known("I8", DType::Int8),
    known("U16", DType::UInt16),
    known("I16", DType::Int16),
    known("U32", DType::UInt32),
    known("I32", DType::Int32),
    known("U64", DType::UInt64),
    known("I64", DType::Int64),
    known("F16", DType::Float16),
    known("BF16", DType::BFloat16),
    known("F32", DType::Float32),
    known("F64", DType::Float64),
    known("C64", DType::Complex64),
    known("F8_E4M3", DType::Float8E4M3Fn),
    known("F8_E4M3FNUZ", DType::Float8E4M3FnUz),
    known("F8_E5M2", DType::Float8E5M2),
    known("F8_E5M2FNUZ", DType::Float8E5M2FnUz),
    known("F8_E8M0", DType::Float8E8M0Fnu),
    // The format counts single numbers, and the model counts pairs of them.
    SafetensorsDType {
        name: "F4",
        bits: 4,
        dtype: Some(DType::Float4E2M1FnX2),
    },
    unknown("F6_E2M3", 6),
    unknown("F6_E3M2", 6),
];

impl SafetensorsDType {
    /// The type of this name.
    pub fn of(name: &str) -> Option<Self> {
        ALL.into_iter().find(|t| t.name == name)
    }

    /// How a type is spelled.
    pub fn named(dtype: DType) -> Option<Self> {
        ALL.into_iter().find(|t| t.dtype == Some(dtype))
    }

    /// Bytes of a tensor of this shape, as a header counts. `None` if they are no whole number of bytes, or more than 2⁶³.
    pub fn bytes(self, shape: &[u64]) -> Option<u64> {
        let volume = match shape.contains(&0) {
            true => 0,
            false => shape.iter().try_fold(1u64, |all, n| all.checked_mul(*n))?,
        };
        let bits = volume.checked_mul(self.bits)?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    /// The type and shape in the model, of a shape in a header.
    ///
    /// # Errors
    /// Why there is none.
    pub fn in_model(self, shape: &[u64]) -> Result<(DType, Vec<u64>), String> {
        let Some(dtype) = self.dtype else {
            return Err(format!("this version has no element type {}", self.name));
        };
        let mut shape = shape.to_vec();
        if self.bits < 8 {
            match shape.last_mut() {
                Some(last) if *last % 2 == 0 => *last /= 2,
                _ => {
                    return Err(format!(
                        "its last axis is no whole number of pairs of {}",
                        self.name
                    ));
                }
            }
        }
        Ok((dtype, shape))
    }

    /// The shape in a header, of a shape in the model.
    pub fn in_header(self, shape: &[u64]) -> Option<Vec<u64>> {
        let mut shape = shape.to_vec();
        if self.bits < 8 {
            let last = shape.last_mut()?;
            *last = last.checked_mul(2)?;
        }
        Some(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_of_the_model_has_its_name_or_none() {
        let without: Vec<_> = DType::ALL
            .iter()
            .filter(|dtype| SafetensorsDType::named(**dtype).is_none())
            .collect();
        assert_eq!(
            without,
            [&DType::Complex32, &DType::BComplex32, &DType::Complex128]
        );
        for t in ALL {
            assert_eq!(SafetensorsDType::of(t.name), Some(t));
        }
    }

    #[test]
    fn four_bits_are_counted_in_pairs() {
        let f4 = SafetensorsDType::of("F4").unwrap();
        assert_eq!(f4.bytes(&[3, 4]), Some(6));
        assert_eq!(f4.bytes(&[3, 1]), None);
        assert_eq!(
            f4.in_model(&[3, 4]).unwrap(),
            (DType::Float4E2M1FnX2, vec![3, 2])
        );
        assert_eq!(f4.in_header(&[3, 2]), Some(vec![3, 4]));
        assert!(f4.in_model(&[4, 3]).is_err() && f4.in_model(&[]).is_err());
        assert_eq!(f4.in_header(&[]), None);
        assert!(
            SafetensorsDType::of("F6_E2M3")
                .unwrap()
                .in_model(&[4])
                .is_err()
        );
        assert_eq!(
            SafetensorsDType::of("F6_E2M3").unwrap().bytes(&[4]),
            Some(3)
        );
    }

    #[test]
    fn lengths_do_not_overflow() {
        let f64 = SafetensorsDType::of("F64").unwrap();
        assert_eq!(f64.bytes(&[1 << 40, 1 << 40]), None);
        assert_eq!(f64.bytes(&[u64::MAX, 0]), Some(0));
        assert_eq!(f64.bytes(&[]), Some(8));
    }
}
