//! The handle, and what is known once a checkpoint is open.

use crate::{Sidecar, opened::Opened};
use reshard_comm::Comm;
use reshard_model::{Dialect, FlatStateDict};
use reshard_plan::{DefaultLoadPlanner, Metadata};
use reshard_storage::Store;
use reshard_strategy::{BackendVersion, LoadCx, Producer, StrategyError};
use std::{collections::BTreeMap, sync::Arc};

/// What is being done, in errors.
pub(super) const ACT: &str = "reading";

/// An opened checkpoint: random access, nothing loaded. `Clone` copies a handle.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub(super) url: Arc<str>,
    pub(super) opened: Arc<Opened>,
    pub(super) verify: bool,
}

impl Checkpoint {
    /// Where it lies.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The place that it is read from, as it was when it was opened.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.opened.store
    }

    /// Name of the format.
    pub fn backend(&self) -> &BackendVersion {
        &self.opened.name
    }

    /// Whose conventions it follows.
    pub fn dialect(&self) -> Dialect {
        self.opened.reader.dialect()
    }

    /// What is stored.
    pub fn metadata(&self) -> &Arc<Metadata> {
        self.opened.reader.metadata()
    }

    /// Who wrote it, as far as its bytes tell, and who can load it.
    pub fn producer(&self) -> Producer {
        self.opened.reader.producer()
    }

    /// What reshard noted beside it, and why that is ignored if it is.
    pub async fn sidecar(&self) -> (Option<Sidecar>, Option<String>) {
        self.opened.sidecar().await
    }

    /// Says what may have been meant by a key that is not there.
    pub(super) fn unknown(&self, kind: &str, key: &str, count: usize) -> StrategyError {
        if let Some(what) = self.opened.reader.why_not(key) {
            return self.unsupported(what);
        }
        let hint = match &*self.metadata().near(key) {
            [] => {
                let common = match self.opened.common {
                    Some(_) => "; what was not sharded is in `Checkpoint::common`",
                    None => "",
                };
                format!("`Checkpoint::{kind}s` lists the {count} that are{common}")
            }
            near => format!("did you mean {}?", near.join(" or ")),
        };
        not_stored(format!("no {kind} {key:?} is stored; {hint}"))
    }

    /// Whether all of it is, which nobody shall take for all that lacks something.
    pub(super) fn is_understood(&self) -> Result<(), StrategyError> {
        match self.producer().unknown.first_key_value() {
            Some((key, what)) => Err(self.unsupported(format!("reading {key} ({what})"))),
            None => Ok(()),
        }
    }

    pub(super) fn unsupported(&self, what: String) -> StrategyError {
        StrategyError::Unsupported { strategy: self.opened.name.to_string(), what }
    }

    pub(super) async fn fill(&self, template: FlatStateDict) -> Result<FlatStateDict, StrategyError> {
        let groups = BTreeMap::new();
        let planner = Arc::new(DefaultLoadPlanner::DEFAULT);
        let mut cx = LoadCx::new(Comm::single(), &groups, Arc::clone(&self.opened.store), planner);
        cx.verify = self.verify;
        let loaded = self.opened.sharded.load(template, Arc::clone(&self.opened.reader), &cx).await;
        loaded.map(|l| l.state).map_err(|f| f.error)
    }
}

pub(super) fn not_stored(what: String) -> StrategyError {
    StrategyError::NotStored { what }
}
