//! A server of buckets behind a proxy whose answers come late, and what was saved there.

use crate::{
    bucket::{self, SERVER},
    proxy::{Passed, Proxy},
};
use anyhow::Result;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// How much later each answer comes.
const DELAY: Duration = Duration::from_millis(20);

/// A server behind its proxy.
pub(crate) struct Served {
    server: String,
    proxy: Proxy,
    /// What was saved.
    there: Mutex<BTreeSet<PathBuf>>,
}

impl Served {
    pub(crate) fn new(server: &str) -> Result<Self> {
        Ok(Self {
            server: server.into(),
            proxy: Proxy::start(server, DELAY)?,
            there: Mutex::default(),
        })
    }

    /// What programs that are measured find in their environment.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let mut out = bucket::settings(self.proxy.url()).to_vec();
        out.push((SERVER, self.server.clone()));
        out
    }

    pub(crate) fn passed(&self) -> Passed {
        self.proxy.passed()
    }

    pub(crate) fn has(&self, place: &Path) -> bool {
        let there = self.there.lock().unwrap_or_else(PoisonError::into_inner);
        there.contains(place)
    }

    pub(crate) fn saved(&self, place: &Path) {
        let mut there = self.there.lock().unwrap_or_else(PoisonError::into_inner);
        there.insert(place.into());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let there = self.there.lock().unwrap_or_else(PoisonError::into_inner);
        for place in there.iter() {
            // The server ends soon, and with it what it has.
            drop(bucket::remove_objects(
                &place.display().to_string(),
                &self.server,
            ));
        }
    }
}
