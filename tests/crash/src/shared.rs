//! A cache that processes share, and the bucket behind it.

use crate::scattered;
use anyhow::{Context, Result, ensure};
use futures::executor::block_on;
use reshard_object_store::{
    DiskCache, ObjectStorePlace,
    object_store::{ObjectStore, ObjectStoreExt, memory::InMemory, path::Path as ObjectPath},
    read_through,
};
use reshard_storage::{CachedStore, Name, Store};
use std::{ops::Range, path::Path, sync::Arc};

const FILES: u64 = 3;
const LEN: u64 = 3_000_000;

/// So many bytes may lie in the cache: less than half of what is read.
pub const MOST_CACHED: u64 = 4 << 20;

/// A bucket that is the same in all processes, with its cache.
#[derive(Debug)]
pub struct Shared {
    bucket: Arc<InMemory>,
    cache: DiskCache,
}

fn name(file: u64) -> Result<Name> {
    Ok(Name::new(format!("file-{file}"))?)
}

/// A byte tells where it is from.
fn byte(file: u64, at: u64) -> u8 {
    (at.wrapping_mul(2_654_435_761).wrapping_add(file) >> 7) as u8
}

impl Shared {
    /// Makes the bucket in the memory of this process.
    ///
    /// # Errors
    /// None that is expected.
    pub fn new(cache: &Path) -> Result<Self> {
        let bucket = Arc::new(InMemory::new());
        for file in 0..FILES {
            let bytes: Vec<u8> = (0..LEN).map(|at| byte(file, at)).collect();
            let path = ObjectPath::from(format!("a/{}", name(file)?));
            block_on(bucket.put(&path, bytes.into()))?;
        }
        let cache = read_through(cache, MOST_CACHED);
        Ok(Self { bucket, cache })
    }

    /// Reads one range per round. Half of them are the same whatever the seed.
    ///
    /// # Errors
    /// A byte is wrong.
    pub fn read(&self, seed: u64, rounds: Range<u64>) -> Result<()> {
        for round in rounds {
            let salt = match round % 2 {
                0 => round,
                _ => seed.wrapping_mul(1 << 32).wrapping_add(round),
            };
            let chosen = |n: u64, of: u64| {
                let share = scattered(salt.wrapping_mul(3).wrapping_add(n));
                ((share * of as f64) as u64).min(of - 1)
            };
            let (file, from) = (chosen(0, FILES), chosen(1, LEN));
            let range = from..from + 1 + chosen(2, LEN - from);
            let bucket = Arc::clone(&self.bucket) as Arc<dyn ObjectStore>;
            let place = ObjectStorePlace::new(bucket, "s3://bucket/a", "a")?;
            let store = CachedStore::new(Arc::new(place), self.cache.clone());
            let store = block_on(store.pinned())?.context("a bucket can be pinned")?;
            let read = block_on(store.read(&name(file)?, range.clone()))?;
            let want = range.clone().map(|at| byte(file, at));
            ensure!(
                read.iter().copied().eq(want),
                "{range:?} of {file} is wrong"
            );
        }
        Ok(())
    }
}
