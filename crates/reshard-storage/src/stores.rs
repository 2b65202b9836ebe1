use crate::{Result, StorageError, Store, without_secrets};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

/// Opens places by their URLs. It may hold a client, credentials or a runtime for that.
///
/// Functions implement it.
pub trait OpenStore: Send + Sync {
    /// Opens the place of a URL. It must not do I/O that could block for long.
    ///
    /// # Errors
    /// The URL can't mean a place.
    fn open(&self, url: &str) -> Result<Arc<dyn Store>>;
}

impl<F: Fn(&str) -> Result<Arc<dyn Store>> + Send + Sync> OpenStore for F {
    fn open(&self, url: &str) -> Result<Arc<dyn Store>> {
        self(url)
    }
}

/// A URL scheme with its store, for programs that link the crate. A crate registers its scheme with
/// `reshard_storage::inventory::submit! { StoreScheme::new("s3", env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"), open) }`.
/// If a store needs more than a URL, the program passes it in with [`Stores::with`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StoreScheme {
    /// The scheme, without `://`.
    pub scheme: &'static str,
    /// The crate that registers it.
    pub origin: &'static str,
    /// That crate's version.
    pub origin_version: &'static str,
    /// Opens a place, as [`OpenStore::open`]. It gets the whole URL.
    pub open: fn(&str) -> Result<Arc<dyn Store>>,
}

impl StoreScheme {
    /// `origin` is the crate's name, `env!("CARGO_PKG_NAME")`, `origin_version` its version, `env!("CARGO_PKG_VERSION")`.
    pub const fn new(
        scheme: &'static str,
        origin: &'static str,
        origin_version: &'static str,
        open: fn(&str) -> Result<Arc<dyn Store>>,
    ) -> Self {
        Self {
            scheme,
            origin,
            origin_version,
            open,
        }
    }
}

inventory::collect!(StoreScheme);

#[cfg(feature = "local")]
inventory::submit! {
    StoreScheme::new("file", env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"), |url| {
        Ok(Arc::new(crate::LocalStore::open(url)?))
    })
}

/// Finds the store for a URL. It is a checked value, made from the stores that are linked into the program and those that you
/// pass in.
///
/// ```
/// use reshard_storage::{LocalStore, OpenStore, Result, Store, Stores};
/// use std::{path::PathBuf, sync::Arc};
///
/// /// Opens places below a directory: `runs://a/step-1`.
/// struct Runs(PathBuf);
///
/// impl OpenStore for Runs {
///     fn open(&self, url: &str) -> Result<Arc<dyn Store>> {
///         Ok(Arc::new(LocalStore::at(self.0.join(url.trim_start_matches("runs://")))?))
///     }
/// }
///
/// let stores = Stores::linked()?.with("runs", Runs("/checkpoints".into()));
/// assert_eq!(stores.open("runs://a/step-1")?.url(), "file:///checkpoints/a/step-1");
///
/// // One place, whatever the URL.
/// let place = Arc::new(LocalStore::at("/checkpoints/a")?);
/// assert_eq!(Stores::only(place).open("the one")?.url(), "file:///checkpoints/a");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Stores {
    linked: BTreeMap<&'static str, StoreScheme>,
    given: BTreeMap<String, Arc<dyn OpenStore>>,
    chosen: Vec<(Arc<Accepts>, Arc<dyn OpenStore>)>,
    only: Option<Arc<dyn Store>>,
    /// The first goes around the store itself.
    around: Vec<Arc<Wrap>>,
}

/// Whether an opener is for a URL.
type Accepts = dyn Fn(&str) -> bool + Send + Sync;

