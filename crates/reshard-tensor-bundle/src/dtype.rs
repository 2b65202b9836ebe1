//! TensorFlow's element types.

use reshard_model::DType;

/// The number of a type.
pub(crate) type Enum = i32;

pub(crate) const STRING: Enum = 7;
pub(crate) const RESOURCE: Enum = 20;
pub(crate) const VARIANT: Enum = 21;

/// Types with a counterpart.
const TENSORS: [(Enum, DType); 19] = [
    (1, DType::Float32),
    (2, DType::Float64),
    (3, DType::Int32),
    (4, DType::UInt8),
    (5, DType::Int16),
    (6, DType::Int8),
    (8, DType::Complex64),
    (9, DType::Int64),
    (10, DType::Bool),
    (14, DType::BFloat16),
    (17, DType::UInt16),
    (18, DType::Complex128),
    (19, DType::Float16),
    (22, DType::UInt32),
    (23, DType::UInt64),
    (24, DType::Float8E5M2),
    (25, DType::Float8E4M3Fn),
    (26, DType::Float8E4M3FnUz),
    (28, DType::Float8E5M2FnUz),
];

/// Types without a counterpart: number, name, bytes per element. Those of fewer than 8 bits take a byte per element.
const OPAQUE: [(Enum, &str, u64); 11] = [
    (11, "qint8", 1),
    (12, "quint8", 1),
    (13, "qint32", 4),
    (15, "qint16", 2),
    (16, "quint16", 2),
    (27, "float8_e4m3b11fnuz", 1),
    (29, "int4", 1),
    (30, "uint4", 1),
    (31, "int2", 1),
    (32, "uint2", 1),
    (33, "float4_e2m1fn", 1),
];

/// How the elements of a type are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// As this type.
    Tensor(DType),
    /// Lengths, then bytes.
    Strings,
    /// Bytes of elements that no type here describes.
    Opaque {
        name: &'static str,
        /// Bytes per element; also the unit of byte order.
        item: u64,
    },
    /// Elements of any length, whose inner form only TensorFlow knows.
    Variant,
}

impl Kind {
    /// `None` for numbers that name no type, or one that is never stored.
    pub(crate) fn of(dtype: Enum) -> Option<Self> {
        let tensor = TENSORS.iter().find(|(n, _)| *n == dtype);
        let opaque = || OPAQUE.iter().find(|(n, ..)| *n == dtype);
        match (tensor, dtype) {
            (Some((_, dtype)), _) => Some(Self::Tensor(*dtype)),
            (None, STRING) => Some(Self::Strings),
            (None, VARIANT) => Some(Self::Variant),
            _ => opaque().map(|(_, name, item)| Self::Opaque { name, item: *item }),
        }
    }

    /// Bytes per element, if all have the same.
    pub(crate) fn item(self) -> Option<u64> {
        match self {
            Self::Tensor(dtype) => Some(dtype.size()),
            Self::Opaque { item, .. } => Some(item),
            Self::Strings | Self::Variant => None,
        }
    }

    /// Bytes of the parts that byte order applies to.
    pub(crate) fn word(self) -> u64 {
        match self {
            Self::Tensor(dtype) => dtype.word(),
            Self::Opaque { item, .. } => item,
            Self::Strings | Self::Variant => 1,
        }
    }
}

/// Whether TensorFlow restores tensors of a type that are stored in slices. Its reader of slices has no cases for the others, which it
/// refuses with "Dtype half not supported".
pub(crate) fn is_sliced(dtype: DType) -> bool {
    use DType as D;
    let is_float8 = dtype.is_float() && dtype.size() == 1;
    !is_float8 && !matches!(dtype, D::Float16 | D::UInt16 | D::UInt32 | D::UInt64)
}

/// The number of an element type. `None` if TensorFlow has no such type.
pub(crate) fn number(dtype: DType) -> Option<Enum> {
    let found = TENSORS.iter().find(|(_, d)| *d == dtype);
    found.map(|(n, _)| *n)
}

/// The name of a type, for messages and opaque objects.
pub(crate) fn name(dtype: Enum) -> String {
    match (Kind::of(dtype), dtype) {
        (Some(Kind::Tensor(dtype)), _) => dtype.name().into(),
        (Some(Kind::Strings), _) => "string".into(),
        (Some(Kind::Variant), _) => "variant".into(),
        (Some(Kind::Opaque { name, .. }), _) => name.into(),
        (None, RESOURCE) => "resource".into(),
        (None, n) => format!("type {n}"),
    }
}

/// The number of a type that objects may have, by its name.
pub(crate) fn of_object(name: &str) -> Option<Enum> {
    match name {
        "string" => Some(STRING),
        "variant" => Some(VARIANT),
        name => OPAQUE.iter().find(|(_, n, _)| *n == name).map(|(n, ..)| *n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_one_number_and_back() {
        for (n, dtype) in TENSORS {
            assert_eq!(
                (number(dtype), Kind::of(n)),
                (Some(n), Some(Kind::Tensor(dtype)))
            );
        }
        for (n, name, item) in OPAQUE {
            assert_eq!(of_object(name), Some(n));
            assert_eq!(Kind::of(n), Some(Kind::Opaque { name, item }));
        }
        let known = (0..200).filter(|n| Kind::of(*n).is_some()).count();
        assert_eq!(known, TENSORS.len() + OPAQUE.len() + 2);
        for none in [0, RESOURCE, -1, 34, 101] {
            assert_eq!(Kind::of(none), None);
        }
        let whole = TENSORS.iter().filter(|(_, dtype)| !is_sliced(*dtype));
        let whole: Vec<Enum> = whole.map(|(n, _)| *n).collect();
        assert_eq!(whole, [17, 19, 22, 23, 24, 25, 26, 28]);
        assert_eq!(number(DType::Float4E2M1FnX2), None);
        assert_eq!(name(RESOURCE), "resource");
    }
}
