//! Numbers as people write and read them.

use indicatif::{DecimalBytes, HumanCount};
use std::time::Duration;

/// `1.5 GB`.
pub(crate) fn bytes(n: u64) -> String {
    DecimalBytes(n).to_string()
}

/// `1,234`.
pub(crate) fn count(n: u64) -> String {
    HumanCount(n).to_string()
}

/// `3 tensors`, `1 tensor`.
pub(crate) fn some(n: u64, what: &str) -> String {
    format!("{} {what}{}", count(n), if n == 1 { "" } else { "s" })
}

/// `0.125 s`.
pub(crate) fn seconds(d: Duration) -> String {
    format!("{:.3} s", d.as_secs_f64())
}

/// `1.23 GB/s`; nothing for what took no time.
pub(crate) fn rate(bytes: u64, d: Duration) -> String {
    let s = d.as_secs_f64();
    if s <= 0.0 || bytes == 0 { String::new() } else { format!("{:.2} GB/s", bytes as f64 / s / 1e9) }
}

/// Reads `1000`, `256MiB`, `1.5 GB`, `2G` (which is 2 GB).
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no number of bytes; write it as 268435456, 256MiB or 1.5GB");
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1000,
        "m" | "mb" => 1000 * 1000,
        "g" | "gb" => 1000 * 1000 * 1000,
        "t" | "tb" => 1000 * 1000 * 1000 * 1000,
        "ki" | "kib" => 1 << 10,
        "mi" | "mib" => 1 << 20,
        "gi" | "gib" => 1 << 30,
        "ti" | "tib" => 1 << 40,
        _ => return Err(wrong()),
    };
    if let Ok(n) = number.parse::<u64>() {
        return n.checked_mul(factor).filter(|n| i64::try_from(*n).is_ok()).ok_or_else(wrong);
    }
    let n = number.parse::<f64>().map_err(|_| wrong())? * factor as f64;
    if n.is_finite() && n < 9e18 { Ok(n as u64) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_units_of_both_kinds() {
        for (text, want) in [
            ("1000", 1000),
            ("256MiB", 256 << 20),
            ("1GB", 1_000_000_000),
            ("1.5 kib", 1536),
            ("2G", 2_000_000_000),
        ] {
            assert_eq!(parse_bytes(text), Ok(want), "{text}");
        }
        for text in ["", "x", "1XB", "-1", "1.2.3", "99999999999999999999", "9999999TiB"] {
            assert!(parse_bytes(text).unwrap_err().contains("write it as"), "{text}");
        }
    }

    #[test]
    fn numbers_carry_units() {
        assert_eq!(
            (bytes(1_500_000), some(1, "file"), some(1234, "file")),
            ("1.50 MB".into(), "1 file".into(), "1,234 files".into())
        );
        assert_eq!(rate(2_000_000_000, Duration::from_secs(1)), "2.00 GB/s");
        assert_eq!(rate(5, Duration::ZERO), "");
    }
}
