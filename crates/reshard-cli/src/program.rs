//! What all commands have: strategies and stores, and how a checkpoint is opened with them.

use crate::{
    args::Reading,
    error::{CliError, Result},
    io::Io,
    json,
    units::{Cache, parse_cache},
};
use reshard::{
    ErrorKind, OpenOptions, Registry, Stores,
    blocking::Checkpoint,
    policy::ByteSize,
    storage::{Bandwidth, ThrottledStore, read_through},
    strategy::StrategyError,
};
use std::sync::Arc;

/// The program: the commands, over strategies and stores.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) registry: Registry,
    pub(crate) stores: Stores,
}

impl Program {
    /// With these strategies and stores.
    pub fn new(registry: Registry, stores: Stores) -> Self {
        Self { registry, stores }
    }

    /// With the strategies and stores that are linked.
    ///
    /// # Errors
    /// Two of them have one name.
    pub fn linked() -> std::result::Result<Self, StrategyError> {
        Ok(Self::new(Registry::linked()?, Stores::linked()?))
    }

    /// The same program, whose stores are as the command line asks.
    pub(crate) fn reading(&self, reading: &Reading, caches: bool) -> Result<Self> {
        let mut stores = self.stores.clone();
        if let Some(ByteSize(rate)) = reading.bandwidth {
            let reads = Bandwidth::per_second(rate);
            let writes = reads.another();
            stores = stores.around(move |store| {
                Arc::new(ThrottledStore::new(store, reads.clone(), writes.clone()))
            });
        }
        // What comes from the disk is not limited.
        let cache = reading.cache.clone();
        if let Some(Cache { dir, .. }) = cache.as_ref().filter(|_| caches) {
            std::fs::create_dir_all(dir).map_err(|e| {
                let what = format!("nothing can be kept in {}: {e}", dir.display());
                CliError::told(what, "give another --cache, or leave it out")
            })?;
        }
        let cache = cache.map_or_else(cache_of_all, |cache| Ok(Some(cache)))?;
        if let Some(Cache { dir, bytes }) = cache.filter(|_| caches) {
            let cache = read_through(dir, bytes);
            stores = stores.around(move |store| cache.around(store));
        }
        Ok(Self {
            registry: self.registry.clone(),
            stores,
        })
    }

    /// Opens a checkpoint, and notes why another program may read other tensors from it.
    pub(crate) fn open(
        &self,
        url: &str,
        options: OpenOptions,
        io: &mut Io<'_>,
    ) -> Result<Checkpoint> {
        let checkpoint = self.open_quietly(url, options)?;
        for warning in json::warnings(&checkpoint) {
            io.note(warning);
        }
        Ok(checkpoint)
    }

    /// Opens a checkpoint of which little is told.
    pub(crate) fn open_quietly(&self, url: &str, options: OpenOptions) -> Result<Checkpoint> {
        let options = options
            .registry(self.registry.clone())
            .stores(self.stores.clone());
        Checkpoint::open_with(options, url).map_err(|e| match e.kind() {
            ErrorKind::Corrupt => {
                let hint =
                    "restore that file from a copy, or save again; nothing can be read without it";
                CliError::damaged(CliError::from(e).text(), hint)
            }
            _ => e.into(),
        })
    }
}

/// The cache that the environment names, as a command line does.
const CACHE: &str = "RESHARD_CACHE";

fn cache_of_all() -> Result<Option<Cache>> {
    match std::env::var(CACHE) {
        Ok(text) if !text.is_empty() => {
            let hint = "write it as DIR or DIR:SIZE, or give --cache";
            let cache = parse_cache(&text);
            cache
                .map(Some)
                .map_err(|e| CliError::told(format!("{CACHE}: {e}"), hint))
        }
        _ => Ok(None),
    }
}