/// Makes a store of a store.
type Wrap = dyn Fn(Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync;

impl Stores {
    /// Everything that is linked into this program.
    ///
    /// # Errors
    /// [`StorageError::DuplicateScheme`] if two crates register one scheme.
    pub fn linked() -> Result<Self> {
        let mut all: Vec<&StoreScheme> = inventory::iter::<StoreScheme>.into_iter().collect();
        // The linker's order is nobody's; errors should not depend on it.
        all.sort_by_key(|s| (s.scheme, s.origin));
        let mut out = Self::default();
        for s in all {
            out.register(*s)?;
        }
        Ok(out)
    }

    /// One place that is already open. Every URL means this place.
    pub fn only(store: Arc<dyn Store>) -> Self {
        Self {
            only: Some(store),
            ..Self::default()
        }
    }

    /// Adds a scheme.
    ///
    /// # Errors
    /// [`StorageError::DuplicateScheme`] when it is there already.
    pub fn register(&mut self, scheme: StoreScheme) -> Result<()> {
        if let Some(old) = self.linked.get(scheme.scheme) {
            return Err(StorageError::DuplicateScheme {
                scheme: scheme.scheme.into(),
                first: old.origin.into(),
                second: scheme.origin.into(),
            });
        }
        self.linked.insert(scheme.scheme, scheme);
        Ok(())
    }

    /// Sets your own opener for a scheme. It replaces one that is linked or was set before.
    pub fn with(mut self, scheme: impl Into<String>, open: impl OpenStore + 'static) -> Self {
        self.given.insert(scheme.into(), Arc::new(open));
        self
    }

    /// Sets your own opener for all URLs and paths that `accepts` returns `true` for, whatever their scheme: DCP's
    /// `validate_checkpoint_id`. It goes before schemes, and before openers that were set earlier.
    ///
    /// ```
    /// # use reshard_storage::{LocalStore, Store, Stores};
    /// # use std::sync::Arc;
    /// let is_model = |id: &str| id.starts_with("model-");
    /// let stores = Stores::linked()?.when(is_model, |id: &str| {
    ///     Ok(Arc::new(LocalStore::at(format!("/models/{id}"))?) as Arc<dyn Store>)
    /// });
    /// assert_eq!(stores.open("model-7")?.url(), "file:///models/model-7");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn when(
        mut self,
        accepts: impl Fn(&str) -> bool + Send + Sync + 'static,
        open: impl OpenStore + 'static,
    ) -> Self {
        self.chosen.insert(0, (Arc::new(accepts), Arc::new(open)));
        self
    }

    /// Wraps each store that is opened, such as with a limit. What was set before goes on the inside.
    #[must_use]
    pub fn around(
        mut self,
        wrap: impl Fn(Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync + 'static,
    ) -> Self {
        self.around.push(Arc::new(wrap));
        self
    }

    /// The linked schemes, sorted.
    pub fn schemes(&self) -> impl Iterator<Item = &StoreScheme> {
        self.linked.values()
    }

    /// Opens the store of a URL. Text without `scheme://` is the path of a local directory.
    ///
    /// # Errors
    /// [`StorageError::UnknownScheme`], or an error of the store.
    pub fn open(&self, url: &str) -> Result<Arc<dyn Store>> {
        let store = self.open_bare(url)?;
        Ok(self.around.iter().fold(store, |store, wrap| wrap(store)))
    }

    fn open_bare(&self, url: &str) -> Result<Arc<dyn Store>> {
        if let Some(store) = &self.only {
            return Ok(Arc::clone(store));
        }
        if let Some((_, chosen)) = self.chosen.iter().find(|(accepts, _)| accepts(url)) {
            return chosen.open(url);
        }
        let scheme = scheme_of(url).unwrap_or("file");
        match (self.given.get(scheme), self.linked.get(scheme)) {
            (Some(given), _) => given.open(url),
            (None, Some(linked)) => (linked.open)(url),
            (None, None) => Err(StorageError::UnknownScheme {
                url: without_secrets(url).into(),
                scheme: scheme.into(),
                linked: self.names().into_iter().collect::<Vec<_>>().join(", "),
                hint: hint(scheme),
            }),
        }
    }

    /// All schemes.
    fn names(&self) -> BTreeSet<&str> {
        self.linked
            .keys()
            .copied()
            .chain(self.given.keys().map(String::as_str))
            .collect()
    }
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores")
            .field("schemes", &self.names())
            .field("chosen", &self.chosen.len())
            .field("only", &self.only)
            .field("around", &self.around.len())
            .finish()
    }
}

