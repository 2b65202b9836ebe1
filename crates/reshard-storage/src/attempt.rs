//! The names of attempts to save.

/// Whether this is a name that a save of reshard gives its attempt: three numbers, the second of which is a time. Stores use it for their
/// hidden names and folders. Anything with another form of name belongs to others, even if it looks similar.
///
/// ```
/// assert!(reshard_storage::is_attempt("1-1a2b3c4d5e6f7081-3"));
/// assert!(!reshard_storage::is_attempt("step-100-1"));
/// ```
pub fn is_attempt(name: &str) -> bool {
    // Exactly as it is written: without a sign and without leading zeros.
    let number = |s: &str| {
        u64::from_str_radix(s, 16)
            .ok()
            .filter(|n| format!("{n:x}") == s)
    };
    let mut parts = name.split('-').map(number);
    let three = (parts.next(), parts.next(), parts.next(), parts.next());
    // No ordinary name is a time after this crate was started.
    matches!(three, (Some(Some(_)), Some(Some(nanos)), Some(Some(_)), None) if nanos >= BEGUN)
}

/// The name of the place to which a folder beside it belongs, if the name of this folder says that a removal was not finished there
/// ([`Leftover::removed`](crate::Leftover::removed)). So who lists the folder above many places finds those that need
/// [`Recovery::leftovers`](crate::Recovery::leftovers).
///
/// ```
/// use reshard_storage::removed_place;
/// assert_eq!(removed_place(".step-100.1-1a2b3c4d5e6f7081-3.0-2f.old"), Some("step-100"));
/// assert_eq!(removed_place(".step-100.1-1a2b3c4d5e6f7081-3.tmp"), None);
/// ```
pub fn removed_place(folder: &str) -> Option<&str> {
    let mut parts = folder.strip_prefix('.')?.rsplitn(4, '.');
    let (end, numbers, attempt) = (parts.next()?, parts.next()?, parts.next()?);
    let is_removed = numbers.starts_with("0-") && end == "old";
    parts.next().filter(|_| is_removed && is_attempt(attempt))
}

/// The name of the place to which a hidden folder beside it belongs, if an attempt to save there, or to remove what is there, has left it. So who lists
/// the folder above many places finds those that need [`Recovery::leftovers`](crate::Recovery::leftovers), also if nothing lies at them.
///
/// ```
/// use reshard_storage::left_place;
/// assert_eq!(left_place(".step-100.1-1a2b3c4d5e6f7081-3.tmp"), Some("step-100"));
/// assert_eq!(left_place(".step-100.1-1a2b3c4d5e6f7081-3.2e-2f.old"), Some("step-100"));
/// assert_eq!(left_place(".step-100.part.tmp"), None);
/// ```
pub fn left_place(folder: &str) -> Option<&str> {
    let rest = folder.strip_prefix('.')?;
    let rest = match rest.strip_suffix(".tmp") {
        Some(rest) => rest,
        None => rest.strip_suffix(".old")?.rsplit_once('.')?.0,
    };
    let (place, attempt) = rest.rsplit_once('.')?;
    (is_attempt(attempt) && !place.is_empty()).then_some(place)
}

/// Nanoseconds from 1970 to 2025.
const BEGUN: u64 = 1_735_689_600_000_000_000;
