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

/// `-1,234`.
pub(crate) fn signed(n: i64) -> String {
    let sign = if n < 0 { "-" } else { "" };
    format!("{sign}{}", count(n.unsigned_abs()))
}

/// `3 tensors`, `1 tensor`.
pub(crate) fn some(n: u64, what: &str) -> String {
    format!("{} {what}{}", count(n), if n == 1 { "" } else { "s" })
}

/// `3 processes`, `1 process`.
pub(crate) fn processes(n: u64) -> String {
    format!("{} process{}", count(n), if n == 1 { "" } else { "es" })
}

/// `0.125 s`.
pub(crate) fn seconds(d: Duration) -> String {
    format!("{:.3} s", d.as_secs_f64())
}

/// `1.23 GB/s`; nothing for what took no time.
pub(crate) fn rate(bytes: u64, d: Duration) -> String {
    let s = d.as_secs_f64();
    if s <= 0.0 || bytes == 0 {
        String::new()
    } else {
        format!("{:.2} GB/s", bytes as f64 / s / 1e9)
    }
}

const AGES: [(&str, u64); 4] = [("d", 24 * 3600), ("h", 3600), ("m", 60), ("s", 1)];

/// `3 h`: in the largest unit of which there is one.
pub(crate) fn age(d: Duration) -> String {
    let (unit, long) = AGES
        .into_iter()
        .find(|(_, long)| d.as_secs() >= *long)
        .unwrap_or(("s", 1));
    format!("{} {unit}", d.as_secs() / long)
}

/// Reads `90s`, `45m`, `12h`, `7d`.
pub(crate) fn parse_age(text: &str) -> Result<Duration, String> {
    let of = |(unit, long): (&str, u64)| {
        text.trim()
            .strip_suffix(unit)?
            .parse::<u64>()
            .ok()?
            .checked_mul(long)
    };
    let secs = AGES.into_iter().find_map(of);
    secs.map(Duration::from_secs).ok_or_else(|| {
        format!("{text:?} is not an age; write it as 90s, 45m, 12h or 7d, or 0s for any age")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_read_and_written_with_units() {
        for (text, want) in [
            ("0s", 0),
            ("90s", 90),
            ("45m", 2700),
            ("12h", 43_200),
            ("7d", 604_800),
        ] {
            assert_eq!(parse_age(text), Ok(Duration::from_secs(want)), "{text}");
        }
        for text in ["", "d", "1", "1w", "-1d", "1.5h", "99999999999999999d"] {
            assert!(
                parse_age(text).unwrap_err().contains("write it as"),
                "{text}"
            );
        }
        let ages = [0, 59, 60, 7_199, 7_200, 200_000].map(|s| age(Duration::from_secs(s)));
        assert_eq!(ages, ["0 s", "59 s", "1 m", "1 h", "2 h", "2 d"]);
    }

    #[test]
    fn numbers_carry_units() {
        assert_eq!(
            (bytes(1_500_000), some(1, "file"), some(1234, "file")),
            ("1.50 MB".into(), "1 file".into(), "1,234 files".into())
        );
        assert_eq!(rate(2_000_000_000, Duration::from_secs(1)), "2.00 GB/s");
        assert_eq!(rate(5, Duration::ZERO), "");
        assert_eq!([-5, 1000].map(signed), ["-5", "1,000"]);
        assert_eq!(signed(i64::MIN), "-9,223,372,036,854,775,808");
    }
}
