//! Numbers as people write and read them.

use indicatif::{DecimalBytes, HumanCount};
use reshard::policy::ByteSize;
use std::{path::PathBuf, time::Duration};

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

/// The sum of numbers that a file may make up.
pub(crate) fn sum(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(0, u64::saturating_add)
}

/// `0.125 s`.
pub(crate) fn seconds(d: Duration) -> String {
    format!("{:.3} s", d.as_secs_f64())
}

/// `1.23 GB/s`, or `4.56 MB/s`; nothing for what took no time.
pub(crate) fn rate(bytes: u64, d: Duration) -> String {
    let s = d.as_secs_f64();
    if s <= 0.0 || bytes == 0 {
        return String::new();
    }
    let rate = bytes as f64 / s;
    let units = [("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)];
    let fits = |(_, unit): &(&str, f64)| rate >= *unit;
    let (name, unit) = units.into_iter().find(fits).unwrap_or(("bytes/s", 1.0));
    format!("{:.2} {name}", rate / unit)
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

/// `1.25 %`: how much `part` is of `whole`.
pub(crate) fn share(part: u64, whole: u64) -> String {
    let share = match whole {
        0 => 100.0,
        whole => part as f64 / whole as f64 * 100.0,
    };
    format!("{share:.2} %")
}

/// Reads `1%` and `0.5%`.
pub(crate) fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.trim().strip_suffix('%').map(str::trim_end);
    match share.and_then(|s| s.parse::<f64>().ok()) {
        Some(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent / 100.0),
        _ => Err(format!(
            "{text:?} is not a share; write it as 1% or 0.5%, at most 100%"
        )),
    }
}

/// Reads `50MB/s` and `50MB`.
pub(crate) fn parse_rate(text: &str) -> Result<ByteSize, String> {
    let size = text.trim();
    let size = size.strip_suffix("/s").unwrap_or(size);
    match size.parse() {
        Ok(ByteSize(0)) | Err(_) => Err(format!(
            "{text:?} is not a rate; write it as 50MB/s or 50MiB/s"
        )),
        Ok(size) => Ok(size),
    }
}

/// A cache on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cache {
    pub(crate) dir: PathBuf,
    /// How many bytes it may have.
    pub(crate) bytes: u64,
}

/// A cache has so many bytes unless somebody says otherwise.
const CACHED: u64 = 10_000_000_000;

/// Reads `DIR` and `DIR:20GB`.
pub(crate) fn parse_cache(text: &str) -> Result<Cache, String> {
    let cache = |dir: &str, bytes| {
        let dir = PathBuf::from(dir);
        Ok(Cache { dir, bytes })
    };
    match text.rsplit_once(':') {
        Some((dir, size)) if size.starts_with(|c: char| c.is_ascii_digit()) => match size.parse() {
            Ok(ByteSize(bytes)) if !dir.is_empty() => cache(dir, bytes),
            Ok(_) => Err("a cache needs a directory, as in /var/cache/reshard:20GB".into()),
            Err(e) => Err(e.to_string()),
        },
        _ if text.is_empty() => {
            Err("a cache needs a directory, as in /var/cache/reshard:20GB".into())
        }
        _ => cache(text, CACHED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_a_directory_and_perhaps_a_size() {
        let of = |text: &str| parse_cache(text).map(|c| (c.dir.display().to_string(), c.bytes));
        assert_eq!(of("/a"), Ok(("/a".into(), CACHED)));
        assert_eq!(of("/a:20GB"), Ok(("/a".into(), 20_000_000_000)));
        assert_eq!(of("/a:b:1 KiB"), Ok(("/a:b".into(), 1_024)));
        assert_eq!(of("/a:b"), Ok(("/a:b".into(), CACHED)));
        for text in ["", ":20GB", "/a:20G", "/a:2x"] {
            assert!(of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_slow_rate_is_told_in_a_smaller_unit() {
        let rate = |bytes| rate(bytes, Duration::from_secs(2));
        assert_eq!(rate(2_469_000_000), "1.23 GB/s");
        assert_eq!(rate(9_000_000), "4.50 MB/s");
        assert_eq!(rate(240), "120.00 bytes/s");
        assert_eq!(rate(20), "10.00 bytes/s");
        assert_eq!(rate(0), "");
    }

    #[test]
    fn rates_are_sizes_per_second() {
        for text in ["50MB/s", "50MB", " 50 MB/s "] {
            assert_eq!(parse_rate(text), Ok(ByteSize(50_000_000)), "{text}");
        }
        for text in ["", "/s", "0MB/s", "50/s/s", "50M/s", "fast"] {
            assert!(parse_rate(text).unwrap_err().contains("50MB/s"), "{text}");
        }
    }

    #[test]
    fn shares_are_read_and_written_in_per_cent() {
        for (text, want) in [("1%", 0.01), ("0.5 %", 0.005), ("100%", 1.0)] {
            assert_eq!(parse_share(text), Ok(want), "{text}");
        }
        for text in ["", "%", "1", "0%", "101%", "-1%", "NaN%", "inf%"] {
            assert!(parse_share(text).unwrap_err().contains("1%"), "{text}");
        }
        assert_eq!([share(1, 80), share(0, 0)], ["1.25 %", "100.00 %"]);
    }

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
