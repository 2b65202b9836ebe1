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

#[cfg(test)]
mod tests {
    use super::*;

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
