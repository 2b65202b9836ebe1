use crate::{LocalStore, Result, StorageError, Store};
use std::{collections::BTreeMap, sync::Arc};

/// Opens a place by its URL.
pub type OpenStore = fn(&str) -> Result<Arc<dyn Store>>;

/// A URL scheme and the store that serves it. A crate announces its own with
/// `reshard_storage::inventory::submit! { StoreScheme::new("s3", env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"), open) }`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StoreScheme {
    /// The scheme, without `://`.
    pub scheme: &'static str,
    /// The crate that claims it.
    pub origin: &'static str,
    /// That crate's version.
    pub origin_version: &'static str,
    /// Opens a place; is given the whole URL. Does no I/O that could block for long.
    pub open: OpenStore,
}

impl StoreScheme {
    /// `origin` is the crate's name, `env!("CARGO_PKG_NAME")`, `origin_version` its version, `env!("CARGO_PKG_VERSION")`.
    pub const fn new(
        scheme: &'static str,
        origin: &'static str,
        origin_version: &'static str,
        open: OpenStore,
    ) -> Self {
        Self { scheme, origin, origin_version, open }
    }
}

inventory::collect!(StoreScheme);

inventory::submit! {
    StoreScheme::new("file", env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"), |url| {
        Ok(Arc::new(LocalStore::open(url)?))
    })
}

/// Which store a URL means: a checked value, made from what is linked into the program and what is registered by hand.
#[derive(Clone, Debug)]
pub struct Stores(BTreeMap<&'static str, StoreScheme>);

impl Stores {
    /// Everything that is linked into this program.
    ///
    /// # Errors
    /// [`StorageError::DuplicateScheme`] when two crates claim one scheme.
    pub fn linked() -> Result<Self> {
        let mut all: Vec<&StoreScheme> = inventory::iter::<StoreScheme>.into_iter().collect();
        // The linker's order is nobody's; errors should not depend on it.
        all.sort_by_key(|s| (s.scheme, s.origin));
        let mut out = Self(BTreeMap::new());
        for s in all {
            out.register(*s)?;
        }
        Ok(out)
    }

    /// Adds a scheme.
    ///
    /// # Errors
    /// [`StorageError::DuplicateScheme`] when it is there already.
    pub fn register(&mut self, scheme: StoreScheme) -> Result<()> {
        if let Some(old) = self.0.get(scheme.scheme) {
            return Err(StorageError::DuplicateScheme {
                scheme: scheme.scheme.into(),
                first: old.origin.into(),
                second: scheme.origin.into(),
            });
        }
        self.0.insert(scheme.scheme, scheme);
        Ok(())
    }

    /// What is known, sorted by scheme.
    pub fn schemes(&self) -> impl Iterator<Item = &StoreScheme> {
        self.0.values()
    }

    /// The store of a URL. What has no `scheme://` is a path of a local directory.
    ///
    /// # Errors
    /// [`StorageError::UnknownScheme`], or what the store says.
    pub fn open(&self, url: &str) -> Result<Arc<dyn Store>> {
        let scheme = scheme_of(url).unwrap_or("file");
        match self.0.get(scheme) {
            Some(s) => (s.open)(url),
            None => Err(StorageError::UnknownScheme {
                url: url.into(),
                scheme: scheme.into(),
                linked: self.0.keys().copied().collect::<Vec<_>>().join(", "),
                hint: hint(scheme),
            }),
        }
    }
}

fn hint(scheme: &str) -> String {
    match scheme {
        "memory" => "The feature `testkit` of reshard-storage has it".into(),
        _ => "Link a crate that registers it (`use that_crate as _;`), or `Stores::register` it".into(),
    }
}

/// The scheme, when there is one: letters, digits, `+`, `-`, `.` before `://`.
pub(crate) fn scheme_of(url: &str) -> Option<&str> {
    let (scheme, _) = url.split_once("://")?;
    let mut bytes = scheme.bytes();
    let first = bytes.next()?.is_ascii_alphabetic();
    (first && bytes.all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))).then_some(scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_scheme_lists_what_is_linked() {
        let e = Stores::linked().unwrap().open("gopher://x").unwrap_err().to_string();
        assert!(e.contains("`gopher`") && e.contains("file") && e.contains("register"), "{e}");
    }

    #[test]
    fn two_claims_of_one_scheme_name_both_crates() {
        let mut s = Stores::linked().unwrap();
        let mine = StoreScheme::new("file", "my-crate", "1.0.0", |u| Ok(Arc::new(LocalStore::open(u)?)));
        let e = s.register(mine).unwrap_err().to_string();
        assert!(e.contains("reshard-storage") && e.contains("my-crate"), "{e}");
    }

    #[test]
    fn plain_paths_and_file_urls_are_local() {
        let s = Stores::linked().unwrap();
        assert_eq!(s.open("/tmp/x").unwrap().url(), "file:///tmp/x");
        assert_eq!(s.open("file:///tmp/x y").unwrap().url(), "file:///tmp/x%20y");
        assert_eq!(s.open("file:///tmp/x%20y").unwrap().url(), "file:///tmp/x%20y");
        assert_eq!(scheme_of("a/b://c"), None);
    }
}
