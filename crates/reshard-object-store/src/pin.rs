//! The tags of the objects that a reader has seen.

use object_store::path::Path;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Whether a tag promises equal bytes, and may be a condition. A weak one only promises that they mean the same, and a server that
/// keeps to RFC 9110 never finds a condition met that has it.
pub(crate) fn is_strong(tag: &str) -> bool {
    !tag.starts_with("W/\"")
}

/// Whether two answers have the same tag. Some services put quotes around it in one answer, and none in another, or say only in one that
/// it is weak.
pub(crate) fn same_tag(a: &str, b: &str) -> bool {
    bare(a) == bare(b)
}

fn bare(tag: &str) -> &str {
    match is_strong(tag) {
        true => tag.trim_matches('"'),
        false => tag.trim_start_matches("W/").trim_matches('"'),
    }
}

/// For each object the tag with which it was seen first. Later reads ask for this tag, so a reader never sees an object before and
/// after it was replaced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pins(Arc<Mutex<BTreeMap<Path, String>>>);

impl Pins {
    /// The tag that the object must have. `None` if the service can't be asked for it; then only the answer tells.
    pub(crate) fn of(&self, path: &Path) -> Option<String> {
        let tags = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tags.get(path).filter(|tag| is_strong(tag)).cloned()
    }

    /// Whether the object was seen.
    pub(crate) fn has(&self, path: &Path) -> bool {
        let tags = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tags.contains_key(path)
    }

    /// Remembers the tag of an object, if it is the first one. `false` if another one was seen before.
    pub(crate) fn agree(&self, path: &Path, tag: Option<&str>) -> bool {
        // Without a tag a service can't say whether an object was replaced.
        let Some(tag) = tag else { return true };
        let mut tags = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match tags.get(path) {
            Some(first) => same_tag(first, tag),
            None => {
                tags.insert(path.clone(), tag.into());
                true
            }
        }
    }
}
