use crate::PolicyError;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::{fmt, str::FromStr};

/// Bytes in a KiB.
pub const KIB: u64 = 1 << 10;
/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;
/// Bytes in a GiB.
pub const GIB: u64 = 1 << 30;

/// The units, with the largest of each family first. Decimal units are usual for disks, binary units for memory.
const UNITS: [(&str, u64); 11] = [
    ("PiB", 1 << 50),
    ("TiB", 1 << 40),
    ("GiB", GIB),
    ("MiB", MIB),
    ("KiB", KIB),
    ("PB", 1_000_000_000_000_000),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// A number of bytes. In configuration it is a number, or a string with a unit: MB is 10^6 and MiB is 2^20.
///
/// ```
/// use reshard_policy::{ByteSize, MIB};
/// let size: ByteSize = "1.5 MiB".parse()?;
/// assert_eq!(size, ByteSize(3 * MIB / 2));
/// assert_eq!("500MB".parse::<ByteSize>()?.to_string(), "500 MB");
/// assert!("500M".parse::<ByteSize>().is_err()); // which of the two?
/// # Ok::<(), reshard_policy::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

impl From<u64> for ByteSize {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

/// Prints the size in the largest unit of which it is a multiple, preferring binary units.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |&&(_, unit): &&(&str, u64)| self.0 >= unit && self.0.is_multiple_of(unit);
        let (name, unit) = UNITS.iter().find(fits).copied().unwrap_or(("B", 1));
        write!(f, "{} {name}", self.0 / unit)
    }
}

impl FromStr for ByteSize {
    type Err = PolicyError;

    fn from_str(s: &str) -> Result<Self, PolicyError> {
        let text = s.trim();
        let digits = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim_start();
        let factor = UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
            .map(|u| u.1);
        let factor = if unit.is_empty() { Some(1) } else { factor };
        factor.and_then(|f| scaled(number, f)).map(Self).ok_or_else(|| {
            PolicyError::invalid(format!(
                "{s:?} is not a size: write a whole number of bytes, such as 500000000, or a number with a unit, \
                 such as \"500 MB\" (10^6) or \"500 MiB\" (2^20)"
            ))
        })
    }
}

/// A decimal number times `factor`, when that is a whole number of 64 bits.
fn scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let fraction = fraction.trim_end_matches('0');
    let places = 10u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let parts = match fraction {
        "" => 0,
        _ => fraction.parse::<u64>().ok()?,
    };
    let parts = u128::from(parts) * u128::from(factor);
    let rest = parts
        .is_multiple_of(places.into())
        .then(|| parts / u128::from(places))?;
    u64::try_from(u128::from(whole.parse::<u64>().ok()?) * u128::from(factor) + rest).ok()
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes, or a string such as \"500 MiB\"")
            }

            fn visit_u64<E: de::Error>(self, v: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(v))
            }

            fn visit_i64<E: de::Error>(self, v: i64) -> Result<ByteSize, E> {
                u64::try_from(v)
                    .map(ByteSize)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(v), &self))
            }

            fn visit_str<E: de::Error>(self, v: &str) -> Result<ByteSize, E> {
                v.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_of_ten_and_of_two_are_told_apart_and_bare_letters_are_refused() {
        let parse = |s: &str| s.parse::<ByteSize>().ok().map(|b| b.0);
        let good = [
            ("0", 0),
            (" 7 ", 7),
            ("7B", 7),
            ("500MB", 500_000_000),
            ("500 MiB", 500 * MIB),
            ("2gib", 2 * GIB),
            ("1.25 kB", 1250),
            ("0.5KiB", 512),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in good {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
        let bad = [
            "",
            "MiB",
            "5M",
            "5 m",
            "-1",
            "+1",
            "1e9",
            "1_000",
            "0.3 B",
            ".5",
            "1.2.3 kB",
            "16384 PiB",
            "5 bit",
        ];
        for text in bad {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn configuration_holds_numbers_and_strings() {
        let parse = |s: &str| serde_json::from_str::<ByteSize>(s).map_err(|e| e.to_string());
        assert_eq!(parse("5"), Ok(ByteSize(5)));
        assert_eq!(parse("\"5 kB\""), Ok(ByteSize(5000)));
        assert!(parse("-5").unwrap_err().contains("number of bytes"));
        assert!(parse("\"5 K\"").unwrap_err().contains("MiB"));
        assert!(parse("null").is_err() && parse("0.5").is_err());
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn what_is_printed_is_read_again(bytes: u64) {
            prop_assert_eq!(ByteSize(bytes).to_string().parse::<ByteSize>().unwrap().0, bytes);
        }

        #[test]
        fn no_text_panics(text in "[0-9. ]{0,24}[kKmMiIbB]{0,3}|.{0,12}") {
            text.parse::<ByteSize>().ok();
        }
    }
}
