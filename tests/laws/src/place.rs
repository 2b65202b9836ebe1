//! Stores that a test keeps a hand on, under URLs `laws://N`.

use bytes::Bytes;
use futures::executor::block_on;
use reshard::{
    Stores,
    storage::{Name, StorageError, Store, StoreExt, StoreScheme},
};
use reshard_storage::testkit::MemoryStore;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

static PLACES: Mutex<BTreeMap<String, Arc<dyn Store>>> = Mutex::new(BTreeMap::new());

/// A store under a URL, until it is dropped.
#[derive(Clone, Debug)]
pub struct Place {
    url: Arc<str>,
    store: Arc<dyn Store>,
    _leaves: Arc<Leaves>,
}

#[derive(Debug)]
struct Leaves(Arc<str>);

impl Drop for Leaves {
    fn drop(&mut self) {
        PLACES.lock().unwrap().remove(&*self.0);
    }
}

impl Place {
    /// Gives a store a URL.
    pub fn of(store: impl Store + 'static) -> Self {
        static COUNT: Mutex<u64> = Mutex::new(0);
        let n = {
            let mut count = COUNT.lock().unwrap();
            *count += 1;
            *count
        };
        let (url, store): (Arc<str>, Arc<dyn Store>) =
            (format!("laws://{n}").into(), Arc::new(store));
        PLACES
            .lock()
            .unwrap()
            .insert(url.to_string(), Arc::clone(&store));
        Self {
            _leaves: Arc::new(Leaves(Arc::clone(&url))),
            url,
            store,
        }
    }

    /// An empty one in memory.
    pub fn new() -> Self {
        Self::of(MemoryStore::new())
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// All that lies there.
    pub fn files(&self) -> BTreeMap<Name, Bytes> {
        files(&self.store)
    }

    /// What attempts have left.
    pub fn leftovers(&self) -> usize {
        block_on(self.store.leftovers()).unwrap().len()
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

/// All files of a store.
pub fn files(store: &Arc<dyn Store>) -> BTreeMap<Name, Bytes> {
    block_on(async {
        let mut out = BTreeMap::new();
        for entry in store.files().await.unwrap() {
            let bytes = store.read(&entry.name, 0..entry.bytes).await.unwrap();
            out.insert(entry.name, bytes);
        }
        out
    })
}

/// What is linked, and [`Place`]s.
pub fn stores() -> Stores {
    let mut stores = Stores::linked().unwrap();
    let open = |url: &str| match PLACES.lock().unwrap().get(url) {
        Some(store) => Ok(Arc::clone(store)),
        None => Err(StorageError::NotFound { path: url.into() }),
    };
    stores
        .register(StoreScheme::new(
            "laws",
            "reshard-laws",
            env!("CARGO_PKG_VERSION"),
            open,
        ))
        .unwrap();
    stores
}
