//! Which keys of the source are carried over.

use std::fmt;

type Chosen<'a> = dyn Fn(&str) -> bool + Send + Sync + 'a;

/// Which keys are carried over. The default is all.
#[derive(Default)]
pub(crate) struct Keys<'a>(pub(crate) Option<Box<Chosen<'a>>>);

impl Keys<'_> {
    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.as_ref().is_none_or(|chosen| chosen(key))
    }
}

impl fmt::Debug for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "some keys"
        } else {
            "all keys"
        })
    }
}
