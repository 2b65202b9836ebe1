//! The names of attempts to save.

use reshard_storage::Leftover;
use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// A name that no other attempt has. It occurs only in hidden names, never in the bytes of a checkpoint.
pub(crate) fn attempt() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos());
    format!(
        "{:x}-{:x}-{:x}",
        std::process::id(),
        nanos,
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Whether a save has left this. Anything with another form of name belongs to others, even if it looks similar.
pub(crate) fn is_of_a_save(left: &Leftover) -> bool {
    // Exactly as it is written: without a sign and without leading zeros.
    let number = |s: &str| {
        u64::from_str_radix(s, 16)
            .ok()
            .filter(|n| format!("{n:x}") == s)
    };
    let numbers: Option<Vec<u64>> = left.attempt.split('-').map(number).collect();
    // No ordinary name is a time after this crate was started.
    matches!(numbers.as_deref(), Some([_, nanos, _]) if *nanos >= BEGUN)
}

/// Nanoseconds from 1970 to 2025.
const BEGUN: u64 = 1_735_689_600_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_save_knows_its_own_names_from_those_of_others() {
        let is = |attempt: &str| is_of_a_save(&Leftover::new(attempt, "path"));
        assert!(is(&attempt()) && is("1-1a2b3c4d5e6f7081-3"));
        let others = [
            "backup",
            "1-2-3",
            "a-b-c",
            "1-1a2b3c4d5e6f7081",
            "1-1a2b3c4d5e6f7081-3-4",
            "1--3",
        ];
        let alike = [
            "A-1a2b3c4d5e6f7081-3",
            "1-1a2b3c4d5e6f7081-g",
            "01-1a2b3c4d5e6f7081-3",
            "+1-1a2b3c4d5e6f7081-3",
            "1-01a2b3c4d5e6f7081-3",
            "",
        ];
        for other in others.into_iter().chain(alike) {
            assert!(!is(other), "{other}");
        }
    }
}
