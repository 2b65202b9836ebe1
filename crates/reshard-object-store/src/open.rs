//! Opening places by their URLs.

use crate::{
    client::{Bucket, Client},
    fault::Budget,
    place::{self, ObjectStorePlace},
    runtime::Net,
    scheme::{self, Parsed, Service},
};
use object_store::{ObjectStore, path::Path};
use reshard_storage::{Hints, OpenStore, Result, StorageError, Store, without_secrets};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::runtime::Handle;

/// Opens places in object stores by their URLs. Settings come from the environment variables of the services, and from options
/// here, which go before them. Places of one bucket share a client.
///
/// ```
/// use reshard_object_store::{ObjectStores, object_store::memory::InMemory};
/// use reshard_storage::Stores;
/// use std::sync::Arc;
///
/// let clouds = ObjectStores::new()
///     .with_option("aws_region", "eu-central-1")
///     .with_client("s3://mine", Arc::new(InMemory::new()));
/// let stores = Stores::linked()?.with("s3", clouds);
/// assert_eq!(stores.open("s3://mine/step-1/")?.url(), "s3://mine/step-1");
/// # Ok::<(), reshard_storage::StorageError>(())
/// ```
#[derive(Clone, Default)]
pub struct ObjectStores {
    options: Vec<(String, String)>,
    runtime: Option<Handle>,
    hints: Option<Hints>,
    budget: Budget,
    given: BTreeMap<String, Arc<dyn ObjectStore>>,
    clients: Arc<Mutex<BTreeMap<String, Client>>>,
}

impl ObjectStores {
    /// With settings from the environment alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets an option of the clients, such as `aws_region` or `timeout`. The documentation of [`object_store`] lists them: the
    /// keys of `AmazonS3ConfigKey`, `GoogleConfigKey`, `AzureConfigKey` and `ClientConfigKey`. Clients ignore the options of others.
    #[must_use]
    pub fn with_option(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.push((key.into(), value.into()));
        self.fresh()
    }

    /// Runs requests on your runtime, which must have the drivers for I/O and time, and threads of its own: nothing happens while
    /// all of its threads wait for a store.
    #[must_use]
    pub fn with_runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self.fresh()
    }

    /// Uses your client for a bucket, which is named as `s3://BUCKET`.
    #[must_use]
    pub fn with_client(mut self, bucket: impl Into<String>, client: Arc<dyn ObjectStore>) -> Self {
        let bucket: String = bucket.into();
        self.given
            .insert(bucket.trim_end_matches('/').into(), client);
        self.fresh()
    }

    /// Sets the size of parts, how many requests run at once, and which gaps are read along. Uploads hold at most
    /// `part_size * concurrency` bytes in memory, and a part more for each rank of this process that writes what others give. Parts of S3 must have at least 5 MiB.
    #[must_use]
    pub fn with_hints(mut self, hints: Hints) -> Self {
        self.hints = Some(hints);
        self.fresh()
    }

    /// Sets how often a request is tried again, and for how long. Pauses between tries grow, with jitter. The default is 10 times
    /// and 180 seconds.
    #[must_use]
    pub fn with_retries(mut self, retries: usize, time: Duration) -> Self {
        self.budget = Budget { retries, time };
        self.fresh()
    }

    /// Clients that were made before have other settings.
    fn fresh(mut self) -> Self {
        self.clients = Arc::default();
        self
    }

    /// Opens a place.
    ///
    /// # Errors
    /// The URL names no place, a setting is wrong or missing, or no feature of this crate serves the scheme.
    pub fn open_place(&self, url: &str) -> Result<ObjectStorePlace> {
        let parsed = scheme::parse(url)?;
        let shown = without_secrets(url);
        if shown != url {
            return Err(StorageError::unsupported(
                format!("opening a URL with a query, {shown}"),
                "the files of a checkpoint have paths of their own below it, and a query, such as the signature of a signed URL, \
                 is of one file; use the URL of the bucket with its keys, or download the files; a `?` in a name is written %3F",
            ));
        }
        let folder = match parsed.service {
            // The client encodes it again.
            Service::Http => {
                let decoded = Path::from_url_path(parsed.path);
                let wrong = |e| StorageError::invalid(format!("{shown:?} names no place: {e}"));
                decoded.map_err(wrong)?.to_string()
            }
            _ => parsed.path.to_owned(),
        };
        let client = self.client(&parsed)?;
        ObjectStorePlace::with_client(client, url.trim_end_matches('/').into(), folder)
    }

    fn client(&self, parsed: &Parsed<'_>) -> Result<Client> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(parsed.root) {
            return Ok(client.clone());
        }
        let (service, bucket) = match self.given.get(parsed.root) {
            Some(given) => (Service::Given, Arc::clone(given).into()),
            None => (parsed.service, self.make(parsed)?),
        };
        let net = match &self.runtime {
            Some(handle) => Net::on(handle.clone()),
            None => Net::own()?,
        };
        let hints = self.hints.unwrap_or_else(place::hints);
        let client = Client::new(bucket, net, service, self.budget.clone(), hints);
        clients.insert(parsed.root.into(), client.clone());
        Ok(client)
    }

    /// Makes the client of a bucket.
    fn make(&self, parsed: &Parsed<'_>) -> Result<Bucket> {
        match parsed.service {
            #[cfg(feature = "aws")]
            Service::S3 => crate::clouds::s3(&self.options, &self.budget, parsed.root),
            #[cfg(feature = "gcp")]
            Service::Google => crate::clouds::google(&self.options, &self.budget, parsed.root),
            #[cfg(feature = "azure")]
            Service::Azure => crate::clouds::azure(&self.options, &self.budget, parsed.root),
            #[cfg(feature = "http")]
            Service::Http => crate::clouds::http(&self.options, &self.budget, parsed.root),
            #[cfg(feature = "memory")]
            Service::Memory => {
                let memory = object_store::memory::InMemory::new();
                Ok((Arc::new(memory) as Arc<dyn ObjectStore>).into())
            }
            service => Err(StorageError::unsupported(
                format!("opening {}", parsed.root),
                format!(
                    "reshard-object-store was built without its feature `{}`",
                    service.feature()
                ),
            )),
        }
    }
}

impl OpenStore for ObjectStores {
    fn open(&self, url: &str) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(self.open_place(url)?))
    }
}

impl fmt::Debug for ObjectStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be secrets.
        let keys: Vec<&str> = self.options.iter().map(|(key, _)| key.as_str()).collect();
        f.debug_struct("ObjectStores")
            .field("options", &keys)
            .field("runtime", &self.runtime.is_some())
            .field("hints", &self.hints)
            .field("budget", &self.budget)
            .field("given", &self.given.keys())
            .finish()
    }
}
