use crate::{
    asked::AskedFolders, client::Client, fault::Budget, pin::Pins, read::Object, runtime::Net,
    scheme::Service,
};
use object_store::{ObjectMeta, ObjectStore, path::Path};
use reshard_storage::{Entry, Hints, Name, PlaceKind, Result, StorageError};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// A folder in a bucket as a place of a checkpoint: all objects whose names begin with a path.
///
/// [`ObjectStores`](crate::ObjectStores) opens it by a URL.
#[derive(Clone, Debug)]
pub struct ObjectStorePlace {
    pub(crate) client: Client,
    pub(crate) url: String,
    /// The path of the folder in the bucket; empty for the bucket itself.
    pub(crate) folder: String,
    pub(crate) pins: Option<Pins>,
    /// What of the folder is the place.
    pub(crate) part: PlaceKind,
    pub(crate) asked: AskedFolders,
}

/// What fits a service in the network: a request takes long, and many can run at once.
pub(crate) fn hints() -> Hints {
    Hints::default()
        .with_part_size(8 << 20)
        .with_concurrency(32)
        .with_coalesce_gap(1 << 20)
}

impl ObjectStorePlace {
    /// A place in the bucket of a client that you made. `url` names the place in messages; `folder` is its path in the bucket.
    ///
    /// # Errors
    /// The path can't be one of an object. The threads of this crate can't be started.
    pub fn new(store: Arc<dyn ObjectStore>, url: impl Into<String>, folder: &str) -> Result<Self> {
        let client = Client::new(
            store,
            Net::own()?,
            Service::Given,
            Budget::default(),
            hints(),
        );
        Self::with_client(client, url.into(), folder.trim_matches('/').into())
    }

    /// A place in the memory of this process that nobody else has.
    ///
    /// # Panics
    /// If the system starts no threads.
    pub fn in_memory() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let store = Arc::new(object_store::memory::InMemory::new());
        let url = format!("memory://anonymous-{number}");
        #[expect(clippy::expect_used, reason = "a process without threads can't go on")]
        Self::new(store, url, "").expect("threads for the network")
    }

    pub(crate) fn with_client(client: Client, url: String, folder: String) -> Result<Self> {
        path(&folder, &url)?;
        Ok(Self {
            client,
            url,
            folder,
            pins: None,
            part: PlaceKind::Folder,
            asked: AskedFolders::default(),
        })
    }

    /// The object of a file.
    pub(crate) fn path(&self, name: &Name) -> Result<Path> {
        let url = self.url_of(name);
        match self.folder.as_str() {
            "" => path(name.as_str(), &url),
            folder => path(&format!("{folder}/{name}"), &url),
        }
    }

    /// The path of a folder in the place, or of the place itself. `None` for the whole bucket.
    pub(crate) fn folder(&self, below: Option<&Name>) -> Result<Option<Path>> {
        match below {
            Some(below) => self.path(below).map(Some),
            None if self.folder.is_empty() => Ok(None),
            None => path(&self.folder, &self.url).map(Some),
        }
    }

    pub(crate) fn url_text(&self) -> &str {
        &self.url
    }

    pub(crate) fn url_of(&self, name: &Name) -> String {
        format!("{}/{name}", self.url)
    }

    /// The name of a file in this place. `None` if the object does not belong to it, or has a name that no file has.
    pub(crate) fn name_of(&self, path: &Path) -> Option<Name> {
        let inside = match self.folder.as_str() {
            "" => path.as_ref(),
            folder => path.as_ref().strip_prefix(folder)?.strip_prefix('/')?,
        };
        Name::new(inside).ok()
    }

    pub(crate) fn entry(&self, meta: &ObjectMeta) -> Option<Entry> {
        Some(Entry {
            name: self.name_of(&meta.location)?,
            bytes: meta.size,
        })
    }

    pub(crate) fn object(&self, name: &Name) -> Result<Object<'_>> {
        Ok(Object {
            client: &self.client,
            path: self.path(name)?,
            url: self.url_of(name),
            pins: self.pins.as_ref(),
        })
    }

    /// Web servers have no common way to list what they have.
    pub(crate) fn can(&self, what: &str) -> Result<()> {
        match self.client.service {
            Service::Http => Err(StorageError::unsupported(
                format!("{what} {}", self.url),
                "a web server can only be read, file by file; use the URL of the bucket behind it, or download the files",
            )),
            _ => Ok(()),
        }
    }
}

/// Keeps a path as it is. Names that object stores can't have are refused, not changed.
fn path(text: &str, url: &str) -> Result<Path> {
    Path::parse(text)
        .map_err(|e| StorageError::unsupported(format!("the name {url}"), e.to_string()))
}
