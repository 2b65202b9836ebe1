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

/// What would add a scheme, as things stand.
fn hint(scheme: &str) -> String {
    const OWN: &str = "link a crate that registers it (`use that_crate as _;`; docs/strategies.md says how to write one) or call \
                       `Stores::register`";
    match scheme {
        "memory" => format!("The feature `testkit` of reshard-storage adds it, for tests; else {OWN}"),
        "s3" | "s3a" | "gs" | "gcs" | "az" | "azure" | "abfs" | "abfss" | "http" | "https" | "hdfs" => {
            format!(
                "No crate or feature of reshard serves it yet: use a directory, such as a mount of it, or {OWN}"
            )
        }
        _ => format!("No crate or feature of reshard serves it; is it misspelt? Use a directory, or {OWN}"),
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
    fn an_unknown_scheme_lists_what_is_linked_and_says_what_would_add_it() {
        let said = |url: &str| Stores::linked().unwrap().open(url).unwrap_err().to_string();
        let linked: Vec<_> = Stores::linked().unwrap().schemes().map(|s| s.scheme).collect();
        assert_eq!(
            said("s3://bucket/ckpt"),
            format!(
                "no store for `s3` (of s3://bucket/ckpt); linked: {}. No crate or feature of reshard serves it yet: use a \
                 directory, such as a mount of it, or link a crate that registers it (`use that_crate as _;`; \
                 docs/strategies.md says how to write one) or call `Stores::register`",
                linked.join(", ")
            )
        );
        assert!(said("flie:///x").contains("serves it; is it misspelt?"));
        assert!(hint("memory").contains("`testkit` of reshard-storage"));
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
