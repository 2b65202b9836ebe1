//! Which keys of the source are carried over.

use std::{collections::BTreeMap, fmt, sync::Arc};

type Chosen<'a> = dyn Fn(&str) -> bool + Send + Sync + 'a;

/// Which keys are carried over. The default is all.
#[derive(Default)]
pub(crate) struct Keys<'a> {
    /// The choice of the caller.
    pub(crate) chosen: Option<Box<Chosen<'a>>>,
    /// Chosen keys that can't be read and are left out, with the reason for each.
    pub(crate) unread: BTreeMap<String, Arc<str>>,
}

impl Keys<'_> {
    /// Whether a key is carried over.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.are_chosen(key) && !self.unread.contains_key(key)
    }

    /// Whether the caller has chosen a key.
    pub(crate) fn are_chosen(&self, key: &str) -> bool {
        self.chosen.as_ref().is_none_or(|chosen| chosen(key))
    }
}

impl fmt::Debug for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.chosen.is_some() {
            "some keys"
        } else {
            "all keys"
        })
    }
}