/// What would add a scheme, as things stand.
fn hint(scheme: &str) -> String {
    const OWN: &str = "link a crate that registers it (`use that_crate as _;`; docs/stores.md says how to write one) or call \
                       `Stores::with`";
    match scheme {
        "memory" => {
            format!("The feature `testkit` of reshard-storage adds it, for tests; otherwise {OWN}")
        }
        "s3" | "s3a" | "gs" | "az" | "abfs" | "abfss" | "http" | "https" => {
            let feature = match scheme {
                "s3" | "s3a" => "aws",
                "gs" => "gcp",
                "http" | "https" => "http",
                _ => "azure",
            };
            format!(
                "The feature `{feature}` of reshard, reshard-cli and reshard-object-store adds it; otherwise use a directory, such as \
                 a mount of it, or {OWN}"
            )
        }
        "gcs" | "azure" | "hdfs" => {
            let instead = match scheme {
                "gcs" => "write `gs://`, ",
                "azure" => "write `az://`, ",
                _ => "",
            };
            format!(
                "No crate or feature of reshard serves it: {instead}use a directory, such as a mount of it, or {OWN}"
            )
        }
        _ => format!(
            "No crate or feature of reshard serves it; is the scheme misspelt? Use a directory, or {OWN}"
        ),
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
    use crate::LocalStore;

    #[test]
    fn an_opener_with_a_predicate_goes_before_schemes_and_older_openers() {
        let at =
            |dir: &'static str| move |_: &str| Ok(Arc::new(LocalStore::at(dir)?) as Arc<dyn Store>);
        let stores = Stores::linked()
            .unwrap()
            .with("runs", at("/scheme"))
            .when(|id| id.ends_with("-1"), at("/older"))
            .when(|id| id.starts_with("runs://a"), at("/newer"));
        for (id, dir) in [
            ("runs://b/step-2", "/scheme"),
            ("runs://b/step-1", "/older"),
            ("step-1", "/older"),
            ("runs://a/step-1", "/newer"),
        ] {
            assert_eq!(
                stores.open(id).unwrap().url(),
                format!("file://{dir}"),
                "{id}"
            );
        }
        assert!(stores.open("other://x").is_err());
    }

    #[test]
    fn an_unknown_scheme_lists_what_is_linked_and_says_what_would_add_it() {
        let said = |url: &str| Stores::linked().unwrap().open(url).unwrap_err().to_string();
        let linked: Vec<_> = Stores::linked()
            .unwrap()
            .schemes()
            .map(|s| s.scheme)
            .collect();
        assert_eq!(
            said("s3://bucket/ckpt"),
            format!(
                "no store is linked for `s3` (of s3://bucket/ckpt); linked: {}. The feature `aws` of reshard, reshard-cli and \
                 reshard-object-store adds it; otherwise use a directory, such as a mount of it, or link a crate that registers it (`use that_crate as _;`; \
                 docs/stores.md says how to write one) or call `Stores::with`",
                linked.join(", ")
            )
        );
        assert!(said("flie:///x").contains("serves it; is the scheme misspelt?"));
        assert!(hint("memory").contains("`testkit` of reshard-storage"));
    }

    #[test]
    fn two_claims_of_one_scheme_name_both_crates() {
        let mut s = Stores::linked().unwrap();
        let mine = StoreScheme::new("file", "my-crate", "1.0.0", |u| {
            Ok(Arc::new(LocalStore::open(u)?))
        });
        let e = s.register(mine).unwrap_err().to_string();
        assert!(
            e.contains("reshard-storage") && e.contains("my-crate"),
            "{e}"
        );
    }

    #[test]
    fn what_is_handed_in_comes_before_what_is_linked() {
        let opener = |at: &'static str| {
            move |_: &str| -> Result<Arc<dyn Store>> { Ok(Arc::new(LocalStore::at(at)?)) }
        };
        let stores = Stores::linked()
            .unwrap()
            .with("file", opener("/mine"))
            .with("own", opener("/own"));
        let url = |stores: &Stores, of: &str| stores.open(of).map(|s| s.url());
        assert_eq!(url(&stores, "/a").unwrap(), "file:///mine");
        assert_eq!(url(&stores, "own://a").unwrap(), "file:///own");
        let e = url(&stores, "none://a").unwrap_err().to_string();
        assert!(e.contains("file,") && e.contains("own"), "{e}");
        // Another one of the same scheme.
        assert_eq!(
            url(&stores.clone().with("own", opener("/b")), "own://a").unwrap(),
            "file:///b"
        );
        let only = Stores::only(Arc::new(LocalStore::at("/one").unwrap()));
        assert_eq!(url(&only, "none://a").unwrap(), "file:///one");
    }

    #[test]
    fn every_store_that_is_opened_is_wrapped_the_last_wrapper_outside() {
        use crate::{Name, PartStore};
        let named = |name: &'static str| {
            move |store: Arc<dyn Store>| -> Arc<dyn Store> {
                let url = format!("{name}({})", store.url());
                Arc::new(PartStore::file(url, store, Name::new("a").unwrap()))
            }
        };
        let stores = Stores::linked().unwrap();
        let stores = stores.around(named("in")).around(named("out"));
        let url = stores.open("/a").unwrap().url();
        assert_eq!(url, "out(in(file:///a))");
    }

    #[test]
    fn plain_paths_and_file_urls_are_local() {
        let s = Stores::linked().unwrap();
        assert_eq!(s.open("/tmp/x").unwrap().url(), "file:///tmp/x");
        assert_eq!(
            s.open("file:///tmp/x y").unwrap().url(),
            "file:///tmp/x%20y"
        );
        assert_eq!(
            s.open("file:///tmp/x%20y").unwrap().url(),
            "file:///tmp/x%20y"
        );
        assert_eq!(scheme_of("a/b://c"), None);
    }
}
