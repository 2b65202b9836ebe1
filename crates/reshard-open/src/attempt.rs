//! The names of attempts to save, and of the folders that places with versions side by side have for them.

use reshard_storage::{Leftover, Name, is_attempt};
use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// A name that no other attempt has. It occurs in hidden names; in a place that keeps versions side by side also in the names of data
/// files, and so in the bytes of the format record.
pub fn attempt() -> String {
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
pub fn is_of_a_save(left: &Leftover) -> bool {
    is_attempt(&left.attempt)
}

/// The name of a file within the folder of an attempt. `None` if it lies elsewhere.
pub fn in_folder(name: &str) -> Option<&str> {
    parts(name).map(|(_, inside)| inside)
}

/// The folder of an attempt in which a file lies.
pub fn folder_of(name: &Name) -> Option<&str> {
    parts(name.as_str()).map(|(folder, _)| folder)
}

/// The folder of an attempt, and the name of the file in it.
fn parts(name: &str) -> Option<(&str, &str)> {
    name.split_once('/')
        .filter(|(folder, _)| is_attempt(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_the_folder_of_an_attempt_is_told_from_other_files() {
        let inside = |name: &str| in_folder(name).map(str::to_owned);
        let attempt = attempt();
        assert_eq!(inside(&format!("{attempt}/a/b")), Some("a/b".into()));
        for name in ["a", "a/b", &*attempt, &format!("a/{attempt}/b")] {
            assert_eq!(inside(name), None, "{name}");
        }
    }

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
