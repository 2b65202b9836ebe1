//! What saves call themselves.

use reshard_storage::Leftover;
use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// A name that no other attempt has: it is in hidden names only, never in a checkpoint's bytes.
pub(crate) fn attempt() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    format!("{:x}-{:x}-{:x}", std::process::id(), nanos, COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Whether a save has left this. What is named otherwise is of others, however alike it looks.
pub(crate) fn is_of_a_save(left: &Leftover) -> bool {
    let number = |s: &str| !s.is_empty() && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let parts: Vec<&str> = left.attempt.split('-').collect();
    parts.len() == 3 && parts.into_iter().all(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_save_knows_its_own_names_from_those_of_others() {
        let is = |attempt: &str| is_of_a_save(&Leftover::new(attempt, "path"));
        assert!(is(&attempt()) && is("1-2-3"));
        for other in ["backup", "1-2", "1-2-3-4", "1--3", "A-2-3", "1-2-g", "-1-2", ""] {
            assert!(!is(other), "{other}");
        }
    }
}
